"""The attention profile of a model: every head's statistics, as a table, a figure and a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from prism_transformer.analysis import PROFILE_FILE
from prism_transformer.analysis.both_ways import BOTH_WAYS
from prism_transformer.analysis.record import EFFECTIVE_RANK, Estimate, record
from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.sealed import read_sealed, sealed_json
from prism_transformer.core.table import Column, Table, words
from prism_transformer.eval.text import open_on_text
from prism_transformer.hf.load import Source
from prism_transformer.recipe import AttentionKind
from prism_transformer.schedule import HeadSchedule
from prism_transformer.training.distributed import WHOLE, Share, work_together

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Array = np.ndarray

BAR = 14  # characters of the longest in a table, which has to fit a terminal of 80
# Shown beside the statistic that was asked for, under short headings.
BESIDE: dict[AttentionKind, dict[str, str]] = {
    "causal": {"sink": "sink", "rest": "distance_without_sink", "entropy": "entropy"},
    "bidirectional": {
        "ahead": "ahead",
        "back by": "distance_back",
        "ahead by": "distance_ahead",
    },
}
# Of each sequence: a causal query of the first half is short of keys, an encoder's never is.
QUERIES: dict[AttentionKind, str] = {"causal": "last half", "bidirectional": "all"}


@dataclass(frozen=True, repr=False)
class Profile:
    """Statistics of every layer's heads; as many heads in each as it has."""

    seq_len: int
    n_sequences: int
    widths: tuple[int, ...]
    layers: tuple[dict[str, Estimate], ...]
    source: str = ""
    """the model, and the text that it read; empty where they had no name"""
    text: str = ""
    file: Path | None = None
    """where it is kept"""
    model: Mapping[str, str] = field(default_factory=dict)
    """of a run, what tells its model from others"""

    @property
    def statistics(self) -> tuple[str, ...]:
        return tuple(self.layers[0])

    @property
    def attention(self) -> AttentionKind:
        return "bidirectional" if set(BOTH_WAYS) <= set(self.statistics) else "causal"

    @property
    def queries(self) -> str:
        """Which part of each sequence the means are over, in words."""
        return QUERIES[self.attention]

    @property
    def schedule(self) -> tuple[int, ...]:
        """Heads of each layer."""
        return tuple(len(layer["distance"].heads) for layer in self.layers)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_progressive(self) -> int:
        """Layers, from the first on, that have fewer heads than the most."""
        most = max(self.schedule)
        return next(layer for layer, n_heads in enumerate(self.schedule) if n_heads == most)

    def means(self, statistic: str = "distance") -> Array:
        """One number for each layer: the mean over its heads."""
        return np.array([layer[statistic].layer for layer in self.layers])

    def table(self, statistic: str = "distance") -> Table:
        """A row for each layer, with a bar."""
        return layer_table([self], [], statistic)

    def plot(self, statistic: str = "distance") -> Figure:
        """Each head as a dot, each layer's mean as a line."""
        from prism_transformer.figures.profiles import plot_profile

        heads = [layer[statistic].heads for layer in self.layers]
        part = f"{self.queries} of {self.seq_len} tokens"
        return plot_profile(heads, self.means(statistic), statistic, part)

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        schedule = HeadSchedule(self.schedule)
        return f"Profile({schedule}; {self.n_sequences} sequences of {self.seq_len} tokens)"

    def _repr_html_(self) -> str:
        """What a notebook shows: the figure, or its numbers without matplotlib."""
        try:
            from prism_transformer.figures.chart import svg_text

            picture = svg_text(self.plot())
        except ImportError:  # figures are an extra
            return f"<pre>{escape(str(self))}</pre>"
        return picture[picture.index("<svg") :]

    def to_frame(self) -> pd.DataFrame:
        """A row for each head: layer, head, width and every statistic with its standard error."""
        import pandas as pd

        frames = []
        for index, (n_heads, layer) in enumerate(zip(self.schedule, self.layers, strict=True)):
            columns = {"layer": index, "head": range(n_heads), "width": self.widths[index]}
            for name, each in layer.items():
                columns |= {name: each.heads, f"{name}_error": each.head_errors}
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, as ``from_json`` reads it."""
        return {
            "seq_len": self.seq_len,
            "n_sequences": self.n_sequences,
            "layers": [
                {
                    "layer": index,
                    "heads": self.schedule[index],
                    "width": self.widths[index],
                    "statistics": {name: each.to_json() for name, each in layer.items()},
                }
                for index, layer in enumerate(self.layers)
            ],
        }

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Profile:
        layers = tuple(
            {name: Estimate.from_json(each) for name, each in layer["statistics"].items()}
            for layer in facts["layers"]
        )
        widths = tuple(layer["width"] for layer in facts["layers"])
        return cls(facts["seq_len"], facts["n_sequences"], widths, layers)

    def write(self, folder: Path) -> Profile:
        """Keep it in a folder, with what it was measured on; itself, knowing its file."""
        named = {"source": self.source, "text": self.text, "model": dict(self.model)}
        facts = {**named, "profile": self.to_json()}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / PROFILE_FILE, sealed_json(facts))
        return replace(self, file=folder / PROFILE_FILE)

    @classmethod
    def read(cls, file: Path) -> Profile:
        """A profile that ``prism analyze`` wrote."""
        facts = read_sealed(file)
        try:
            text = {key: facts.get(key, "") for key in ("source", "text")}
            model = facts.get("model", {})
            found = cls.from_json(facts["profile"])
            return replace(found, **text, model=model, file=file)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{file}: is no attention profile: {error}") from None


def attention_profile(
    source: nn.Module | Source,
    batches: Iterable[Tensor] | None = None,
    *,
    sequences: int = 16,
    batch: int = 1,
    length: int | None = None,
    text: str | None = None,
    checkpoint: str | None = None,
    effective_rank: bool = False,
    device: str = "auto",
    tell: Tell = silent,
) -> Profile:
    """Where the heads of a Prism model or of any Hugging Face causal LM attend.

    A model that is at hand needs ``batches`` of tokens (B, T), all of one length, none padded. A
    run, a Hugging Face folder or a hub name is opened with its text, and its profile is kept: in
    the run, or below ``analysis/``. ``text`` and ``length`` are as ``open_on_text`` takes them.
    Launched by torchrun, every process calls this for a name, measures a share, gets the whole.
    """
    if isinstance(source, nn.Module):
        if batches is None:
            raise InputError("a model needs batches of tokens to be measured on")
        return _profile(source, batches, effective_rank, WHOLE, None)
    if batches is not None:
        raise InputError(f"{source}: brings its text; batches are for models that are at hand")
    opened = open_on_text(
        source, checkpoint=checkpoint, text=text, length=length, windows=sequences, device=device
    )
    with work_together(next(opened.model.parameters()).device) as world:
        share, tell = Share(world, -(-sequences // batch)), tell if world.is_first else silent
        rows = opened.batches(sequences, batch, share)
        shown = counted(tell, f"measuring {opened.named}", rows, len(share.pieces), "batches")
        tokens = (each[:, :-1] for each in shown)
        profile = _profile(opened.model, tokens, effective_rank, share, opened.end_of_text)
        named = opened.named
        profile = replace(profile, source=str(named), text=opened.text, model=named.sums)
        if world.is_first:
            profile.write(opened.home)
        world.wait()  # nobody looks for a file that is still being written
    return replace(profile, file=opened.home / PROFILE_FILE)


def _profile(
    model: nn.Module,
    batches: Iterable[Tensor],
    effective_rank: bool,
    share: Share,
    end_of_text: int | None,
) -> Profile:
    found = record(model, batches, effective_rank, share, end_of_text)
    return Profile(found.seq_len, found.n_sequences, tuple(found.widths), found.layers())


def layer_table(first: Sequence[Profile], second: Sequence[Profile], statistic: str) -> Table:
    """A row for each layer: of one arm, or of two and their difference; a profile for each seed."""
    check_comparable([*first, *second])
    known = first[0].statistics
    if statistic not in known:
        kind = f"{first[0].attention} attention"
        raise InputError(f"{statistic!r} was not measured of {kind}, only {', '.join(known)}")
    return _difference(first, second, statistic) if second else _single(first, statistic)


def layer_figure(first: Sequence[Profile], second: Sequence[Profile], statistic: str) -> Figure:
    """The same as a picture; of one arm, its first profile."""
    from prism_transformer.figures.profiles import compare_profiles

    if not second:
        return first[0].plot(statistic)
    means_one, means_two = ([each.means(statistic) for each in arm] for arm in (first, second))
    # What tells the arms apart: their schedules, or else their names.
    one, two = (str(HeadSchedule(arm[0].schedule)) for arm in (first, second))
    names = (one, two) if one != two else (first[0].source, second[0].source)
    return compare_profiles(means_one, means_two, names, second[0].n_progressive, statistic)


def check_comparable(profiles: Sequence[Profile]) -> None:
    """Refuse to set side by side what differs in more than its heads."""
    for other in profiles[1:]:
        for what in ("attention", "seq_len", "n_layers"):
            one, two = getattr(profiles[0], what), getattr(other, what)
            if one != two:
                raise InputError(f"these profiles cannot be compared: {what} is {one} and {two}")


def _single(profiles: Sequence[Profile], statistic: str) -> Table:
    ranked = EFFECTIVE_RANK in profiles[0].statistics
    known = BESIDE[profiles[0].attention] | ({"rank": EFFECTIVE_RANK} if ranked else {})
    beside = {short: _over(profiles, name)[0] for short, name in known.items() if name != statistic}
    means, spread = _over(profiles, statistic)
    longest = np.abs(means).max() or 1.0
    rows = [
        {
            "layer": layer,
            "heads": profiles[0].schedule[layer],
            "width": profiles[0].widths[layer],
            statistic: float(means[layer]),
            "+-": float(spread[layer]),
            **{short: float(values[layer]) for short, values in beside.items()},
            "chart": "▇" * round(BAR * abs(means[layer]) / longest),
        }
        for layer in range(len(means))
    ]
    keys = ("layer", "heads", "width", statistic, "+-", *beside)
    return Table("attention", (*map(Column, keys), *words("chart")), tuple(rows))


def _difference(first: Sequence[Profile], second: Sequence[Profile], statistic: str) -> Table:
    (one, spread_one), (two, spread_two) = _over(first, statistic), _over(second, statistic)
    gap = two - one
    longest = np.abs(gap).max() or 1.0
    rows: list[dict[str, Any]] = [
        {
            "layer": layer,
            "heads": f"{first[0].schedule[layer]} / {second[0].schedule[layer]}",
            "first": float(one[layer]),
            "second": float(two[layer]),
            "difference": float(value),
            "+-": float(np.hypot(spread_one[layer], spread_two[layer])),
            "chart": _bar(value / longest),
        }
        for layer, value in enumerate(gap)
    ]
    columns = (Column("layer"), *words("heads"), *map(Column, ("first", "second", "difference")))
    return Table("attention", (*columns, Column("+-"), *words("chart")), tuple(rows))


def _bar(share: float) -> str:
    """To the left of the middle for what is negative."""
    bar, half = "▇" * round(BAR / 2 * abs(share)), BAR // 2
    return bar.rjust(half) + "|" if share < 0 else " " * half + "|" + bar


def _over(profiles: Sequence[Profile], statistic: str) -> tuple[Array, Array]:
    """The mean over seeds with its s.d.; of one model with its standard error over sequences."""
    each = np.stack([profile.means(statistic) for profile in profiles])
    if len(profiles) > 1:
        return each.mean(0), each.std(0, ddof=1)
    return each[0], np.array([layer[statistic].layer_error for layer in profiles[0].layers])
