"""Tasks: the same bytes for any number of them, whoever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from datatrove.data import Document as Passed

from prism_transformer.core.errors import InputError
from prism_transformer.data.prepare import Preparation, prepare
from prism_transformer.data.shards import read_manifest
from prism_transformer.data.tasks import Filter
from prism_transformer.data.tokenizer import GPT2_PATTERN, gpt2_ranks
from tests.data.test_corpora import jsonl
from tests.data.test_stream import hashes, stream, write_jsonl

TEXTS = [f"Document {n}, of so many words. " * (n % 23 + 1) for n in range(300)]


def make(folder: Path) -> str:
    """One long file, some short ones, and one that is packed."""
    import gzip

    folder.mkdir()
    write_jsonl(folder / "a.jsonl", TEXTS[:200])
    for number in range(200, 220):
        write_jsonl(folder / f"b{number}.jsonl", [TEXTS[number]])
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS[220:])))
    return str(folder)


def what(corpus: str, folder: Path, **changes: Any) -> Preparation:
    order = Preparation(corpus, "bytes", folder, 500, like=None, shard_tokens=7777)
    return replace(order, piece_bytes=4000, **changes)


def test_any_number_of_tasks_gives_the_bytes_and_the_manifest_of_none(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    straight = prepare(what(corpus, tmp_path / "0")).manifest
    for n_tasks in (1, 2):
        folder = tmp_path / str(n_tasks)
        assert prepare(what(corpus, folder, tasks=n_tasks)).manifest == straight
        assert hashes(folder) == hashes(tmp_path / "0")
        assert read_manifest(folder) == straight
        assert not (folder / "tasks").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"train_tokens": 20_000},
        {"train_tokens": 7777 * 3},
        {"val_tokens": 0},
        {"val_tokens": 60_000},  # whole documents would be most of it
        {"skip_bad": True, "train_tokens": 30_000},
        {"where": ("id=1",)},
    ],
    ids=str,
)
def test_budgets_validation_and_records_without_text(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    corpus = make(tmp_path / "texts")
    if "skip_bad" in changes:
        file = tmp_path / "texts" / "a.jsonl"
        lines = file.read_text("utf-8").splitlines()
        for place in (150, 149, 90, 7, 0):
            lines.insert(place, '{"txt": 1}')
        file.write_text("\n".join(lines), "utf-8")
    if "where" in changes:
        rows = [json.dumps({"text": text, "id": n % 3}) for n, text in enumerate(TEXTS)]
        shutil.rmtree(tmp_path / "texts")
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.jsonl").write_text("\n".join(rows), "utf-8")
    straight = prepare(what(corpus, tmp_path / "0", **changes)).manifest
    assert straight.skipped or not {"skip_bad", "where"} & set(changes)
    order = what(corpus, tmp_path / "2", tasks=1, **changes)
    assert prepare(order).manifest.model_dump(exclude={"next_document"}) == straight.model_dump(
        exclude={"next_document"}
    )
    assert hashes(tmp_path / "2") == hashes(tmp_path / "0")


def test_tokens_are_tiktokens_document_by_document(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    order = what(corpus, tmp_path / "out", tasks=1, val_tokens=0)
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    expected = [token for text in TEXTS for token in [50256, *encoding.encode_ordinary(text)]]
    prepare(replace(order, tokenizer="gpt2"))
    assert stream(tmp_path / "out", "train").tolist() == expected


def test_a_bad_record_is_named_as_without_tasks_and_nothing_is_kept(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    file = tmp_path / "texts" / "a.jsonl"
    lines = file.read_text("utf-8").splitlines()
    lines[170] = '{"txt": 1}'
    file.write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(InputError) as alone:
        prepare(what(corpus, tmp_path / "0"))
    with pytest.raises(InputError) as shared:
        prepare(what(corpus, tmp_path / "2", tasks=1))
    assert str(shared.value) == str(alone.value)
    assert "a.jsonl: line 171: has no field 'text'" in str(alone.value)
    assert not list((tmp_path / "2").glob("*.bin"))
    lines[170] = json.dumps({"text": "mended"})
    file.write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(InputError, match="was begun with corpus_fingerprint"):
        prepare(what(corpus, tmp_path / "2", tasks=1))


def test_filters_are_datatroves_and_what_they_leave_out_is_counted(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    order = what(corpus, tmp_path / "out", filters=("SamplerFilter:rate=0.0,seed=0",))
    with pytest.raises(InputError, match=r"has 0 tokens, too few .* 300 records were skipped"):
        prepare(order)
    kept = prepare(
        what(corpus, tmp_path / "all", filters=("SamplerFilter:rate=1.0,seed=0",))
    ).manifest
    assert sum(shard.documents for shard in kept.shards) == 300
    for wrong, words in (
        ("KlingonFilter", "is none of datatrove's"),
        ("SamplerFilter:x=1,seed=0", "x"),
        ("SamplerFilter:rate=0.5", "add seed=0"),
    ):
        with pytest.raises(InputError, match=words):
            prepare(what(corpus, tmp_path / "wrong", filters=(wrong,)))


def test_a_filter_knows_nothing_of_the_pieces_before(tmp_path: Path) -> None:
    passed = [Passed(text, str(number)) for number, text in enumerate(TEXTS)]
    step = Filter("SamplerFilter:rate=0.5,seed=3")
    kept = [[each.id for each in step.run(iter(passed), rank)] for rank in range(3)]
    assert 100 < len(kept[0]) < 200
    assert kept[0] == kept[1] == kept[2]


def tasks_of(parent: int) -> list[int]:
    """Processes that were started for tasks."""
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for number in children.read_text("ascii").split():
            if b"prism_transformer.data.tasks" in Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(int(number))
    return found


# Pieces of a twentieth of a megabyte, so that both stages have many ranks; run by itself.
ORDER = """
import sys
from pathlib import Path
from prism_transformer import Preparation, prepare
_, folder, tasks, on, *sbatch = sys.argv
prepare(Preparation("sotu", "bytes", Path(folder), 4096, shard_tokens=400_000, like=None,
                    tasks=int(tasks) or None, on=on, sbatch=sbatch, piece_bytes=200_000))
"""


def order(folder: Path, tasks: int, on: str = "here", *sbatch: str) -> list[str]:
    return [sys.executable, "-c", ORDER, str(folder), str(tasks), on, *sbatch]


@pytest.mark.slow
def test_seven_tasks_of_which_three_are_killed_twice(tmp_path: Path) -> None:
    subprocess.run(order(tmp_path / "0", 0), check=True)
    process = subprocess.Popen(order(tmp_path / "7", 7))
    pieces = tmp_path / "7" / "tasks" / "pieces"
    for _ in range(2):  # both times while pieces are encoded
        killed: set[int] = set()
        while len(killed) < 3:
            assert process.poll() is None
            for number in tasks_of(process.pid)[: 3 - len(killed)]:
                if number not in killed:
                    os.kill(number, signal.SIGKILL)
                    killed.add(number)
            time.sleep(0.05)
        assert len(list(pieces.glob("*.json"))) < 60
    assert process.wait() == 0
    assert hashes(tmp_path / "7") == hashes(tmp_path / "0")
    assert read_manifest(tmp_path / "7") == read_manifest(tmp_path / "0")


def test_a_folder_of_work_that_was_prepared_is_of_no_use(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    precious = tmp_path / "precious"
    precious.write_text("precious", "utf-8")
    work = tmp_path / "1" / "tasks"
    (work / "pieces").mkdir(parents=True)
    (work / "pieces" / "000000.tokens.partial").symlink_to(precious)
    prepare(what(corpus, tmp_path / "1", tasks=1))
    assert precious.read_text("utf-8") == "precious"
    assert hashes(tmp_path / "1")


def test_a_link_among_the_work_is_refused(tmp_path: Path) -> None:
    corpus = make(tmp_path / "texts")
    order = what(corpus, tmp_path / "1", tasks=1)
    (tmp_path / "texts" / "z.jsonl").write_text("{", "utf-8")  # leaves its work behind
    with pytest.raises(InputError, match=r"z\.jsonl: line 1"):
        prepare(order)
    link = tmp_path / "1" / "tasks" / "pieces" / "000000.tokens.partial"
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=f"{link}: is a symbolic link, which is not followed"):
        prepare(order)
    assert not (tmp_path / "precious").exists()
