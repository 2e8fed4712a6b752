"""Where shards begin and end, against a loop over documents."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.data.assembly import Pieces, enough, plan_shards
from prism_transformer.data.corpora import Document
from prism_transformer.data.pieces import PieceFiles, PieceWriter, facts_of
from prism_transformer.data.shards import Manifest
from prism_transformer.data.tokenizer import ByteTokenizer


def manifest(val: int, wanted: int | None, size: int) -> Manifest:
    return Manifest(
        corpus="c", corpus_fingerprint="", tokenizer="bytes", tokenizer_fingerprint="",
        vocab_size=257, end_of_text=256, shard_tokens=size, val_tokens=val,
        train_tokens_wanted=wanted,
    )  # fmt: skip


lengths = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    pieces=lengths,
    val=st.integers(0, 6),
    wanted=st.none() | st.integers(1, 30),
    size=st.integers(1, 20),
)
def test_cuts_are_those_of_a_loop_over_documents(
    tmp_path_factory: object, pieces: list[list[int]], val: int, wanted: int | None, size: int
) -> None:
    flat = [length for piece in pieces for length in piece]
    total, taken, n_val = sum(length + 1 for length in flat), 0, 0
    while val and taken <= val and n_val < len(flat):
        taken, n_val = taken + flat[n_val] + 1, n_val + 1
    train = flat[n_val:]
    if (val and taken <= val) or not train:
        return  # refused, or cut within a document: tests of preparation have both
    kept, tokens = 0, 0
    while kept < len(train) and (wanted is None or tokens < wanted):
        tokens, kept = tokens + train[kept] + 1, kept + 1
    folder: Path = tmp_path_factory.mktemp("pieces")  # type: ignore[attr-defined]
    for number, piece in enumerate(pieces):
        documents = [Document((number, n), "x" * length) for n, length in enumerate(piece)]
        PieceWriter(PieceFiles(folder, number), ByteTokenizer()).write(documents, [])
    found = Pieces(folder, facts_of(folder, len(pieces)))
    assert found.n_tokens == total
    plan = plan_shards(found, manifest(val, wanted, size), None)
    cuts = [cut for cut in plan.cuts if cut.split == "train"]
    assert [cut.stop - cut.start for cut in plan.cuts if cut.split == "val"] == [taken] * bool(val)
    assert (cuts[0].start, cuts[-1].stop) == (taken, taken + tokens)
    assert all(cut.stop - cut.start == size for cut in cuts[:-1])
    assert sum(cut.documents for cut in plan.cuts) == n_val + kept
    assert sum(cut.text_bytes for cut in plan.cuts) == sum(flat[: n_val + kept])
    if enough(found, manifest(val, wanted, size)):
        assert wanted is not None
        assert tokens >= wanted
