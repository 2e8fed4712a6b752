"""Preparation, as a user runs it: interrupted, starved of disk, given junk."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken

from prism_transformer.data.manifest import read_manifest
from prism_transformer.data.shards import file_sha256, open_shard
from prism_transformer.data.tokenizer import GPT2_PATTERN, gpt2_ranks
from tests.conftest import Prism

REAL = Path(__file__).parents[3] / "shared" / "data" / "corpus"


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


def stream(folder: Path, split: str) -> np.ndarray[Any, Any]:
    return np.concatenate([open_shard(f) for f in sorted(folder.glob(f"{split}_*.bin"))])


def write_jsonl(file: Path, texts: list[str]) -> str:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return str(file)


def test_the_stream_is_every_document_behind_the_end_of_text_token(
    tmp_path: Path, prism_inside: Prism
) -> None:
    """By hand with tiktoken, and cut into shards in the middle of documents."""
    texts = [f"Document {n}. " * (n % 17 + 1) + "<|endoftext|>" * (n % 3 == 0) for n in range(200)]
    corpus = write_jsonl(tmp_path / "c.jsonl", texts)
    options = ["--val-tokens", "500", "--shard-tokens", "777"]
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    rows = [[50256, *encoding.encode_ordinary(text)] for text in texts]
    n_val = next(n for n in range(200) if sum(map(len, rows[:n])) > 500)
    for name, extra in (("fast", []), ("slow", ["--no-gigatoken"])):
        done = prism_inside("prepare", corpus, "--out", name, *options, *extra)
        assert done.returncode == 0, done.stderr
        folder = tmp_path / name
        assert stream(folder, "val").tolist() == list(chain(*rows[:n_val]))
        assert stream(folder, "train").tolist() == list(chain(*rows[n_val:]))
        manifest = read_manifest(folder)
        assert manifest is not None
        assert {shard.tokens for shard in manifest.of("train")[:-1]} == {777}
        assert sum(shard.documents for shard in manifest.shards) == 200
        n_bytes = sum(shard.text_bytes for shard in manifest.shards)
        assert n_bytes == sum(len(text.encode()) for text in texts)
    assert hashes(tmp_path / "fast") == hashes(tmp_path / "slow")


@pytest.mark.skipif(not REAL.exists(), reason="no real corpora beside this checkout")
def test_real_documents_give_exactly_tiktokens_tokens(tmp_path: Path, prism_inside: Prism) -> None:
    import gzip

    file = REAL / "peps_pd.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    encoding = tiktoken.Encoding(
        "by hand", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(), special_tokens={}
    )
    expected = [token for text in texts for token in [50256, *encoding.encode_ordinary(text)]]
    for name, extra in (("fast", []), ("slow", ["--no-gigatoken"])):
        done = prism_inside("prepare", str(file), "--out", name, *extra)
        assert done.returncode == 0, done.stderr
        folder = tmp_path / name
        found = np.concatenate((stream(folder, "val"), stream(folder, "train")))
        assert found.tolist() == expected


@pytest.mark.parametrize("n_kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_points_nothing_is_lost_or_doubled(tmp_path: Path, n_kills: int) -> None:
    options = ["--tokenizer", "bytes", "--shard-tokens", "150000"]
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


def test_a_budget_ends_at_a_document(tmp_path: Path, prism_inside: Prism) -> None:
    texts = ["x" * 99] * 50
    corpus = write_jsonl(tmp_path / "c.jsonl", texts)
    options = ["--tokenizer", "bytes", "--val-tokens", "150", "--train-tokens", "1010"]
    done = prism_inside("prepare", corpus, "--out", "out", *options, "--json")
    manifest = json.loads(done.stdout)
    assert [shard["tokens"] for shard in manifest["shards"]] == [200, 1100]


def test_a_bpe_is_trained_and_kept_beside_the_shards(tmp_path: Path, prism_inside: Prism) -> None:
    corpus = write_jsonl(tmp_path / "c.jsonl", ["the cat sat on the mat " * 20] * 50)
    options = ["--out", "out", "--tokenizer", "bpe:290", "--val-tokens", "100"]
    assert prism_inside("prepare", corpus, *options).returncode == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert (manifest.tokenizer, manifest.vocab_size, manifest.end_of_text) == ("bpe:290", 290, 289)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert (stream(tmp_path / "out", "train") == 289).sum() == manifest.of("train")[0].documents


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
        ([short], "too few for a validation slice of 131072"),
        ([short, "--val-tokens", "1"], "has no document left to train on"),
        (["*.nothing"], "matches no file"),
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
    assert "manifest.json: is damaged" in damaged.stderr


def test_preparing_does_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from prism_transformer.data import loader, prepare, corpora, tokenizer\n"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr
    assert os.path.exists(tmp_path)
