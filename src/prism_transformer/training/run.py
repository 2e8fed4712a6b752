"""The folder of a run.

recipe.toml         resolved, and runnable again
environment.json    on what and from what it was trained
metrics.jsonl       a line for each step, validation and look at attention
tokenizer.json      a BPE trained for this corpus, where it has one
checkpoints/        see ``checkpoint.py``

Nothing here needs torch: reports read runs without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_transformer.core.disk import (
    file_sha256,
    open_here,
    read_whole,
    reading,
    write_whole,
    writing,
)
from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import read_sealed, sealed_json, typed
from prism_transformer.core.table import Column, Table
from prism_transformer.data.tokenizer import BPE_FILE, Tokenizer, open_tokenizer
from prism_transformer.models.cost import parameters, size_text
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import load_recipe, recipe_toml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE_FILE = "recipe.toml"
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
# Of a checkpoint: how far it is, and a sum for each of its files.
STATE_FILE = "state.json"
SUMS_FILE = "sha256.json"

DUMP = "dump-step-"  # begins the name of the folder that such a run leaves
NOT_FINITE = "stopped before the update"  # in the error of a run that diverged; studies look for it

# What every environment has, at the least, and of what kind.
ENVIRONMENT = {"recipe": dict, "hashes": dict, "hardware": dict, "software": dict, "sessions": list}
HASHES = {"initial_weights": str, "data_order": str, "shards": dict}

Row = dict[str, Any]


def create_run(folder: Path, recipe: Recipe, environment: Row) -> None:
    """Fill the folder of a new run; whoever calls it makes the folder appear whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECIPE_FILE).write_text(recipe_toml(recipe), "utf-8")
    (folder / METRICS_FILE).touch()
    tokenizer = Path(recipe.data.folder) / BPE_FILE
    if recipe.data.tokenizer.startswith("bpe") and tokenizer.exists():
        shutil.copyfile(tokenizer, folder / BPE_FILE)
        environment = environment | {"tokenizer_sha256": file_sha256(folder / BPE_FILE)}
    write_environment(folder, environment)


def read_run(folder: Path) -> Recipe:
    if not is_run(folder):
        raise InputError(f"{folder}: is not a run; `prism train` makes one")
    return load_recipe(folder / RECIPE_FILE)


def run_tokenizer(folder: Path, recipe: Recipe) -> Tokenizer:
    """The tokenizer of a run; its own file must be the one that the run began with."""
    file, kept = folder / BPE_FILE, read_environment(folder).get("tokenizer_sha256")
    with reading(file):  # older runs have kept no sum
        if kept is not None and file_sha256(file) != kept:
            raise InputError(f"{file}: is not the tokenizer the run began with: sha256 differs")
    return open_tokenizer(recipe.data.tokenizer, folder)


def read_environment(folder: Path) -> Row:
    """What ``create_run`` wrote down, and what was noted since."""
    file = folder / ENVIRONMENT_FILE
    found = read_sealed(file)
    hashes = found.get("hashes")
    kinds = [(found, ENVIRONMENT), (hashes if isinstance(hashes, dict) else {}, HASHES)]
    for values, wanted in kinds:
        odd = [key for key, kind in wanted.items() if not isinstance(values.get(key), kind)]
        if odd:
            raise InputError(f"{file}: is damaged: has no {', '.join(sorted(odd))}")
    if not all(isinstance(session, dict) for session in found["sessions"]):
        raise InputError(f"{file}: is damaged: has a session that is no table of values")
    return found


def trained_recipe(folder: Path) -> Recipe:
    """What a run was last trained with, by its environment.json."""
    return typed(folder / ENVIRONMENT_FILE, read_environment(folder)["recipe"], Recipe)


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Give a run another recipe."""
    with writing(folder):
        write_whole(folder / RECIPE_FILE, recipe_toml(recipe))


def note_session(folder: Path, session: Row, recipe: Recipe) -> Row:
    """Add to the environment that the run goes on here and now, under this recipe; all of it."""
    environment = read_environment(folder)
    environment["sessions"].append(session)
    environment["recipe"] = recipe.model_dump()
    with writing(folder):
        write_environment(folder, environment)
    return environment


@dataclass(frozen=True)
class Covered:
    """What a checkpoint remembers of metrics.jsonl."""

    step: int
    n_bytes: int
    sha256: str | None = None
    """of the first bytes; older checkpoints know their number only"""

    def check(self, file: Path, content: bytes) -> None:
        """Refuse what does not begin with what the checkpoint saw."""
        where = f"{file}: is not as step {self.step} left it"
        if len(content) < self.n_bytes:
            raise InputError(
                f"{where}: it has {len(content)} bytes, its checkpoint remembers {self.n_bytes}; "
                "put back the file as it was, its numbers are not known otherwise"
            )
        if self.sha256 not in (None, hashlib.sha256(content[: self.n_bytes]).hexdigest()):
            raise InputError(
                f"{where}: sha256 differs, it was changed; put back the file as it was"
            )


def covered(run: Path) -> Covered | None:
    """What the newest checkpoint with a sound state remembers; None where there is none."""
    for folder in reversed(checkpoints(run)):
        try:
            state = read_whole(folder / STATE_FILE)
            sums, facts = json.loads(read_whole(folder / SUMS_FILE)), json.loads(state)
            if sums[STATE_FILE] == hashlib.sha256(state).hexdigest():
                return Covered(facts["step"], facts["metrics_bytes"], facts.get("metrics_sha256"))
        except (OSError, ValueError, TypeError, LookupError):
            continue  # damaged, or gone by now: the one before
    return None


def read_metrics(folder: Path, n_bytes: int | None = None) -> list[Row]:
    """The rows of a run's metrics: all, or those of a checkpoint, which knows their length.

    Refused where they are not what the newest checkpoint remembers.
    """
    # Listed first: while a run is trained, a newer one may come after what is known was asked.
    newest = checkpoints(folder)[-1:]
    file, known = folder / METRICS_FILE, covered(folder)
    with reading(file):
        content = read_whole(file)
        if known is not None:
            known.check(file, content)
        start = 0 if known is None else known.n_bytes
        before = _rows(file, content[:start])
        after = _rows(file, content[start:])
        if n_bytes is None and known and after and newest:
            _check_newest(newest[0], known.step)
        # The weights that a run began from are saved before anything was measured, at step 0, too.
        if known and start and any(row["step"] <= known.step for row in after):
            raise InputError(f"{file}: has lines of step {known.step} that its checkpoint has not")
        return before + after if n_bytes is None else _rows(file, content[:n_bytes])


def _check_newest(checkpoint: Path, step: int) -> None:
    """Refuse later rows where the checkpoint that would vouch for them is damaged."""
    run = checkpoint.parent.parent
    if checkpoint > checkpoint_folder(run, step):
        raise InputError(
            f"{checkpoint}: has no sound {STATE_FILE}, so that nothing tells whether "
            f"{METRICS_FILE} is as it was left; `prism resume {run}` goes on from step {step}"
        )


def _rows(file: Path, content: bytes) -> list[Row]:
    content = content[: content.rfind(b"\n") + 1]  # the last line may be half written
    try:
        rows = [json.loads(line) for line in content.splitlines()]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: has a line that is no JSON: {error}") from None
    if not all(isinstance(row, dict) and {"step", "kind"} <= row.keys() for row in rows):
        raise InputError(f"{file}: has a line without step and kind; it is damaged")
    return rows


def write_environment(folder: Path, environment: Row) -> None:
    """Write down what a run is trained on and from."""
    write_whole(folder / ENVIRONMENT_FILE, sealed_json(environment, indent=2))


class Metrics:
    """metrics.jsonl, open for writing; what was written is summed line by line."""

    def __init__(self, folder: Path, known: Covered) -> None:
        """Go on after what a checkpoint covers; what comes later was not part of it."""
        file = folder / METRICS_FILE
        with writing(file):
            number = open_here(file, os.O_RDWR | os.O_APPEND)
            self.stream = os.fdopen(number, "r+b", buffering=0)
            content = self.stream.read(known.n_bytes)
            known.check(file, content)
            self.stream.truncate(known.n_bytes)
        self.file = file
        self.sum = hashlib.sha256(content)

    def write(self, row: Row) -> None:
        line = json.dumps(row).encode() + b"\n"
        self.sum.update(line)
        with writing(self.file, f"go on with `prism resume {self.file.parent}` once it can"):
            while line:  # a full disk may take a part of it
                line = line[self.stream.write(line) :]

    def sync(self, step: int) -> Covered:
        """Bring every line to the disk; what a checkpoint of this step must remember of them."""
        with writing(self.file):
            os.fsync(self.stream.fileno())
        return Covered(step, self.stream.seek(0, os.SEEK_END), self.sum.hexdigest())

    @property
    def there(self) -> bool:
        """Whether the file still has its name: its folder may be removed or replaced."""
        try:
            named, opened = os.stat(self.file), os.fstat(self.stream.fileno())
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

    def content(self, n_bytes: int) -> bytes:
        """The first lines, wherever the file is now; also while more are being written."""
        return os.pread(self.stream.fileno(), n_bytes, 0)


def reached(folder: Path) -> tuple[int, float | None]:
    """The last step that a run's metrics tell of, and its newest validation loss."""
    rows = read_metrics(folder)
    losses = [row["loss"] for row in rows if row["kind"] == "val"]
    return max((row["step"] for row in rows), default=0), losses[-1] if losses else None


def is_run(folder: Path) -> bool:
    """Whether a folder is one that ``create_run`` made."""
    return (folder / RECIPE_FILE).is_file() and (folder / METRICS_FILE).is_file()


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def checkpoints(run: Path) -> list[Path]:
    """All checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


@dataclass(frozen=True, repr=False)
class Run:
    """A run as a value: its folder and recipe; everything else is read from the folder when asked.

    It stands wherever a path does (``Path(run)``), so that verbs take either.
    """

    folder: Path
    recipe: Recipe

    @classmethod
    def open(cls, folder: os.PathLike[str] | str) -> Run:
        return cls(Path(folder), read_run(Path(folder)))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def step(self) -> int:
        """Updates that are saved: the step of the newest checkpoint."""
        found = checkpoints(self.folder)
        return int(found[-1].name.removeprefix("step-")) if found else 0

    @property
    def complete(self) -> bool:
        """Whether the last step of the recipe is saved."""
        return self.step >= self.recipe.n_steps

    def metrics(self) -> list[Row]:
        """Every row that was written: steps, validations, looks at attention."""
        return read_metrics(self.folder)

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss in nats by step."""
        return self._losses("val")

    @property
    def loss(self) -> float | None:
        """The last validation loss, None before the first."""
        return next(reversed(self.losses.values()), None)

    @property
    def table(self) -> Table:
        """A row for each validation."""
        size = self.recipe.train.batch_tokens
        rows = ({"step": n, "tokens": n * size, "loss": loss} for n, loss in self.losses.items())
        columns = (Column("step"), Column("tokens"), Column("loss", unit="nats", places=4))
        return Table("validations", columns, tuple(rows), title=str(self))

    def plot(self) -> Figure:
        """Training and validation loss over steps."""
        from prism_transformer.figures.profiles import loss_curve

        return loss_curve(self._losses("train"), self.losses, str(self.recipe.model.schedule))

    def _losses(self, kind: str) -> dict[int, float]:
        return {row["step"]: row["loss"] for row in self.metrics() if row["kind"] == kind}

    @property
    def size(self) -> str:
        """Parameters of its model, as in 0.47M."""
        return size_text(parameters(self.recipe.model).total)

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", validation loss {self.loss:.4f} nats"
        return (
            f"{self.folder}: {self.recipe.model.schedule} heads, {self.size} parameters, "
            f"step {self.step:,} of {self.recipe.n_steps:,}{loss}"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: a line and the curve, or the line alone without matplotlib."""
        line = f"<p>{escape(str(self))}</p>"
        try:
            from prism_transformer.figures.chart import svg_text

            picture = svg_text(self.plot())
        except (ImportError, InputError):  # figures are an extra
            return line
        return line + picture[picture.index("<svg") :]
