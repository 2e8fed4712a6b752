"""Scores: those of lm_eval called by hand, whatever the batch, and only of the right schedule."""

from __future__ import annotations

import json
import random
from math import sqrt
from pathlib import Path
from typing import Any

import lm_eval
import pyarrow.parquet as pq
import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.core.loss import IGNORED
from prism_transformer.core.progress import Advance, Begun, Event, Note
from prism_transformer.data.tokenizer import open_tokenizer
from prism_transformer.eval import harness
from prism_transformer.eval.diagnostic import minimal_pairs
from prism_transformer.eval.harness import Outcome, evaluate
from prism_transformer.eval.task_data import blimp_subtasks
from prism_transformer.hf.export import open_native, to_hf_tokenizer, write_hf
from prism_transformer.model import PrismLM
from tests.conftest import small_config
from tests.eval.files import (
    PLACES,
    REAL_DATA,
    SEQ_LEN,
    WORDS,
    by_hand,
    rows_of,
    scores,
    write_blimp,
    write_model,
    write_rows,
)


def score(model: Path, out: Path, *tasks: str, data: Path | None = None, **options: Any) -> Outcome:
    done = evaluate(model, tasks, data=data, out=out, device="cpu", **options)
    (outcome,) = done.outcomes
    assert done.failures == tuple(f"{name}: {why}" for name, why in outcome.failures.items())
    return outcome


def items(out: Path, task: str) -> list[dict[str, Any]]:
    return pq.read_table(out / f"{task}.parquet").to_pylist()


def numbers(outcome: Outcome, task: str) -> dict[str, dict[str, float]]:
    return {
        name: {key: value for key, value in values.items() if value is not None}
        for name, values in outcome.results[task]["metrics"].items()
    }


def test_five_tasks_score_as_lm_eval_by_hand(
    small_model: Path, small_data: Path, tmp_path: Path
) -> None:
    outcome = score(small_model, tmp_path, *PLACES, data=small_data, batch=4)
    assert outcome.failures == {}
    for task in PLACES:
        raw = by_hand(small_model, task, small_data)
        assert numbers(outcome, task) == scores(raw)
        ours, theirs = items(tmp_path, task), raw["samples"][task]
        assert [row["item_sha256"] for row in ours] == [row["doc_hash"] for row in theirs]
        result = json.loads((tmp_path / f"{task}.json").read_text("utf-8"))
        assert result["harness"]["versions"] == raw["versions"]
        assert result["harness"]["n-samples"] == raw["n-samples"]
        assert result["rows"][0]["split"] == Path(PLACES[task][0]).name.partition(".")[0]
        assert result["versions"]["lm_eval"] == "0.4.13"


@pytest.mark.slow
def test_blimp_scores_as_lm_eval_by_hand(small_model: Path, tmp_path: Path) -> None:
    data = write_blimp(tmp_path / "data")
    outcome = score(small_model, tmp_path / "out", "blimp", data=data, batch=4)
    ours = numbers(outcome, "blimp")
    assert ours == scores(by_hand(small_model, "blimp", data))
    each = [ours[f"blimp_{name}"]["acc"] for name in blimp_subtasks()]
    assert len(each) == 67
    assert ours["blimp"]["acc"] == pytest.approx(sum(each) / 67)
    assert outcome.results["blimp"]["rows"][0]["items"] == 134
    assert len(items(tmp_path / "out", "blimp")) == 134


@pytest.mark.slow
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real data beside the project")
@pytest.mark.parametrize(
    ("task", "limit"), [("piqa", 200), ("hellaswag", 100), ("blimp", 5), ("wikitext", 3)]
)
def test_real_data_score_as_lm_eval_by_hand(task: str, limit: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "hf", seq_len=1024)  # the longest answer has 586 bytes
    outcome = score(model, tmp_path / "out", task, data=REAL_DATA, limit=limit, batch=8)
    assert outcome.failures == {}
    assert numbers(outcome, task) == scores(by_hand(model, task, REAL_DATA, 8, limit))


def test_results_do_not_depend_on_the_batch_size(
    small_model: Path, small_data: Path, tmp_path: Path
) -> None:
    one = score(small_model, tmp_path / "one", "hellaswag", "wikitext", data=small_data, batch=1)
    seven = score(
        small_model, tmp_path / "seven", "hellaswag", "wikitext", data=small_data, batch=7
    )
    assert numbers(one, "hellaswag") == numbers(seven, "hellaswag")
    assert numbers(one, "wikitext")["wikitext"] == pytest.approx(
        numbers(seven, "wikitext")["wikitext"], rel=1e-5
    )
    for task in ("hellaswag", "wikitext"):
        pairs = zip(items(tmp_path / "one", task), items(tmp_path / "seven", task), strict=True)
        for left, right in pairs:
            assert left["item_sha256"] == right["item_sha256"]
            assert left["loglikelihoods"] == pytest.approx(right["loglikelihoods"], rel=1e-5)


def test_another_schedule_on_the_same_weights_scores_otherwise(
    small_model: Path, small_data: Path, tmp_path: Path
) -> None:
    uniform = write_model(tmp_path / "uniform", "12x5")
    score(small_model, tmp_path / "one", "piqa", data=small_data)
    score(uniform, tmp_path / "other", "piqa", data=small_data)
    for left, right in zip(
        items(tmp_path / "one", "piqa"), items(tmp_path / "other", "piqa"), strict=True
    ):
        assert left["item_sha256"] == right["item_sha256"]
        assert left["loglikelihoods"] != pytest.approx(right["loglikelihoods"], abs=1e-2)


def test_random_weights_score_near_chance_on_pairs_of_equal_length(
    small_model: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    rows = [
        {
            "goal": draw.choice(WORDS),
            **{name: "".join(draw.choices("abcdefgh ", k=12)) + "." for name in ("sol1", "sol2")},
            "label": draw.randrange(2),
        }
        for _ in range(400)
    ]
    write_rows(tmp_path / "data/piqa/validation.jsonl", rows)
    outcome = score(small_model, tmp_path / "out", "piqa", data=tmp_path / "data")
    assert abs(outcome.results["piqa"]["rows"][0]["value"] - 0.5) < 3 * sqrt(0.25 / 400)


def test_diagnostic_needs_no_data_and_stands_apart(small_model: Path, tmp_path: Path) -> None:
    outcome = score(small_model, tmp_path, "diagnostic", limit=3)
    result = outcome.results["diagnostic"]
    assert result["diagnostic"]
    assert [row["task"] for row in result["rows"]] == ["diagnostic_pairs", "diagnostic_cloze"]
    assert len(result["metrics"]) >= 14
    assert all(name.startswith("diagnostic_") for name in result["metrics"])
    assert {row["task"] for row in items(tmp_path, "diagnostic")} | {"diagnostic_pairs"} == set(
        result["metrics"]
    )


def test_finished_tasks_are_not_run_again(
    small_model: Path, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = score(small_model, tmp_path, "piqa", data=small_data, limit=2)
    opened: list[str] = []
    real = harness.open_any

    def watched(source: str, dtype: str, batch: int, device: str) -> Any:
        opened.append(source)
        return real(source, dtype, batch, device)

    monkeypatch.setattr(harness, "open_any", watched)
    again = score(small_model, tmp_path, "piqa", data=small_data, limit=2, batch=1)
    assert not opened
    assert again.results == first.results
    score(small_model, tmp_path, "piqa", "winogrande", data=small_data, limit=2)
    assert len(opened) == 1
    assert {file.name for file in tmp_path.iterdir()} == {
        "piqa.json", "piqa.parquet", "winogrande.json", "winogrande.parquet"
    }  # fmt: skip
    score(small_model, tmp_path, "piqa", data=small_data, limit=2, force=True)
    score(small_model, tmp_path, "piqa", data=small_data, limit=3)  # other settings
    assert len(opened) == 3
    (tmp_path / "piqa.parquet").unlink()
    score(small_model, tmp_path, "piqa", data=small_data, limit=3)
    assert len(opened) == 4


def test_a_task_that_fails_does_not_lose_the_others(small_model: Path, tmp_path: Path) -> None:
    long = rows_of("winogrande", 1)[0] | {"sentence": "_ " + "long " * 100}
    write_rows(tmp_path / "data/winogrande/validation.jsonl", [long])
    write_rows(tmp_path / "data/piqa/validation.jsonl", rows_of("piqa", 2))
    outcome = score(small_model, tmp_path / "out", "winogrande", "piqa", data=tmp_path / "data")
    assert list(outcome.results) == ["piqa"]
    assert list(outcome.failures) == ["winogrande"]
    assert "the model sees 256" in outcome.failures["winogrande"]
    assert not (tmp_path / "out/winogrande.json").exists()


def test_texts_that_lose_their_beginning_are_counted(small_model: Path, tmp_path: Path) -> None:
    rows = rows_of("piqa", 3)
    rows[1]["goal"] = "long " * 100
    write_rows(tmp_path / "data/piqa/validation.jsonl", rows)
    outcome = score(small_model, tmp_path / "out", "piqa", data=tmp_path / "data")
    assert outcome.results["piqa"]["truncated_texts"] == 2


def test_what_is_recorded(small_model: Path, small_data: Path, tmp_path: Path) -> None:
    result = score(small_model, tmp_path, "piqa", data=small_data, batch=3).results["piqa"]
    assert result["batch"] == 3
    assert result["settings"]["dtype"] == "float32"
    assert list(result["settings"]["data"]) == ["piqa/validation.jsonl"]
    assert "model.safetensors" in result["settings"]["model"]
    assert result["task_versions"] == {"piqa": 1.0}
    assert result["dataset_fingerprints"]["piqa"]
    assert result["beginning_of_text"] == {
        "tokenizer_adds_tokens": False,
        "before_an_empty_context": "<|endoftext|>",
        "prefix_token_id": 256,
    }
    assert set(result["metrics"]["piqa"]) == {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr"}


def test_an_unreachable_hub_is_said_at_once(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(harness, "hub_answers", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"give --data DIR, or --tasks diagnostic.*\n.*piqa/val"):
        score(small_model, tmp_path / "out", "piqa", "wikitext")
    assert not (tmp_path / "out").exists()


def test_a_dataset_that_the_hub_has_not_is_one_failure(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("gone")

    monkeypatch.setattr(harness, "hub_answers", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", missing)
    outcome = score(small_model, tmp_path / "out", "piqa")
    assert outcome.failures == {"piqa": "FileNotFoundError: gone"}


def test_lm_eval_is_left_as_it_was(small_model: Path, small_data: Path, tmp_path: Path) -> None:
    before = lm_eval.evaluator.add_env_info, lm_eval.api.task.tqdm
    score(small_model, tmp_path, "piqa", data=small_data, limit=1)
    assert (lm_eval.evaluator.add_env_info, lm_eval.api.task.tqdm) == before


@pytest.mark.slow
def test_a_model_trained_on_good_sentences_prefers_them(tmp_path: Path) -> None:
    phenomenon = "reflexive_gender"
    good = [pair[0] for pair in minimal_pairs()[phenomenon]]
    words = open_tokenizer("bytes", tmp_path)
    model = PrismLM(small_config("2x2 12x2", vocab_size=257, seq_len=SEQ_LEN))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = [[words.end_of_text, *each.tolist()] for each in words.encode_batch(good)]
    longest = max(len(row) for row in rows)
    batch = torch.tensor([row + [IGNORED] * (longest - len(row)) for row in rows])
    for _ in range(225):
        model(batch[:, :-1].clamp(min=0), batch[:, 1:]).backward()
        # As training does. Without it one bad step decides, and where depends on the machine.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    write_hf(open_native(model, to_hf_tokenizer(words, SEQ_LEN)), tmp_path / "hf")
    outcome = score(tmp_path / "hf", tmp_path / "out", "diagnostic")
    metrics = outcome.results["diagnostic"]["metrics"]
    assert metrics[f"diagnostic_{phenomenon}"]["acc"] >= 0.9


def test_what_it_tells(small_model: Path, small_data: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    common = {"data": small_data, "out": tmp_path, "device": "cpu", "tell": events.append}
    done = evaluate(str(small_model), ["piqa"], limit=2, **common)  # type: ignore[arg-type]
    assert events[0] == Begun("reading the data of piqa")
    advances = [each for each in events if isinstance(each, Advance)]
    assert (advances[-1].done, advances[-1].total) == (4, 4)  # two answers to each of two goals
    value = done.table.rows[0]["value"]
    said, few = (each.line for each in events if isinstance(each, Note))
    assert said.startswith(f"piqa: acc {value:.5g}, 2 items")
    assert few == "piqa: 2 of the 1,838 items it is known to have"
    events.clear()
    again = evaluate(str(small_model), ["piqa"], limit=2, **common)  # type: ignore[arg-type]
    assert again.table == done.table
    assert events == [Note(f"piqa: finished before, in {tmp_path}; --force runs it again")]
