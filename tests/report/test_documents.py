from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism_transformer import cost, paper
from prism_transformer.recipe_file import load_recipe
from prism_transformer.report.documents import FIGURES, make_documents, write_documents
from prism_transformer.report.svg import svg_text
from prism_transformer.study.table import write_collected
from tests.report.studies import at_scale, drawn

ROOT = Path(__file__).parents[2]


def labels(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)<", svg)


def test_what_is_committed_is_what_is_generated() -> None:
    """``make results`` rewrites both where this fails."""
    made = make_documents(ROOT)
    assert (ROOT / "docs" / "results.md").read_text("utf-8") == made.results
    assert (ROOT / "README.md").read_text("utf-8") == made.readme
    for drawing in made.report.drawings if made.report else ():
        if drawing.picture is not None:
            committed = (ROOT / FIGURES / f"{drawing.key}.svg").read_text("utf-8")
            assert labels(committed) == labels(svg_text(drawing.picture.figure))


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


def test_hours_and_disk_in_the_guide_follow_from_the_papers_rates() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text("utf-8")
    rows = re.findall(r"\| (\w+) \|[^|]*\| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+) GB \|", text)
    assert len(rows) == 5
    for name, runs, each, hours, disk in rows:
        scale = paper.scales()["small" if name in ("ablation", "gqa") else name]
        recipe = load_recipe(f"prism-{scale.name}")
        one = cost.hours(recipe.train.tokens, scale.tokens_per_second)
        assert (each, hours) == (f"{one:.2f}", f"{int(runs) * one:.1f}")
        kept = recipe.run.keep_checkpoints * 12 * cost.parameters(recipe.model).total
        assert int(disk) == pytest.approx(int(runs) * kept / 1e9, abs=0.6)
        shards = 2 * recipe.train.tokens / 1e9
        assert re.search(rf"--recipe prism-{scale.name} .*{shards:.2g} GB", text)
