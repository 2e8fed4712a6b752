"""``prism export`` and ``prism import`` as a user runs them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from prism_transformer.hf import PrismForCausalLM
from prism_transformer.model import PrismLM
from prism_transformer.models.weights import fingerprint, load_model, save_model
from tests.conftest import Prism, small_config
from tests.hf.models import byte_level_tokenizer, llama_twin, prism, tokens

TEXT = "a head is a narrow view of the stream, and a stream is a wide view of the heads. " * 40


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    byte_level_tokenizer(TEXT).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.fixture
def llama_folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    llama = llama_twin(prism(head_schedule="12x3"))
    llama.generation_config.update(do_sample=True, top_k=7)
    llama.save_pretrained(tmp_path / "llama")
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_export_then_import(prism_inside: Prism, tmp_path: Path, tokenizer_folder: Path) -> None:
    model = PrismLM(small_config(), seed=2)
    save_model(model, tmp_path / "native")
    done = prism_inside("export", "native", "hf", "--tokenizer", str(tokenizer_folder))
    assert done.returncode == 0, done.stderr
    padded = "note: on a CPU vLLM pads heads 8 wide to 32, 16 wide to 32, 48 wide to 64: 2.47 times"
    assert done.stdout == f"{padded} the KV cache\nwrote hf\n"
    written = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"README.md", "config.json", "generation_config.json", "model.safetensors"} <= written
    words = AutoTokenizer.from_pretrained(tmp_path / "hf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert loaded.config.eos_token_id == words.eos_token_id == 0
    out = loaded.generate(**words("a head", return_tensors="pt"), max_new_tokens=5, pad_token_id=0)
    assert out.shape[1] <= 5 + len(words("a head")["input_ids"])

    assert prism_inside("import", "hf", "again").returncode == 0
    assert fingerprint(load_model(tmp_path / "again")) == fingerprint(model)


def test_an_encoder_hears_nothing_of_vllm(prism_inside: Prism, tmp_path: Path) -> None:
    save_model(PrismLM(small_config(attention="bidirectional")), tmp_path / "native")
    done = prism_inside("export", "native", "hf")
    assert (done.returncode, done.stdout) == (0, "wrote hf\n"), done.stderr


def test_export_of_a_recipe_is_its_initial_weights(prism_inside: Prism, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'base = "prism-small"\n[model]\nd_model = 96\nd_ff = 160\nvocab_size = 300\n', "utf-8"
    )
    assert prism_inside("export", "mine.toml", "hf", "--seed", "5").returncode == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    native = PrismLM(loaded.config.native, seed=5)
    assert torch.equal(loaded.get_input_embeddings().weight, native.embedding.weight)


def test_export_for_engines(prism_inside: Prism, tmp_path: Path, tokenizer_folder: Path) -> None:
    save_model(PrismLM(small_config(), seed=2), tmp_path / "native")
    save_model(PrismLM(small_config("12x3")), tmp_path / "uniform")
    words = ["--tokenizer", str(tokenizer_folder)]
    done = prism_inside("export", "native", "model.gguf", "--gguf", "--type", "q8_0", *words)
    assert done.returncode == 0, done.stderr
    assert "heads are padded to one width, 64:" in done.stdout
    assert '"tiled" the width would be 48\nwrote model.gguf, ' in done.stdout
    assert prism_inside("export", "uniform", "llama", "--as", "llama").returncode == 0
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "llama")) is LlamaForCausalLM
    assert prism_inside("export", "native", "alone", "--code").returncode == 0
    assert (tmp_path / "alone" / "modeling_prism.py").is_file()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--as", "llama"], "a Llama cannot have head_schedule"),
        (["--gguf"], "a GGUF file holds its tokenizer"),
        (["--type", "f16"], "--type is of a GGUF file"),
        (["--gguf", "--code"], "exclude each other"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_exports_that_cannot_be(
    options: list[str], problem: str, prism_inside: Prism, tmp_path: Path
) -> None:
    save_model(PrismLM(small_config(), seed=2), tmp_path / "native")
    done = prism_inside("export", "native", "out", *options)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert problem in done.stderr


def test_import_of_a_llama(prism_inside: Prism, tmp_path: Path, llama_folder: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    done = prism_inside(
        "import", str(llama_folder), "out", "--schedule", "2x1 6x1 12x1", "--text", "text.txt"
    )
    assert done.returncode == 0, done.stderr
    assert "nats before" in done.stdout
    assert "2 of 3 layers have another head count than Llama's 12: train" in done.stdout
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert isinstance(loaded, PrismForCausalLM)
    assert loaded.config.head_schedule == "2x1 6x1 12x1"
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert loaded.config.num_tokens == len(words) < loaded.config.vocab_size
    assert loaded.generation_config.top_k == 7  # Llama's own
    assert "Converted from a Llama" in (tmp_path / "out" / "README.md").read_text("utf-8")

    same = prism_inside(
        "import", str(llama_folder), "same", "--schedule", "12x3", "--text", "text.txt"
    )
    line = next(line for line in same.stdout.splitlines() if "nats before" in line)
    before, after = (word for word in line.split() if word[0].isdigit())
    assert before == after
    assert "the function is Llama's" in same.stdout
    llama = AutoModelForCausalLM.from_pretrained(llama_folder)
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "same")
    torch.testing.assert_close(kept(tokens()).logits, llama(tokens()).logits)


def test_bad_input_is_named(prism_inside: Prism, tmp_path: Path, llama_folder: Path) -> None:
    save_model(PrismLM(small_config()), tmp_path / "native")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    (tmp_path / "empty.txt").touch()
    llama = str(llama_folder)
    for name in ("damaged", "holed", "strange"):
        shutil.copytree(llama_folder, tmp_path / name)
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"junk" * 100)
    (tmp_path / "strange" / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": "x"}', "utf-8"
    )
    weights = load_file(tmp_path / "holed" / "model.safetensors")
    del weights["model.layers.0.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "holed" / "model.safetensors", {"format": "pt"})
    for arguments, message in [
        (["export", "native", "full"], "full: exists already"),
        (["export", "nothing", "out"], "nothing: no such recipe"),
        (["export", "full", "out"], "model.json: cannot be read"),
        (["export", "native", "out", "--seed", "1"], "--seed is for recipes"),
        (["export", "native", "out", "--tokenizer", "full"], "full: has no tokenizer"),
        (["import", "full", "out"], "full: is neither a run nor a Hugging Face folder"),
        (["import", "damaged", "out", "--schedule", "12x3"], "damaged: cannot be loaded"),
        (["import", "holed", "out", "--schedule", "12x3"], "missing keys: model.layers.0"),
        (["import", "strange", "out", "--schedule", "12x3"], "strange: not a Hugging Face model"),
        (["import", llama, "out"], "choose its heads per layer with --schedule"),
        (["import", llama, "out", "--schedule", "5x3"], "layer 0: 5 heads do not divide"),
        (["import", llama, "out", "--schedule", "12x4"], "4 layers but the model has 3"),
        (["import", llama, "out", "--schedule", "12x3", "--text", "empty.txt"], "has 0 tokens"),
        (["import", llama, "out", "--schedule", "12x3", "--text", "no.txt"], "no.txt: cannot"),
    ]:
        result = prism_inside(*arguments)
        assert result.returncode == 2, arguments
        assert message in result.stderr, arguments
        assert "Traceback" not in result.stderr
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".*partial*"))
