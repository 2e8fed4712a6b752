"""What a model knows: zero-shot tasks through lm_eval, and the loss on text.

In comes a model by name (a run, a Hugging Face folder, a hub name), out come an ``Evaluation`` with
a JSON and a parquet file for each task, or a ``TextLoss``. ``harness.py`` first; ``tasks.py`` has
the tasks, ``task_data.py`` their files, ``diagnostic.toml`` the words of the built-in one,
``text.py`` opens a model together with text, for ``loss.py`` and for the analysis.
"""

from __future__ import annotations

SLICE = "validation slice"  # what the text of a run's own validation begins with


def loss_file(length: int | None = None, scaling: str | None = None) -> str:
    """Where a loss is kept: at the model's own length, or at another and with scaled positions."""
    given = ["loss", *([str(length)] if length else []), *([scaling] if scaling else [])]
    return f"{'-'.join(given).replace(':', '-')}.json"
