"""How every figure looks, which colour an arm has, and how a figure becomes a file.

One colour and one marker for each arm, the same in every figure and on the page: Okabe and Ito's
colours, darkened or lightened until each stands out from a white and from a dark page. Seven are as
many as eyes tell apart: arms beyond that share a grey, and their names are on hover, in the
legend's place and in the data below the figure.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError:
    raise InputError("figures need matplotlib: pip install 'prism-transformer[report]'") from None

FORMATS = (".svg", ".pdf", ".png")

# A third less time to write than at zlib's usual 6, for files that are a fifth larger.
FAST_PNG = {"compress_level": 3}

INK, FAINT, SHADE, BACKGROUND = "#222222", "#888889", "#eeeeee", "#ffffff"

# Inches: two figures beside each other on a page, one across it, and the usual height.
HALF, WHOLE, HEIGHT = 5.0, 9.8, 3.1

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "prism",  # the same figure gives the same file
}
PAGE_STYLE: dict[Any, Any] = STYLE | {
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True)
class Tone:
    """A colour on light paper, on dark paper, and the marker that goes with it."""

    name: str
    light: str
    dark: str
    marker: str


Tones = Mapping[str, Tone]  # by arm

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


def arm_tones(baselines: Iterable[str], arms: Iterable[str]) -> dict[str, Tone]:
    """A tone for every arm, by name: baselines alike, the others in the order they come."""
    tones = dict.fromkeys(baselines, BASELINE)
    others = [arm for arm in dict.fromkeys(arms) if arm not in tones]
    for place, arm in enumerate(others):
        tones[arm] = TONES[place] if place < len(TONES) else REST
    return tones


def width_colour(width: int) -> tuple[float, float, float, float]:
    """One colour per head width, the same in every figure: 512 and wider dark, 16 light."""
    return mpl.colormaps["viridis"](min(max((9.5 - log2(width)) / 6, 0.02), 0.95))


def plain_text(words: str) -> str:
    """Words with nothing that matplotlib reads as mathematics."""
    return visible(" ".join(words.split())).replace("$", r"\$")


def plain_name(name: str, most: int = 28) -> str:
    """A name that leaves room for the figure."""
    plain = visible(" ".join(name.split()))
    cut = plain if len(plain) <= most else plain[: most - 4] + " ..."
    return plain_text(cut).lstrip("_")  # matplotlib leaves such labels out of its legends


def check_format(file: Path) -> None:
    """Refuse a file name whose ending is no figure format."""
    if file.suffix.lower() not in FORMATS:
        raise InputError(f"{file}: a figure ends in {', '.join(FORMATS)}, not {file.suffix!r}")


def save(figure: Figure, file: Path) -> None:
    """Write a figure in the format of the file's ending, without a date in it."""
    check_format(file)
    ending = file.suffix.lower()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    options: dict[str, Any] = {"pil_kwargs": FAST_PNG} if ending == ".png" else {}
    stream = io.BytesIO()  # in memory first: a full disk leaves no half of a figure
    with mpl.rc_context(STYLE):
        figure.savefig(stream, format=ending[1:], dpi=200, metadata=undated[ending], **options)
    content = stream.getvalue()
    if ending == ".svg":
        content = visible(content.decode(), keep=KEPT).encode()
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
