from __future__ import annotations

import hashlib

import numpy as np
import pytest

from prism_transformer.core.loss import IGNORED
from prism_transformer.data.masking import Masking

MASK = 1000


def windows(count: int, length: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(MASK, size=(count, length))


def test_every_window_has_as_many_targets_and_keeps_the_rest() -> None:
    rows = windows(50)
    seen, wanted = Masking(6, MASK, MASK).masked(rows, range(50), 3)
    asked = wanted != IGNORED
    assert (asked.sum(1) == 6).all()
    assert (wanted[asked] == rows[asked]).all()
    assert (seen[~asked] == rows[~asked]).all()
    assert len({tuple(row) for row in asked.tolist()}) == 50  # each window has places of its own


def test_a_window_is_masked_alike_wherever_it_is_read() -> None:
    """Whatever the batch, the rank or the step from which a run goes on."""
    rows, rule = windows(12), Masking(6, MASK, MASK)
    together = rule.masked(rows, range(100, 112), 7)
    for row in range(12):
        alone = rule.masked(rows[row : row + 1], [100 + row], 7)
        assert all((one[row] == two[0]).all() for one, two in zip(together, alone, strict=True))


def test_places_do_not_depend_on_what_is_there() -> None:
    rule = Masking(6, MASK, MASK)
    _, one = rule.masked(windows(4), range(4), 7)
    _, two = rule.masked(np.zeros((4, 40), np.int64), range(4), 7)
    assert ((one == IGNORED) == (two == IGNORED)).all()


@pytest.mark.parametrize(("place", "seed"), [(1, 0), (0, 1)])
def test_another_place_or_seed_is_another_mask(place: int, seed: int) -> None:
    rule, row = Masking(6, MASK, MASK), windows(1)
    _, one = rule.masked(row, [0], 0)
    _, two = rule.masked(row, [place], seed)
    assert (one != two).any()


def test_shares_and_places_are_even() -> None:
    """20,000 draws: four standard errors at most."""
    rows = np.full((5000, 40), MASK + 1)  # none that is drawn
    seen, wanted = Masking(4, MASK, MASK, 0.7, 0.2).masked(rows, range(5000), 0)
    shown = seen[wanted != IGNORED]
    for share, found in ((0.7, shown == MASK), (0.2, shown < MASK), (0.1, shown == MASK + 1)):
        assert found.mean() == pytest.approx(share, abs=4 * (share * (1 - share) / 20_000) ** 0.5)
    by_place = (wanted != IGNORED).mean(0)
    assert np.abs(by_place - 0.1).max() < 4 * (0.09 / 5000) ** 0.5
    random = shown[shown < MASK]
    assert random.min() < 10 < 990 < random.max()


@pytest.mark.parametrize(("replaced", "random"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_all_of_one_kind(replaced: float, random: float) -> None:
    rows = windows(20)
    seen, wanted = Masking(5, MASK, MASK, replaced, random).masked(rows, range(20), 0)
    shown = seen[wanted != IGNORED]
    assert (shown == MASK).all() == bool(replaced)
    assert (seen == rows).all() == (not replaced and not random)


def test_masks_stay_what_they_were() -> None:
    """Runs that are compared may be years and versions of numpy apart."""
    seen, _ = Masking(6, MASK, MASK).masked(windows(8) * 0, range(8), 2**63 - 1)
    digest = hashlib.sha256(seen.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "e4d0cd7654d1859a"


def test_a_mask_in_the_midst_of_the_tokens_stands_in_for_none() -> None:
    rows = windows(40)
    seen, wanted = Masking(6, 3, 9, replaced=0.0, random=1.0).masked(rows, range(40), 0)
    shown = set(seen[wanted >= 0].tolist())
    assert shown == set(range(10)) - {3}
