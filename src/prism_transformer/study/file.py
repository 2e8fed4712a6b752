"""The study file: a TOML table of arms, seeds and stages on one base recipe.

base = "base/nano"            a recipe, by name or path
baseline = "uniform"          the arm that others are held against
seeds = [0, 1, 2]

[recipe]                      changes of the base, for every arm
train.tokens = 500_000

[arms]
uniform = "uniform:8"
prism = "2x2 4x2 8x4"
reversed = "reversed"         of the arm prism, unless `of` names another
tiled = { schedule = "prism", model.rope_frequencies = "tiled" }

[sweep]                       every arm and seed at each of these
optim.lr = [1e-3, 3e-3]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from prism_transformer.errors import InputError
from prism_transformer.eval.tasks import choose_tasks
from prism_transformer.recipe import Section, Seed
from prism_transformer.recipe_file import PACKAGED, STUDIES, read_toml

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
Name = Annotated[str, Field(pattern=NAME)]

Changes = dict[str, Any]
"""Recipe values by their keys, as in ``optim.lr``."""


class StudyError(InputError):
    """A study file that cannot be read, or that would not be a fair comparison."""


class EvalStage(Section):
    """What ``prism eval`` does with every finished run."""

    tasks: list[str] = Field(min_length=1)
    data: str | None = None
    limit: PositiveInt | None = None
    batch: PositiveInt = 16


class AnalyzeStage(Section):
    """What ``prism analyze`` does with every finished run."""

    sequences: PositiveInt = 16


class LossStage(Section):
    """Loss by position, as ``prism loss`` measures it."""

    sequences: PositiveInt | None = None
    """windows of the validation slice; all of it when left out"""


class InferenceStage(Section):
    """Speed of the model where it is used: a prompt, and decoding after it."""

    rounds: Annotated[int, Field(ge=3)] = 9
    """in which arm and baseline take turns"""
    prompt: PositiveInt = 64
    """tokens that decoding starts from"""
    new: PositiveInt = 32
    """tokens that are decoded"""


class SearchStage(Section):
    """Successive halving over the arms: train all a little, keep the best, train those on."""

    rungs: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default=[0.125, 0.25, 0.5])
    """shares of the token budget at which arms are dropped; those that remain go to its end"""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """share of the arms that goes on from each rung"""


class Study(Section):
    """A study as its file says it."""

    question: str = ""
    base: str
    baseline: Name
    seeds: list[Seed] = Field(min_length=1)
    processes: PositiveInt = 1
    """that train one run together, under torchrun"""
    recipe: dict[str, Any] = Field(default={})
    arms: dict[Name, str | dict[str, Any]] = Field(min_length=1)
    sweep: dict[str, Any] = Field(default={})
    eval: EvalStage | None = None
    analyze: AnalyzeStage | None = None
    loss: LossStage | None = None
    inference: InferenceStage | None = None
    search: SearchStage | None = None


class ArmTable(Section):
    """An arm that is more than a schedule; other keys are of the recipe."""

    schedule: str | None = None
    of: Name = "prism"
    """the arm that a rule such as reversed starts from"""
    # Limits of the rule enumerate, as ``design.Limits`` has them.
    start: list[PositiveInt] | None = None
    min_phases: PositiveInt = 1
    max_phases: PositiveInt | None = None
    min_phase_layers: PositiveInt = 1
    max_phase_layers: PositiveInt | None = None
    rules: list[Literal["monotonicity", "convergence", "smoothness", "preservation"]] | None = None
    most: NonNegativeInt = 100
    """arms that enumerate may give before it is refused"""


def packaged_studies() -> dict[str, Path]:
    """The studies that ship with the package, by name."""
    return {path.stem: path for path in sorted((PACKAGED / STUDIES).glob("*.toml"))}


def find_study(source: str | Path) -> Path:
    """The file of a study given by path or by packaged name."""
    path = Path(source)
    if path.is_file():
        return path
    found = packaged_studies().get(str(source).removesuffix(".toml"))
    if found is None:
        raise StudyError(
            f"{source}: no such study file, and none that ships: {', '.join(packaged_studies())}"
        )
    return found


def read_study(file: Path) -> Study:
    """Read a study file; what is wrong with it is said with its key."""
    try:
        study = Study.model_validate(read_toml(file))
    except ValidationError as error:
        raise StudyError("\n".join(explain(file, each) for each in error.errors())) from None
    if study.eval is not None:
        try:
            choose_tasks(study.eval.tasks)
        except InputError as error:
            raise StudyError(f"{file}: eval.tasks: {error}") from None
    if len(set(study.seeds)) < len(study.seeds):
        raise StudyError(f"{file}: seeds = {study.seeds}: each seed once")
    return study


def dotted(file: Path, where: str, tables: dict[str, Any]) -> Changes:
    """Values of nested tables by dotted key."""
    for section, keys in tables.items():
        if not isinstance(keys, dict):
            raise StudyError(
                f"{file}: {where}.{section} = {keys!r}: write a section and a key, as in optim.lr"
            )
    return {f"{section}.{key}": v for section, keys in tables.items() for key, v in keys.items()}


def explain(file: Path, details: Any, where: str = "") -> str:
    """One pydantic error as one line: file, key, value, what is wrong."""
    parts = [str(part) for part in details["loc"] if part not in ("str", "[key]")]
    key = ".".join([where, *parts] if where else parts)
    kind, value = details["type"], details["input"]
    if kind == "missing":
        return f"{file}: {key}: missing"
    if kind == "extra_forbidden":
        return f"{file}: {key}: unknown key"
    if kind == "string_pattern_mismatch":
        return f"{file}: {value!r} cannot be a name; use letters, digits and _ . + -"
    if kind == "too_short":
        return f"{file}: {key}: is empty; give at least one"
    shown = "" if isinstance(value, dict) else f" = {value!r}"
    return f"{file}: {key}{shown}: {details['msg'].removeprefix('Value error, ')}"
