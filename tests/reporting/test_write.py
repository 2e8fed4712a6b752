"""All files of a report, from a verb that says how far it is; and those of a project."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prism_transformer.core.progress import Advance, Event
from prism_transformer.core.table import Spread
from prism_transformer.figures.chart import svg_text
from prism_transformer.models import cost
from prism_transformer.recipes.files import load_recipe
from prism_transformer.reporting.write import (
    FIGURES,
    Written,
    make_documents,
    report,
    write_documents,
)
from prism_transformer.schedules import paper
from prism_transformer.study.collected import Collected, write_collected
from prism_transformer.study.plan import make_plan
from prism_transformer.study.spec import find_study
from tests.reporting.studies import at_scale, drawn

ROOT = Path(__file__).parents[2]


def written(folder: Path, *studies: Collected) -> Written:
    for place, study in enumerate(studies):
        write_collected(folder / "results" / str(place), study)
    return report([folder / "results"], folder / "out")


def test_all_files_are_there_and_a_second_call_replaces_them(tmp_path: Path) -> None:
    made = written(tmp_path, drawn(tasks={}))
    names = {drawing.key for drawing in made.report.drawings if drawing.chart is not None}
    for ending in ("svg", "pdf", "png"):
        files = list((tmp_path / "out" / "figures").glob(f"*.{ending}"))
        assert {file.stem for file in files} == names
        assert all(file.stat().st_size > 2000 for file in files)
    for ending in ("tex", "csv"):
        assert len(list((tmp_path / "out" / "tables").glob(f"*.{ending}"))) == 17
    there = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert made.files == len(there)
    before = made.page.read_bytes()
    again = report([tmp_path / "results"], tmp_path / "out")
    assert again.page.read_bytes() == before  # no date, no chance


@pytest.mark.slow
def test_a_report_never_imports_torch(tmp_path: Path) -> None:
    write_collected(tmp_path / "study", drawn(seeds=(0, 1)))
    code = (
        "import sys; from pathlib import Path\n"
        "from prism_transformer.reporting.write import report\n"
        f"report([Path({str(tmp_path / 'study')!r})], Path({str(tmp_path / 'out')!r}))\n"
        "print([m for m in ('torch', 'transformers', 'lm_eval') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_figures_have_their_numbers_beside_them(tmp_path: Path) -> None:
    told: list[Event] = []
    write_collected(tmp_path / "nano", drawn(tasks={}))
    made = report(tmp_path / "nano", tmp_path / "out", tell=told.append)
    with (tmp_path / "out" / "figures" / "nano-loss.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    (loss,) = [one.table for one in made.report.drawings if one.key == "nano-loss"]
    assert len(rows) == len(loss.rows)
    for row, known in zip(rows, loss.values("validation loss"), strict=True):
        assert isinstance(known, Spread)
        assert float(row["validation loss [nats/token] mean"]) == known.mean
    last = told[-1]
    assert isinstance(last, Advance)
    drawn_figures = [one for one in made.report.drawings if one.chart is not None]
    assert last.done == last.total == len(drawn_figures)


def test_pages_of_attention_are_linked_and_come_along(tmp_path: Path) -> None:
    study = drawn(tasks={})
    write_collected(tmp_path / "study" / "collected", study)
    run, other = (each.run for each in study.facts.runs[:2])
    for step, words in (("step-10", "older"), ("step-20", "newer")):
        folder = tmp_path / "study" / "runs" / run / "analysis" / step
        folder.mkdir(parents=True)
        (folder / "attention.html").write_text(words)
        os.utime(folder / "attention.html", (int(step[5:]), int(step[5:])))
    (tmp_path / "study" / "runs" / other / "analysis" / "step-10").mkdir(parents=True)
    made = report(tmp_path / "study", tmp_path / "out")
    page = made.page.read_text("utf-8")
    assert re.findall(r'href="(attention/[^"]+)"', page) == [f"attention/{run}.html"] * 2
    assert (tmp_path / "out" / "attention" / f"{run}.html").read_text() == "newer"
    assert made.files == sum(file.is_file() for file in (tmp_path / "out").rglob("*"))


def labels(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)<", svg)


def test_what_is_committed_is_what_is_generated() -> None:
    """``make results`` rewrites both where this fails."""
    made = make_documents(ROOT)
    assert (ROOT / "docs" / "results.md").read_text("utf-8") == made.results
    assert (ROOT / "README.md").read_text("utf-8") == made.readme


@pytest.mark.slow
def test_figures_that_are_committed_are_those_that_are_drawn() -> None:
    report = make_documents(ROOT).report
    assert report
    for drawing in report.drawings:
        if drawing.chart is not None:
            committed = (ROOT / FIGURES / f"{drawing.key}.svg").read_text("utf-8")
            assert labels(committed) == labels(svg_text(drawing.chart.figure))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    text = "# Ours\n\n<!-- results: begin -->\nold\n<!-- results: end -->\n\nThe end.\n"
    (tmp_path / "README.md").write_text(text, "utf-8")
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_without_results_they_say_so(project: Path) -> None:
    write_documents(project)
    for name in ("README.md", "docs/results.md"):
        assert "No study has been committed" in (project / name).read_text("utf-8")
    assert "old" not in (project / "README.md").read_text("utf-8")


def test_with_results_they_have_figures_and_the_honest_sentence(project: Path) -> None:
    write_collected(project / "results" / "nano", drawn(tasks={}))
    files = write_documents(project)
    assert [file.name for file in files] == ["results.md", "README.md"]
    for file in files:
        text = file.read_text("utf-8")
        assert "can and cannot say" in text
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert links
        assert all((file.parent / link).is_file() for link in links)
    assert (project / "README.md").read_text("utf-8").endswith("\n\nThe end.\n")
    before = [file.read_bytes() for file in files]
    assert [file.read_bytes() for file in write_documents(project)] == before


def test_results_at_the_papers_scale_do_not_call_themselves_small(project: Path) -> None:
    write_collected(project / "results" / "small", at_scale("small", tasks={}))
    write_documents(project)
    assert "can and cannot say" not in (project / "docs" / "results.md").read_text("utf-8")


SCALES = {"ablation": "small", "gqa": "small"}


def test_hours_and_disk_in_the_guide_follow_from_the_papers_rates() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    rows = re.findall(r"\| ([\w-]+) \|[^|]*\| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+) GB \|", text)
    assert len(rows) == 7
    for name, runs, each, hours, disk in rows:
        scale = paper.scales()[SCALES.get(name, name.removeprefix("ablation-"))]
        plan = make_plan(find_study(name))
        tune = plan.study.tune
        assert tune is not None
        tuning = len(plan.arms) * len(tune.optim.lr) * len(tune.seeds)
        assert int(runs) == len(plan.cells) + tuning
        recipe = load_recipe(f"prism-{scale.name}")
        one = cost.hours(recipe.train.tokens, scale.tokens_per_second)
        assert (each, hours) == (f"{one:.2f}", f"{int(runs) * one:.1f}")
        kept = recipe.run.keep_checkpoints * 12 * cost.parameters(recipe.model).total
        assert int(disk) == pytest.approx(int(runs) * kept / 1e9, abs=0.6)
        shards = 2 * recipe.train.tokens / 1e9
        assert re.search(rf"--recipe prism-{scale.name} .*{shards:.2g} GB", text)
