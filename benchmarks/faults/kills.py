"""Commands that are killed, that find no room, and a machine that loses its power.

A chosen moment is a file operation below the case's folder, counted by an audit hook of Python's:
before the n-th one the process kills itself, or is told that the disk is full. A random moment is
one of the clock.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ground import (
    PREPARE,
    RESUME,
    SHARDS,
    TRAIN,
    Case,
    Done,
    Verdict,
    command,
    end_of,
    files_of,
    quiet_home,
    table_of,
)

OPERATIONS = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link",
    "shutil.rmtree", "shutil.copyfile", "fcntl.flock",
}  # fmt: skip


MOST = {"train": 400, "prepare": 120}  # file operations that the verb has, about


def at_operation(number: int, folder: Path, act: Callable[[], None]) -> Callable[[], None]:
    """What a child does first: act at its n-th file operation below a folder."""

    def install() -> None:
        left, inside = [number], str(folder)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in OPERATIONS or left[0] < 0:
                return
            named = arguments[0] if arguments else None
            path = os.path.abspath(os.fsdecode(named)) if isinstance(named, str | bytes) else ""
            if isinstance(named, int) or path.startswith(inside):
                left[0] -= 1
                if left[0] == 0:
                    left[0] = -1
                    act()

        sys.addaudithook(hook)

    return install


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_room() -> None:
    raise OSError(28, os.strerror(28))


def after(seconds: float) -> Callable[[], None]:
    """What a child does first: die by the clock."""

    def install() -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    return install


def harmed(draw: random.Random, folder: Path, most: int) -> Callable[[], None]:
    if draw.random() < 0.3:
        return after(draw.uniform(0.01, 0.6))
    return at_operation(draw.randint(1, most), folder, die)


def finish_training(folder: Path) -> Done:
    begun = (folder / "run" / "recipe.toml").exists()
    return command(RESUME if begun else TRAIN, folder)


def killed_training(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """One to three kills in training, then to the end."""
    draw = random.Random(str(case))
    with quiet_home(folder):
        shutil.copytree(wanted / "data", folder / "data")
        for _ in range(draw.randint(1, 3)):
            begun = (folder / "run" / "recipe.toml").exists()
            command(RESUME if begun else TRAIN, folder, harmed(draw, folder, MOST["train"]))
        return judged_run(finish_training(folder), folder, wanted)


def judged_run(done: Done, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    left = [str(path) for path in folder.rglob("*") if ".partial" in path.name]
    if done.code != 0 or left:
        return "wrong", f"exit {done.code}, left {left}: {done.said[-500:]}"
    same = end_of(folder / "run") == end_of(wanted / "run")
    return ("survived", "") if same else ("wrong", "another end than the untouched run")


def killed_preparation(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    draw = random.Random(str(case))
    with quiet_home(folder):
        for _ in range(draw.randint(1, 3)):
            command(SHARDS, folder, harmed(draw, folder, MOST["prepare"]))
        return judged_shards(command(SHARDS, folder), folder, wanted)


def judged_shards(done: Done, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    left = [str(path) for path in folder.rglob("*") if ".partial" in path.name]
    if done.code != 0 or left:
        return "wrong", f"exit {done.code}, left {left}: {done.said[-500:]}"
    same = files_of(folder / "shards") == files_of(wanted / "shards")
    return ("survived", "") if same else ("wrong", "other shards than untouched")


def full_disk(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """No room at one operation, or on a small disk; a sentence, then room, then the same end."""
    draw = random.Random(str(case))
    verb = draw.choice(["train", "prepare"])
    folder.mkdir(parents=True)
    small = os.geteuid() == 0 and draw.random() < 0.4 and _mounted(folder, draw.randint(40, 400))
    try:
        return _without_room(verb, folder, wanted, draw, small)
    except OSError as error:  # the small disk did not even hold the recipe
        return "survived", f"nothing to begin with: {error}"
    finally:
        if small:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def _mounted(folder: Path, kilobytes: int) -> bool:
    """Whether a disk of so many kilobytes is in this place now."""
    line = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def _without_room(
    verb: str, folder: Path, wanted: Path, draw: random.Random, small: bool
) -> tuple[Verdict, str]:
    home = folder / "home"
    with quiet_home(home):
        if verb == "train":
            shutil.copytree(wanted / "data", home / "data")
        before = _nothing if small else _refusal(verb, home, draw)
        done = command(TRAIN if verb == "train" else SHARDS, home, before)
        if done.code != 0 and not done.plain:
            return "wrong", f"exit {done.code}: {done.said[-700:]}"
        if small:
            subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        if verb == "train":
            return judged_run(finish_training(home), home, wanted)
        return judged_shards(command(SHARDS, home), home, wanted)


def _nothing() -> None:
    """Nothing is done first: the disk is small by itself."""


def _refusal(verb: str, home: Path, draw: random.Random) -> Callable[[], None]:
    if draw.random() < 0.5:
        return at_operation(draw.randint(1, MOST[verb]), home, no_room)
    return no_larger(draw.randint(1_000, 30_000))


def no_larger(n_bytes: int) -> Callable[[], None]:
    """What a child does first: refuse itself files beyond a size, as a quota would."""

    def install() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    return install


# -- power ---------------------------------------------------------------------------------------


def power_cut(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """Killed, and of every file only what was synced is left; names stay, as journals keep them."""
    draw = random.Random(str(case))
    verb = draw.choice(["train", "prepare"])
    synced = folder.with_name(folder.name + ".synced")
    synced.mkdir(parents=True)
    with quiet_home(folder):
        if verb == "train":
            shutil.copytree(wanted / "data", folder / "data")
        safe = {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
        die_then = at_operation(draw.randint(1, MOST[verb]), folder, die)

        def before() -> None:
            _note_syncs(synced)
            die_then()

        command(TRAIN if verb == "train" else SHARDS, folder, before)
        _drop_unsynced(folder, synced, safe, draw)
        if verb == "train":
            return judged_run(finish_training(folder), folder, wanted)
        return judged_shards(command(SHARDS, folder), folder, wanted)


def _note_syncs(synced: Path) -> None:
    """Keep a copy of every file as it was when it was last brought to the disk."""
    real = os.fsync

    def fsync(number: Any) -> None:
        real(number)
        number = number if isinstance(number, int) else number.fileno()
        source = Path(f"/proc/self/fd/{number}")
        if source.is_file():
            shutil.copyfile(source, synced / str(os.fstat(number).st_ino))

    os.fsync = fsync


def _drop_unsynced(folder: Path, synced: Path, safe: set[int], draw: random.Random) -> None:
    for path in [each for each in folder.rglob("*") if each.is_file()]:
        number = path.stat().st_ino
        if number in safe or path.name == ".lock":
            continue
        kept = synced / str(number)
        whole, before = path.read_bytes(), kept.read_bytes() if kept.exists() else b""
        if whole != before:  # what came after the last sync may be there in part, or not
            more = whole[len(before) :] if whole.startswith(before) else b""
            with path.open("r+b") as stream:
                stream.truncate(0)
                stream.write(before + more[: draw.randint(0, len(more))])


# -- programs of several processes ---------------------------------------------------------------

PROGRAM = [sys.executable, "-m", "prism_transformer"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "prism_transformer"]  # fmt: skip
STUDY = ["study", "run", "study.toml", "--workers", "2", "--heartbeat", "1"]
SEARCHED = ["study", "search", "search.toml", "--workers", "2", "--heartbeat", "1"]
# A model of a context that holds the items.
SEEING = ["train", "tiny.toml", "model.seq_len=128", "train.batch_tokens=512", "train.tokens=1024",
          "data.val_tokens=256", "--out", "seeing", "--device", "cpu"]  # fmt: skip
EVALUATE = ["eval", "seeing", "--tasks", "diagnostic", "--limit", "4", "--device", "cpu"]


def killed_program(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """A whole group of processes killed by the clock, then the same command to its end."""
    draw, kind = random.Random(str(case)), case.kind.partition("-")[2]
    with quiet_home(folder):
        shutil.copytree(wanted / "data", folder / "data")
        if kind == "eval":
            done = shutil.ignore_patterns("eval")
            shutil.copytree(wanted / "seeing", folder / "seeing", ignore=done)
        lines = {
            "study": lambda: [*PROGRAM, *STUDY],
            "search": lambda: [*PROGRAM, *SEARCHED],
            "torchrun": lambda: [*TORCHRUN, *_next(folder)],
            "eval": lambda: [*PROGRAM, *EVALUATE],
        }
        line = lines[kind]
        for _ in range(draw.randint(1, 2)):
            program = _start(line(), folder)
            time.sleep(draw.uniform(2, 14))
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
        program = _start(line(), folder)
        said, _ = program.communicate(timeout=900)
        if program.returncode != 0 or "Traceback" in said:
            return "wrong", f"exit {program.returncode}: {said[-700:]}"
        same = _found(kind, folder) == _found(kind, wanted)
        return ("survived", "") if same else ("wrong", "another end than untouched")


def _next(folder: Path) -> list[str]:
    return RESUME if (folder / "run" / "recipe.toml").exists() else TRAIN


def _start(line: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _found(kind: str, folder: Path) -> Any:
    if kind == "torchrun":  # two processes add in another order than one: held against their own
        return end_of(folder / ("run" if folder.name != "untouched" else "run2"))
    if kind == "eval":
        import json

        (file,) = (folder / "seeing" / "eval").rglob("diagnostic.json")
        return json.loads(file.read_text("utf-8"))["rows"]
    home = folder / "studies" / kind
    ends = {run.name: end_of(run) for run in (home / "runs").iterdir() if run.is_dir()}
    return ends, table_of(home / "collected") if kind == "study" else None


def make_untouched(folder: Path, programs: bool) -> None:
    """Everything that cases are compared with, made without any fault."""
    with quiet_home(folder):
        for line in (PREPARE, SHARDS, TRAIN):
            done = command(line, folder)
            assert done.code == 0, done.said
        study = ["study", "run", "study.toml", "--workers", "1"]
        done = command(study, folder, seconds=600)
        assert done.code == 0, done.said
        if programs:
            other = [*TORCHRUN, "train", "tiny.toml", "--out", "run2", "--device", "cpu"]
            lines = ([*PROGRAM, *SEEING], [*PROGRAM, *EVALUATE], [*PROGRAM, *SEARCHED])
            for line in (other, *lines):
                program = _start(line, folder)
                said = program.communicate(timeout=900)[0]
                assert program.returncode == 0, said
