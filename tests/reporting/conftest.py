"""Studies that tests of tables and figures share; nothing may change them."""

from __future__ import annotations

import csv
from pathlib import Path
from uuid import uuid4

import pytest

from prism_transformer.reporting.claims import Result, judge_claims
from prism_transformer.reporting.contents import Report, make_report
from prism_transformer.reporting.views import View
from prism_transformer.study.collected import Collected, write_collected
from tests.browsing import axe, browser
from tests.reporting.again import Numbers
from tests.reporting.studies import TASKS, Judge, at_scale, drawn, views_of

__all__ = ["axe", "browser", "judged", "numbers", "report", "views"]  # fixtures

ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4", "reversed": "8x4 4x2 2x2"}
EFFECTS = {"prism": -0.02, "reversed": 0.01}


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> list[View]:
    nano = drawn(
        "nano",
        arms=ARMS,
        effect=EFFECTS,
        tasks=TASKS,
        seeds=(0, 1, 2, 3),
        states={("reversed", 0, 3): "failed", ("uniform", 0, 3): "missing"},
    )
    small = at_scale("small", tasks=TASKS, noise=0.001, effect=-0.0144)
    return views_of(tmp_path_factory.mktemp("tables"), nano, small)


@pytest.fixture(scope="session")
def numbers(views: list[View], tmp_path_factory: pytest.TempPathFactory) -> list[Numbers]:
    """What table.csv says, without pandas: (metric, arm, seed) to value."""
    found = []
    for view in views:
        folder = tmp_path_factory.mktemp("plain")
        write_collected(folder, view.collected)
        with (folder / "table.csv").open() as stream:
            rows = list(csv.DictReader(stream))
        once = [row for row in rows if row["index"] == "" and not row["metric"].endswith("_loss")]
        once += [row for row in rows if row["metric"] == "final_val_loss"]
        found.append({(r["metric"], r["arm"], int(r["seed"])): float(r["value"]) for r in once})
    return found


@pytest.fixture(scope="session")
def report(views: list[View]) -> Report:
    """A report of a study with three arms, and of one at the paper's small scale."""
    return make_report(views)


@pytest.fixture
def judged(tmp_path: Path) -> Judge:
    """What the claims come to, given these studies."""

    def judge(*studies: Collected) -> dict[str, Result]:
        found = judge_claims(views_of(tmp_path / uuid4().hex, *studies))
        return {result.claim.key: result for result in found}

    return judge
