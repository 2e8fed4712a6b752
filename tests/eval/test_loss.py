"""The loss against training's, transformers', every logit; with scaled positions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import Tensor

from prism_transformer import PrismLM
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.core.sealed import read_sealed
from prism_transformer.eval.loss import measure_loss, text_loss
from prism_transformer.eval.text import open_on_text
from prism_transformer.hf.export import export, to_hf
from prism_transformer.hf.load import read_config
from prism_transformer.training.measured import own_sums
from prism_transformer.training.run import Run, checkpoints, read_metrics
from tests.hf.models import prism
from tests.training.runs import finish, tiny


def windows(n: int, length: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(300, (n, length + 1), generator=draw)


def test_a_runs_loss_is_the_one_that_training_reported(trained: Path) -> None:
    source = open_on_text(str(trained))
    assert isinstance(source.model, PrismLM)
    assert source.n_scored is not None
    batches = enumerate(source.batches(source.n_scored, 7))  # nothing is masked: any number will do
    found = measure_loss(to_hf(source.model), batches)
    reported = [row["loss"] for row in read_metrics(trained) if row["kind"] == "val"][-1]
    assert found.mean == pytest.approx(reported, abs=2e-6)
    assert found.n_tokens == 1600
    assert found.perplexity == pytest.approx(math.exp(reported), rel=1e-5)
    # A token is a byte, so the two differ by the unit alone.
    assert found.bits_per_byte(1600) == pytest.approx(reported / math.log(2), rel=1e-5)


def test_positions_and_errors_against_every_logit() -> None:
    model = prism(head_schedule="2x1 12x2")
    rows = windows(5, 40)
    found = measure_loss(model, [(0, rows[:3]), (3, rows[3:])])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="none")
    losses = losses.view(5, 40).double()
    assert found.by_position == pytest.approx(losses.mean(0).numpy(), rel=1e-5)
    assert found.error == pytest.approx(losses.mean(1).std().item() / 5**0.5, rel=1e-4)
    parts = found.doubling()
    assert [part["positions"] for part in parts] == [
        "1", "2", "3-4", "5-8", "9-16", "17-32", "33-40"
    ]  # fmt: skip
    assert parts[-1]["loss"] == pytest.approx(losses[:, 32:].mean().item(), rel=1e-5)


def test_any_causal_lm_has_the_loss_that_transformers_gives() -> None:
    torch.manual_seed(0)
    model: Any = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    ).eval()
    rows = windows(3, 31)
    with torch.no_grad():
        theirs = model(rows, labels=rows).loss.item()
    assert measure_loss(model, [(0, rows)]).mean == pytest.approx(theirs, rel=1e-5)


def test_no_text_no_loss() -> None:
    with pytest.raises(InputError, match="no sequence was measured"):
        measure_loss(prism(head_schedule="12x2"), [])


def test_text_loss_of_a_run_is_trainings_own_and_is_kept(trained: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    found = text_loss(Run.open(trained), batch=7, tell=events.append)
    reported = [row["loss"] for row in read_metrics(trained) if row["kind"] == "val"][-1]
    assert found.loss.mean == pytest.approx(reported, abs=2e-6)
    assert (found.length, found.loss.n_sequences) == (32, 50)
    assert found.n_bytes is not None
    assert found.to_json()["bits_per_byte"] == pytest.approx(
        found.loss.mean * 1600 / math.log(2) / found.n_bytes
    )
    assert found.table.values("positions")[:3] == ["1", "2", "3-4"]
    assert f"loss {reported:.4f}" in str(found)
    assert [each.done for each in events if isinstance(each, Advance)][-1] == 8
    assert found.folder == trained / "analysis" / "step-00000020"
    kept = read_sealed(found.write(tmp_path / "new"))
    assert kept == {
        "text": found.text, "length": 32, "scaling": None, "sequences": 50,
        "loss": found.loss.mean, "by_position": found.loss.doubling(),
        "model": own_sums(checkpoints(trained)[-1]),
    }  # fmt: skip


def test_an_export_has_its_runs_loss_and_bits_per_byte(trained: Path, tmp_path: Path) -> None:
    sources = (trained, export(trained, tmp_path / "hf").folder)
    ours, theirs = (text_loss(each, text="sotu", sequences=3, batch=2) for each in sources)
    assert theirs.n_bytes == ours.n_bytes
    assert theirs.loss.mean == pytest.approx(ours.loss.mean)


def test_an_encoder_is_scored_as_training_validates_it(tmp_path: Path, data: Path) -> None:
    """With the same fixed masks, also where documents are isolated."""
    shape = ("model.attention=bidirectional", "train.objective=masked", "model.vocab_size=258")
    finish(tmp_path / "run", tiny(data, *shape, "data.boundaries=isolate", "train.tokens=2560"))
    trained = [row["loss"] for row in read_metrics(tmp_path / "run") if row["kind"] == "val"][-1]
    found = text_loss(tmp_path / "run", batch=3)
    assert found.loss.mean == pytest.approx(trained, abs=1e-5)
    assert found.loss.n_tokens == 50 * round(0.15 * 32)
    assert found.to_json()["loss"] == pytest.approx(
        sum(found.loss.sums) / sum(found.loss.counts), rel=1e-12
    )


def test_an_encoders_export_is_asked_what_its_run_is(tmp_path: Path, data: Path) -> None:
    shape = ("model.attention=bidirectional", "train.objective=masked", "model.vocab_size=260")
    shares = ("train.mask_share=0.3", "train.mask_replaced=0.5", "train.mask_random=0.4")
    finish(tmp_path / "run", tiny(data, *shape, *shares, "train.tokens=1024"))
    exported = export(tmp_path / "run", tmp_path / "hf")
    assert not exported.causal
    sources = (tmp_path / "run", exported.folder)
    ours, theirs = (text_loss(each, text="sotu", sequences=6, batch=4) for each in sources)
    assert theirs.loss.n_tokens == ours.loss.n_tokens == 6 * round(0.3 * 32)
    assert theirs.loss.sums == pytest.approx(ours.loss.sums, abs=1e-5)
    # Of a part of the tokens there are no bits per byte.
    assert theirs.n_bytes is ours.n_bytes is None
    assert "per byte" not in str(ours)
    assert "bits_per_byte" not in ours.to_json()
    assert export(exported.folder, tmp_path / "again").folder.is_dir()
    assert read_config(str(tmp_path / "again")).masking == {
        "share": 0.3, "replaced": 0.5, "random": 0.4
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [{"length": 0}, {"length": -1}, {"sequences": 0}])
def test_sizes_below_one_are_refused(trained: Path, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"--{name} .*: give at least 1"):
        text_loss(trained, **wrong)


def test_a_run_that_isolates_is_scored_so(tmp_path: Path, data: Path) -> None:
    finish(tmp_path / "run", tiny(data, "data.boundaries=isolate", "train.tokens=2560"))
    trained = [row["loss"] for row in read_metrics(tmp_path / "run") if row["kind"] == "val"][-1]
    assert text_loss(tmp_path / "run", batch=7).loss.mean == pytest.approx(trained, abs=1e-5)
