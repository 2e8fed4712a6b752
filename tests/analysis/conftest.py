"""One profile for all tests of a process."""

from __future__ import annotations

import pytest

from prism_transformer.analysis.profile import Profile, attention_profile
from tests.analysis.models import model_of, some_tokens
from tests.browsing import axe, browser

__all__ = ["axe", "browser", "profile"]  # fixtures


@pytest.fixture(scope="session")
def profile() -> Profile:
    tokens = some_tokens(6)
    return attention_profile(model_of(), [tokens[:4], tokens[4:]], effective_rank=True)
