"""Where attention goes: exact statistics of every head, without a T x T matrix.

In comes a model, or its name with text to read; out comes a ``Profile``: every head's distance,
sink and entropy, as a table, a figure, a file. ``observe.py`` first: how it is exact. ``record.py``
runs a model, ours or another Hugging Face model, and gathers.
"""

PROFILE_FILE = "attention.json"
VIEW_FILE = "attention.html"
