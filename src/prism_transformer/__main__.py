"""``python -m prism_transformer``, and the ``prism`` command.

Nothing is imported before ``main`` runs: Ctrl-C while modules load ends the command plainly.
"""

import sys


def main() -> None:
    """Run the command."""
    try:
        from prism_transformer.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(128 + 2)


if __name__ == "__main__":
    main()
