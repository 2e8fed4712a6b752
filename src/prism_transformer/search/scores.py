"""Predicted losses of schedules as files: ``RUN/search/one-shot.json`` and ``blocks.json``.

Each file records how its losses were measured, so that asking for more schedules in the same way
goes on with it. One-shot losses that were asked in another way have a file of their own beside it,
such as ``one-shot-256-windows-8-steps-at-0.1.json``. The files are small, and all that ``prism
search evaluate`` needs of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from prism_transformer.core.errors import InputError
from prism_transformer.core.sealed import SealedPart, read_sealed, typed, write_sealed
from prism_transformer.core.table import Column, Row, Table, words
from prism_transformer.recipe import Recipe, differences
from prism_transformer.recipes.files import SAME_LEARNING
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.space import Sampling
from prism_transformer.training.run import is_run, read_run

FOLDER = "search"
ONE_SHOT, BLOCKS = "one-shot", "blocks"
MAY_DIFFER = (*SAME_LEARNING, "train.schedule_sampling")  # of runs that are asked about one model
FILES = {kind: f"{kind}.json" for kind in (ONE_SHOT, BLOCKS)}


class Settings(SealedPart):
    """How each loss was measured."""

    windows: int
    """of the validation slice, the first ones"""
    steps: int = 0
    """of tuning before it"""
    rate: float = 0.1
    """of that tuning, as a share of the run's ``optim.lr``"""

    def __str__(self) -> str:
        tuned = f" {self.steps} steps at {self.rate}" if self.steps else ""
        return f"{self.windows} windows{tuned}"


class Scores(SealedPart):
    """What both kinds of file have."""

    run: str
    """the name of its folder"""
    seed: int
    step: int
    """of its checkpoint"""
    d_model: int
    h_base: int
    queries_per_kv: int
    lr: float
    # Files of before these two were kept hold losses of the next token, across documents.
    objective: str = "next"
    boundaries: str = "cross"
    recipe: Recipe | None = None
    """None in files of before it was kept"""
    asked: Settings


class OneShot(Scores):
    """Losses of schedules under the shared weights of a run that sampled schedules."""

    kind: Literal["one-shot"] = "one-shot"
    sampling: str
    losses: dict[str, float]
    """nats, by schedule"""

    @property
    def n_layers(self) -> int:
        return len(Sampling.parse(self.sampling).space.choices)

    def predicted(self, schedule: HeadSchedule) -> float | None:
        """What it expects of a schedule: nats, up to a constant."""
        return self.losses.get(str(schedule))

    @property
    def table(self) -> Table:
        """A row for each schedule, best first."""
        ranked = sorted(self.losses.items(), key=lambda item: item[1])
        rows: tuple[Row, ...] = tuple(
            {"rank": rank, "schedule": schedule, "loss": loss, "to the best": loss - ranked[0][1]}
            for rank, (schedule, loss) in enumerate(ranked, start=1)
        )
        nats = (Column("loss", "nats", 4), Column("to the best", "nats", 4))
        return Table(ONE_SHOT, (Column("rank"), *words("schedule"), *nats), rows)


class Blocks(Scores):
    """What each layer's head count is worth alone, in a trained model, and what it takes."""

    kind: Literal["blocks"] = "blocks"
    schedule: str
    """that the run was trained under"""
    losses: tuple[dict[int, float], ...]
    """nats, for each layer by its head count, every other layer as trained"""
    milliseconds: dict[int, float] = Field(default={})
    """of attention in one layer, by its head count; empty where nobody measured"""

    @property
    def n_layers(self) -> int:
        return len(self.losses)

    @property
    def scores(self) -> tuple[dict[int, float], ...]:
        """Losses less that of the layer's own head count, which was tuned alike."""
        heads = HeadSchedule.parse(self.schedule).heads
        return tuple(
            {count: loss - own[heads[layer]] for count, loss in own.items()}
            for layer, own in enumerate(self.losses)
        )

    def predicted(self, schedule: HeadSchedule) -> float | None:
        """The sum over layers; None where a layer was not asked at that count."""
        if len(schedule) != len(self.losses):
            return None
        found = [own.get(n) for own, n in zip(self.scores, schedule.heads, strict=True)]
        return None if None in found else sum(each for each in found if each is not None)

    @property
    def table(self) -> Table:
        """A row for each layer, a column for each head count."""
        counts = sorted({n for own in self.losses for n in own})
        rows: tuple[Row, ...] = tuple(
            {"layer": str(layer), **{str(n): own.get(n) for n in counts}}
            for layer, own in enumerate(self.scores)
        )
        columns = (Column(str(n), "nats", 4, sign=True) for n in counts)
        return Table(BLOCKS, (*words("layer"), *columns), rows)


AnyScores = OneShot | Blocks


def trained_apart(recipe: Recipe | None, other: Recipe | None) -> list[str]:
    """What is not the same in two recipes but schedule and seed; nothing where one is unknown."""
    if recipe is None or other is None:
        return []
    return [line for line in differences(other, recipe) if not line.startswith(MAY_DIFFER)]


def blocks_apart(one: Blocks, other: Blocks) -> str:
    """Why the block scores of two runs have no mean; nothing where they have one."""
    of_one_run = {"run", "seed", "recipe", "losses", "milliseconds"}
    shared = [key for key in Blocks.model_fields if key not in of_one_run]
    pairs = [(key, getattr(one, key), getattr(other, key)) for key in shared]
    found = [f"{key} {mine} and not {theirs}" for key, mine, theirs in pairs if mine != theirs]
    found = found or trained_apart(one.recipe, other.recipe)
    if not found and [set(own) for own in one.losses] != [set(own) for own in other.losses]:
        found = ["other head counts"]
    return ", ".join(found)


def write_scores(file: Path, scores: AnyScores) -> None:
    """Write a file, whole or not at all."""
    write_sealed(file, scores.model_dump(mode="json"))


def read_scores(file: Path) -> AnyScores:
    """What ``write_scores`` wrote, if it is whole."""
    facts = read_sealed(file)
    kinds: dict[object, type[AnyScores]] = {ONE_SHOT: OneShot, BLOCKS: Blocks}
    kind = kinds.get(facts.get("kind"))
    if kind is None:
        raise InputError(
            f"{file}: holds no scores; `prism search one-shot` or `blocks` writes them"
        )
    return typed(file, facts, kind)


def file_of(folder: Path, kind: str, asked: Settings, prefix: str = "") -> Path:
    """Where scores of these settings are in a folder, or are to be written.

    The first that a run was asked has the plain name; one-shot losses of other settings are kept
    beside it, under a name of theirs.
    """
    plain = folder / f"{prefix}{FILES[kind]}"
    if kind == BLOCKS or not plain.is_file() or read_scores(plain).asked == asked:
        return plain
    return folder / f"{prefix}{kind}-{str(asked).replace(' ', '-')}.json"


def find_scores(places: Sequence[Path | str], kind: str | None = None) -> list[AnyScores]:
    """Scores by file, by run, or all of a folder such as results/search; of one kind if named.

    Each run's count once, its one-shot losses once for all settings that they were asked with.
    """
    found: dict[tuple[str, str, Settings | None], AnyScores] = {}
    for place in map(Path, places):
        files = [place] if place.is_file() else score_files(place)
        every = [read_scores(file) for file in files]
        if is_run(place):
            _check_own(place, files, every)
        wanted = [each for each in every if kind in (None, each.kind)]
        if not wanted:
            raise InputError(
                f"{place}: no {kind or 'scores'} there; `prism search {kind or ONE_SHOT} RUN` "
                "makes some"
            )
        for scores in wanted:
            asked = scores.asked if scores.kind == ONE_SHOT else None
            found.setdefault((scores.kind, scores.run, asked), scores)
    return list(found.values())


def marks(recipe: Recipe) -> dict[str, Any]:
    """What tells a run from others beside its name, as its scores have it."""
    model = recipe.model
    return {
        "seed": recipe.train.seed, "lr": recipe.optim.lr, "d_model": model.d_model,
        "h_base": model.h_base, "queries_per_kv": model.queries_per_kv,
    }  # fmt: skip


def _check_own(run: Path, files: Sequence[Path], every: Sequence[AnyScores]) -> None:
    """Refuse scores in a run's folder that are of another run; the folder may have a new name."""
    recipe = read_run(run)
    for file, scores in zip(files, every, strict=True):
        own = marks(recipe)
        if isinstance(scores, Blocks):
            own["schedule"] = str(recipe.model.schedule)
        else:
            own["sampling"] = str(recipe.train.schedule_sampling)
        wrong = [
            f"{key} {getattr(scores, key)}, not {own[key]}"
            for key in own
            if getattr(scores, key) != own[key]
        ]
        if wrong:
            raise InputError(
                f"{file}: is of another run, {scores.run}: {', '.join(wrong)}; remove it"
            )


def score_files(place: Path) -> list[Path]:
    """All files of scores in a run or a folder of such files."""
    folders = [place / FOLDER, place]
    patterns = [*(f"*{kind}.json" for kind in FILES), f"*{ONE_SHOT}-*windows*.json"]
    found = (file for each in folders for name in patterns for file in sorted(each.glob(name)))
    return list(dict.fromkeys(found))
