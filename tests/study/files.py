"""What study tests share: a tiny study that trains in seconds."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.study.plan import Plan, make_plan
from prism_transformer.study.queue import Queue
from prism_transformer.study.study import Home
from prism_transformer.study.work import Worker
from prism_transformer.train.run import Row

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


class Deaf:
    """A watcher who does not listen."""

    def begin(self, cell: object, until: int) -> None: ...

    def stage(self, what: str) -> None: ...

    def row(self, row: Row) -> None: ...

    def end(self, cell: object, outcome: object) -> None: ...


def finish_study(plan: Plan, folder: Path) -> Home:
    """Begin a study and do all of it in this process."""
    home = Home(plan, folder)
    queue = Queue(plan, folder)
    home.begin(queue)
    queue.work(Worker(plan, folder, Deaf(), plan.study.processes, "cpu").do)
    return home
