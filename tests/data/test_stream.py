"""The stream of tokens, against tiktoken by hand."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.data.shards import open_shard, read_manifest
from prism_transformer.data.tokenizer import GPT2_PATTERN, gpt2_ranks

REAL = Path(__file__).parents[3] / "shared" / "data" / "corpus"


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: file_sha256(file) for file in sorted(folder.glob("*.bin"))}


def stream(folder: Path, split: str) -> np.ndarray[Any, Any]:
    return np.concatenate([open_shard(f) for f in sorted(folder.glob(f"{split}_*.bin"))])


def write_jsonl(file: Path, texts: list[str]) -> str:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return str(file)


def test_the_stream_is_every_document_behind_the_end_of_text_token(
    tmp_path: Path,
) -> None:
    """By hand with tiktoken, and cut into shards in the middle of documents."""
    texts = [f"Document {n}. " * (n % 17 + 1) + "<|endoftext|>" * (n % 3 == 0) for n in range(200)]
    corpus = write_jsonl(tmp_path / "c.jsonl", texts)
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    rows = [[50256, *encoding.encode_ordinary(text)] for text in texts]
    n_val = next(n for n in range(200) if sum(map(len, rows[:n])) > 500)
    for name, gigatoken in (("fast", True), ("slow", False)):
        folder = tmp_path / name
        what = Preparation(
            corpus, folder=folder, val_tokens=500, like=None, shard_tokens=777, gigatoken=gigatoken
        )
        manifest = prepare(what).manifest
        assert stream(folder, "val").tolist() == list(chain(*rows[:n_val]))
        assert stream(folder, "train").tolist() == list(chain(*rows[n_val:]))
        assert manifest == read_manifest(folder)
        assert {shard.tokens for shard in manifest.of("train")[:-1]} == {777}
        assert sum(shard.documents for shard in manifest.shards) == 200
        n_bytes = sum(shard.text_bytes for shard in manifest.shards)
        assert n_bytes == sum(len(text.encode()) for text in texts)
    assert hashes(tmp_path / "fast") == hashes(tmp_path / "slow")


@pytest.mark.skipif(not REAL.exists(), reason="no real corpora beside this checkout")
def test_real_documents_give_exactly_tiktokens_tokens(tmp_path: Path) -> None:
    import gzip

    file = REAL / "peps_pd.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    expected = [token for text in texts for token in [50256, *encoding.encode_ordinary(text)]]
    for name, gigatoken in (("fast", True), ("slow", False)):
        folder = tmp_path / name
        prepare(Preparation(str(file), folder=folder, gigatoken=gigatoken))
        found = np.concatenate((stream(folder, "val"), stream(folder, "train")))
        assert found.tolist() == expected


NASTY = [
    '<!DOCTYPE html>\r\n<p class="a">caf&eacute; &amp; <b>it\'s</b><br/></p>\r\n' * 20,
    "".join(map(chr, range(0x20))) + "\x7f\x85\xa0\u200b\u2028\u2029\ufeff\ufffd\ufffe\U0010ffff",
    "tabs\tand  spaces   \n\n\n \r\n\r\r\n\x0b\x0c end ",
    "👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪 👍🏽 ☕️ e\u0301 é ﬁ Ⅷ ½ ٣ 東京 हिन्दी שלום ไทย",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|>\n<|im_start|> I'll 'LL we're DON'T",
    *("", " ", "\n", "\ufeff"),
    *("word " * 60_000, "x" * 100_000, " " * 5_000 + "y", "-=" * 5_000),
]


def web_texts() -> list[str]:
    """Text as the web has it; with real documents where they are."""
    import gzip

    real: list[str] = []
    for file in sorted(REAL.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            real += [json.loads(line)["text"][:40_000] for line in islice(lines, 12)]
    return [*NASTY, *real, *(f"{a}\n{b}" for a, b in zip(NASTY, real, strict=False))]


def write_web(folder: Path, kind: str, texts: list[str]) -> str:
    """Texts in a file; lines with and without escapes, and one record that is no text."""
    import pyarrow
    import zstandard
    from pyarrow import parquet

    file = folder / f"web.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.table({"text": texts}), file, row_group_size=9)
        return str(file)
    lines = [json.dumps({"text": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(texts)]
    lines.insert(3, r'{"text": "half a pair: \ud83d, alone"}')
    content = "\r\n".join(lines).encode()
    file.write_bytes(zstandard.compress(content) if kind.endswith(".zst") else content)
    return str(file)


@pytest.mark.parametrize("n_tasks", [None, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("gigatoken", [True, False], ids=["gigatoken", "tiktoken"])
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet"])
def test_text_of_the_web_is_tiktokens_document_by_document(
    tmp_path: Path, kind: str, gigatoken: bool, n_tasks: int | None
) -> None:
    texts = web_texts()
    order = Preparation(write_web(tmp_path, kind, texts), folder=tmp_path / "out", val_tokens=500)
    order = replace(order, like=None, skip_bad=True, shard_tokens=50_000, piece_bytes=100_000)
    skipped = prepare(replace(order, gigatoken=gigatoken, tasks=n_tasks)).manifest.skipped
    assert skipped == ({} if kind == "parquet" else {"has a lone surrogate": 1})
    tokens = np.concatenate((stream(tmp_path / "out", "val"), stream(tmp_path / "out", "train")))
    found = np.split(tokens, np.flatnonzero(tokens == 50256))
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    assert not found.pop(0).size
    assert len(found) == len(texts)
    for text, (end, *row) in zip(texts, found, strict=True):
        assert end == 50256
        assert row == encoding.encode_ordinary(text), text[:99]


def test_a_budget_ends_at_a_document(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", ["x" * 99] * 50)
    what = Preparation(
        corpus, "bytes", tmp_path / "out", val_tokens=150, like=None, train_tokens=1010
    )
    shards = prepare(what).manifest.shards
    assert [shard.tokens for shard in shards] == [200, 1100]


def test_records_that_were_skipped_are_counted_once(tmp_path: Path) -> None:
    """In any order of stops: what was counted before a shard's end is not counted again."""
    corpus = tmp_path / "c.jsonl"
    write_jsonl(corpus, ["x" * 99] * 30)
    lines = corpus.read_text("utf-8").splitlines()
    for place in (30, 22, 21, 11, 0):
        lines.insert(place, '{"txt": 1}')
    corpus.write_text("\n".join(lines), "utf-8")
    what = Preparation(
        str(corpus), "bytes", tmp_path / "out", 150, like=None, shard_tokens=400, skip_bad=True
    )
    with pytest.raises(InputError, match="line 1: has no field"):
        prepare(replace(what, skip_bad=False))
    straight = prepare(replace(what, folder=tmp_path / "straight")).manifest
    assert straight.skipped == {"has no field 'text'": 5}
    assert straight.tokens("val") + straight.tokens("train") == 3000

    def stop(event: Event) -> None:
        if isinstance(event, Advance) and event.done > 600 * len(list(what.place.glob("*.bin"))):
            raise KeyboardInterrupt

    for _ in range(8):
        with suppress(KeyboardInterrupt):
            prepare(what, tell=stop)
    assert prepare(what).manifest == straight
    assert hashes(tmp_path / "out") == hashes(tmp_path / "straight")


def test_a_single_text_is_cut_where_validation_has_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(97, 123)) * 40)
    what = Preparation(str(tmp_path / "a.txt"), "bytes", tmp_path / "out", 100, like=None)
    manifest = prepare(what).manifest
    assert manifest.val_cut
    assert [shard.tokens for shard in manifest.shards] == [101, 940]
    both = np.concatenate((stream(tmp_path / "out", "val"), stream(tmp_path / "out", "train")))
    assert both.tolist() == [256, *(bytes(range(97, 123)) * 40)]
