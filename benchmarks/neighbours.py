"""Training beside other busy processes, by how OpenMP's threads wait for each other.

One process for each setting, all of them in turn, with so many neighbours that do nothing but keep
a core busy. The shape is the micro recipe's.

    python benchmarks/neighbours.py [--rounds 5] [--neighbours 2] [--decode] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import sleep

from prism_transformer.core.threads import CHOICES, POLITE

SETTINGS: dict[str, dict[str, str]] = {
    "torch's own": {},
    "polite": POLITE,
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
SHAPE = {
    "recipe": "prism-micro",
    "overrides": ["train.micro_batch=8"],
    "vocab_rows": 4096,
    "batch": 8,
    "seq_len": 256,
}
STEPS = 5  # in one turn: long enough for the system to move processes around
DECODED = 64  # tokens, as worker.py has it


def start(setting: dict[str, str], kind: str) -> subprocess.Popen[str]:
    """A model in a process of its own, which runs once for each line it is given."""
    rest = {key: value for key, value in os.environ.items() if key not in CHOICES}
    worker = str(Path(__file__).with_name("worker.py"))
    return subprocess.Popen(
        [sys.executable, worker, kind, "ours", "eager", json.dumps(SHAPE), ""],
        env={**rest, **setting},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(process: subprocess.Popen[str]) -> float:
    """Seconds of one run."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    while not (line := process.stdout.readline()).startswith("{"):
        if not line:
            raise SystemExit("a process ended early")
    return float(json.loads(line)["seconds"])


def measure(kind: str, n_neighbours: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of every setting, turn by turn."""
    busy = [sys.executable, "-c", "while True: pass"]
    models = {name: start(setting, kind) for name, setting in SETTINGS.items()}
    neighbours = [subprocess.Popen(busy) for _ in range(n_neighbours)]
    n_tokens = DECODED if kind == "decode" else SHAPE["batch"] * SHAPE["seq_len"]  # type: ignore[operator]
    rates: dict[str, list[float]] = defaultdict(list)
    try:
        for process in models.values():
            run(process)  # warm
        sleep(1)
        for turn in range(rounds):
            for name in list(models)[:: -1 if turn % 2 else 1]:
                seconds = sum(run(models[name]) for _ in range(STEPS))
                rates[name].append(STEPS * n_tokens / seconds)
    finally:
        for process in (*models.values(), *neighbours):
            process.kill()
            process.wait()
    return rates


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--neighbours", type=int, default=2, help="at most")
    parser.add_argument("--decode", action="store_true", help="time decoding instead of training")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kind, rows = "decode" if options.decode else "train", []
    for count in range(options.neighbours + 1):
        rates = measure(kind, count, options.rounds)
        first = rates[next(iter(SETTINGS))]
        for name, found in rates.items():
            ratios = [mine / its for mine, its in zip(found, first, strict=True)]
            rows.append(
                {
                    "neighbours": count,
                    "waiting": name,
                    "tokens/s": round(median(found)),
                    "ratio": round(median(ratios), 3),
                    "+-": round((max(ratios) - min(ratios)) / 2, 3),
                }
            )
            if not options.json:
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
