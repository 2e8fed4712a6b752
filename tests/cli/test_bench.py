"""prism bench as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Prism

QUICK = ("--rounds", "2")


def test_schedules_against_the_uniform_twin(tmp_path: Path, prism_inside: Prism) -> None:
    done = prism_inside(
        "bench", "schedules", "prism-micro", "reversed", "--batch", "1", "--length", "32", *QUICK,
        "--json", "--out", "speed.svg",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["what"], row["schedule"]) for row in result["rows"]] == [
        (what, schedule)
        for what in ("training", "prefill", "decoding")
        for schedule in ("8x8", "2x2 4x2 8x4", "8x4 4x2 2x2")
    ]
    for row in result["rows"]:
        assert row["tokens/s"] > 0
        assert row["schedule"] != "8x8" or row["ratio"] == 1.0
    assert result["machine"]["threads"] >= 1
    layers = [(row["schedule"], row["layers"], row["width"]) for row in result["layers"]]
    assert layers[:4] == [
        ("8x8", "0-7", 16),
        ("2x2 4x2 8x4", "0-1", 64),
        ("2x2 4x2 8x4", "2-3", 32),
        ("2x2 4x2 8x4", "4-7", 16),
    ]
    assert {row["backend"] for row in result["layers"]} <= {"flash_attention", "math"}
    drawn = (tmp_path / "speed.svg").read_text("utf-8")
    assert "decoding 2x2 4x2 8x4" in drawn
    assert "times as fast as the first" in drawn


def test_attention_and_decoding(prism_inside: Prism) -> None:
    done = prism_inside("bench", "attention", "--batch", "1", "--length", "32", *QUICK, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["heads"], row["width"]) for row in rows] == [(8, 16), (4, 32), (2, 64)]
    assert {row["backend"] for row in rows} <= {"flash_attention", "math"}
    done = prism_inside("bench", "decode", "prism-micro", "model.seq_len=64", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "prompt of 32" in done.stdout
    least = ["train.micro_batch=1", "train.batch_tokens=33", "train.tokens=330"]
    least += ["model.seq_len=33", "data.val_tokens=330"]  # one token more than are decoded
    done = prism_inside("bench", "decode", "prism-micro", *least, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "prompt of 1 " in done.stdout
    assert "threads" in done.stdout


@pytest.mark.parametrize("option", ["--batch", "--length"])
def test_sizes_below_one_are_refused(prism_inside: Prism, option: str) -> None:
    refused = prism_inside("bench", "train", option, "0")
    assert refused.returncode == 2
    assert f"{option} 0: give at least 1" in refused.stderr


def test_sequences_of_growing_length(prism_inside: Prism) -> None:
    shape = ("baseline-micro", "model.seq_len=16")
    done = prism_inside("bench", "context", *shape, "--longest", "64", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["what"], row["length"]) for row in rows] == [
        (what, length) for what in ("prefill", "training") for length in (16, 32, 64)
    ]
    assert [row["ratio"] for row in rows if row["length"] == 16] == [1.0, 1.0]
    for row in rows:
        assert row["tokens/s"] == pytest.approx(row["length"] / row["ms"] * 1e3)
    peaks = [row["peak GiB"] for row in rows]
    assert peaks == sorted(peaks)  # of a CPU
    assert peaks[0] > 0
    for shorter in ("1", "15"):
        refused = prism_inside("bench", "context", *shape, "--longest", shorter)
        assert refused.returncode == 2
        assert f"--longest {shorter}: lengths begin with the model's context, 16" in refused.stderr


@pytest.mark.slow
def test_tokenizing(prism_inside: Prism) -> None:
    done = prism_inside("bench", "data", "--megabytes", "1", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"].partition(",")[0] for row in rows][:3] == ["tiktoken"] * 3
    assert all(row["MB/s"] > 0 for row in rows)


@pytest.mark.slow
def test_training_eager_and_compiled(prism_inside: Prism) -> None:
    done = prism_inside(
        "bench", "train", "prism-micro", "--batch", "1", "--length", "32", *QUICK, "--json"
    )
    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == ["eager", "compiled"]
    assert all(0 < row["share of matmul rate"] < 2 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedules", "prism-micro", "2x4"], "has 4 layers, prism-micro 8"),
        (["schedules", "prism-micro", "5x8"], "layer 0: 5 heads do not divide"),
        (["train", "prism-micra"], "did you mean 'prism-micro'?"),
        (["attention", "--device", "mps"], "device 'mps'"),
        (["train", "--rounds", "0"], "--rounds 0: give at least 1"),
        (["context", "--longest", "0"], "--longest 0: give at least 1"),
        (["train", "--length", "9" * 400], f"give at most {2**63 - 1}"),
        (["decode", "prism-micro", "model.seq_len=32"], "model.seq_len = 32: decoding is measured"),
    ],
)
def test_bad_input(prism_inside: Prism, arguments: list[str], message: str) -> None:
    quick = [] if "--rounds" in arguments else QUICK
    done = prism_inside("bench", *arguments, *quick)
    assert done.returncode == 2
    assert message in done.stderr
