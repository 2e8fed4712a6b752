"""Schedules beyond the type itself: rules, hardware, presets, controls, proposals, the paper's own.

In comes a ``HeadSchedule`` and a model's width; out come findings, backends, other schedules. Read
``rules.py`` first. ``paper.toml`` holds the paper's printed numbers.
"""
