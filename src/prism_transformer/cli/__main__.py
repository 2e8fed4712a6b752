"""``python -m prism_transformer.cli``."""

from prism_transformer.cli import main

main()
