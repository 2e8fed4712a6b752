"""Studies: many runs that answer one question.

In comes a TOML file with arms, seeds and stages on one base recipe; out come run folders, one
collected table, and a comparison of every arm with the baseline. Read ``spec.py`` (the file) and
``api.py`` (what is done with it) first.

Modules in order; each imports only from those before it, also inside functions:

- reading results, without torch: ``metrics`` (names of numbers); ``statistics`` of one difference,
  ``multiplicity`` of several, ``looks`` taken early; ``collected`` (the table and its facts),
  ``peeking`` (looks that were not planned); ``factorial`` (effects of layers), ``benchmarks``
  (scores, item by item), ``contrasts`` (arms against arms) and ``contrast_tables``, ``best_rates``
  (arms at their best learning rate), ``lengths`` (longer sequences), ``points`` (the losses of one
  point); ``compare`` puts all of these together and ``sentences`` says them in words
- what is asked: ``spec`` (the file), ``arms``, ``plan`` (every run as a cell), ``selection`` (some
  arms and seeds of it)
- what is there: ``earlier`` (cells that were collected before), ``runs`` (the run folder of a
  cell), ``tuning`` (runs that find learning rates), ``collect`` (from run folders to the table),
  ``single_runs`` (the same for runs of no study)
- what is done: ``sharing`` (parts of a machine), ``storage`` and ``queue`` (which worker does
  which cell), ``folder`` (of a study), ``forecast``; ``launch`` (processes that train together),
  ``worker`` (does a cell), ``process`` and ``pool`` (workers side by side); ``api`` (the verbs),
  ``halving`` (a search that drops the worse arms early), ``slurm`` (submits cells as jobs)
"""
