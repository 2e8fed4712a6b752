"""The report: collected studies in, a page, tables and figures out. Nothing here imports torch.

``write.report`` is the verb; read ``contents.py`` first, which lists every table and figure. A cell
is computed in the module of its topic from a ``View``, one study at one point of its sweep.
"""
