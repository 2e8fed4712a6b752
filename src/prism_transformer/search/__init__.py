"""Schedules that are found: what one set of weights says of many schedules, and whether it is so.

``one_shot.py`` and ``blocks.py`` ask a trained run, ``solve.py`` puts layers together exactly,
``judge.py`` holds predictions against runs that were trained alone, and ``learned.py`` proposes
schedules by what came of it. ``study/halving.py`` is something else: successive halving over arms
that are all trained.
"""
