"""Peak memory of ``prism prepare`` as the corpus grows tenfold; `prism bench data` has the rates.

python benchmarks/data.py [--megabytes 60]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from prism_transformer.bench.workloads import write_corpus


def peak_megabytes(megabytes: int) -> float:
    """Peak memory of ``prism prepare`` on a corpus of this size."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        write_corpus(file, megabytes)
        command = [sys.executable, "-m", "prism_transformer", "prepare", str(file)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        subprocess.run([*command, "--out", f"{folder}/out"], check=True, capture_output=True)
        return max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=60)
    options = parser.parse_args()
    # Smallest first: the peak of all children is what the system keeps.
    for size in (options.megabytes, 10 * options.megabytes):
        print(f"peak memory, corpus of {size} MB: {peak_megabytes(size):.0f} MB")


if __name__ == "__main__":
    main()
