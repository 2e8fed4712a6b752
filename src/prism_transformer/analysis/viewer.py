"""A page that shows the attention of every head of one or two models over a text.

A map of all heads, as many in each layer as it has; one click to a head's weights over the text.
The page needs nothing else: what it shows is in it, compressed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from gzip import compress
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from prism_transformer.analysis import VIEW_FILE
from prism_transformer.analysis.profile import Profile
from prism_transformer.analysis.weights import TextWeights, block_of, kept, text_weights
from prism_transformer.core.characters import visible
from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.eval.text import ModelOnText, TokenRows, open_on_text
from prism_transformer.figures import page_css
from prism_transformer.hf.load import Source
from prism_transformer.schedule import HeadSchedule

MOST_TOKENS = 1024  # of a text, where no length is given
MOST_BYTES = 3_000_000  # of weights before they are compressed
SHARE = "of the weight"
SHOWN = {  # statistics of the map: heading and unit
    "distance": ("distance", "tokens"),
    "entropy": ("entropy", "nats"),
    "sink": ("sink", SHARE),
    "ahead": ("ahead", SHARE),  # of encoders
}
ENDING = ".html"


@dataclass(frozen=True)
class SeenModel:
    """One model and its text."""

    source: str
    text: str
    tokens: tuple[str, ...]
    found: TextWeights
    home: Path | None = None
    """where what is measured of a run is kept"""


@dataclass(frozen=True, repr=False)
class AttentionView:
    """One model, or two side by side, ready to be written as a page."""

    models: tuple[SeenModel, ...]

    @property
    def profiles(self) -> list[Profile]:
        """Statistics of every head on this text."""
        return [one.found.profile for one in self.models]

    def write(self, file: Path | str) -> Path:
        """Write the page; that of a run is kept with it too, where its report finds it."""
        target = Path(file)
        check_view_file(target)
        page = self.to_html()
        home = self.models[0].home
        for place in (target, *([home / VIEW_FILE] if home else [])):
            with writing(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                write_whole(place, page)
        return target

    def to_html(self) -> str:
        """The page."""
        names = " beside ".join(visible(one.source) for one in self.models)
        script = _asset("viewer.js")
        return Template(_asset("viewer.html")).substitute(
            title=escape(f"Attention: {names}"),
            names=escape(names),
            text=escape(visible(self.models[0].text)),
            style=page_css() + _asset("viewer.css"),
            script=script,
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
            data=_script_json(self._facts()),
            queries=self.profiles[0].queries,
            tables="\n".join(_table(one, self._shown) for one in self.models),
        )

    @property
    def _shown(self) -> dict[str, tuple[str, str]]:
        known = self.profiles[0].statistics
        return {name: words for name, words in SHOWN.items() if name in known}

    def _facts(self) -> dict[str, Any]:
        n = kept((one.found for one in self.models), MOST_BYTES)
        return {
            "statistics": {name: list(words) for name, words in self._shown.items()},
            "models": [_model(one, n, self._shown) for one in self.models],
        }

    def __repr__(self) -> str:
        return f"AttentionView({', '.join(one.source for one in self.models)})"


def attention_view(
    source: Source,
    compare: Source | None = None,
    *,
    text: str | None = None,
    length: int | None = None,
    checkpoint: str | None = None,
    device: str = "auto",
    tell: Tell = silent,
) -> AttentionView:
    """Look at every head of a model on one text, or of two models side by side.

    A run, a Hugging Face folder or a hub name. ``text`` is a corpus as `prism prepare` takes them;
    its first ``length`` tokens are read, at most as many as the model's context and 1,024 when left
    out. Without a text it is a run's validation slice, for other models the embedded corpus.
    """
    sources = [source, *([compare] if compare is not None else [])]
    seen = [
        _seen(
            open_on_text(
                each, checkpoint=checkpoint, text=text, length=length, windows=1, device=device
            ),
            length,
        )
        for each in counted(tell, "looking at attention", sources, len(sources), "models")
    ]
    if len({one.found.profile.attention for one in seen}) > 1:
        raise InputError(
            " and ".join(f"{one.source} is {one.found.profile.attention}" for one in seen)
            + ": their heads are no pair; look at each by itself"
        )
    return AttentionView(tuple(seen))


def _seen(opened: ModelOnText, length: int | None) -> SeenModel:
    rows, most = opened.rows, length or min(opened.seq_len, MOST_TOKENS)
    # Of a text that is shorter than a window, all of it.
    tokens = rows.tokens if isinstance(rows, TokenRows) else rows.read([0])[0]
    tokens = tokens[:most]
    if len(tokens) < 2:
        raise InputError(f"{opened.text}: has {len(tokens)} tokens; attention needs two at least")
    ids = torch.from_numpy(np.asarray(tokens, np.int64))
    found = text_weights(opened.model, ids, opened.end_of_text)
    pieces = tuple(opened.piece(int(token)) for token in tokens)
    home = opened.home if opened.named.run is not None else None
    return SeenModel(str(opened.named), opened.text, pieces, found, home)


def check_view_file(file: Path) -> None:
    """Refuse a file name that a browser would not open as a page."""
    if file.suffix.lower() != ENDING:
        raise InputError(f"{file}: the page of attention ends in {ENDING}, not {file.suffix!r}")


# -- the parts of the page -------------------------------------------------------------------------


def _model(one: SeenModel, n: int, shown: Iterable[str]) -> dict[str, Any]:
    """Everything that the page shows of a model; weights as bytes that it unpacks."""
    profile, length = one.found.profile, len(one.tokens)
    both_ways = profile.attention == "bidirectional"
    blocks = block_of(length)
    size = blocks[-1] + 1
    seen = np.ones((size, size), bool) if both_ways else np.tri(size, dtype=bool)
    parts = [
        part
        for layer in one.found.heads
        for head in layer
        for part in (head.keys[:, :n], head.weights[:, :n], head.blocks[seen])
    ]
    packed = np.concatenate([np.ascontiguousarray(part).ravel() for part in parts]).astype("<u2")
    return {
        "source": visible(one.source),
        "schedule": str(HeadSchedule(profile.schedule)),
        "heads": profile.schedule,
        "widths": profile.widths,
        "both_ways": both_ways,
        "statistics": {
            name: [
                [float(f"{value:.6g}") for value in layer[name].heads] for layer in profile.layers
            ]
            for name in shown
        },
        "tokens": one.tokens,
        "kept": min(n, length),
        "blocks": size,
        "own_block": blocks,
        "packed": b64encode(compress(packed.tobytes(), 9, mtime=0)).decode(),
    }


def _script_json(facts: dict[str, Any]) -> str:
    """JSON that no text can break out of: a browser reads it before it is known to be data."""
    text = json.dumps(facts, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _table(one: SeenModel, shown: dict[str, tuple[str, str]]) -> str:
    """Every head's numbers, for who has no script."""
    profile = one.found.profile
    rows = (
        [layer, head, profile.widths[layer], *(f"{found[name].heads[head]:.4g}" for name in shown)]
        for layer, found in enumerate(profile.layers)
        for head in range(profile.schedule[layer])
    )
    cells = ("".join(f"<td class=n>{cell}</td>" for cell in row) for row in rows)
    heads = "".join(f"<tr>{row}</tr>" for row in cells)
    columns = ["layer", "head", "width", *(f"{name}, {unit}" for name, unit in shown.values())]
    heading = "".join(f'<th class=n scope="col">{name}</th>' for name in columns)
    name = escape(visible(one.source))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers of {name}">'
        f"<table><caption>{name}</caption><thead><tr>{heading}</tr></thead>"
        f"<tbody>{heads}</tbody></table></div>"
    )


def _asset(name: str) -> str:
    return files("prism_transformer.analysis").joinpath("templates", name).read_text("utf-8")
