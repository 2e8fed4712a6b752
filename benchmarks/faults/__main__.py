"""Everything that can go wrong around a run, on purpose: kills, full disks, damage, nonsense.

    python benchmarks/faults [--size portion|hour|night] [--seed 0] [--kinds train,disk]
    python benchmarks/faults --kinds line --seed 250 --cases 250    # a part of a night
    python benchmarks/faults --case damage:17            # one case alone, as the table names it

Each case is judged by a comparison with the same made without a fault. It survived: it ended the
same. It was detected: an error said so, in a sentence. Anything else is wrong: another result, a
traceback, a silent failure, something half-written left behind. Exit code 1 if any is.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import cpu_count
from pathlib import Path

# Imported once, for all forks.
import orjson  # noqa: F401
import pyarrow.parquet  # noqa: F401
import tokenizers  # noqa: F401
import torch
import torch._dynamo
from damage import damaged
from fuzz import hostile, line, recipe, schedule, study
from ground import Case, Verdict
from kills import (
    full_disk,
    killed_preparation,
    killed_program,
    killed_training,
    make_untouched,
    power_cut,
)

import prism_transformer.analysis.profile
import prism_transformer.cli.picture
import prism_transformer.cli.progress
import prism_transformer.reporting.write
import prism_transformer.study.api
import prism_transformer.training.api  # noqa: F401

Judge = Callable[[Case, Path, Path], tuple[Verdict, str]]

# How many of each kind: in the slow tests, beside other work, and over night.
KINDS: dict[str, tuple[Judge, tuple[int, int, int]]] = {
    "train": (killed_training, (6, 50, 250)),
    "prepare": (killed_preparation, (6, 50, 230)),
    "program-study": (killed_program, (0, 1, 6)),
    "program-search": (killed_program, (0, 1, 4)),
    "program-torchrun": (killed_program, (0, 1, 6)),
    "program-eval": (killed_program, (0, 1, 4)),
    "disk": (full_disk, (6, 40, 100)),
    "power": (power_cut, (6, 40, 200)),
    "damage": (damaged, (150, 1500, 5000)),
    "schedule": (schedule, (2000, 50_000, 80_000)),
    "recipe": (recipe, (100, 2000, 15_000)),
    "study": (study, (20, 300, 5000)),
    "line": (line, (12, 120, 2000)),
    "hostile": (hostile, (6, 15, 200)),
}
SIZES = ("portion", "hour", "night")


def run(case: Case, home: Path, wanted: Path) -> tuple[Verdict, str]:
    """One case in a folder of its own, which goes afterwards."""
    judge, _ = KINDS[case.kind]
    folder = home / f"case-{case.kind}-{case.seed}"
    try:
        return judge(case, folder, wanted)
    except Exception as error:  # of the campaign itself: never counted as survived
        return "wrong", f"the case failed: {type(error).__name__}: {error}"
    finally:
        for left in home.glob(f"{folder.name}*"):
            shutil.rmtree(left, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="hour")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--cases", type=int, help="so many of each kind instead")
    parser.add_argument("--case", help="one case, as in damage:17")
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks must find no threads
    size = SIZES.index(options.size)
    kinds = [options.case.partition(":")[0]] if options.case else options.kinds.split(",")
    with tempfile.TemporaryDirectory(prefix="prism-faults-") as name:
        home = Path(name).resolve()
        wanted = home / "untouched"
        counts = {kind: options.cases or KINDS[kind][1][size] for kind in kinds}
        asked = [kind for kind in kinds if options.case or counts[kind]]
        make_untouched(wanted, any(kind.startswith("program") for kind in asked))
        if options.case:
            kind, _, seed = options.case.partition(":")
            verdict, why = run(Case(kind, int(seed)), home, wanted)
            print(f"{options.case}: {verdict} {why}")
            return int(verdict == "wrong")
        print(f"seed {options.seed}, size {options.size}, {cpu_count()} cores", flush=True)
        return campaign(counts, options.seed, home, wanted)


def campaign(counts: dict[str, int], seed: int, home: Path, wanted: Path) -> int:
    """So many cases of each kind, and a table of what became of them."""
    print(f"{'kind':18} {'cases':>7} {'survived':>9} {'detected':>9} {'wrong':>6} {'seconds':>8}")
    wrong = 0
    for kind, count in counts.items():
        found, started = Counter[str](), time.monotonic()
        for number in range(seed, seed + count):
            verdict, why = run(Case(kind, number), home, wanted)
            found[verdict] += 1
            if verdict == "wrong":
                print(f"WRONG  {kind}:{number}  {why}", file=sys.stderr, flush=True)
        wrong += found["wrong"]
        counts = f"{found['survived']:>9} {found['detected']:>9} {found['wrong']:>6}"
        taken = time.monotonic() - started
        print(f"{kind:18} {count:>7} {counts} {taken:>8.0f}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
