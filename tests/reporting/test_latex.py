"""Tables as LaTeX: what is written, and that pdflatex takes it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from prism_transformer.core.table import Column, Table, words
from prism_transformer.reporting.contents import make_report
from prism_transformer.reporting.latex import MOST_ROWS, to_latex
from prism_transformer.reporting.reading import read_views
from tests.reporting.studies import TASKS, at_scale, drawn, renamed, views_of

ROOT = Path(__file__).parents[2]
NASTY = (
    r"<script>a|b</script> & 100% $x_1$ #{~^} \end `code` --two",
    "\u2212 \u00b1 \u00d7 \u0394 \u00b5 \u03bc \u4e2d\u6587 na\u00efve \u20ac \u0127 \U0001f600",
    "[0.1] begins with a bracket, and goes on for longer than a line has room",
    "* begins with a star\x1b[31m\x00",
    "a_name_without_any_place_to_break_it_and_yet_far_too_long_for_its_column",
)
needs_latex = pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="pdflatex is not installed: apt-get install texlive-latex-recommended",
)


def table(*names: str) -> Table:
    columns = (*words("name"), Column("validation loss", "nats/token", 4), Column("empty"))
    rows = tuple({"name": name, "validation loss": 1.5, "empty": None} for name in names)
    return Table("one", columns, rows, "A title", "3 seeds.", "prism study run x")


def test_rows_have_as_many_cells_as_columns() -> None:
    lines = to_latex(table(*NASTY)).splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [1] * (1 + len(NASTY))
    assert rows[3].startswith("{}[")
    assert rows[4].startswith("{}*")


def test_empty_columns_are_left_out_and_headings_stacked() -> None:
    written = to_latex(table("a"))
    assert r"\begin{tabular}{lr}" in written
    assert r"name & \shortstack[r]{{validation}\\{loss}\\{[nats/token]}} \\" in written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u22120.5 \u00b1 1", r"$-$0.5 $\pm$ 1"),
        ("--tasks", "-{}-tasks"),
        ("\u0394\u00b5", r"$\Delta$$\mu$"),
        ("\u4e2d\u6587x", "\\ifdefined\\Umathchar \u4e2d\u6587\\else U+4E2D U+6587\\fi{}x"),
        ("a\x1b\x00b", r"a\textbackslash{}x1b\textbackslash{}x00b"),
        ("\u2013", "--"),
    ],
)
def test_letters(text: str, expected: str) -> None:
    one = Table("one", words("n"), ({"n": "kept"}, {"n": text}), "T")
    assert expected + r" \\" in to_latex(one).splitlines()


def test_long_tables_go_over_several_pages() -> None:
    assert to_latex(table(*["a"] * MOST_ROWS)).count(r"\begin{table}") == 1
    longer = to_latex(table(*["a"] * (MOST_ROWS + 1)))
    assert longer.count(r"\begin{table}") == longer.count(r"\toprule") == 2
    assert longer.count(r"\label") == 1
    assert r"\caption{A title, continued.}" in longer


@pytest.mark.slow
@needs_latex
def test_every_table_compiles_and_fits_its_page(tmp_path: Path) -> None:
    arms = {"uniform": "8x8", "prism": "2x2 4x2 8x4"} | dict.fromkeys(NASTY[:3], "4x8")
    odd = drawn(arms=arms, seeds=range(9), tasks=TASKS, states={("prism", 0, 2): "failed"})
    studies = (renamed(odd, name=NASTY[1]), at_scale("small", tasks=TASKS), drawn(tasks={}))
    reports = [make_report(views_of(tmp_path, *studies))]
    reports += [
        make_report(read_views([file.parent])) for file in ROOT.glob("results/*/study.json")
    ]
    tables = [each for report in reports for each in report.tables]
    assert any(len(each.rows) > MOST_ROWS for each in tables)
    log = compile_tables([*tables, _gap(), table(*NASTY)], tmp_path)
    assert "Overfull" not in log
    assert "Float too large" not in log


def _gap() -> Table:
    return Table("gap", (), (), "A title", missing="no run of 100 %", command="prism eval RUN")


def test_what_is_missing_is_said() -> None:
    written = to_latex(_gap())
    assert r"Not measured: no run of 100 \%" in written
    assert "prism eval RUN" in written
    assert "tabular" not in written


def compile_tables(tables: list[Table], folder: Path) -> str:
    """The log of a document with all of them, with the packages that they ask for."""
    written = [to_latex(each) for each in tables]
    asked = dict.fromkeys(
        line.removeprefix("% ")
        for each in written
        for line in each.splitlines()
        if line.startswith(r"% \usepackage")
    )
    body = "\n\\clearpage\n".join(written)
    head = "\n".join([r"\documentclass{article}", *asked, r"\begin{document}"])
    (folder / "t.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n", "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True)
    log = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, log[-2000:]
    return log
