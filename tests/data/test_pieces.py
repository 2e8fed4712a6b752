from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.data.corpora import Document
from prism_transformer.data.pieces import PieceFiles, PieceWriter, Skipped, facts_of, write_problem
from prism_transformer.data.tokenizer import ByteTokenizer


def write(folder: Path, number: int, texts: list[str]) -> PieceFiles:
    files = PieceFiles(folder, number)
    documents = [Document((number, record), text) for record, text in enumerate(texts)]
    PieceWriter(files, ByteTokenizer()).write(documents, [Skipped(1, "no text")])
    return files


def test_a_piece_is_its_tokens_and_the_ends_of_documents(tmp_path: Path) -> None:
    files = write(tmp_path, 7, ["ab", "", "c"])
    assert files.open_tokens(257).tolist() == [256, 97, 98, 256, 256, 99]
    assert files.documents().tolist() == [[3, 2, 7, 0], [1, 0, 7, 1], [2, 1, 7, 2]]
    facts = files.facts()
    assert facts is not None
    assert (facts.tokens, facts.documents, facts.text_bytes) == (6, 3, 3)
    assert facts.skipped == [Skipped(1, "no text")]
    files.check(facts)
    np.array([1], np.uint16).tofile(files.tokens)
    with pytest.raises(InputError, match=r"000007\.tokens: is damaged; remove .*000007\.json"):
        files.check(facts)
    assert not list(tmp_path.glob("*.partial"))


def test_pieces_count_up_to_the_first_that_is_missing(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        write(tmp_path, number, ["x"])
    assert len(facts_of(tmp_path, 4)) == 2
    write_problem(PieceFiles(tmp_path, 2), InputError("a.jsonl: line 3"))
    assert PieceFiles(tmp_path, 2).problem() == "a.jsonl: line 3"
    assert PieceFiles(tmp_path, 0).problem() is None
    file = PieceFiles(tmp_path, 1).facts_file
    for damage in ("{", file.read_text("utf-8").replace('"tokens": 2', '"tokens": 3')):
        file.write_text(damage, "utf-8")
        with pytest.raises(InputError, match=r"000001\.json: .*; remove it to make it again"):
            facts_of(tmp_path, 4)
