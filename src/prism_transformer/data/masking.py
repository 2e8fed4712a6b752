"""Which tokens of a window a masked language model is to find, and what stands in their place.

A pure function of the seed and of the window's place in the order of reading: all arms of a study
and all processes mask alike, a resumed run goes on with the masks it would have had, and another
epoch of the same text has others.

Shapes: B windows, T tokens of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_transformer.core.loss import IGNORED

Batch = NDArray[np.int64]

VALIDATION_SEED = 0  # of the one set of masks that every model is validated with


@dataclass(frozen=True)
class Masking:
    """How many tokens of each window are to be found, and what is shown instead of them."""

    n_masked: int
    mask_token: int
    n_tokens: int
    """all but the mask: from them those are drawn that stand in for others"""
    replaced: float = 0.8
    """share for which the mask token stands"""
    random: float = 0.1
    """share for which any token stands"""

    def masked(self, windows: Batch, places: Iterable[int], seed: int) -> tuple[Batch, Batch]:
        """What the model sees of windows (B, T), and what it is to find; -100 elsewhere.

        Exactly as many tokens in every window, so that each pass has as many targets as any other,
        and means over passes and processes are means over tokens.
        """
        seen, wanted = windows.copy(), np.full_like(windows, IGNORED)
        length = windows.shape[1]
        for row, place in enumerate(places):
            # Counter-based: any window's bits are there without those of the windows before it.
            bits = np.random.Philox(key=seed << 64 | place).random_raw(3 * length)
            order, kind, other = bits.reshape(3, length)
            chosen = np.argsort(order, kind="stable")[: self.n_masked]
            wanted[row, chosen] = windows[row, chosen]
            share = (kind[chosen] >> np.uint64(11)) * 2.0**-53  # even in [0, 1)
            tokens = (other[chosen] % np.uint64(self.n_tokens)).astype(np.int64)
            tokens += tokens >= self.mask_token  # the mask may have any number
            shown = np.where(share < self.replaced + self.random, tokens, windows[row, chosen])
            seen[row, chosen] = np.where(share < self.replaced, self.mask_token, shown)
        return seen, wanted
