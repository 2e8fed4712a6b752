"""The command as a user runs it: output, exit codes, errors without tracebacks."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from prism_transformer.cli import app
from prism_transformer.cli.terminal import make_console
from tests.conftest import Prism


def every_command(place: App, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of each command, to any depth."""
    yield before
    for name in place:
        if not name.startswith("-"):
            yield from every_command(place[name], *before, name)


def help_of(command: tuple[str, ...], width: int, capsys: pytest.CaptureFixture[str]) -> str:
    console = make_console()
    console.width = width
    app.help_print(command, console=console)
    return capsys.readouterr().out


@pytest.mark.parametrize("command", list(every_command(app)), ids=" ".join)
def test_every_help_fits_a_terminal_and_ends_with_an_example(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    said = help_of(command, 80, capsys)
    assert max(map(len, said.splitlines())) <= 80
    assert "prism " in said.rpartition("\n\n")[2]
    for machinery in ("--empty", "[default: ()]", '[default: ""]', "[default: False]", "`"):
        assert machinery not in said
    no = set(re.findall(r"--no-[a-z-]+", said))
    assert no <= {"--no-gigatoken"}, no  # of what is on when left out
    assert not re.search(r"^\u2502 (\* )? {0,3}(--\S+|[A-Z]+) *\u2502$", said, re.MULTILINE)


def test_lines_of_help_are_those_of_the_terminal_not_of_the_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = help_of(("report",), 200, capsys)
    assert "its claims, each with a verdict by rule; and the paper against its own numbers." in said


def test_help_does_not_import_what_is_heavy() -> None:
    code = (
        "import sys; sys.argv = ['prism', '--help']\n"
        "from prism_transformer.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'pydantic') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(prism: Prism) -> None:
    assert prism("--version").stdout.strip() == "0.1.0"


def test_show_draws_and_explains(prism: Prism) -> None:
    result = prism("schedule", "show", "small", "--device", "cpu")
    assert result.returncode == 0
    for expected in ("12 heads |", "256", "no tensor parallelism above 1", "flash_attention"):
        assert expected in result.stdout


def test_show_as_json(prism: Prism) -> None:
    facts = json.loads(prism("schedule", "show", "3x2,12x4", "--d-model", "768", "--json").stdout)
    assert facts["schedule"] == "3x2 12x4"
    assert [row["width"] for row in facts["layers"]] == [256, 256, 64, 64, 64, 64]
    assert facts["controls"]["bracketing"] == ["6x6", "8x6", "12x6"]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_show_writes_the_figure(prism: Prism, tmp_path: Path, ending: str) -> None:
    result = prism("schedule", "show", "medium", "--figure", f"out.{ending}")
    assert result.returncode == 0
    assert f"wrote out.{ending}" in result.stdout
    assert (tmp_path / f"out.{ending}").stat().st_size > 5000


def test_the_left_of_the_figure_can_be_chosen(prism: Prism, tmp_path: Path) -> None:
    prism("schedule", "show", "small", "--against", "config-7", "--figure", "out.svg")
    assert "4 phases: 2x2 4x2 8x2 12x6" in (tmp_path / "out.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["small"], 0, "keeps every rule"),
        (["large"], 0, "keeps every rule"),
        (["config-7"], 0, "keeps every rule"),  # its width 384 is advice only
        (["config-5"], 1, "breaks smoothness"),
        (["12x6 3x6", "--d-model", "768"], 1, "breaks monotonicity, convergence"),
        (["5x12", "--d-model", "768"], 2, "breaks divisibility; no model can have it"),
        (["3x2", "6x10", "--d-model", "768", "--queries-per-kv", "2"], 2, "breaks grouping; no"),
        (["3x2 6x10", "--d-model", "768", "--h-base", "12"], 1, "breaks convergence, preservation"),
        (["6x6 3x6", "--d-model", "768", "--h-base", "12"], 1, "breaks monotonicity"),
    ],
)
def test_check_exits_by_rules_not_by_hardware(
    prism: Prism, arguments: list[str], code: int, expected: str
) -> None:
    result = prism("schedule", "check", *arguments)
    assert expected in result.stdout
    assert result.returncode == code


def test_check_as_json_agrees_with_the_exit_code(prism: Prism) -> None:
    result = prism("schedule", "check", "config-1", "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == 1
    assert facts["ok"] is False
    assert [f["rule"] for f in facts["findings"] if not f["ok"] and f["kind"] == "guideline"] == [
        "smoothness"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "show", "banana"], "cannot read 'banana'"),
        (["schedule", "show", "5x12", "--d-model", "768"], "layer 0: 5 heads do not divide"),
        (["schedule", "show", "3x2"], "--d-model 768"),
        (["schedule", "show", "small", "--layers", "24"], "12 layers but the model has 24"),
        (["schedule", "show", "small", "--figure", "x.bmp"], "x.bmp: a figure ends in"),
        (["schedule", "show", "small", "--device", "abacus"], "device 'abacus' is unknown"),
        (["schedule", "show", "small", "--d-model", "many"], "many"),
        (["schedule", "check", "small", "--d-model", "768.7"], "768.7"),
        (["schedule", "show", "small", "--against", "12x12"], "give --figure too"),
        (["schedule", "show", "small", "--dtype", "float16"], "give --device too"),
        (["schedule", "show", "small", "--against", "medium", "--figure", "x.png"], "24 layers"),
        (["schedule", "show", "2x4 12x8", "--d-model", "1536", "--against", "small",
          "--figure", "x.png"], "preset small is for d_model 768"),
        (["recipes", "--out", "x.toml"], "name the recipe too"),
        (["schedule", "check", "256x2", "--d-model", "768"], "odd"),
        (["schedule", "check", "small", "--h-base", "0"], "h_base=0"),
        (["schedule", "check", "small", "--d-model", "-4"], "d_model=-4"),
        (["schedule", "design", "--d-model", "768", "--layers", "12", "--h-base", "5"], "5 heads"),
        (["schedule", "design", "--d-model", "768"], "--layers"),
        (["schedule", "design", "--d-model", "768", "--layers", "12", "--h-base", "12",
          "--most", "0"], "most=0"),
        (["show", "x" * 300], "no such recipe"),
        (["show", "prism-smal"], "did you mean 'prism-small'"),
        (["show", "prism-small", "optim.lrr=1"], "did you mean optim.lr?"),
        (["recipes", "nothing"], "no such recipe"),
        (["frobnicate"], "frobnicate"),
    ],
)  # fmt: skip
def test_bad_input_exits_2_with_a_plain_message(
    prism: Prism, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = prism(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_closed_pipe_is_no_verdict(tmp_path: Path) -> None:
    """As any Unix program: 141, neither 0 nor the 1 of a broken rule."""
    prism = f"{sys.executable} -m prism_transformer schedule"
    for command in (f"{prism} check small", f"{prism} show '1x512 2x512' --d-model 768 --json"):
        script = f"{command} | true; exit ${{PIPESTATUS[0]}}"
        result = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 141, result.stderr
        assert result.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's always-full device")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prism_transformer", "show", "prism-small"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr == "error: output: No space left on device\n"


def test_design_proposes_with_reasons(prism: Prism) -> None:
    arguments = ["--d-model", "4096", "--layers", "32", "--h-base", "32", "--queries-per-kv", "4"]
    shown = prism("schedule", "design", *arguments).stdout
    assert "1. 16x8 32x24" in shown
    assert "no loss was measured" in shown
    proposals = json.loads(prism("schedule", "design", *arguments, "--json").stdout)
    assert proposals[0]["schedule"] == "16x8 32x24"
    assert len(proposals) == 5


def test_list_has_every_preset(prism: Prism) -> None:
    rows = json.loads(prism("schedule", "list", "--json").stdout)
    assert [row["name"] for row in rows] == [
        "small", "medium", "large", "baseline", *(f"config-{n}" for n in range(1, 8))
    ]  # fmt: skip
    assert all(row["name"] in prism("schedule", "list").stdout for row in rows[:2])


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("lm_eval", ("eval", "none"), "eval"),
        ("orjson", ("prepare", "c.jsonl", "--tokenizer", "bytes"), "data"),
        ("jinja2", ("report", "none"), "report"),
    ],
)
def test_a_missing_extra_is_named(
    package: str, command: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "c.jsonl").write_text('{"text": "x"}\n', "utf-8")
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['prism', *{command!r}]\n"
        "from prism_transformer.cli import main; main()"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"this needs {package}: pip install 'prism-transformer[{extra}]'" in done.stderr


@pytest.mark.skipif(not shutil.which("bash"), reason="completes in bash")
def test_completion_for_bash(prism: Prism, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # whose start-up file it adds a line to
    done = prism("--install-completion", "--shell", "bash")
    assert done.returncode == 0, done.stderr
    asked = (
        ". ~/.bashrc; COMP_WORDS=(prism train --se); COMP_CWORD=2\n"
        "$(complete -p prism | sed 's/.*-F \\([^ ]*\\).*/\\1/') prism --se train\n"
        'echo "${COMPREPLY[@]}"'
    )
    shell = ["bash", "--norc", "-c", asked]
    completed = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["--seed"]
