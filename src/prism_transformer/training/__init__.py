"""Training: a recipe in, a run folder out; text from what was trained.

``api.py`` has the verbs ``train`` and ``resume`` and is the one orchestration; ``loop.py`` is what
to read first, ``job.py`` what it works on, ``run.py`` the folder (without torch), ``checkpoint.py``
what survives a kill, ``device.py`` where and how to compute, ``generate.py`` the verb of that name.
"""
