"""``prism runs``: what is here, how far it is, what it reached."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.cli.options import Json
from prism_transformer.cli.terminal import make_console, print_json, print_table, say


def runs(*folders: Path, as_json: Json = False) -> None:
    """List runs: their schedule, how far they are, and their newest validation loss.

    Parameters
    ----------
    folders
        Where to look, to any depth; runs/ and studies/ when left out.
    """
    from prism_transformer.training.listing import find_runs, list_runs

    table = list_runs(find_runs(folders or None))
    if as_json:
        print_json(table.plain_rows())
    elif table.rows:
        print_table(make_console(), table)
    else:
        where = ", ".join(map(str, folders)) or "runs/ and studies/"
        say(make_console(), f"no run in {where}; begin one with: prism train")
