"""Figures from tables or plain numbers, with matplotlib; nothing here imports torch.

In come ``core.table.Table``s, schedules or arrays, out go matplotlib figures; a ``Chart`` is one
whose points answer to hovering on a page. Read ``chart.py`` first. In order, each module importing
only from those before it: style, chart, schedules, profiles, comparisons.
"""
