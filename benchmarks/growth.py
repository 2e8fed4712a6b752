"""How a training step grows with context, batch and vocabulary: time and memory.

Each point is a process of its own, one after the other. The straight line is what the FLOPs say,
from the first point: 6 N + 6 L d T a token, where causal attention does half of all T x T scores.

    python benchmarks/growth.py [--recipe baseline-micro] [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from prism_transformer import load_recipe
from prism_transformer.models.cost import needed_flops

SWEEPS = {
    "context": [{"seq_len": length, "batch": 1} for length in (256, 512, 1024, 2048, 4096, 8192)],
    "batch": [{"seq_len": 256, "batch": batch} for batch in (1, 2, 4, 8, 16, 32)],
    "vocabulary": [
        {"seq_len": 256, "batch": 8, "vocab_rows": rows} for rows in (1024, 4096, 16384, 50304)
    ],
}


def measure(shape: dict[str, Any], rounds: int) -> tuple[float, int]:
    """Seconds of the least disturbed step and the peak of its process."""
    worker = str(Path(__file__).with_name("worker.py"))
    command = [sys.executable, worker, "train", "ours", "eager", json.dumps(shape), ""]
    done = subprocess.run(command, input="\n" * rounds, capture_output=True, text=True, check=True)
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return min(run["seconds"] for run in runs), runs[-1]["peak"]


def flops(shape: dict[str, Any]) -> float:
    """Of a step."""
    config = load_recipe(shape["recipe"], shape["overrides"]).model
    return shape["batch"] * config.seq_len * needed_flops(config, config.seq_len)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="baseline-micro")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for sweep, points in SWEEPS.items():
        first = None
        for point in points:
            length = point["seq_len"]
            overrides = [
                f"model.seq_len={length}", f"train.batch_tokens={length}", "train.micro_batch=1"
            ]  # fmt: skip
            if "vocab_rows" in point:
                overrides.append(f"model.vocab_size={point['vocab_rows']}")
            shape = {"recipe": options.recipe, "overrides": overrides, "vocab_rows": 1024, **point}
            seconds, peak = measure(shape, options.rounds)
            rate = flops(shape) / seconds
            first = first or rate
            rows.append(
                {
                    "sweep": sweep,
                    **point,
                    "ms": seconds * 1e3,
                    "tokens/s": point["batch"] * point["seq_len"] / seconds,
                    "to the line": rate / first,
                    "peak GiB": peak / 2**30,
                }
            )
            if not options.json:
                print("  ".join(f"{key} {_text(value)}" for key, value in rows[-1].items()))
    if options.json:
        print(json.dumps(rows, indent=2))


def _text(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
