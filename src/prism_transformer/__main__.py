"""``python -m prism_transformer``."""

from prism_transformer.cli import main

if __name__ == "__main__":
    main()
