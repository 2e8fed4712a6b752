"""The one kind of error that is the user's to fix."""


class InputError(ValueError):
    """Something given to us is wrong: the message says what, where, its value, and the remedy.

    Commands print it as one plain paragraph and exit with code 2; anything else is our bug and
    traces back.
    """
