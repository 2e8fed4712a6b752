"""What a model knows: zero-shot tasks through lm_eval, and the loss on text.

In comes a model by name (a run, a Hugging Face folder, a hub name), out come an ``Evaluation`` with
a JSON and a parquet file for each task, or a ``TextLoss``. ``harness.py`` first; ``tasks.py`` has
the tasks, ``task_data.py`` their files, ``diagnostic.toml`` the words of the built-in one,
``text.py`` opens a model together with text, for the loss and for the analysis.
"""

LOSS_FILE = "loss.json"
