"""A model and the text to look at it with: of a run, or of any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prism_transformer.data.corpora import EMBEDDED, open_corpus
from prism_transformer.data.loader import open_windows
from prism_transformer.data.tokenizer import Tokenizer, open_tokenizer
from prism_transformer.errors import InputError
from prism_transformer.train.checkpoint import check_checkpoint
from prism_transformer.train.run import checkpoint_folder, checkpoints, is_run, read_run
from prism_transformer.train.trained import newest_model
from prism_transformer.weights import load_model


class Rows(Protocol):
    """Windows of a text: each ``seq_len`` tokens and the one after."""

    def __len__(self) -> int: ...

    def read(self, indices: Iterable[int], /) -> NDArray[np.int64]:
        """Windows by their number: (count, seq_len + 1)."""


@dataclass(frozen=True)
class TokenRows:
    """Windows of one array of tokens."""

    tokens: NDArray[np.int64]
    seq_len: int

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1) // self.seq_len)

    def read(self, indices: Iterable[int]) -> NDArray[np.int64]:
        """Windows by their number: (count, seq_len + 1)."""
        starts = np.fromiter(indices, np.int64) * self.seq_len
        return self.tokens[starts[:, None] + np.arange(self.seq_len + 1)]


@dataclass(frozen=True)
class Source:
    """A model in float32, windows of text for it, and where both come from."""

    name: str
    model: nn.Module
    home: Path  # where what is measured of it is kept
    rows: Rows
    text: str
    seq_len: int
    n_bytes: Callable[[NDArray[np.int64]], int]  # of the text that tokens stand for
    n_scored: int | None = None  # windows that training scores, of a run on its own slice

    def batches(self, n_sequences: int, batch: int) -> Iterator[Tensor]:
        """The first windows, from the first on: (B, seq_len + 1)."""
        if n_sequences > len(self.rows):
            raise InputError(f"{self.text}: has {len(self.rows)} windows, {n_sequences} were asked")
        for start in range(0, n_sequences, batch):
            yield torch.from_numpy(self.rows.read(range(start, min(start + batch, n_sequences))))


def open_source(
    name: str,
    *,
    checkpoint: str | None = None,
    text: str | None = None,
    length: int | None = None,
    windows: int = 64,
) -> Source:
    """Open a run, or a Hugging Face folder or hub name.

    ``text`` is a corpus as `prism prepare` takes them, or a folder with shards; left out, a run is
    measured on its validation slice and any other model on the embedded corpus. Of a corpus no
    more is read than ``windows`` need.
    """
    if is_run(Path(name)):
        return _open_run(Path(name), checkpoint, text, length, windows)
    check_source(name)
    if checkpoint is not None:
        raise InputError(f"{name}: is not a run; --checkpoint is for runs")
    return _open_hf(name, text, length, windows)


def check_source(name: str) -> None:
    """Refuse a folder that is not there, before the hub is asked for a model of that name."""
    path = Path(name)
    looks_local = len(path.parts) != 2 or path.parts[0] in (".", "..") or path.parent.is_dir()
    if not path.is_dir() and looks_local and len(path.parts) > 1:
        raise InputError(f"{name}: there is no such run or Hugging Face folder")


def checkpoint_of(run: Path, name: str | None) -> Path:
    """A checkpoint of a run by name, such as step-100; the newest sound one when left out."""
    if name is None:
        return newest_model(run)
    found = {folder.name: folder for folder in checkpoints(run)}
    step = name.removeprefix("step-")
    # With or without the zeros that keep folders in order.
    full = checkpoint_folder(run, int(step)).name if step.isdecimal() else name
    if full not in found:
        raise InputError(
            f"{run}: has no checkpoint {name!r}; it has {', '.join(found) or 'none yet'}"
        )
    check_checkpoint(found[full])
    return found[full]


def _open_run(
    run: Path, checkpoint: str | None, text: str | None, length: int | None, windows: int
) -> Source:
    recipe = read_run(run)
    folder = checkpoint_of(run, checkpoint)
    model = load_model(folder).float().eval()
    words = open_tokenizer(recipe.data.tokenizer, run)
    seq_len = length or recipe.model.seq_len
    data = Path(text or recipe.data.folder)
    rows: Rows
    n_scored = None
    if data.is_dir():
        rows = open_windows(data, "val", seq_len, recipe.model.vocab_size)
        what = f"validation slice of {data}"
        n_scored = recipe.data.val_tokens // seq_len if text is None else None
    else:
        encode = lambda each: words.encode_batch([each])[0].tolist()  # noqa: E731
        tokens = _tokens(str(text), encode, words.end_of_text, windows * seq_len + 1)
        rows, what = TokenRows(tokens, seq_len), f"corpus {text}"
    home = run / "analysis" / folder.name
    name = f"{run}, {folder.name}"
    return Source(name, model, home, rows, what, seq_len, _piece_bytes(words), n_scored)


def _open_hf(name: str, text: str | None, length: int | None, windows: int) -> Source:
    from transformers import AutoModelForCausalLM

    import prism_transformer.hf  # noqa: F401  registers the architecture
    from prism_transformer.hf.folder import read_config, read_tokenizer

    config = read_config(name).get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or 1024
    words: Any = read_tokenizer(name, required=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{name}: cannot be loaded as a causal LM: {reason}") from None
    seq_len = length or min(longest, 1024)
    rows: Rows
    if text is not None and Path(text).is_dir():
        rows = open_windows(Path(text), "val", seq_len, config.vocab_size)
        what = f"validation slice of {text}"
    else:
        corpus = text or EMBEDDED
        encode = lambda each: words.encode(each, add_special_tokens=False)  # noqa: E731
        end = words.eos_token_id if words.eos_token_id is not None else words.bos_token_id
        tokens = _tokens(corpus, encode, end, windows * seq_len + 1)
        rows, what = TokenRows(tokens, seq_len), f"corpus {corpus}"

    def n_bytes(each: NDArray[np.int64]) -> int:
        return len(words.decode(each, skip_special_tokens=True).encode())

    home = Path("analysis") / name.strip("/").replace("/", "--")
    return Source(name, model, home, rows, what, seq_len, n_bytes)


def _tokens(
    corpus: str, encode: Callable[[str], list[int]], end: int | None, enough: int
) -> NDArray[np.int64]:
    """The first documents of a corpus, which `prism prepare` holds out as well.

    Each stands behind an end-of-text token, if there is one.
    """
    found: list[int] = []
    with closing(open_corpus(corpus).documents()) as documents:
        for document in documents:
            found += [] if end is None else [end]
            found += encode(document.text)
            if len(found) >= enough:
                break
    return np.array(found, np.int64)


def _piece_bytes(words: Tokenizer) -> Callable[[NDArray[np.int64]], int]:
    known: dict[int, int] = {words.end_of_text: 0}

    def n_bytes(tokens: NDArray[np.int64]) -> int:
        for token in np.unique(tokens).tolist():
            known.setdefault(token, len(words.piece(token)))
        return sum(known[token] for token in tokens.ravel().tolist())

    return n_bytes
