"""One model in a process of its own, so that each runs with its own defaults.

Runs once for each line on standard input, and answers with the seconds it took and the most memory
the process has needed, in bytes. ``peers.py`` starts it; the models it knows are in ``MODELS``.

    python benchmarks/worker.py train nanoGPT compiled '{"n_layers": 8, ...}' PATH
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_NEW = 64  # tokens decoded in one run
PROMPT = 16

Loss = Callable[[Tensor, Tensor], Tensor]


def ours(shape: Any, compiled: bool, _: str) -> tuple[nn.Module, Loss]:
    """Ours, as ``prism train`` runs it."""
    from prism_transformer import PrismLM, load_recipe
    from prism_transformer.training.device import begin, compile_layers, settle

    recipe = load_recipe(
        shape.recipe, ["train.precision=fp32", "train.compile=off", *shape.overrides]
    )
    begin(settle(recipe, "cpu"))
    model = PrismLM(recipe.model)
    if compiled:
        compile_layers(model)
    return model, model


def nanogpt(shape: Any, compiled: bool, path: str) -> tuple[nn.Module, Loss]:
    """karpathy/nanoGPT, from a clone; its MLP has as many weights as SwiGLU."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(path) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        block_size=shape.seq_len,
        vocab_size=shape.vocab_rows,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        dropout=0.0,
        bias=False,
    )
    model = module.GPT(config)
    call = torch.compile(model) if compiled else model
    return model, lambda x, y: call(x, y)[1]


def llama(shape: Any, compiled: bool, _: str) -> tuple[nn.Module, Loss]:
    """Hugging Face's Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab_rows,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        max_position_embeddings=shape.seq_len,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    call: Any = torch.compile(model) if compiled else model
    return model, lambda x, y: call(input_ids=x, labels=y, shift_labels=y, use_cache=False).loss


def litgpt(shape: Any, compiled: bool, _: str) -> tuple[nn.Module, Loss]:
    """Litgpt's GPT with Llama's layers; its head is a matrix of its own, tied here like ours."""
    from litgpt.config import Config
    from litgpt.model import GPT

    config = Config(
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        block_size=shape.seq_len,
        padded_vocab_size=shape.vocab_rows,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=shape.d_ff,
    )
    model: Any = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    call = torch.compile(model) if compiled else model
    return model, lambda x, y: F.cross_entropy(call(x).flatten(0, 1), y.flatten())


MODELS = {"ours": ours, "nanoGPT": nanogpt, "Hugging Face Llama": llama, "litgpt": litgpt}


def training_step(model: nn.Module, loss: Loss, shape: Any) -> Callable[[], None]:
    """Forward, loss, backward, clip, AdamW, on tokens that are the same for all."""
    tokens = some_tokens(shape, shape.batch, shape.seq_len + 1)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss(x, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def decoding(name: str, model: Any, shape: Any) -> Callable[[], object]:
    """Greedy decoding of one sequence after a short prompt."""
    model.eval()
    prompt = some_tokens(shape, 1, PROMPT)
    if name == "ours":
        from prism_transformer.models.sampling import sample

        return lambda: sample(model, prompt, N_NEW, temperature=0.0)
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(prompt)

    def run() -> None:
        with torch.inference_mode():
            model.generate(prompt, attention_mask=mask, max_new_tokens=N_NEW, do_sample=False)

    return run


def some_tokens(shape: Any, batch: int, length: int) -> Tensor:
    """Random tokens (B, T), the same every time."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocab_rows, (batch, length), generator=draw)


def main() -> None:
    """Build, warm up, then run once for each line."""
    what, name, compiled, shape_text, path = sys.argv[1:]
    shape = SimpleNamespace(**json.loads(shape_text))
    torch.manual_seed(0)
    model, loss = MODELS[name](shape, compiled == "compiled", path)
    run = training_step(model, loss, shape) if what == "train" else decoding(name, model, shape)
    run()
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = perf_counter()
        run()
        seconds = perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
