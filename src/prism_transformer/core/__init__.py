"""What every package stands on; nothing here knows of models.

``errors.py`` what a user can mend; ``disk.py`` files that are whole or not there; ``progress.py``
how long work tells how far it is; ``table.py`` numbers for people, in every format; ``threads.py``
how threads wait for each other; ``loss.py`` cross entropy in bounded memory.
"""
