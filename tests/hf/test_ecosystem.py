"""The company a Hugging Face model keeps: Trainer, PEFT, ONNX, torch.compile."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from tests.hf.models import EACH, RAGGED, llama_twin, prism, tokens

Fields = dict[str, Any]
Step = Callable[[Any, Any, Any], tuple[Any, list[Any]]]


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sixteen sequences that repeat a short pattern, easy to learn."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        pattern = torch.arange(10) + 3 + index % 4
        row = pattern.repeat(3)
        return {"input_ids": row, "labels": row}


@EACH
def test_trainer_trains_saves_and_resumes(fields: Fields, tmp_path: Path) -> None:
    model = prism(**fields)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        use_cpu=True,
        gradient_checkpointing=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-8")
    assert torch.equal(saved(tokens()).logits, model.eval()(tokens()).logits)

    again = Trainer(
        model=AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4"),
        args=arguments,
        train_dataset=Sentences(),
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    resumed = [row["loss"] for row in again.state.log_history if "loss" in row]
    assert resumed == pytest.approx(losses, rel=1e-4)


def test_label_smoothing_trains_on_the_next_token_as_llama(tmp_path: Path) -> None:
    model = prism(head_schedule="12x3")
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=8,
        label_smoothing_factor=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    losses = []
    for each in (llama_twin(model), model):
        trainer = Trainer(model=each, args=arguments, train_dataset=Sentences())
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@EACH
def test_peft_adapters_on_every_layer(fields: Fields, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    model = prism(**fields)
    before = model(tokens()).logits
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora)
    n_layers = model.config.num_hidden_layers
    assert sum("lora_A" in name for name, _ in adapted.named_parameters()) == 7 * n_layers
    optimizer = torch.optim.SGD([w for w in adapted.parameters() if w.requires_grad], lr=1.0)
    adapted(tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    adapted.save_pretrained(tmp_path)
    trained = adapted.eval()(tokens()).logits
    assert not torch.allclose(trained, before)
    restored = PeftModel.from_pretrained(prism(**fields), tmp_path)
    torch.testing.assert_close(restored(tokens()).logits, trained)
    merged = restored.merge_and_unload()
    torch.testing.assert_close(merged(tokens()).logits, trained, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@EACH
@torch.no_grad()
def test_onnx_with_any_batch_and_length(fields: Fields, tmp_path: Path) -> None:
    import onnxruntime

    class LogitsOnly(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.model(input_ids, attention_mask=attention_mask, use_cache=False).logits

    model = prism(**fields)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=128)
    example = tokens(length=9, batch=3)
    file = tmp_path / "model.onnx"
    torch.onnx.export(
        LogitsOnly(model),
        (example, torch.ones_like(example)),
        str(file),
        dynamic_shapes={
            "input_ids": {0: batch, 1: length},
            "attention_mask": {0: batch, 1: length},
        },
        dynamo=True,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for size, seed in [((1, 5), 1), ((2, 30), 2), ((5, 100), 3)]:
        text = tokens(length=size[1], batch=size[0], seed=seed)
        mask = torch.ones_like(text)
        mask[0, : size[1] // 3] = 0
        expected = model(text, attention_mask=mask).logits
        inputs = {"input_ids": text.numpy(), "attention_mask": mask.numpy()}
        found = torch.from_numpy(session.run(None, inputs)[0])
        relative = (found - expected)[mask.bool()].abs().max() / expected.abs().max()
        assert relative <= 1e-5


def with_cache(model: Any) -> dict[str, Any]:
    """What an exporter is shown: new tokens behind a cache."""
    text = tokens(length=9, batch=3)
    with torch.no_grad():
        past = model(text[:, :6], use_cache=True).past_key_values
    mask = torch.ones_like(text)
    return {"input_ids": text[:, 6:], "attention_mask": mask, "past_key_values": past}


def written_with_cache(model: Any, step: Step, text: Tensor, n_new: int) -> list[list[int]]:
    """Greedy tokens of a step (new tokens, mask, past) -> (logits, past), from an empty past."""
    widths = zip(model.config.layer_fields(), model.model.head_dims, strict=True)
    shapes = [(len(text), layer["num_key_value_heads"], 0, width) for layer, width in widths]
    past = [numpy.zeros(shape, numpy.float32) for shape in shapes for _ in range(2)]
    new, known = text, text
    for _ in range(n_new):
        logits, past = step(new.numpy(), torch.ones_like(known).numpy(), past)
        expected = model(known, use_cache=False).logits[:, -1]
        found = torch.from_numpy(logits[:, -1].copy())
        assert (found - expected).abs().max() / expected.abs().max() <= 1e-5
        new = found.argmax(-1, keepdim=True)
        known = torch.cat((known, new), 1)
    return known[:, text.shape[1] :].tolist()


@pytest.mark.slow
@EACH
@torch.no_grad()
def test_onnx_with_a_cache_writes_as_generate(fields: Fields, tmp_path: Path) -> None:
    exporters = pytest.importorskip("transformers.exporters.exporter_onnx", reason="too old")
    import onnxruntime

    model = prism(**fields)
    options = exporters.OnnxConfig(dynamic=True, output_path=tmp_path / "model.onnx")
    exporters.OnnxExporter().export(model, with_cache(model), config=options)
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]

    def step(*inputs: Any) -> tuple[Any, list[Any]]:
        new, mask, past = inputs
        logits, *past = session.run(None, dict(zip(names, (new, mask, *past), strict=True)))
        return logits, past

    for size in ((1, 5), (4, 17)):
        text = tokens(length=size[1], batch=size[0], seed=1)
        asked = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        expected = model.generate(text, **asked, eos_token_id=-1)[:, size[1] :]
        assert written_with_cache(model, step, text, 6) == expected.tolist()


@pytest.mark.slow
@EACH
@torch.no_grad()
def test_openvino_with_a_cache_writes_as_generate(fields: Fields, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="docs/serving.md says how to get it")
    exporters = pytest.importorskip("transformers.exporters.exporter_openvino", reason="too old")
    model, file = prism(**fields), tmp_path / "model.xml"
    options = exporters.OpenVINOConfig(dynamic=True, output_path=file, compress_to_fp16=False)
    exporters.OpenVINOExporter().export(model, with_cache(model), config=options)
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}  # not its defaults
    compiled = openvino.Core().compile_model(file, "CPU", exact)
    for size in ((1, 5), (4, 17)):
        request = compiled.create_infer_request()  # its past is inside, and begins empty
        rows = numpy.arange(size[0], dtype=numpy.int32)

        def step(new: Any, mask: Any, past: Any, request: Any = request, rows: Any = rows) -> Any:
            asked = {"input_ids": new, "attention_mask": mask, "beam_idx": rows}
            return request.infer(asked)["logits"], past

        text = tokens(length=size[1], batch=size[0], seed=1)
        asked = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        expected = model.generate(text, **asked, eos_token_id=-1)[:, size[1] :]
        assert written_with_cache(model, step, text, 6) == expected.tolist()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@EACH
@torch.no_grad()
def test_inductor_compiles_the_whole_model(fields: Fields) -> None:
    torch._dynamo.reset()
    model = prism(**fields)
    compiled = torch.compile(model, fullgraph=True)
    expected = model(tokens(), use_cache=False).logits
    torch.testing.assert_close(
        compiled(tokens(), use_cache=False).logits, expected, rtol=1e-4, atol=1e-4
    )


def test_modules_are_reached_by_name_with_their_own_heads() -> None:
    model = prism(**RAGGED)
    heads = [
        module.n_heads for name, module in model.named_modules() if name.endswith(".self_attn")
    ]
    assert heads == [1, 2, 3, 4, 6, 12]
    assert model.get_submodule("model.layers.2.self_attn.q_proj").weight.shape == (96, 96)
    assert model.get_decoder() is model.base_model is model.model
