"""Models and schedules, computed again."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev

from prism_transformer.core.table import NONE
from prism_transformer.reporting import schedules
from prism_transformer.reporting.views import View
from prism_transformer.schedules import paper
from tests.reporting.again import T2, Numbers, cells, of, paired, pm, shown
from tests.reporting.studies import PAIRS, drawn, renamed, views_of


def test_ablation(views: list[View], numbers: list[Numbers]) -> None:
    table = schedules.ablation(views)
    for view, found in zip(views, numbers, strict=True):
        for arm in view.arms:
            row = cells(table, study=view.name, arm=arm)
            heads = next(a.heads for a in view.collected.facts.arms if a.name == arm)
            assert row["mean heads"] == f"{sum(heads) / len(heads):.2f}"
            at_base = sum(h == max(heads) for h in heads) / len(heads)
            assert row["layers at base"] == f"{100 * at_base:.0f}"
            assert row["validation loss"] == pm(of(found, "final_val_loss", arm))
            if arm == "uniform":
                assert row["difference"] == row["rate change"] == NONE
                continue
            assert row["difference"] == shown(mean(paired(found, "final_val_loss", arm)))
            done = {seed for name, who, seed in found if (name, who) == ("final_val_loss", arm)}
            logs = [
                log(found["tokens_per_second", arm, s] / found["tokens_per_second", "uniform", s])
                for s in sorted(done)
                if ("final_val_loss", "uniform", s) in found
            ]
            half = T2 * stdev(logs) / sqrt(3)
            assert row["rate change"] == shown(100 * (exp(mean(logs)) - 1), 1)
            ends = [shown(100 * (exp(mean(logs) + s * half) - 1), 1) for s in (-1, 1)]
            assert row["95 % interval"] == " to ".join(ends)
    assert cells(table, study="small", arm="prism")["paper's rate change"] == "+0.0"


def test_configurations(views: list[View]) -> None:
    table = schedules.configurations(views)
    ours = cells(table, study="small", source="ours")
    assert ours["parameters"] == "123,587,328"
    assert ours["training tokens"] == "2,883,584,000"
    assert ours["tokens per parameter"] == "23.3"
    assert ours["peak learning rate"] == "0.0006"
    theirs = cells(table, study="small", source="paper")
    assert (theirs["parameters"], theirs["batch"], theirs["training tokens"]) == (
        "124M", "0.25M", "2.88B",
    )  # fmt: skip
    nano = cells(table, study="nano", source="ours")
    recipe = views[0].collected.facts.recipe
    assert nano["batch"] == f"{recipe.train.batch_tokens:,}"
    assert (nano["layers"], nano["d_model"], nano["h_base"]) == ("8", "128", "8")


def test_schedules(views: list[View]) -> None:
    table = schedules.schedules(views)
    row = cells(table, study="nano", arm="prism")
    assert (row["schedule"], row["head widths"], row["mean heads"]) == (
        "2x2 4x2 8x4", "64, 32, 16", "5.50",
    )  # fmt: skip
    printed = cells(table, study="small", arm="prism", source="paper")
    assert printed["schedule"] == PAIRS["small"]["prism"] == str(paper.scales()["small"].schedule)


def test_the_map_says_what_arms_change_beside_their_heads(tmp_path: Path) -> None:
    study = drawn(arms={"uniform": "8x8", "prism": "2x2 4x2 8x4", "late": "2x2 4x2 8x4"})
    plain = schedules.schedule_map(views_of(tmp_path / "plain", study)[0], {})
    assert plain is not None
    assert "change" not in plain.table.note
    *others, late = study.facts.arms
    late = late.model_copy(update={"changes": {"from": "uniform@0.5"}})
    (view,) = views_of(tmp_path / "late", renamed(study, arms=(*others, late)))
    found = schedules.schedule_map(view, {})
    assert found is not None
    assert found.table.note.endswith("Beside them arms change: late: from=uniform@0.5.")
