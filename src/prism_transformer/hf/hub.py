"""The Hugging Face hub, when it may not be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.utils import get_session

SECONDS = 10


def hub_answers() -> bool:
    """Whether the hub is there, asked once: the libraries would try again for half a minute."""
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # of whichever HTTP library the hub's client uses
        return False
    return True


@contextmanager
def only_cached() -> Iterator[None]:
    """Take from the cache what is there, and fail at once for the rest."""
    from datasets import config

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
