"""Figures from tables or plain numbers, with matplotlib; nothing here imports torch.

In come ``core.table.Table``s, schedules or arrays, out go matplotlib figures; a ``Chart`` is one
whose points answer to hovering on a page. Read ``chart.py`` first.
"""

from importlib.resources import files


def page_css() -> str:
    """Colours, letters and tables of every page, as CSS; here, since it needs no matplotlib."""
    return files("prism_transformer.figures").joinpath("look.css").read_text("utf-8")
