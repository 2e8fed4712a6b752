"""A training step and decoding beside nanoGPT, Hugging Face's Llama and litgpt, in one run.

All have the same number of layers, width, context, vocabulary, batch and precision (float32). Each
runs in a process of its own, as its users would run it, and they take turns; ratios are medians
over rounds. Peak memory is what the whole process needed, torch and the compiler included.

    python benchmarks/peers.py train [--recipe baseline-micro] [--batch 8] [--nanogpt PATH]
                                     [--litgpt PYTHON] [--only NAME ...] [--json]
    python benchmarks/peers.py decode [--recipe baseline-micro] [--json]

PATH is a clone of github.com/karpathy/nanoGPT. PYTHON is the interpreter of an environment with
``pip install torch==2.13.0 litgpt``: litgpt's pins do not agree with ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker import N_NEW

from prism_transformer import load_recipe
from prism_transformer.bench.measure import interleave, speeds
from prism_transformer.training.device import settle
from prism_transformer.training.environment import machine


class Worker:
    """A model that runs when asked."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.peak = 0
        while self._line() != "ready\n":  # what a model prints while it is built
            pass

    def __call__(self) -> None:
        """Have it run once."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        self.peak = json.loads(self._line())["peak"]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"failed: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return line

    def stop(self) -> None:
        """No more lines: the worker ends."""
        self.process.communicate()


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """How to start each model that is at hand."""
    recipe = load_recipe(options.recipe)
    config = recipe.model
    shape = json.dumps(
        {
            "recipe": options.recipe,
            "overrides": [],
            "n_layers": config.n_layers,
            "n_heads": config.h_base,
            "d_model": config.d_model,
            "d_ff": config.d_ff,
            "seq_len": config.seq_len,
            "vocab_rows": config.vocab_rows,
            "batch": options.batch,
        }
    )
    names = ["ours", "Hugging Face Llama"]
    if options.what == "train":
        names += ["nanoGPT"] * (options.nanogpt is not None)
        names += ["litgpt"] * (options.litgpt is not None)
    modes = ["compiled", "eager"] if options.what == "train" else ["eager"]
    worker = str(Path(__file__).with_name("worker.py"))
    found = {}
    for name in names:
        python = options.litgpt if name == "litgpt" else sys.executable
        for mode in modes:
            found[f"{name}, {mode}"] = [
                python, worker, options.what, name, mode, shape, str(options.nanogpt)
            ]  # fmt: skip
    wanted = options.only or list(found)
    return {name: found[name] for name in wanted}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["train", "decode"])
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--litgpt")
    parser.add_argument("--recipe", default="baseline-micro")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", help='such as "ours, compiled" "nanoGPT, eager"')
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, ["train.precision=fp32"])
    workers: dict[str, Any] = {name: Worker(each) for name, each in commands(options).items()}
    found = interleave(workers, options.rounds)
    for worker in workers.values():
        worker.stop()
    n_tokens = options.batch * recipe.model.seq_len if options.what == "train" else N_NEW
    rows = [row | {"peak GiB": workers[row["way"]].peak / 2**30} for row in speeds(found, n_tokens)]
    if options.json:
        facts = machine(settle(recipe, "cpu"))
        print(json.dumps({"machine": facts, "rows": rows}, indent=2))
        return
    for row in rows:
        print(
            f"{row['way']:<28} {row['ms']:9.1f} ms {row['tokens/s']:10,.0f} tokens/s   "
            f"{row['ratio']:.3f} +- {row['+-']:.3f}   {row['peak GiB']:.2f} GiB"
        )


if __name__ == "__main__":
    main()
