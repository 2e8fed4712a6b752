"""What keeps the code small and one-way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "prism_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py"))

# A module imports only from lines above its own.
LADDER = [
    "errors",
    "folders",
    "schedule",
    "paper",
    "rules",
    "hardware",
    "kernels",
    "design",
    "recipe",
    "recipe_file",
    "data",
    "model",
    "weights",
    "sampling",
    "cost",
    "train",
    "bench",
    "neutrality",
    "describe",
    "terminal",
    "watch",
    "hf",
    "plots",
    "eval",
    "analysis",
    "study",
    "report",
    "proof",
    "cli",
]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def short(file: Path) -> str:
    return str(file.relative_to(ROOT))


def step(module: str) -> int:
    """Where a module of ours stands on the ladder, by the first part of its name."""
    return LADDER.index(module.split(".")[0])


def imported_modules(tree: ast.AST) -> set[str]:
    """Our modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "prism_transformer":
            found |= {alias.name for alias in node.names if not alias.name.startswith("_")}
        elif isinstance(node, ast.ImportFrom) and node.module:
            head, _, rest = node.module.partition(".")
            if head == "prism_transformer":
                found.add(rest)
    return found


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_imports_go_one_way(file: Path) -> None:
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    if name in ("__init__", "__main__"):
        return  # the first names the public parts of every module, lazily; the second runs cli
    home = step(name)
    for module in imported_modules(ast.parse(file.read_text("utf-8"))):
        same_folder = module.split(".")[0] == name.split(".")[0]
        assert same_folder or step(module) < home, f"{name} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=short)
def test_files_and_functions_are_small(file: Path) -> None:
    text = file.read_text("utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            help_lines = len((ast.get_docstring(node) or "").splitlines())
            lines = (node.end_lineno or 0) - node.lineno + 1 - help_lines
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_no_pickle_and_no_remote_code(file: Path) -> None:
    text = file.read_text("utf-8")
    for word in ("pickle", "torch.load", "torch.save", "trust_remote_code"):
        assert word not in text
    assert not re.search(r"(?<![.\w])(eval|exec)\(", text)


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_every_module_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text("utf-8")))


@pytest.mark.parametrize(
    "module",
    [
        "prism_transformer",
        "prism_transformer.plots.figures",
        "prism_transformer.study.compare",
        "prism_transformer.report.documents",
    ],
)
def test_what_must_start_fast_does_not_import_torch(module: str) -> None:
    code = f"import {module}, sys; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_public_names_resolve() -> None:
    import prism_transformer

    names = prism_transformer.__all__
    code = "\n".join(
        f"from prism_transformer import {name}; print(callable({name}))" for name in names
    )
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert fresh.stdout == "True\n" * len(names), fresh.stderr
    with pytest.raises(AttributeError):
        prism_transformer.nothing_of_ours  # noqa: B018


def test_tests_mirror_the_modules() -> None:
    """Each module has a test file, or is named by one that runs it whole."""
    named = {"errors", "describe"}  # test_cli and test_terminal run these
    folders = {"data", "hf", "plots", "study", "report", "train", "bench", "eval", "analysis"}
    tests = {file.stem.removeprefix("test_") for file in (ROOT / "tests").glob("test_*.py")}
    assert set(LADDER) <= tests | named | folders
