"""Figures, drawn with matplotlib and written as SVG, PDF or PNG."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

from prism_transformer.errors import InputError
from prism_transformer.schedule import HeadSchedule

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError:
    raise InputError("figures need matplotlib: pip install 'prism-transformer[report]'") from None

FORMATS = (".svg", ".pdf", ".png")

# Wide heads are dark, narrow ones light, so that order reads without a legend.
PALETTE = "viridis"

MOST_HEADS_DRAWN = 32  # beyond that the lines between heads would hide the bars

# A third less time to write than at zlib's usual 6, for files that are a fifth larger.
FAST_PNG = {"compress_level": 3}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "prism",  # the same figure gives the same file
}


def check_format(file: Path) -> None:
    """Refuse a file name whose ending is no figure format."""
    if file.suffix.lower() not in FORMATS:
        raise InputError(f"{file}: a figure ends in {', '.join(FORMATS)}, not {file.suffix!r}")


def save(figure: Figure, file: Path) -> None:
    """Write a figure in the format of the file's ending, without a date in it."""
    check_format(file)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(STYLE):
            options: dict[str, Any] = (
                {"pil_kwargs": FAST_PNG} if file.suffix.lower() == ".png" else {}
            )
            figure.savefig(file, dpi=200, metadata=undated[file.suffix.lower()], **options)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from None


def head_schedules(left: HeadSchedule, right: HeadSchedule, d_model: int) -> Figure:
    """The paper's Figure 1: two schedules side by side, one bar a layer, one block a head."""
    with mpl.rc_context(STYLE):
        depth = max(len(left), len(right))
        figure = Figure(figsize=(min(max(7.0, 0.32 * depth), 14.0), 3.2), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        tallest = max(*left.heads, *right.heads)
        for ax, schedule in zip(axes, (left, right), strict=True):
            _draw_schedule(ax, schedule, d_model, show_heads=tallest <= MOST_HEADS_DRAWN)
        axes[0].set_ylabel("attention heads")
        figure.supxlabel(
            f"layer; above each phase the width of one head, d_model {d_model}", fontsize=9
        )
        return figure


def _draw_schedule(ax: Axes, schedule: HeadSchedule, d_model: int, show_heads: bool) -> None:
    for layer, width in enumerate(schedule.head_dims(d_model)):
        n_heads = schedule.heads[layer]
        ax.bar(layer, n_heads, width=0.86, color=width_colour(width))
        if show_heads:
            ax.hlines(range(1, n_heads), layer - 0.43, layer + 0.43, color="white", linewidth=0.7)
    for phase in schedule.phases:
        middle = phase.first_layer + (phase.n_layers - 1) / 2
        ax.annotate(
            f"{d_model // phase.n_heads}",
            (middle, phase.n_heads),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=9 if phase.n_layers > 1 else 6,
        )
    kind = "uniform" if len(schedule.phases) == 1 else f"{len(schedule.phases)} phases"
    ax.set_title(f"{kind}: {_shortened(str(schedule))}", fontsize=9)
    ax.set_xticks(range(0, len(schedule), max(1, len(schedule) // 12)))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half heads
    ax.margins(x=0.02, y=0.12)


def speeds(rows: list[dict[str, Any]], label: str, title: str) -> Figure:
    """How many times as fast as the first way each one is, with the range over rounds."""
    names = [" ".join(str(row[key]) for key in ("what", label) if key in row) for row in rows]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 0.9 + 0.32 * len(rows)), layout="constrained")
        ax = figure.subplots()
        places = range(len(rows))[::-1]
        ratios = [row["ratio"] for row in rows]
        ax.barh(places, ratios, xerr=[row["+-"] for row in rows], color="#4477aa", ecolor="#333333")
        ax.axvline(1.0, color="#888888", linewidth=0.8)
        ax.set_yticks(places, [_shortened(name, 44) for name in names])
        ax.set_xlabel("times as fast as the first; black: half the range over rounds")
        ax.set_title(title, fontsize=9)
        return figure


def width_colour(width: int) -> tuple[float, float, float, float]:
    """One colour per head width, the same in every figure: 512 and wider dark, 16 light."""
    return mpl.colormaps[PALETTE](min(max((9.5 - log2(width)) / 6, 0.02), 0.95))


def _shortened(text: str, most: int = 34) -> str:
    return text if len(text) <= most else text[: most - 4] + " ..."
