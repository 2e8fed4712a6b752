"""Studies: many runs, one question.

In comes a TOML file with arms, seeds and stages on one base recipe; out come run folders, one
collected table, and a comparison of every arm with the baseline. Read ``spec.py`` (the file) and
``api.py`` (what is done with it) first.

Modules in order; each imports only from those before it, also inside functions:

- reading results, without torch: ``metrics`` (names of numbers); ``statistics`` of one difference,
  ``multiplicity`` of several, ``looks`` taken early; ``collected`` (the table and its facts);
  ``factorial``, ``tuning``, ``benchmarks``; ``contrasts`` of arms, ``compare``, ``sentences``
- what is asked: ``spec`` (the file), ``plan`` (arms, and every run as a cell), ``selection`` (some
  of its arms and seeds)
- what is there: ``earlier`` (cells that were collected before), ``runs`` (the run folder of a
  cell), ``collect`` (from both to the table)
- what is done: ``sharing`` (who gets which part of the machine), ``queue`` (who does which cell),
  ``folder`` (of a study), ``forecast``; ``launch`` (processes that train together), ``worker``
  (does a cell), ``process`` and ``pool`` (workers side by side); ``api`` (the verbs), ``search``
  (drops the worse arms early), ``slurm`` (submits cells as jobs)
"""
