"""Peak memory of training steps, ours beside nanoGPT and Hugging Face's Llama.

Each model takes two steps in a process of its own; what the system counts at most is its peak.

    python benchmarks/memory.py --nanogpt PATH [--recipe baseline-small] [--batch 4]

PATH is a clone of github.com/karpathy/nanoGPT.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from peers import llama, nanogpt, plain_step

from prism_transformer import PrismLM, load_recipe
from prism_transformer.bench import ways
from prism_transformer.bench.rounds import Way
from prism_transformer.bench.tables import our_step
from prism_transformer.train.device import peak_memory, settle

NAMES = ("nothing", "ours", "nanoGPT", "Hugging Face Llama")


def step_of(name: str, options: argparse.Namespace) -> Way:
    """A training step of one of the models."""
    recipe = load_recipe(options.recipe, "train.precision=fp32")
    config, settings = recipe.model, settle(recipe, "cpu")
    tokens = ways.some_tokens(config, options.batch, config.seq_len + 1, settings.device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if name == "ours":
        return our_step(PrismLM(config), tokens, settings)
    if name == "nanoGPT":
        gpt: Any = nanogpt(options.nanogpt, config)
        return plain_step(gpt, lambda: gpt(x, y)[1], settings)
    if name == "Hugging Face Llama":
        hf: Any = llama(config)
        return plain_step(hf, lambda: hf(input_ids=x, labels=x, use_cache=False).loss, settings)
    return lambda: None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--recipe", default="baseline-small")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--only", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        step = step_of(options.only, options)
        for _ in range(2):
            step()
        print(peak_memory(torch.device("cpu")))
        return
    found = {}
    for name in NAMES:
        command = [sys.executable, *sys.argv, "--only", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = int(done.stdout.split()[-1])
    for name in NAMES[1:]:
        own = found[name] - found["nothing"]
        print(f"{name:<20} {own / 2**30:6.2f} GiB beyond what the interpreter needs")


if __name__ == "__main__":
    main()
