"""One colour and one marker for each arm, the same in every figure and on the page.

Okabe and Ito's colours, darkened or lightened until each stands out from a white and from a dark
page. Seven are as many as eyes tell apart: arms beyond that share a grey, and their names are on
hover, in the legend's place and in the data below the figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tone:
    """A colour on light paper, on dark paper, and the marker that goes with it."""

    name: str
    light: str
    dark: str
    marker: str


BASELINE = Tone("baseline", "#4a4a4a", "#cfcfcf", "s")
TONES = (
    Tone("blue", "#0072b2", "#56b4e9", "o"),
    Tone("vermilion", "#d55e00", "#f5935c", "^"),
    Tone("green", "#00875f", "#3cc9a3", "D"),
    Tone("pink", "#b65b8d", "#e6a1c8", "v"),
    Tone("ochre", "#a17800", "#ecd24a", "P"),
    Tone("indigo", "#4b3fa8", "#a79cff", "X"),
    Tone("wine", "#8a2a52", "#e0719f", "*"),
)
REST = Tone("rest", "#9b9b9b", "#7d7d7d", ".")

INK, FAINT, SHADE, PAPER = "#222222", "#888889", "#eeeeee", "#ffffff"


def arm_tones(baselines: Iterable[str], arms: Iterable[str]) -> dict[str, Tone]:
    """A tone for every arm, by name: baselines alike, the others in the order they come."""
    tones = dict.fromkeys(baselines, BASELINE)
    others = [arm for arm in dict.fromkeys(arms) if arm not in tones]
    for place, arm in enumerate(others):
        tones[arm] = TONES[place] if place < len(TONES) else REST
    return tones
