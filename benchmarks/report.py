"""How long ``prism report`` takes for studies of growing size, each in a process of its own.

python benchmarks/report.py [--runs 10 100 180] [--rounds 3]

The studies are drawn as the tests draw them: 20 arms at most, 40 validations, two benchmarks with
items. Run it from the root of a clone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[1]
MOST_ARMS = 20


def draw(folder: Path, n_runs: int) -> None:
    """Write a collected study of so many runs."""
    sys.path.insert(0, str(ROOT))
    from tests.study.frames import make_collected

    from prism_transformer.study.collected import write_collected

    n_arms = min(MOST_ARMS, max(2, n_runs // 5))
    ramps = [f"{n}x{k} 8x{8 - k}" for k in range(1, 8) for n in (1, 2, 4)]
    arms = {"uniform": "8x8"} | {f"arm-{n}": ramps[n] for n in range(n_arms - 1)}
    study = make_collected(
        arms=arms, seeds=range(n_runs // n_arms), steps=range(0, 4001, 100), n_items=500
    )
    write_collected(folder, study)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 180])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| runs | seconds, median | range | page, MB |\n|---|---|---|---|")
    for n_runs in options.runs:
        with tempfile.TemporaryDirectory() as folder:
            study, out = Path(folder) / "study", Path(folder) / "out"
            draw(study, n_runs)
            command = [sys.executable, "-m", "prism_transformer", "report", str(study)]
            took = []
            for _ in range(options.rounds):
                started = perf_counter()
                subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
                took.append(perf_counter() - started)
            size = (out / "index.html").stat().st_size / 1e6
        middle = statistics.median(took)
        print(f"| {n_runs} | {middle:.1f} | {min(took):.1f} to {max(took):.1f} | {size:.1f} |")


if __name__ == "__main__":
    main()
