"""Tools that look for Llama's layout: ours, with a Llama beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from prism_transformer.schedule import ScheduleError
from tests.hf.models import EACH, RAGGED, byte_level_tokenizer, llama_twin, prism, tokens

ROOT = Path(__file__).parents[2]

Fields = dict[str, Any]
UNIFORM: Fields = {"head_schedule": "12x3"}


def both() -> list[Any]:
    """A ragged model, a uniform one, and the Llama that it is."""
    return [prism(**RAGGED), prism(**UNIFORM), llama_twin(prism(**UNIFORM))]


def test_lora_finds_its_default_targets() -> None:
    from peft import LoraConfig, get_peft_model
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    found = []
    for model in both():
        # As where PEFT is imported only when the model is there: it does not know us yet.
        TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.pop("prism", None)
        lora = LoraConfig(task_type="CAUSAL_LM")
        adapted = get_peft_model(model, lora)
        names = [name for name, _ in adapted.named_parameters() if "lora_A" in name]
        found.append({name for name in names if ".layers.0." in name})
    assert found[0] == found[1] == found[2] != set()


def test_dynamic_quantization_finds_the_linear_layers() -> None:
    counts = []
    for model in both()[1:]:
        small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
        kinds = [type(module).__module__ for module in small.modules()]
        counts.append(sum("quantized.dynamic" in kind for kind in kinds))
        with torch.no_grad():
            assert small(tokens()).logits.isfinite().all()
    assert counts[0] == counts[1] == 7 * 3 + 1


@pytest.mark.slow
@EACH
def test_a_model_larger_than_its_devices_is_offloaded(fields: Fields, tmp_path: Path) -> None:
    model = prism(**fields)
    model.save_pretrained(tmp_path / "hf")
    size = sum(each.nbytes for each in model.parameters())
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf",
        device_map="auto",
        max_memory={"cpu": size // 2},
        offload_folder=tmp_path / "offload",
    )
    assert "disk" in set(loaded.hf_device_map.values())
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens()).logits, model(tokens()).logits)


EVEN: dict[str, Fields] = {
    "ragged": {"head_schedule": "2x1 4x1 6x1 12x1"},
    "gqa": {"head_schedule": "4x1 8x1 12x1", "queries_per_kv": 2},
    "uniform": UNIFORM,
}


def shared_out(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """``tests/hf/parallel.py`` in two processes, over gloo."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    line = [*launcher, "-m", "tests.hf.parallel", str(folder), *names]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.19"), reason="it shared out in another way"
)
def test_tensor_parallelism_shares_out_every_layers_heads(tmp_path: Path) -> None:
    models = {name: prism(**fields) for name, fields in EVEN.items()}
    models["llama"] = llama_twin(models["uniform"])  # beside ours: the measure
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        text = tokens()
        written = model.generate(text, max_new_tokens=8, do_sample=False)
        out = model(text, labels=text)
        out.loss.backward()
        grad = model.model.layers[0].self_attn.q_proj.weight.grad
        known = {"text": text, "logits": out.logits.detach(), "written": written, "grad": grad}
        save_file(known, tmp_path / f"{name}.safetensors")
    done = shared_out(tmp_path, *models)
    assert done.returncode == 0, done.stderr

    prism(head_schedule="2x1 3x1").save_pretrained(tmp_path / "odd")
    save_file(known, tmp_path / "odd.safetensors")
    done = shared_out(tmp_path, "odd")
    assert done.returncode
    assert "layer 1 has 3 heads and 3 of keys and values: tensor parallelism" in done.stderr


def test_heads_that_do_not_divide_are_refused_before_vllm_shares_them_out() -> None:
    config = prism(**EVEN["gqa"]).config
    config.check_parallel(2)
    with pytest.raises(ScheduleError, match="layer 0 has 4 heads and 2 of keys and values"):
        config.check_parallel(4)
    config = prism(head_schedule="12x3", rope_frequencies="split").config
    config.check_parallel(1)
    with pytest.raises(ScheduleError, match="split rope_frequencies differ by head"):
        config.check_parallel(2)


@pytest.mark.slow
@EACH
@torch.no_grad()
def test_torch_export_takes_the_whole_model(fields: Fields) -> None:
    model = prism(**fields)
    program = torch.export.export(model, (tokens(),), {"use_cache": False}, strict=False)
    other = tokens(seed=1)
    found = program.module()(other, use_cache=False).logits
    torch.testing.assert_close(found, model(other, use_cache=False).logits)


@pytest.mark.slow
def test_trl_trains_as_on_llama(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    words = byte_level_tokenizer("a head is a narrow view of the stream " * 40)
    words.pad_token = words.eos_token
    rows = Dataset.from_dict({"text": ["a head is a narrow view of the stream"] * 8})
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, logging_steps=1,
        report_to=[], use_cpu=True, save_strategy="no", max_length=32, bf16=False,
    )  # fmt: skip
    losses = []
    for model in both():
        trainer = trl.SFTTrainer(
            model=model, args=arguments, train_dataset=rows, processing_class=words
        )
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize(
    "auto",
    [
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoModelForQuestionAnswering,
    ],
)
@torch.no_grad()
def test_heads_stand_on_the_weights_of_a_language_model(auto: Any, tmp_path: Path) -> None:
    model = prism(**RAGGED)
    model.save_pretrained(tmp_path)
    headed = auto.from_pretrained(tmp_path)
    assert headed.base_model is headed.model
    for name, weight in model.model.state_dict().items():
        assert torch.equal(headed.model.state_dict()[name], weight), name
    out = headed.eval()(tokens())
    first = out[0] if auto is AutoModelForQuestionAnswering else out.logits
    assert first.isfinite().all()
    assert len(first) == len(tokens())
