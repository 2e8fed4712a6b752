"""A training step and decoding beside nanoGPT and Hugging Face's Llama, in one run.

All have the same number of layers, width, context, vocabulary, batch and precision; nanoGPT's MLP
has as many parameters as SwiGLU. Rounds are interleaved; ratios are medians over rounds.

    python benchmarks/peers.py train --nanogpt PATH [--recipe baseline-nano] [--compile] [--json]
    python benchmarks/peers.py decode [--recipe baseline-nano] [--json]

PATH is a clone of github.com/karpathy/nanoGPT.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from prism_transformer import PrismLM, load_recipe
from prism_transformer.bench import ways
from prism_transformer.bench.rounds import Way, interleave, timings
from prism_transformer.bench.tables import our_step, speed_row
from prism_transformer.recipe import ModelConfig
from prism_transformer.train.device import Settings, compile_layers, settle
from prism_transformer.train.environment import machine


def nanogpt(path: Path, config: ModelConfig) -> nn.Module:
    """Their model at our shape."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", path / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    shape = module.GPTConfig(
        block_size=config.seq_len,
        vocab_size=config.vocab_rows,
        n_layer=config.n_layers,
        n_head=config.h_base,
        n_embd=config.d_model,
        dropout=0.0,
        bias=False,
    )
    return module.GPT(shape)


def llama(config: ModelConfig) -> LlamaForCausalLM:
    """Hugging Face's Llama at our shape."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_rows,
            hidden_size=config.d_model,
            intermediate_size=config.d_ff,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.h_base,
            max_position_embeddings=config.seq_len,
            tie_word_embeddings=True,
        )
    )


def train_ways(
    config: ModelConfig, batch: int, compiled: bool, path: Path | None, settings: Settings
) -> dict[str, Way]:
    """One step of each, eager or compiled: the way its users compile it."""
    tokens = ways.some_tokens(config, batch, config.seq_len + 1, settings.device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    ours = PrismLM(config)
    if compiled:
        compile_layers(ours)
    found = {"ours": our_step(ours, tokens, settings)}
    if path is not None:
        gpt = nanogpt(path, config)
        gpt_call: Any = torch.compile(gpt) if compiled else gpt
        found["nanoGPT"] = plain_step(gpt, lambda: gpt_call(x, y)[1], settings)
    hf = llama(config)
    hf_call: Any = torch.compile(hf) if compiled else hf
    found["Hugging Face Llama"] = plain_step(
        hf, lambda: hf_call(input_ids=x, labels=x, use_cache=False).loss, settings
    )
    return found


def plain_step(model: nn.Module, loss: Way, settings: Settings) -> Way:
    """A training step of any model, with the optimizer that ours has."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return ways.training_step(model, optimizer, loss, settings)


def decode_ways(config: ModelConfig, n_new: int, settings: Settings) -> dict[str, Way]:
    """Greedy decoding of one sequence after a prompt of 16."""
    prompt = ways.some_tokens(config, 1, 16, settings.device)
    hf = llama(config).eval()
    hf.generation_config.eos_token_id = None

    def theirs() -> None:
        with torch.inference_mode():
            mask = torch.ones_like(prompt)
            hf.generate(prompt, attention_mask=mask, max_new_tokens=n_new, do_sample=False)

    ours = ways.decode(PrismLM(config).eval(), prompt, n_new, settings)
    return {"ours": ours, "Hugging Face generate": theirs}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["train", "decode"])
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--recipe", default="baseline-nano")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, "train.precision=fp32")
    settings = settle(recipe, "cpu")
    config, n_new = recipe.model, 64
    if options.what == "train":
        each = train_ways(config, options.batch, options.compile, options.nanogpt, settings)
        n_tokens = options.batch * config.seq_len
    else:
        each, n_tokens = decode_ways(config, n_new, settings), n_new
    found = timings(interleave(each, options.rounds))
    rows = [speed_row(name, t, found["ours"], n_tokens) for name, t in found.items()]
    if options.json:
        print(json.dumps({"machine": machine(settings), "rows": rows}, indent=2))
        return
    for row in rows:
        print(
            f"{row['way']:<24} {row['ms']:9.1f} ms {row['tokens/s']:10,.0f} tokens/s   "
            f"{row['ratio']:.3f} +- {row['+-']:.3f} of ours"
        )


if __name__ == "__main__":
    main()
