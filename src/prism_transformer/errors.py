"""Errors that people can do something about: printed plainly, without a traceback."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave or has is wrong; the message says what, where, and the remedy."""

    exit_code = 2


class RunError(InputError):
    """Nothing is wrong with the input, but a run cannot go on."""

    exit_code = 1
