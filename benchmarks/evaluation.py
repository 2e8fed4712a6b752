"""``prism eval`` beside lm_eval called directly: the same model, the same data, in turns.

python benchmarks/evaluation.py HF_FOLDER DATA [--tasks piqa] [--limit 200] [--rounds 3]

Both start in a process of their own and are timed from start to end. DATA is laid out as
docs/evaluation.md says; lm_eval gets it through YAML files that this script writes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

DIRECTLY = """
import json, sys
import lm_eval, prism_transformer.hf, torch
from lm_eval.tasks import TaskManager
folder, yaml, tasks, limit, batch = sys.argv[1:]
found = lm_eval.simple_evaluate(
    model="hf", model_args={"pretrained": folder, "dtype": "float32"}, tasks=tasks.split(","),
    batch_size=int(batch), limit=int(limit) or None,
    device="cuda" if torch.cuda.is_available() else "cpu",
    task_manager=TaskManager(include_defaults=False, include_path=yaml),
)
print(json.dumps({name: values.get("acc,none") for name, values in found["results"].items()}))
"""


def seconds(command: list[str]) -> float:
    """How long a command takes."""
    started = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - started


def main() -> None:
    """Measure and print."""
    from prism_transformer.eval.task_data import write_overlay

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="piqa")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            yaml = Path(folder) / "yaml"
            yaml.mkdir()
            write_overlay(yaml, options.tasks.split(","), options.data)
            common = [options.tasks, str(options.limit), str(options.batch)]
            limit = ["--limit", str(options.limit)] if options.limit else []
            direct = [sys.executable, "-c", DIRECTLY, options.model, str(yaml), *common]
            ours = [sys.executable, "-m", "prism_transformer", "eval", options.model]
            ours += ["--tasks", options.tasks, "--data", str(options.data), *limit]
            ours += ["--batch", str(options.batch), "--out", f"{folder}/out"]
            # Each goes first every other time.
            order = [ours, direct] if number % 2 else [direct, ours]
            times = {id(command): seconds(command) for command in order}
        ratios.append(times[id(ours)] / times[id(direct)])
        row = {"prism eval": times[id(ours)], "lm_eval": times[id(direct)], "ratio": ratios[-1]}
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}, {options.rounds} rounds")


if __name__ == "__main__":
    main()
