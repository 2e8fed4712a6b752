"""Speed on this machine, measured side by side: interleaved rounds, medians, half the range.

In come a model's config, schedules or the embedded text; out comes a ``Table``. ``workloads.py``
has what is timed, ``measure.py`` times it, ``doctor.py`` asks whether the machine is right for
training.
"""
