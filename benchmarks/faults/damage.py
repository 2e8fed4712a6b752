"""Bytes that change, go or change places, in every kind of file that is read back."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ground import Case, Verdict

from prism_transformer.analysis.profile import Profile
from prism_transformer.core.errors import InputError
from prism_transformer.data.loader import open_windows
from prism_transformer.data.prepare import verify_shards
from prism_transformer.models.weights import fingerprint, load_model
from prism_transformer.study.collected import read_collected
from prism_transformer.study.single_runs import collect_runs
from prism_transformer.training.checkpoint import check_checkpoint, read_state
from prism_transformer.training.run import checkpoints, read_environment, read_metrics

Probe = Callable[[Path], Any]


def _run(run: Path) -> Any:
    """All that a comparison or a report reads of a run."""
    found = collect_runs([run])
    facts = found.facts  # but for its name, which is that of the folder around
    return found.table.to_csv(), facts.runs, facts.recipe, facts.arms, read_environment(run)


def _checkpoint(run: Path) -> Any:
    last = checkpoints(run)[-1]
    check_checkpoint(last)
    return read_state(last), fingerprint(load_model(last)), read_metrics(run)


def _data(folder: Path) -> Any:
    (folder / "verified.json").unlink(missing_ok=True)
    return _trusted(folder)


def _trusted(folder: Path) -> Any:
    """With the memory of an earlier check, as a second run reads shards."""
    windows = [open_windows(folder, split, 16, 257) for split in ("train", "val")]
    return [each.read(range(len(each))).tobytes() for each in windows]


def _verified(folder: Path) -> Any:
    return verify_shards(folder)


def _collected(folder: Path) -> Any:
    found = read_collected(folder)
    return found.facts.model_dump(), found.table.to_csv(), found.items.to_csv()


def _profile(folder: Path) -> Any:
    (file,) = folder.rglob("attention.json")
    return Profile.read(file).to_json()


RUN, COLLECTED = "studies/study/runs/prism-seed0", "studies/study/collected"
# What is damaged, below which folder of the untouched ones, and who reads it.
TARGETS: list[tuple[str, str, Probe]] = [
    (RUN, "recipe.toml", _run),
    (RUN, "environment.json", _run),
    (RUN, "metrics.jsonl", _run),
    (RUN, "analysis/*/loss.json", _run),
    (RUN, "analysis/*/attention.json", _run),
    (RUN, "analysis/*/attention.json", _profile),
    (RUN, "checkpoints/*/*", _checkpoint),
    ("data", "*.bin", _data),
    ("data", "*.bin", _trusted),
    ("data", "*.bin", _verified),
    ("data", "manifest.json", _data),
    ("data", "verified.json", _trusted),
    (COLLECTED, "study.json", _collected),
    (COLLECTED, "table.parquet", _collected),
    (COLLECTED, "items.parquet", _collected),
]


def harm(content: bytes, draw: random.Random) -> bytes:
    """Another content: a bit, a byte, a hole, an end, two places exchanged, a piece twice."""
    if not content:
        return b"x"
    place, other = sorted(draw.randrange(len(content)) for _ in range(2))
    end = min(place + draw.choice([1, 1, 2, 8, 512]), len(content))
    head, piece, tail = content[:place], content[place:end], content[end:]
    one, two = content[place : place + 1], content[other : other + 1]
    lines = content.splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    bit = bytes([content[place] ^ 1 << draw.randrange(8)])
    ways = [
        head + bit + content[place + 1 :],
        head + draw.randbytes(len(piece)) + tail,
        head + bytes(len(piece)) + tail,
        head,
        head + two + content[place + 1 : other] + one + content[other + 1 :],
        head + piece + piece + tail,
        b"".join(lines),
        b"",
    ]
    return draw.choice(ways)


def damaged(case: Case, folder: Path, wanted: Path) -> tuple[Verdict, str]:
    """One file damaged, its time stamp kept, and read by those who read it."""
    draw = random.Random(str(case))
    home, pattern, probe = draw.choice(TARGETS)
    shutil.copytree(wanted / home, folder / "it")
    target = draw.choice(sorted(each for each in (folder / "it").glob(pattern) if each.is_file()))
    what = f"{home}/{target.relative_to(folder / 'it')}, {probe.__name__}"
    before = _asked(wanted, home, probe)
    stamp, content = target.stat(), target.read_bytes()
    new = harm(content, draw)
    target.write_bytes(new)
    os.utime(target, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    try:
        found = probe(folder / "it")
    except InputError as error:
        where = str(target.parent) in str(error) or str(folder) in str(error)
        return ("detected", "") if where else ("wrong", f"{what}: names no file: {error}")
    except Exception as error:
        return "wrong", f"{what}: {type(error).__name__}: {error}"
    if new == content or found == before:
        return "survived", ""
    return "wrong", f"{what}: another result, and nobody said so"


_KNOWN: dict[tuple[Path, str, str], Any] = {}


def _asked(wanted: Path, home: str, probe: Probe) -> Any:
    """What a probe says of the untouched, from a copy in a place of the same length of name."""
    key = (wanted, home, probe.__name__)
    if key not in _KNOWN:
        place = wanted / "asked" / probe.__name__ / "it"
        if not place.exists():
            shutil.copytree(wanted / home, place)
        _KNOWN[key] = probe(place)
    return _KNOWN[key]
