from __future__ import annotations

import json
from pathlib import Path

from prism_transformer.study.collected import write_collected
from tests.conftest import Prism
from tests.reporting.studies import drawn


def test_report_says_what_it_found_and_where_it_is(prism_inside: Prism, tmp_path: Path) -> None:
    write_collected(tmp_path / "studies" / "nano" / "collected", drawn())
    result = prism_inside("report", "studies/nano", "--out", "page")
    assert result.returncode == 0
    assert "nano: 6 of 6 runs complete" in result.stdout
    assert "prism against uniform" in result.stdout
    assert "wrote page/index.html and" in result.stdout
    assert (tmp_path / "page" / "index.html").is_file()


def test_report_as_json(prism_inside: Prism, tmp_path: Path) -> None:
    write_collected(tmp_path / "nano", drawn(tasks={}))
    facts = json.loads(prism_inside("report", "nano", "--json").stdout)
    assert facts["page"] == "report/index.html"
    assert sum(facts["claims"].values()) == 28


def test_bad_input_is_said_plainly(prism_inside: Prism, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, message in (
        (["report"], "name a study's folder"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", "--docs", "."], "no place for results"),
    ):
        result = prism_inside(*arguments)
        assert result.returncode == 2
        assert message in result.stderr
    write_collected(tmp_path / "nano", drawn(tasks={}))
    result = prism_inside("report", "nano", "--out", "file")
    assert result.returncode == 2
    assert "cannot be written" in result.stderr
