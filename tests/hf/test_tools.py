"""Tools that look for Llama's layout: ours, with a Llama beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from tests.hf.models import EACH, RAGGED, byte_level_tokenizer, llama_twin, prism, tokens

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
