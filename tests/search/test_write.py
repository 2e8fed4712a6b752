"""Results of searches as a folder, and what is committed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from prism_transformer.core.errors import InputError
from prism_transformer.search.scores import find_scores
from prism_transformer.search.write import SECTION, SUMMARY, write_search
from tests.search.studies import factorial_study, written
from tests.search.test_judge import oracle
from tests.search.test_paths import changed

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_everything_is_written_and_may_be_completed_later(tmp_path: Path) -> None:
    truth = written(tmp_path / "truth", factorial_study(0.01))
    out, readme = tmp_path / "out", tmp_path / "README.md"
    readme.write_text("# A\n<!-- search: begin -->\nold\n<!-- search: end -->\nrest\n", "utf-8")
    first = write_search(out, [truth], readme=readme)
    text = first.summary.read_text("utf-8")
    assert "one-shot: no run was asked" in text
    assert text in readme.read_text("utf-8").replace("](out/", "](")
    for file in (first.summary, readme):  # a link leads on from the file that it stands in
        (link,) = re.findall(r"\]\((.*?)\)", file.read_text("utf-8"))
        assert (file.parent / link).is_file()
        assert str(tmp_path) not in link
    assert readme.read_text("utf-8").endswith("<!-- search: end -->\nrest\n")
    paths = written(tmp_path / "paths", changed())
    write_search(out, [truth], [oracle(tmp_path / "scores", 1.0)], paths)
    assert [each.run for each in find_scores([out])] == ["oracle"]
    later = write_search(out, [truth], paths=paths)  # the scores are in the folder by now
    assert later.verdicts.judged[0].predictor == "one-shot"
    assert {file.name for file in out.iterdir()} == {
        "predictors.csv", "predictors.svg", "paths.csv", "paths.svg", "learned.json", SUMMARY,
        "oracle-one-shot.json",
    }  # fmt: skip
    assert "Final loss of runs that changed" in later.summary.read_text("utf-8")


def test_a_readme_without_a_place_is_refused(tmp_path: Path) -> None:
    truth = written(tmp_path / "truth", factorial_study(0.01))
    readme = tmp_path / "README.md"
    readme.write_text("# A\n", "utf-8")
    with pytest.raises(InputError, match="search: begin"):
        write_search(tmp_path / "out", [truth], readme=readme)
    readme.write_bytes(b"\xff")
    with pytest.raises(InputError, match=f"{readme}: is damaged, or of another kind"):
        write_search(tmp_path / "out", [truth], readme=readme)
    readme.unlink()
    os.mkfifo(readme)  # would be waited for for ever
    with pytest.raises(InputError, match=f"{readme}: cannot be read: is no ordinary file"):
        write_search(tmp_path / "out", [truth], readme=readme)
    assert not (tmp_path / "out").exists()


def test_the_readme_has_what_is_committed() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    found = SECTION.search(text)
    assert found is not None
    summary = (ROOT / "results" / "search" / SUMMARY).read_text("utf-8").strip()
    one, other = (each.replace("](results/search/", "](") for each in (found[0].strip(), summary))
    assert one == other
