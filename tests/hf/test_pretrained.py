"""Which weights a user named, and that training begins from just these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import open_windows
from prism_transformer.hf.export import export
from prism_transformer.hf.importing import import_model
from prism_transformer.hf.pretrained import pretrained
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import fingerprint, load_model, save_model
from prism_transformer.training.api import train
from prism_transformer.training.run import checkpoints, read_environment
from tests.conftest import small_config
from tests.hf.models import llama_twin, prism
from tests.training.runs import tiny


def test_every_kind_of_folder(trained: Path, tmp_path: Path) -> None:
    newest = checkpoints(trained)[-1]
    wanted = fingerprint(load_model(newest))
    export(trained, tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "native")
    for source, shown, run in (
        (trained, f"{trained}, {newest.name}", trained),
        (newest, str(newest), trained),
        (tmp_path / "native", str(tmp_path / "native"), None),
        (tmp_path / "hf", str(tmp_path / "hf"), None),
    ):
        start = pretrained(source)
        assert (start.source, start.run) == (shown, run)
        assert fingerprint(start.model) == wanted


def test_what_is_no_prism_model_is_refused_with_the_way(tmp_path: Path) -> None:
    llama_twin(prism(head_schedule="12x3")).save_pretrained(tmp_path / "llama")
    with pytest.raises(
        InputError, match=r"is a llama model, not Prism; `prism import .*--schedule"
    ):
        pretrained(tmp_path / "llama")
    with pytest.raises(InputError, match="there is no such run or Hugging Face folder"):
        pretrained(tmp_path / "nothing")
    prism(head_schedule="12x3", vocab_size=300).save_pretrained(tmp_path / "odd")
    with pytest.raises(InputError, match="odd: a native model does not support vocab_size = 300"):
        pretrained(tmp_path / "odd")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is neither a run nor a Hugging Face folder"):
        pretrained(tmp_path / "empty")


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    save_model(PrismLM(small_config()), tmp_path / "model")
    (tmp_path / "model" / "sha256.json").write_text("{}", "utf-8")
    with pytest.raises(InputError, match="does not have the files it was written with"):
        pretrained(tmp_path / "model")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("queries_per_kv", [1, 2])
def test_training_begins_with_the_loss_of_the_llama(
    tmp_path: Path, data: Path, tied: bool, queries_per_kv: int
) -> None:
    """transformers' own Llama, converted with its own heads, on the validation slice."""
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 96, "vocab_size": 384}
    theta: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    llama = llama_twin(
        prism(
            head_schedule="8x3", queries_per_kv=queries_per_kv, tie_word_embeddings=tied,
            **shape, **theta,
        )
    )  # fmt: skip
    llama.save_pretrained(tmp_path / "llama")
    import_model(tmp_path / "llama", tmp_path / "prism", schedule="8x3")
    overrides = [
        "model.schedule=8x3", "model.vocab_size=384", "model.rope_base=5e5",
        f"model.queries_per_kv={queries_per_kv}", f"model.tied_embeddings={str(tied).lower()}",
    ]  # fmt: skip
    recipe = tiny(data, *overrides)
    start = pretrained(tmp_path / "prism")
    run = train(recipe, tmp_path / "run", start=start, until=2, device="cpu")
    rows = torch.from_numpy(open_windows(data, "val", 32, 257).read(range(50)))  # 1600 tokens
    with torch.no_grad():
        logits = llama(rows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert run.losses[0] == pytest.approx(expected.item(), abs=2e-5)
    assert read_environment(run.folder)["start"]["source"] == str(tmp_path / "prism")
    # And out again, as what it has become.
    export(run, tmp_path / "out")
    assert fingerprint(pretrained(tmp_path / "out").model) == fingerprint(pretrained(run).model)
    assert f"from the weights of `{tmp_path / 'prism'}`" in (tmp_path / "out/README.md").read_text()


def test_the_weights_a_run_began_from_can_be_exported(tmp_path: Path, data: Path) -> None:
    save_model(PrismLM(tiny(data).model, 3), tmp_path / "model")
    start = pretrained(tmp_path / "model")
    run = train(tiny(data), tmp_path / "run", start=start, until=1, device="cpu")
    for folder in checkpoints(run.folder)[1:]:
        folder.rename(tmp_path / folder.name)
    export(run, tmp_path / "hf")
    card = (tmp_path / "hf/README.md").read_text("utf-8")
    assert "Trained for 0 of 20 steps" in card
    assert "Validation loss" not in card
