"""Every command and every Python example in the documents runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Prism

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


# Its blocks build on each other, so they run together, in order.
CHAPTER = re.compile(r"^## Hugging Face\n.*?(?=^## )", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks of one language, each with its document's name."""
    return [
        (file.name, body)
        for file in DOCUMENTS
        for body in re.findall(
            rf"```{language}\n(.*?)```", CHAPTER.sub("", file.read_text("utf-8")), re.DOTALL
        )
    ]


def commands(program: str) -> list[str]:
    lines = [line for _, body in blocks("bash") for line in body.splitlines() if line.strip()]
    return sorted({line for line in lines if line.startswith(f"{program} ")})


def test_documents_use_no_other_program() -> None:
    lines = [line for _, body in blocks("bash") for line in body.splitlines() if line.strip()]
    assert {line.split()[0] for line in lines} <= {"prism", "make", "torchrun"}


SLOW = re.compile(r"prism (train|bench|study|analyze)|bpe:4096|--code")

PRISM_BLOCKS = [
    pytest.param(name, body, id=name, marks=[pytest.mark.slow] if SLOW.search(body) else [])
    for name, body in blocks("bash")
    if body.startswith("prism ")
]


@pytest.mark.parametrize(("name", "body"), PRISM_BLOCKS)
def test_prism_commands_run_one_after_the_other(prism: Prism, name: str, body: str) -> None:
    for line in body.splitlines():
        result = prism(*shlex.split(line, comments=True)[1:])
        assert result.returncode == 0, f"{name}: {line}: {result.stderr}"
        assert result.stdout


@pytest.mark.slow
def test_torchrun_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (body,) = [body for _, body in blocks("bash") if body.startswith("torchrun ")]
    for line in body.splitlines():
        command = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:]]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}: {result.stderr}"


@pytest.mark.parametrize("line", commands("make"))
def test_make_targets_exist(line: str) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    result = subprocess.run(
        ["make", "--dry-run", "--always-make", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    index = next((a.partition("=")[2] for a in arguments if a.startswith("TORCH_INDEX=")), None)
    torch_line = next(row for row in result.stdout.splitlines() if row.endswith("torch==2.13.0"))
    assert (f"--index-url {index}" in torch_line) == (index is not None)


def is_slow(name: str, body: str) -> bool:
    return name != "README.md" or "load_recipe" in body


PYTHON_BLOCKS = [
    pytest.param(name, body, id=name, marks=[pytest.mark.slow] if is_slow(name, body) else [])
    for name, body in blocks("python")
]


@pytest.mark.parametrize(("name", "body"), PYTHON_BLOCKS)
def test_python_examples_run(name: str, body: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", body], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{name}: {result.stderr}"


def test_figure_in_the_readme_is_what_its_command_draws(prism: Prism, tmp_path: Path) -> None:
    assert prism("schedule", "show", "small", "--figure", "schedule-small.svg").returncode == 0

    def labels(file: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]*)<", file.read_text("utf-8"))

    committed = labels(ROOT / "docs" / "schedule-small.svg")
    assert committed == labels(tmp_path / "schedule-small.svg")
    assert "uniform: 12x12" in committed


def test_links_between_documents_lead_somewhere() -> None:
    for file in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text("utf-8")):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_file_tour_names_every_entry_of_the_package() -> None:
    tour = (ROOT / "README.md").read_text("utf-8").split("## File tour")[1]
    package = ROOT / "src" / "prism_transformer"
    ours = {p.name for p in package.iterdir() if p.suffix == ".py" or p.is_dir()}
    for name in sorted(ours - {"__init__.py", "__main__.py", "__pycache__"}):
        assert name in tour, name


def test_the_tour_names_every_module_below_the_commands_once() -> None:
    package = ROOT / "src" / "prism_transformer"
    named = re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / "tour.md").read_text("utf-8"))
    there = {str(file.relative_to(package)) for file in package.rglob("*.py")}
    own = {name for name in there if not name.startswith(("cli/", "__")) and "__init__" not in name}
    assert sorted(named) == sorted(own)


@pytest.mark.slow
def test_hugging_face_chapter_runs_from_start_to_end(prism: Prism, tmp_path: Path) -> None:
    """With a small Llama of the shape the chapter names, and its tokenizer."""
    small_llama(tmp_path / "my-llama")
    (tmp_path / "sample.txt").write_text(
        "Prisms split light, schedules split heads. " * 50, "utf-8"
    )
    chapter = CHAPTER.search((ROOT / "README.md").read_text("utf-8"))
    assert chapter
    found = re.findall(r"```(bash|python)\n(.*?)```", chapter[0], re.DOTALL)
    assert [language for language, _ in found] == ["bash", "python", "python", "bash"]
    for language, body in found:
        if language == "bash":
            result = prism(*shlex.split(body)[1:])
        else:
            command = [sys.executable, "-c", body]
            result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    assert "nats before" in result.stdout
    assert (tmp_path / "prism-llama" / "tokenizer.json").exists()


def small_llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.hf.models import byte_level_tokenizer

    config = LlamaConfig(
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        hidden_size=128,
        intermediate_size=256,
        vocab_size=384,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_level_tokenizer("Prisms split light, schedules split heads.").save_pretrained(folder)
