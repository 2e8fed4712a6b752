"""``python -m prism_transformer``."""

from prism_transformer.cli import main

main()
