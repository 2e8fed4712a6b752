"""Weights that a run begins from: what is refused, what is written down, what survives a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from prism_transformer.core.errors import InputError
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import WEIGHTS_FILE, fingerprint, load_model
from prism_transformer.training.api import resume, train
from prism_transformer.training.run import checkpoints, read_environment
from prism_transformer.training.start import Start, check_shape
from tests.training.runs import assert_same_end, tiny


def drawn(data: Path, *overrides: str, seed: int = 9) -> Start:
    return Start("mine", PrismLM(tiny(data, *overrides).model, seed))


def test_a_run_from_given_weights_is_the_run_that_would_have_drawn_them(
    tmp_path: Path, data: Path
) -> None:
    """Seeds decide weights and the order of data: take the weights of 9 and the order of 9."""
    recipe = tiny(data, "train.seed=9")
    given = train(recipe, tmp_path / "given", start=drawn(data), device="cpu")
    whole = train(recipe, tmp_path / "drawn", device="cpu")
    assert_same_end(given.folder, whole.folder)
    facts, others = (read_environment(run.folder) for run in (given, whole))
    assert facts["hashes"] == others["hashes"]  # so that check_fair compares what was begun from
    assert facts["start"] == {"source": "mine", "sha256": facts["hashes"]["initial_weights"]}
    assert others["start"] is None


def test_arms_that_begin_from_different_weights_have_different_hashes(
    tmp_path: Path, data: Path
) -> None:
    hashes: list[str] = []
    for seed in (1, 1, 2):
        place = tmp_path / str(len(hashes))
        run = train(tiny(data), place, start=drawn(data, seed=seed), until=1, device="cpu")
        hashes.append(read_environment(run.folder)["hashes"]["initial_weights"])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("kept", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_after_a_kill_the_source_is_not_needed(tmp_path: Path, data: Path, kept: int) -> None:
    """``kept`` checkpoints are all that is left: only the first, or one after four steps."""
    recipe = tiny(data, "run.keep_checkpoints=9")
    whole = train(recipe, tmp_path / "whole", start=drawn(data), device="cpu")
    shutil.copytree(whole.folder, tmp_path / "run")
    for folder in checkpoints(tmp_path / "run")[kept:]:
        shutil.rmtree(folder)
    first = load_model(checkpoints(tmp_path / "run")[0])
    assert fingerprint(first) == fingerprint(drawn(data).model)
    resume(tmp_path / "run", device="cpu")
    assert_same_end(tmp_path / "run", whole.folder)


def test_a_seed_never_stands_in_for_weights_that_are_lost(tmp_path: Path, data: Path) -> None:
    run = train(tiny(data), tmp_path / "run", start=drawn(data), until=1, device="cpu")
    shutil.rmtree(run.folder / "checkpoints")
    with pytest.raises(InputError, match=r"no sound checkpoint left, .* are in mine: begin a new"):
        resume(run, device="cpu")


def test_weights_come_in_the_precision_of_the_run(tmp_path: Path, data: Path) -> None:
    start = Start("half", drawn(data).model.bfloat16())
    run = train(tiny(data), tmp_path / "run", start=start, until=1, device="cpu")
    name = "layers.1.mlp.down.weight"
    weights = load_file(checkpoints(run.folder)[0] / WEIGHTS_FILE)
    assert weights[name].equal(start.model.get_parameter(name).float())


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.d_model=64", 'model.d_model is 32 in the recipe, 64 in .* add "model.d_model=64"'),
        ("model.schedule=8x1 4x1 2x1", r"8x1 4x1 2x1 in these weights \(first at layer 0\)"),
        ("model.schedule=2x1 4x2", r"\(first at layer 2\).* `prism import --schedule`"),
        ("model.schedule=4x2", r"\(3 layers, 2 layers\)"),
        ("model.vocab_size=300", "model.vocab_size is 257 in the recipe, 300 in these weights"),
        ("model.d_ff=64", "model.d_ff is 96"),
        ("model.tied_embeddings=false", "model.tied_embeddings is true in .*, false in"),
        ("model.rope_base=500000.0", "model.rope_base is 10000.0 in the recipe, 500000.0 in"),
        ("model.queries_per_kv=2", "model.queries_per_kv is 1"),
        ("model.norm_eps=1e-6", "model.norm_eps is 1e-05 in the recipe, 1e-06 in"),
    ],
)
def test_another_model_is_refused_by_name(
    tmp_path: Path, data: Path, override: str, named: str
) -> None:
    with pytest.raises(InputError, match=f"mine: is not the recipe's model: .*{named}"):
        train(tiny(data), tmp_path / "run", start=drawn(data, override), device="cpu")
    assert not (tmp_path / "run").exists()


def test_all_differences_are_said_at_once(data: Path) -> None:
    start = drawn(data, "model.d_ff=64", "model.norm_eps=1e-6")
    with pytest.raises(InputError, match=r'add "model\.d_ff=64" "model\.norm_eps=1e-06"$'):
        check_shape(start, tiny(data))


def test_contexts_of_another_length_are_fine(data: Path) -> None:
    check_shape(drawn(data, "model.seq_len=16", "model.init_std=0.5"), tiny(data))


def test_weights_of_a_run_know_their_tokenizer(tmp_path: Path, data: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path / "other")
    file = tmp_path / "other" / "recipe.toml"
    file.write_text(file.read_text("utf-8").replace('"bytes"', '"bpe:300"'), "utf-8")
    start = Start("other", drawn(data).model, tmp_path / "other")
    with pytest.raises(InputError, match="trained with tokenizer bpe:300, the recipe says bytes"):
        train(tiny(data), tmp_path / "run", start=start, device="cpu")
    assert not (tmp_path / "run").exists()


def test_two_bpes_of_one_size_are_two_tokenizers(tmp_path: Path, data: Path, trained: Path) -> None:
    shutil.copytree(trained, tmp_path / "source")
    start = Start("source", drawn(data).model, tmp_path / "source")
    shutil.copytree(data, tmp_path / "data")
    recipe = tiny(tmp_path / "data", f"data.folder={tmp_path / 'data'}")
    for folder, content in (("source", "one"), ("data", "two")):
        (tmp_path / folder / "tokenizer.json").write_text(content, "utf-8")
    with pytest.raises(InputError, match="source: its bytes is another than that of"):
        train(recipe, tmp_path / "run", start=start, device="cpu")
