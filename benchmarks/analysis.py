"""What measuring attention costs: against a plain forward pass, and against explicit weights.

The same weights throughout, the small shape's heads, one sequence; rounds are interleaved. Peak
memory is that of a process which runs one way once, beyond one that runs a plain forward pass.

    python benchmarks/analysis.py [--layers 12] [--lengths 1024 4096] [--rounds 5]
    python benchmarks/analysis.py --memory 1024 2048 4096 8192 16384
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from prism_transformer import PrismLM, load_recipe
from prism_transformer.analysis.profile import attention_profile
from prism_transformer.bench.measure import interleave, ratio
from prism_transformer.hf.export import to_hf

Way = Callable[[], object]


def ways(length: int, layers: int) -> dict[str, Way]:
    """Forward, measured, and transformers' eager attention with all weights, on one model."""
    config = load_recipe("baseline-small", [f"model.schedule=12x{layers}"]).model
    config = config.model_copy(update={"seq_len": length})
    native = PrismLM(config).eval()
    wrapped: Any = to_hf(native)
    wrapped.set_attn_implementation("eager")
    tokens = torch.randint(50257, (1, length), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def forward() -> None:
        native.hidden(native.embedding(tokens))

    @torch.no_grad()
    def explicit() -> list[float]:
        weights = wrapped.base_model(tokens, output_attentions=True, use_cache=False).attentions
        t = torch.arange(length)
        back = (t[:, None] - t).float()[length // 2 :]
        return [(each[:, :, length // 2 :] * back).sum(-1).mean().item() for each in weights]

    return {
        "forward": forward,
        "measured": lambda: attention_profile(native, [tokens]),
        "explicit": explicit,
    }


def peak(way: str, length: int, layers: int) -> int:
    """Of a process that runs one way once."""
    command = [sys.executable, __file__, "--only", way, "--layers", str(layers)]
    command += ["--lengths", str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="+")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        ways(options.lengths[0], options.layers)[options.only]()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    for length in options.memory or []:
        base = peak("forward", length, options.layers)
        extra = peak("measured", length, options.layers) - base
        matrices = options.layers * 12 * length**2 * 4
        share = f"{extra / matrices:.2%} of the matrices'"
        print(f"T {length:6}  measured +{extra / 2**20:8.1f} MiB  {share}")
    for length in [] if options.memory else options.lengths:
        found = interleave(ways(length, options.layers), options.rounds)
        cost, spread = ratio(found["forward"], found["measured"])
        times, range_ = ratio(found["measured"], found["explicit"])
        print(
            f"T {length:6}  measured costs {cost:.2f} +- {spread:.2f} forward passes, and is "
            f"{times:.2f} +- {range_:.2f} times as fast as explicit weights"
        )


if __name__ == "__main__":
    main()
