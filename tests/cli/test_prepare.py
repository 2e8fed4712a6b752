"""Preparation, as a user runs it: interrupted, starved of disk, given junk."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prism_transformer.core.disk import file_sha256
from prism_transformer.data.shards import read_manifest
from tests.conftest import Prism


def command(folder: Path, *options: str, corpus: str = "sotu") -> list[str]:
    prism = [sys.executable, "-m", "prism_transformer", "prepare", corpus]
    return [*prism, "--out", str(folder), *options]


def run(folder: Path, *options: str, corpus: str = "sotu", **process: Any) -> str:
    done = subprocess.run(
        command(folder, *options, corpus=corpus),
        capture_output=True, text=True, check=False, **process,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: file_sha256(file) for file in sorted(folder.glob("*.bin"))}


def write_jsonl(file: Path, texts: list[str]) -> str:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return str(file)


@pytest.mark.parametrize("n_kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_points_nothing_is_lost_or_doubled(tmp_path: Path, n_kills: int) -> None:
    options = ["--tokenizer", "bytes", "--shard-tokens", "40000"]
    run(tmp_path / "straight", *options)
    killed = tmp_path / "killed"
    draw = random.Random(0)
    for _ in range(n_kills):
        process = subprocess.Popen(command(killed, *options), stdout=subprocess.DEVNULL)
        before = len(list(killed.glob("*.bin")))
        more = draw.randrange(4)
        while len(list(killed.glob("*.bin"))) < before + more and process.poll() is None:
            time.sleep(0.001)
        if more == 0:
            time.sleep(0.3)  # before or around the first write
        time.sleep(draw.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (manifest := read_manifest(killed)) or not manifest.complete
    said = run(killed, *options)
    assert "goes on after" in said
    assert hashes(killed) == hashes(tmp_path / "straight")
    ours, straight = read_manifest(killed), read_manifest(tmp_path / "straight")
    assert ours == straight
    assert not list(killed.glob("*.partial"))


def test_a_full_disk_is_said_and_what_is_whole_stays(tmp_path: Path) -> None:
    options = ["--tokenizer", "bytes", "--shard-tokens", "1000000", "--val-tokens", "1000"]
    run(tmp_path / "straight", *options)

    def little_room() -> None:  # files of at most a megabyte: shards of two do not fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))

    starved = tmp_path / "starved"
    failed = subprocess.run(
        command(starved, *options), preexec_fn=little_room, capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert "train_000000.bin: cannot be written" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert [file.name for file in starved.glob("*.bin*")] == ["val_000000.bin"]
    run(starved, *options)
    assert hashes(starved) == hashes(tmp_path / "straight")


def test_finished_work_is_not_repeated(tmp_path: Path, prism_inside: Prism) -> None:
    options = ["--out", "out", "--tokenizer", "bytes"]
    prism_inside("prepare", "sotu", *options)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert "is complete" in prism_inside("prepare", "sotu", *options).stdout
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before


def test_a_recipe_says_what_to_prepare_and_how_many_epochs_that_is(
    tmp_path: Path, prism_inside: Prism
) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "prism-small"\n[data]\ncorpus = "sotu"\ntokenizer = "bytes"\n'
        'folder = "shards"\nval_tokens = 51200\n[train]\ntokens = 26_214_400\n',
        "utf-8",
    )
    done = prism_inside("prepare", "--recipe", "mine.toml")
    assert done.returncode == 0, done.stderr
    assert "26,214,400 training tokens are 2.18 epochs of this corpus" in done.stdout
    manifest = read_manifest(tmp_path / "shards")
    assert manifest is not None
    assert manifest.val_tokens == 51_200
    both = prism_inside("prepare", "sotu", "--recipe", "mine.toml")
    assert both.returncode == 2
    assert "drop the rest" in both.stderr


def test_verify_finds_a_flipped_byte(tmp_path: Path, prism_inside: Prism) -> None:
    prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "bytes")
    assert "2 shards are sound" in prism_inside("prepare", "--out", "out", "--verify").stdout
    file = tmp_path / "out" / "train_000000.bin"
    content = bytearray(file.read_bytes())
    content[123_456] ^= 1
    file.write_bytes(content)
    bad = prism_inside("prepare", "--out", "out", "--verify")
    assert bad.returncode == 2
    assert "train_000000.bin: is not the shard that was prepared" in bad.stderr


def test_bad_input_is_named_and_leaves_nothing(tmp_path: Path, prism_inside: Prism) -> None:
    (tmp_path / "empty.jsonl").touch()
    short = write_jsonl(tmp_path / "short.jsonl", ["hello"])
    (tmp_path / "bad.jsonl").write_text('{"text": "x"}\n{"txt": 1}\n', "utf-8")
    for arguments, message in [
        (["empty.jsonl"], "empty.jsonl: has 0 tokens, too few for a validation slice"),
        (["empty.jsonl", "--val-tokens", "0"], "empty.jsonl: has no document to train on"),
        ([short], "too few for a validation slice of 256; ask for less, or give more text"),
        ([short, "--val-tokens", "1"], "has 2 tokens, too few"),
        (["*.nothing"], "matches no file"),
        (
            ["short.jsonl", "bad.jsonl", "nowhere"],
            "corpus 'nowhere': matches no file and no folder",
        ),
        (["short.jsonl", "--like", "prism-micri"], "did you mean 'prism-micro'?"),
        (["bad.jsonl", "--val-tokens", "0"], "bad.jsonl: line 2"),
        (["sotu", "--tokenizer", "klingon"], "tokenizer 'klingon' is unknown"),
        (["sotu", "--tokenizer", "bpe:3"], "tokenizer 'bpe:3' is unknown"),
        (["sotu", "--ranks", "nowhere"], "nowhere: cannot be read as GPT-2 ranks"),
        (["sotu", "--shard-tokens", "0"], "0 tokens a shard"),
        (["sotu", "--verify"], "has no manifest"),
    ]:
        done = prism_inside("prepare", *arguments, "--out", "out")
        assert done.returncode == 2, arguments
        assert message in done.stderr, (arguments, done.stderr)
        assert not list((tmp_path / "out").glob("*.bin*")), arguments


def test_a_folder_goes_on_only_with_what_it_was_begun_with(
    tmp_path: Path, prism_inside: Prism
) -> None:
    prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "bytes")
    other = prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "gpt2")
    assert other.returncode == 2
    assert "was begun with tokenizer = 'bytes', now it is 'gpt2'" in other.stderr
    (tmp_path / "out" / "manifest.json").write_text("{broken", "utf-8")
    damaged = prism_inside("prepare", "sotu", "--out", "out", "--tokenizer", "bytes")
    assert damaged.returncode == 2
    assert "manifest.json: cannot be read" in damaged.stderr


def test_json_is_all_that_is_on_standard_output(prism_inside: Prism) -> None:
    options = ["--out", "out", "--tokenizer", "bytes", "--json"]
    first = json.loads(prism_inside("prepare", *options).stdout)
    again = prism_inside("prepare", *options)
    assert json.loads(again.stdout) == first
    assert "is complete" in again.stderr


def test_the_splits_are_a_table(prism_inside: Prism) -> None:
    done = prism_inside("prepare", "--out", "out", "--tokenizer", "bytes")
    rows = [line.split() for line in done.stdout.splitlines()[:3]]
    assert rows[0] == ["split", "tokens", "documents", "shards"]
    assert [row[0] for row in rows[1:]] == ["val", "train"]
    assert int(rows[1][2]) + int(rows[2][2]) == 249


def test_a_folder_of_ones_own_ends_with_the_line_that_trains_on_it(
    tmp_path: Path, prism_inside: Prism
) -> None:
    (tmp_path / "mine").mkdir()
    write_jsonl(tmp_path / "mine" / "A.JSONL", ["A text of some words. " * 40] * 9)
    with (tmp_path / "mine" / "A.JSONL").open("a") as file:
        file.write('{"text": NaN}\n{"body": "x"}\n')
    stopped = prism_inside("prepare", "mine", "--tokenizer", "bytes")
    assert stopped.returncode == 2
    assert "A.JSONL: line 10: has NaN, which is not JSON" in stopped.stderr
    done = prism_inside("prepare", "mine", "--tokenizer", "bytes", "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "skipped mine/A.JSONL: line 10: has NaN" in done.stdout
    assert "skipped 2 records: has NaN (1), has no field 'text' (1)" in done.stdout
    assert "vocabulary 257, 256 validation tokens" in done.stdout
    assert done.stdout.endswith("train on it: prism train data/mine/mine.toml\n")
    manifest = read_manifest(tmp_path / "data" / "mine")
    assert manifest is not None
    assert manifest.skipped == {"has NaN": 1, "has no field 'text'": 1}
    line = json.loads(prism_inside("prepare", "mine", "--tokenizer", "bytes", "--json").stdout)
    assert line["train"] == "prism train data/mine/mine.toml"
