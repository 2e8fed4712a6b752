"""What keeps the code small and one-way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "prism_transformer"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILES = SOURCES + sorted((ROOT / "tests").rglob("*.py"))

# A module imports only from lines above its own, wherever in the file the import stands.
LADDER = [
    "core", "schedule", "schedules", "recipe", "recipes", "figures", "data", "model", "models",
    "training", "bench", "hf", "eval", "analysis", "study", "search", "reporting", "cli",
]  # fmt: skip

# The same inside the packages that have most modules.
LADDERS: dict[str, list[str]] = {
    "figures": ["style", "chart", "schedules", "profiles", "comparisons", "sizes", "search"],
    "study": [
        "metrics", "statistics", "multiplicity", "looks", "collected", "peeking", "factorial",
        "benchmarks", "contrasts", "contrast_tables", "best_rates", "lengths", "points", "compare",
        "sentences", "spec", "arms", "plan", "selection", "earlier", "runs", "rungs", "tuning",
        "collect", "single_runs", "sharing", "storage", "queue", "folder", "forecast", "launch",
        "worker", "process", "pool", "api", "halving", "slurm",
    ],
    "search": [
        "ranking", "scores", "solve", "shared", "one_shot", "blocks", "judge", "learned", "paths",
        "write",
    ],
    "reporting": [
        "views", "reading", "answers", "exhibits", "schedules", "training", "contrasts", "rates",
        "layers", "paths", "evaluation", "context", "milestones", "verdicts", "rules",
        "curve_rules", "rate_rules", "layer_rules", "claims", "audit", "contents", "latex",
        "page", "write", "live",
    ],
}  # fmt: skip

# Modules without a test file of their name, and what runs them instead.
TESTED_ELSEWHERE = {
    "cli.options": "tests of the commands, such as tests/cli/test_study.py, give them",
    "hf.vllm_model": "tests/vllm/test_vllm.py, which make test-vllm runs where vLLM is",
}

TERMINAL = {"rich", "cyclopts"}  # libraries that only commands know

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def short(file: Path) -> str:
    return str(file.relative_to(ROOT))


def name_of(file: Path) -> str:
    """A module's name below the package; a package's own file has the package's."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def imported_names(file: Path) -> Iterator[str]:
    """Everything that a file imports, anywhere in it: ``a.b`` for ``import a.b``, and so on."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(file)}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = {name_of(file): file for file in SOURCES}


def own_imports(file: Path) -> set[str]:
    """Our modules that a file imports."""
    found = set()
    for full in imported_names(file):
        head, _, name = full.partition(".")
        if head != "prism_transformer" or name == "__version__":
            continue
        while name not in MODULES:  # a function or class: its module
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_imports_go_one_way(file: Path) -> None:
    name = name_of(file)
    if name in ("", "__main__"):
        return  # the first names the public parts of every module, lazily; the second runs cli
    home, _, rest = name.partition(".")
    for module in own_imports(file) - {name}:
        there, _, inner = module.partition(".")
        assert LADDER.index(there) <= LADDER.index(home), f"{name} imports {module}"
        order = LADDERS.get(home)
        if there == home and order is not None and rest and inner:
            first, second = inner.split(".")[0], rest.split(".")[0]
            assert order.index(first) <= order.index(second), f"{name} imports {module}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: own_imports(file) - {name} for name, file in MODULES.items() if name}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("package", LADDERS)
def test_ladders_name_what_is_there(package: str) -> None:
    there = {name.split(".")[1] for name in MODULES if name.startswith(f"{package}.")}
    assert sorted(LADDERS[package]) == sorted(there)


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_only_commands_know_a_terminal(file: Path) -> None:
    if name_of(file).split(".")[0] in ("cli", "__main__"):
        return
    assert not {name.split(".")[0] for name in imported_names(file)} & TERMINAL
    calls = (node.func for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call))
    assert not any(isinstance(each, ast.Name) and each.id == "print" for each in calls)


def test_the_root_is_read_in_one_breath() -> None:
    own = {name.split(".")[0] for name in MODULES if name} - {"__main__"}
    assert own == set(LADDER)
    assert len(own) <= 18


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
    for word in ("pickle", "torch.load", "torch.save"):
        assert word not in text
    assert not re.findall(r"trust_remote_code(?!\": False)", text)
    assert not re.search(r"(?<![.\w])(eval|exec)\(", text)


@pytest.mark.parametrize("file", SOURCES, ids=short)
def test_every_module_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(tree_of(file))


@pytest.mark.parametrize(
    "module",
    [
        "prism_transformer",
        "prism_transformer.figures.style",
        "prism_transformer.training.run",
        "prism_transformer.study.compare",
        "prism_transformer.reporting.write",
        "prism_transformer.cli",
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
    assert sorted(prism_transformer._HOME) == sorted(names)
    assert dir(prism_transformer) == names  # what a notebook completes
    code = "\n".join(
        f"from prism_transformer import {name}; print(callable({name}))" for name in names
    )
    # Twice: by then every module that a name needs has been imported, and may hide no name.
    fresh = subprocess.run(
        [sys.executable, "-c", f"{code}\n{code}"], capture_output=True, text=True
    )
    assert fresh.stdout == "True\n" * 2 * len(names), fresh.stderr
    with pytest.raises(AttributeError):
        prism_transformer.nothing_of_ours  # noqa: B018


def test_no_public_name_is_a_module() -> None:
    import prism_transformer

    assert not set(prism_transformer.__all__) & {name.split(".")[0] for name in MODULES}


def test_tests_mirror_the_modules() -> None:
    """``a/b.py`` has ``tests/a/test_b.py``, or a stated reason why not."""
    missing = []
    for name, file in MODULES.items():
        if file.name in ("__init__.py", "__main__.py") or name in TESTED_ELSEWHERE:
            continue
        *folders, last = name.split(".")
        if not (ROOT / "tests").joinpath(*folders, f"test_{last}.py").is_file():
            missing.append(name)
    assert not missing
    assert not set(TESTED_ELSEWHERE) - set(MODULES), "a reason for a module that is no more"
