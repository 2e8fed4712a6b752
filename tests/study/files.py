"""What study tests share: a tiny study that trains in seconds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from prism_transformer.study.collected import Collected
from prism_transformer.study.folder import StudyFolder
from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.worker import Worker

CLOCK = ["tokens_per_second", "seconds", "memory_bytes"]

STUDY = """
base = "{base}"
baseline = "uniform"
seeds = [0, 1]
[arms]
uniform = "uniform:8"
prism = "2x1 4x1 8x1"
"""

STAGES = """
[analyze]
sequences = 2
[loss]
sequences = 2
[inference]
rounds = 3
prompt = 8
new = 4
"""


def write_study(folder: Path, data: Path, text: str = STUDY, name: str = "tiny") -> Path:
    """A study file on the tiny recipe of the training tests."""
    file = folder / f"{name}.toml"
    file.write_text(text.replace("{base}", str(data / "tiny.toml")), "utf-8")
    return file


def tiny_plan(folder: Path, data: Path, text: str = STUDY) -> Plan:
    return make_plan(write_study(folder, data, text))


def finish_study(plan: Plan, folder: Path) -> StudyFolder:
    """Begin a study and do all of it in this process."""
    study = StudyFolder(plan, folder)
    queue = study.queue()
    study.begin(queue)
    worker = Worker(plan, folder, plan.study.processes, "cpu")
    queue.work(worker.do)
    worker.measure()
    return study


def learnt(found: Collected) -> pd.DataFrame:
    """What no clock decides."""
    metric = found.table["metric"]
    timed = metric.isin(CLOCK) | metric.str.startswith("inference.")
    return found.table[~timed].reset_index(drop=True)


HEAD = 'base = "base/micro"\nbaseline = "uniform"\nseeds = [0, 1]\n'
ARMS = '[arms]\nuniform = "uniform:8"\nprism = "2x2 4x2 8x4"\n'


def plan_of(folder: Path, text: str) -> Plan:
    """The plan of a study file with this text."""
    file = folder / "mine.toml"
    file.write_text(text, "utf-8")
    return make_plan(file)
