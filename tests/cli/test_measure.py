"""``prism eval``, ``analyze`` and ``loss`` as a user types them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from prism_transformer.hf import load
from prism_transformer.training.run import checkpoints
from tests.conftest import Prism
from tests.eval.files import rows_of, write_rows
from tests.training.runs import command, finish, run_command, tiny, torchrun


def test_a_run_and_its_export_score_alike(
    prism_inside: Prism, short_run: Path, small_data: Path, tmp_path: Path
) -> None:
    common = ("--tasks", "piqa", "--data", str(small_data), "--device", "cpu")
    done = prism_inside("eval", str(short_run), *common)
    assert done.returncode == 0, done.stderr
    last = checkpoints(short_run)[-1].name
    assert f"everything is in {short_run}/eval/{last}" in done.stdout
    assert re.search(r"\(0\.\d\dM parameters\), zero-shot", done.stdout)
    assert "piqa  acc" in done.stdout
    assert "validation" in done.stdout
    assert done.stderr == ""  # no bars, no advice

    assert prism_inside("export", str(short_run), "hf").returncode == 0
    printed = prism_inside("eval", "hf", *common, "--json")
    (facts,) = json.loads(printed.stdout)
    assert facts["out"] == "eval/hf"
    ours = json.loads((short_run / "eval" / last / "piqa.json").read_text("utf-8"))
    assert facts["results"]["piqa"]["metrics"] == ours["metrics"]
    shutil.rmtree(short_run / "eval")


def test_every_checkpoint(
    prism_inside: Prism, short_run: Path, small_data: Path, tmp_path: Path
) -> None:
    names = [folder.name for folder in checkpoints(short_run)]
    common = ("--tasks", "piqa", "--data", str(small_data), "--limit", "2", "--device", "cpu")
    done = prism_inside("eval", str(short_run), "--checkpoint", "all", *common, "--out", "all")
    assert done.returncode == 0, done.stderr
    assert sorted(folder.name for folder in (tmp_path / "all").iterdir()) == names
    step = int(names[0].removeprefix("step-"))
    one = prism_inside(
        "eval", str(short_run), "--checkpoint", f"step-{step}", *common, "--out", "one"
    )
    assert one.returncode == 0, one.stderr
    tables = [pq.read_table(tmp_path / at / "piqa.parquet") for at in (f"all/{names[0]}", "one")]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(pq.read_table(tmp_path / f"all/{names[1]}/piqa.parquet"))


def test_a_failed_task_is_named_and_exits_1(
    prism_inside: Prism, small_model: Path, tmp_path: Path
) -> None:
    long = rows_of("winogrande", 1)[0] | {"sentence": "_ " + "long " * 100}
    write_rows(tmp_path / "data/winogrande/validation.jsonl", [long])
    write_rows(tmp_path / "data/piqa/validation.jsonl", rows_of("piqa", 2))
    done = prism_inside(
        "eval", str(small_model), "--tasks", "winogrande,piqa", "--data", "data", "--device", "cpu"
    )
    assert done.returncode == 1
    assert "FAILED  winogrande: a text of" in done.stdout
    assert "piqa        acc" in done.stdout or "piqa  acc" in done.stdout


def test_the_diagnostic_is_labelled(prism_inside: Prism, small_model: Path) -> None:
    done = prism_inside(
        "eval", str(small_model), "--tasks", "diagnostic", "--limit", "2", "--device", "cpu"
    )
    assert done.returncode == 0, done.stderr
    assert "diagnostic, built in: not a benchmark" in done.stdout


def test_bad_input_is_named_and_nothing_is_written(
    prism_inside: Prism,
    small_model: Path,
    short_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "hub_answers", lambda: False)
    (tmp_path / "empty").mkdir()
    write_rows(tmp_path / "bad/piqa/validation.jsonl", rows_of("piqa", 2))
    with (tmp_path / "bad/piqa/validation.jsonl").open("a") as stream:
        stream.write('{"goal": "cut')
    shutil.copytree(small_model, tmp_path / "wordless", ignore=shutil.ignore_patterns("tokenizer*"))
    shutil.copytree(small_model, tmp_path / "holed")
    weights = load_file(tmp_path / "holed" / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "holed" / "model.safetensors", {"format": "pt"})
    shutil.copytree(short_run, tmp_path / "damaged")
    newest = checkpoints(tmp_path / "damaged")[-1]
    (newest / "model.safetensors").write_bytes(b"junk")
    hf, before = str(small_model), sorted(tmp_path.rglob("*"))
    for arguments, message in [
        (["nothing"], "nothing: there is no such run or Hugging Face folder, none that ships"),
        (["bad/nothing"], "bad/nothing: there is no such run or Hugging"),
        (["./a/b/c"], "./a/b/c: there is no such run"),
        (["empty"], "empty: is neither a run nor a Hugging Face folder"),
        (["wordless", "--tasks", "diagnostic"], "wordless: has no tokenizer"),
        (["holed", "--tasks", "diagnostic"], "its weights have missing keys: model.layers.1.mlp"),
        ([hf, "--tasks", "helaswag"], "no task 'helaswag'; did you mean 'hellaswag'?"),
        ([hf, "--data", "empty"], "empty: has no data of piqa"),
        ([hf, "--data", "nothing"], "nothing: is not a folder"),
        ([hf, "--data", "bad", "--tasks", "piqa"], "validation.jsonl, line 3: is not JSON"),
        ([hf, "--data", "bad", "--tasks", "piqa,wikitext"], "expected: wikitext/test"),
        ([hf, "--tasks", "diagnostic", "--limit", "0"], "--limit 0"),
        ([hf, "--tasks", "diagnostic", "--batch", "0"], "--batch 0"),
        ([hf, "--tasks", "diagnostic", "--dtype", "float8"], "float8"),
        ([hf, "--tasks", "diagnostic", "--device", "abacus"], "device 'abacus'"),
        ([hf, "--checkpoint", "all"], "--checkpoint is for runs"),
        (
            [str(short_run), "--checkpoint", "step-7"],
            "has no checkpoint 'step-7'; it has step-0000",
        ),
        ([str(short_run), "--checkpoint", "last"], "has no checkpoint 'last'"),
        (["damaged", "--checkpoint", "all"], "model.safetensors: is damaged"),
    ]:
        result = prism_inside("eval", *arguments)
        assert result.returncode == 2, (arguments, result.stdout, result.stderr)
        assert message in result.stderr, (arguments, result.stderr)
        assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_two_processes_share_the_items(small_model: Path, small_data: Path, tmp_path: Path) -> None:
    options = (
        "--tasks",
        "piqa,wikitext",
        "--data",
        str(small_data),
        "--limit",
        "7",
        "--device",
        "cpu",
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for n in (1, 2):
        line = torchrun("eval", str(small_model), *options, "--out", f"{tmp_path}/{n}", n=n)
        subprocess.run(line, env=environment, check=True, capture_output=True, timeout=300)
    for task in ("piqa", "wikitext"):
        one, two = (json.loads((tmp_path / f"{n}/{task}.json").read_text()) for n in (1, 2))
        assert (one["processes"], two["processes"]) == (1, 2)
        for metric, value in one["metrics"][task].items():
            assert two["metrics"][task][metric] == (value and pytest.approx(value, rel=1e-5))
        tables = [pq.read_table(tmp_path / f"{n}/{task}.parquet") for n in (1, 2)]
        assert tables[0]["item_sha256"] == tables[1]["item_sha256"]


def _close(one: Any, other: Any) -> None:
    """The same structure, its numbers within rounding of their sums."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            _close(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            _close(*pair)
    elif isinstance(one, float):
        # The error of two equal numbers is nothing but rounding.
        assert other == pytest.approx(one, rel=1e-9, abs=1e-6)
    else:
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "n"),
    [
        (("loss", "--sequences", "7", "--batch", "2"), 2),
        (("loss", "--sequences", "2"), 3),  # one process has nothing to do
        (("analyze", "--sequences", "5", "--effective-rank"), 2),
        (("analyze", "--sequences", "1"), 2),
    ],
    ids=["loss", "loss-idle", "analyze", "analyze-idle"],
)
def test_several_processes_measure_as_one_does(
    trained: Path, tmp_path: Path, line: tuple[str, ...], n: int
) -> None:
    verb, *options = line
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    given = (verb, str(run), *options, "--device", "cpu", "--json")
    one, several = (
        run_command(each, tmp_path) for each in (command(*given), torchrun(*given, n=n))
    )
    assert one.returncode == several.returncode == 0, one.stderr + several.stderr
    _close(json.loads(one.stdout), json.loads(several.stdout))  # one of them spoke


@pytest.mark.slow
def test_several_processes_compare_two_arms(trained: Path, uniform: Path, tmp_path: Path) -> None:
    """Each is measured by all of them, one after the other."""
    arms = (str(uniform), "--compare", str(trained))
    line = ("analyze", *arms, "--sequences", "2", "--figure", "two.svg", "--device", "cpu")
    done = run_command(torchrun(*line), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote ") == 3
    assert (tmp_path / "two.svg").exists()


@pytest.fixture(scope="session")
def uniform(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "uniform"
    finish(folder, tiny(data, "model.schedule=8x3"))
    return folder


def test_two_arms_are_compared(
    trained: Path, uniform: Path, tmp_path: Path, prism_inside: Prism
) -> None:
    done = prism_inside(
        "analyze", str(uniform), "--compare", str(trained), "--sequences", "6", "--batch", "4",
        "--figure", "profile.svg",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "difference" in done.stdout
    assert "8 / 2" in done.stdout
    assert "6 sequences of 32 tokens, last half of each" in done.stdout
    kept = json.loads((trained / "analysis/step-00000020/attention.json").read_text())
    assert [layer["heads"] for layer in kept["profile"]["layers"]] == [2, 4, 8]
    drawn = (tmp_path / "profile.svg").read_text("utf-8")
    assert "2x1 4x1 8x1 minus 8x3" in drawn
    assert "mean attention distance, tokens" in drawn


def test_a_view_of_two_runs_is_kept_with_the_first(
    trained: Path, uniform: Path, tmp_path: Path, prism_inside: Prism
) -> None:
    done = prism_inside(
        "analyze", str(trained), "--compare", str(uniform), "--view", "out.html"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 / 8" in done.stdout
    assert "one text of 32 tokens" in done.stdout
    page = (tmp_path / "out.html").read_text("utf-8")
    assert (trained / "analysis/step-00000020/attention.html").read_text("utf-8") == page
    assert not (uniform / "analysis/step-00000020/attention.html").exists()


def test_one_arm_as_json(trained: Path, prism_inside: Prism) -> None:
    done = prism_inside("analyze", str(trained), "--sequences", "2", "--effective-rank", "--json")
    result = json.loads(done.stdout)
    assert [row["heads"] for row in result["rows"]] == [2, 4, 8]
    statistics = result["profiles"][0]["layers"][0]["statistics"]
    assert set(statistics) >= {"distance", "sink", "entropy", "effective_rank"}
    assert len(statistics["distance"]["heads"]) == 2


def test_loss_of_a_checkpoint(trained: Path, prism_inside: Prism) -> None:
    done = prism_inside("loss", str(trained), "--json")
    last = json.loads(done.stdout)
    assert last["sequences"] == 50
    assert len(last["by_position"]) == 32
    done = prism_inside("loss", str(trained), "--checkpoint", "step-00000016", "--json")
    assert json.loads(done.stdout)["loss"] != last["loss"]
    done = prism_inside("loss", str(trained), "--length", "64", "--rope-scaling", "linear:2")
    assert "25 sequences of 64 tokens, standard error" in done.stdout
    assert "bits per byte" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["analyze"], "nothing to analyze"),
        (["analyze", "runs/there/is/none"], "no such run or Hugging Face folder"),
        (["analyze", "{run}", "--statistic", "farness"], "--statistic 'farness': is not one of"),
        (["analyze", "{run}", "--view", "out.txt"], "out.txt: the page of attention ends in .html"),
        (["analyze", "{run}", "{run}", "--view", "out.html"], "--view: shows one model, or two"),
        (["analyze", "{run}", "--view", "o.html", "--figure", "o.svg"], "give one of them"),
        (["analyze", "{run}", "--sequences", "100000"], "windows, 100000 were asked"),
        (["analyze", "{run}", "--text", "no/file.jsonl"], "matches no file"),
        (["analyze", "{run}", "--length", "100000"], "hold no window of 100000"),
        (["analyze", "{run}", "--length", "33"], "sequences of 33 tokens; this model's context is"),
        (["loss", "{run}", "--length", "64"], "--length 64: this model's context is 32"),
        (["loss", "{run}", "--checkpoint", "step-9"], "has no checkpoint 'step-9'"),
        (["loss", "{run}", "--rope-scaling", "twice"], "--rope-scaling 'twice'"),
    ],
)
def test_bad_input(trained: Path, prism_inside: Prism, arguments: list[str], message: str) -> None:
    done = prism_inside(*(each.format(run=trained) for each in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
