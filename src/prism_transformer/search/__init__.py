"""Search for schedules: what one set of weights predicts of many schedules, and how well.

``one_shot.py`` and ``blocks.py`` ask a trained run, ``solve.py`` finds the best sum of layers
exactly, ``judge.py`` holds predictions against runs that were trained alone, and ``learned.py``
proposes schedules from what was measured. ``study/halving.py`` is another kind of search:
successive halving over arms that are all trained.
"""
