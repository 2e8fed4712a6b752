"""Inputs that nobody meant: schedules, recipes, studies, command lines, folders of strangers."""

from __future__ import annotations

import os
import random
import resource
import shutil
import string
from pathlib import Path

from ground import RESUME, Case, Verdict, command

from prism_transformer.core.errors import InputError
from prism_transformer.recipes.files import load_recipe, packaged_recipes, recipe_toml
from prism_transformer.schedule import HeadSchedule, ScheduleError
from prism_transformer.study.plan import make_plan
from prism_transformer.study.spec import packaged_studies

ODD = (
    "", "0", "-1", "1e400", "9" * 400, "nan", "inf", "\x1b[31m", "\x00", "../..", "/", "x" * 5000,
    "\udcff", "3x2", "true", "[]", "{", "none", "0x10", "1_000", "\u0663", "'", '"', "\n", "--",
)  # fmt: skip

PATIENCE = 600  # seconds for a command of a few, on a machine that has other work, too


def schedule(case: Case, _folder: Path, _wanted: Path) -> tuple[Verdict, str]:
    draw = random.Random(str(case))
    letters = "0123456789xX*, []()-\u00d7\t" + draw.choice(["", string.printable, "\u0663\x00"])
    source = draw.choice(["3x2 6x2 8x2 12x6", "", "3,3,6,6", draw.choice(ODD)])
    text = list(source)
    for _ in range(draw.randint(0, 6)):
        text.insert(draw.randint(0, len(text)), draw.choice(letters))
    try:
        found = HeadSchedule.parse("".join(text))
    except ScheduleError:
        return "detected", ""
    except Exception as error:
        return "wrong", f"{''.join(text)!r}: {type(error).__name__}: {error}"
    same = HeadSchedule.parse(str(found)) == found and len(found) == sum(
        phase.n_layers for phase in found.phases
    )
    return ("survived", "") if same else ("wrong", f"{''.join(text)!r} reads otherwise again")


def _mutated(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(lines))
        key, equals, value = lines[place].partition("=")
        way = draw.randrange(5)
        if way == 0:
            del lines[place]
        elif way == 1:
            lines.insert(place, draw.choice(lines))
        elif way == 2 and equals:
            lines[place] = f"{key}= {draw.choice([*ODD, value, value + value])}"
        elif way == 3 and equals:
            lines[place] = f"{key}{draw.choice(string.ascii_letters)} ={value}"
        else:
            at = draw.randint(0, len(lines[place]))
            lines[place] = lines[place][:at] + draw.choice(string.printable) + lines[place][at:]
        lines = lines or [""]
    return "\n".join(lines)


def recipe(case: Case, folder: Path, _wanted: Path) -> tuple[Verdict, str]:
    draw = random.Random(str(case))
    source = draw.choice(sorted(packaged_recipes().values()))
    folder.mkdir(parents=True)
    file = folder / "mine.toml"
    file.write_bytes(_mutated(source.read_text("utf-8"), draw).encode("utf-8", "surrogateescape"))
    keys = ("optim.lr", "train.tokens", "model.schedule", "train.seed", "model.d_model", "x.y", "")
    changes = [f"{draw.choice(keys)}={draw.choice(ODD)}"] if draw.random() < 0.3 else []
    try:
        found = load_recipe(file, changes)
    except InputError:
        return "detected", ""
    except Exception as error:
        return "wrong", f"{changes}: {type(error).__name__}: {error}: {file.read_bytes()!r}"
    again = folder / "again.toml"
    again.write_text(recipe_toml(found), "utf-8")
    return ("survived", "") if load_recipe(again) == found else ("wrong", "reads otherwise again")


def study(case: Case, folder: Path, _wanted: Path) -> tuple[Verdict, str]:
    draw = random.Random(str(case))
    source = draw.choice(sorted(packaged_studies().values()))
    folder.mkdir(parents=True)
    file = folder / "mine.toml"
    file.write_bytes(_mutated(source.read_text("utf-8"), draw).encode("utf-8", "surrogateescape"))
    try:
        plan = make_plan(file)
    except InputError:
        return "detected", ""
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}: {file.read_bytes()!r}"
    names = [cell.name for cell in plan.cells]
    plain = all("/" not in name and name not in (".", "..") for name in names)
    return ("survived", "") if plain and len(set(names)) == len(names) else ("wrong", str(names))


WORDS = (
    "schedule show", "schedule design", "schedule check", "show", "recipes", "prepare", "train",
    "resume", "generate", "loss", "analyze", "compare", "report", "study list", "study plan",
    "study status", "study collect", "study compare", "study show", "bench schedules",
    "neutrality", "export", "import", "eval",
)  # fmt: skip
OPTIONS = (
    "--json", "--help", "--out", "--d-model", "--layers", "--h-base", "--until", "--device",
    "--seeds", "--arms", "--figure", "--tokens", "--temperature", "--sequences", "--length",
    "--limit", "--tasks", "--rounds", "--seed", "--checkpoint", "--storage", "--workers",
    "--baseline", "--verify", "--docs",
)  # fmt: skip
VALUES = (
    "prism-nano", "small", "run", "run/metrics.jsonl", "data", "studies/study", "tiny.toml",
    "study.toml", "nano", "3x2 6x2", "12", "768", "cpu", "corpus.jsonl", "a.svg",
    "missing/there", "studies/study/collected", "optim.lr=1e-3", "train.tokens=0",
    "sqlite:////dev/null", "/dev/full",
)  # fmt: skip


def line(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """A command line of known words, options and odd values: a sentence or a result."""
    draw = random.Random(str(case))
    shutil.copytree(
        wanted, folder, ignore=shutil.ignore_patterns("asked", "eval", "run2", "search")
    )
    words = draw.choice(WORDS).split()
    for _ in range(draw.randint(0, 4)):
        words.append(draw.choice(draw.choice([OPTIONS, VALUES, VALUES, ODD])))
    if any("\0" in word for word in words):  # no shell can give one
        words = [word.replace("\0", "") for word in words]
    done = command(words, folder, _briefly, seconds=PATIENCE)
    if done.late:
        return "wrong", f"{words}: waits for something: {done.said[-900:]}"
    if done.traceback or done.code not in (0, 1, 2, 130, -9, -24):
        return "wrong", f"{words}: exit {done.code}: {done.said[-900:]}"
    if done.code in (1, 2) and not done.said.strip():
        return "wrong", f"{words}: exit {done.code} without a word"
    return ("survived" if done.code <= 0 else "detected"), ""


def _briefly() -> None:
    """A command that is at work after so many seconds has understood what it was asked."""
    resource.setrlimit(resource.RLIMIT_CPU, (6, 6))


# -- folders of strangers ------------------------------------------------------------------------


def hostile(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """A folder that was prepared to do harm; a file elsewhere must stay as it is."""
    draw = random.Random(str(case))
    shutil.copytree(
        wanted, folder, ignore=shutil.ignore_patterns("asked", "eval", "run2", "search")
    )
    canary = folder.with_name(folder.name + ".precious")
    canary.mkdir()
    precious = canary / "precious.txt"
    precious.write_text("precious", "utf-8")
    last = max((folder / "run" / "checkpoints").glob("step-*"))
    shutil.rmtree(last)  # something is left to train, and so to write
    place = draw.choice([
        "run/.lock", "run/metrics.jsonl", "run/environment.json", "run/recipe.toml",
        "shards/.lock", "shards/manifest.json", "shards/train_000009.bin.partial",
        f"run/checkpoints/{last.name}", "data/verified.json", "studies/study/queue.db", "shards",
        "studies/study/collected/table.parquet", "out",
    ])  # fmt: skip
    _prepare(folder / place, precious, draw.choice(["link", "link", "folder", "pipe", "canary"]))
    if draw.random() < 0.3:
        manifest = folder / "data" / "manifest.json"
        text = manifest.read_text("utf-8") if manifest.is_file() else ""
        manifest.write_text(text.replace("train_0", "../../x/train_0", 1), "utf-8")
    lines = [RESUME, ["prepare", "--recipe", "tiny.toml"], ["study", "status", "study.toml"],
             ["study", "collect", "study.toml"], ["train", "tiny.toml", "--out", "out"],
             ["report", "studies/study", "--out", "out"]]  # fmt: skip
    for words in draw.sample(lines, 2):
        done = command(words, folder, seconds=PATIENCE)
        if done.traceback or done.code not in (0, 1, 2):
            return "wrong", f"{place}, {words}: exit {done.code}: {done.said[-900:]}"
    kept = [each.name for each in canary.iterdir()] == ["precious.txt"]
    if not kept or precious.read_text("utf-8") != "precious":
        return "wrong", f"{place}: a file elsewhere was changed"
    return ("survived" if done.code == 0 else "detected"), ""


def _prepare(place: Path, precious: Path, way: str) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if way == "link":
        place.symlink_to(precious)
    elif way == "canary":
        place.symlink_to(precious.parent / "new")
    elif way == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)
