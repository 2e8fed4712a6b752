"""The study file: a TOML table of arms, seeds and stages on one base recipe.

base = "base/micro"           a recipe, by name or path
baseline = "uniform"          the arm that others are held against
seeds = [0, 1, 2]

[recipe]                      changes of the base, for every arm
train.tokens = 500_000

[arms]
uniform = "uniform:8"
prism = "2x2 4x2 8x4"
reversed = "reversed"         of the arm prism, unless `of` names another
tiled = { schedule = "prism", model.rope_frequencies = "tiled" }
late = { schedule = "prism", from = "uniform@0.5" }   goes on from half of that arm's training

[sweep]                       every arm and seed at each of these
optim.lr = [1e-3, 3e-3]

[tune]                        each arm at its own best rate, found on seeds of their own
optim.lr = [1e-3, 2e-3, 4e-3]
seeds = [100, 101]

[contrasts]                   what is asked of the arms, beside each against the baseline
order = ["prism", "reversed"]                            the first less the second
number = { prism = 0.5, reversed = 0.5, uniform = -1 }   weights that sum to 0
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from prism_transformer.core.errors import InputError, explain
from prism_transformer.core.section import Section
from prism_transformer.eval import loss_file
from prism_transformer.eval.tasks import choose_tasks
from prism_transformer.recipe import Map, Recipe, Seed
from prism_transformer.recipes.files import PACKAGED, STUDIES, copy_out, read_toml
from prism_transformer.study.collected import EFFECT
from prism_transformer.study.looks import OBRIEN_FLEMING, Spending
from prism_transformer.study.metrics import NO_SCALING

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$"
Name = Annotated[str, Field(pattern=NAME)]


def _expecting(what: str) -> WrapValidator:
    """Says in one sentence what a value of several forms should be, not what each form lacks."""

    def check(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"write {what}") from None

    return WrapValidator(check)


ArmValue = Annotated[
    str | dict[str, Any],
    _expecting('a schedule, as in "prism" or "uniform:4", or a table with `schedule`'),
]
ContrastValue = Annotated[
    list[str] | dict[str, float],
    _expecting('two arms, as in ["prism", "uniform"], or a table of weights by arm'),
]

Scaling = Literal["none", "linear", "ntk", "yarn"]
Changes = dict[str, Any]
"""Recipe values by their keys, as in ``optim.lr``."""


class StudyError(InputError):
    """A study file that cannot be read, or that would not be a fair comparison."""


@dataclass(frozen=True)
class Reading:
    """How a run is read: in sequences so many times its context, with positions scaled or not."""

    times: int = 1
    scaling: Scaling = NO_SCALING

    @property
    def rope_scaling(self) -> str | None:
        """As ``prism loss --rope-scaling`` takes it."""
        return None if self.scaling == NO_SCALING else f"{self.scaling}:{self.times}"

    def length(self, recipe: Recipe) -> int:
        """Tokens of a sequence."""
        return self.times * recipe.model.seq_len

    def file(self, recipe: Recipe) -> str:
        """What ``prism loss --keep`` calls it."""
        return loss_file(self.length(recipe) if self.times > 1 else None, self.rope_scaling)


def step_at(recipe: Recipe, share: float) -> int:
    """The step at which a share of the training is done, never 0."""
    return max(1, round(share * recipe.n_steps))


class Stage(Section):
    """What is measured of every run: at its end, and at milestones of its training."""

    at: list[Annotated[float, Field(gt=0, le=1)]] = Field(default=[1.0])
    """shares of the steps, growing, the last one 1; checkpoints of the others are kept for it"""

    @field_validator("at", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        whole = isinstance(value, list) and all(type(each) in (int, float) for each in value)
        return [float(each) for each in value] if whole else value

    @field_validator("at")
    @classmethod
    def _grows_to_the_end(cls, value: list[float]) -> list[float]:
        if not value or value != sorted(set(value)) or value[-1] != 1:
            raise ValueError("give growing shares of training, the last one 1")
        return value

    def steps(self, recipe: Recipe) -> dict[float, int]:
        """The step of each share."""
        return {share: step_at(recipe, share) for share in self.at}


class EvalStage(Stage):
    """What ``prism eval`` does with every finished run."""

    tasks: list[str] = Field(min_length=1)
    data: str | None = None
    limit: PositiveInt | None = None
    batch: PositiveInt = 16


class AnalyzeStage(Stage):
    """What ``prism analyze`` does with every finished run."""

    sequences: PositiveInt = 16


class LossStage(Stage):
    """Loss by position, as ``prism loss`` measures it."""

    sequences: PositiveInt | None = None
    """windows of the validation slice; all of it when left out"""
    times: list[Annotated[int, Field(ge=2)]] = Field(default=[])
    """multiples of the training context at which the same text is read as well"""
    scalings: list[Scaling] = Field(default=[NO_SCALING], min_length=1)
    """of rotary positions there, each by itself"""

    @field_validator("times", "scalings")
    @classmethod
    def _each_once(cls, value: list[Any]) -> list[Any]:
        if len(set(value)) < len(value):
            raise ValueError("give each once")
        return value

    @property
    def readings(self) -> list[Reading]:
        """Every way in which a checkpoint is read, its own context first."""
        beyond = [Reading(times, scaling) for times in self.times for scaling in self.scalings]
        return [Reading(), *beyond]

    def windows(self, recipe: Recipe) -> int:
        """How many of the training context are read."""
        return self.sequences or recipe.data.val_tokens // recipe.model.seq_len


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

    rungs: list[Annotated[float, Field(gt=0, lt=1)]] | None = None
    """shares of the token budget at which arms are dropped; those that remain go to its end. Left
    out, finished runs say from when on arms can be told apart, and without any it is half"""
    keep: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """share of the arms that goes on from each rung"""
    confirm: list[Seed] = Field(default=[])
    """fresh seeds, on which the finalists are trained once more and compared"""


class TunedRates(Section):
    """What is tuned of the optimizer."""

    lr: list[Annotated[float, Field(gt=0)]] = Field(min_length=3)
    """that every arm is tried with, in ascending order"""


class TuneStage(Section):
    """Each arm's own learning rate, found before the comparison: ``tuning.py``."""

    optim: TunedRates
    seeds: list[Seed] = Field(min_length=1)
    """of the tuning runs; none of the comparison's"""
    extend: Annotated[int, Field(ge=0, le=8)] = 3
    """rates that may be added where an arm is best at the end of its grid"""


class FactorialStage(Section):
    """Arms in which each layer has one of two head counts: ``factorial.py``."""

    wide: PositiveInt
    """fewer heads, so wider ones"""
    narrow: PositiveInt


class Study(Section):
    """A study as its file says it."""

    question: str = ""
    base: str
    baseline: Name
    seeds: list[Seed] = Field(min_length=1)
    processes: PositiveInt = 1
    """that train one run together, under torchrun"""
    effect: Annotated[float, Field(gt=0)] = EFFECT
    """nats per token that the study wants to see: how many seeds that takes is told for this"""
    looks: list[Annotated[int, Field(ge=2)]] = Field(default=[])
    """numbers of seeds at which it is looked at, and may end; the error is spent over them"""
    spending: Spending = OBRIEN_FLEMING
    """how: next to nothing early, or about as much for each seed"""
    contrasts: dict[Name, ContrastValue] = Field(default={})
    recipe: dict[str, Any] = Field(default={})
    arms: dict[Name, ArmValue] = Field(min_length=1)
    factorial: FactorialStage | None = None
    """adds its arms to those that are named"""
    tune: TuneStage | None = None
    sweep: dict[str, Any] = Field(default={})
    eval: EvalStage | None = None
    analyze: AnalyzeStage | None = None
    loss: LossStage | None = None
    inference: InferenceStage | None = None
    search: SearchStage | None = None

    @property
    def stages(self) -> dict[str, Stage]:
        """Those that look at checkpoints, by name."""
        found = {"eval": self.eval, "loss": self.loss, "analyze": self.analyze}
        return {name: stage for name, stage in found.items() if stage is not None}

    def milestones(self, recipe: Recipe) -> list[int]:
        """Steps before the last at which something is measured."""
        asked = {step for stage in self.stages.values() for step in stage.steps(recipe).values()}
        return sorted(asked - {recipe.n_steps})


class ArmTable(Section):
    """An arm that is more than a schedule; other keys are of the recipe."""

    schedule: str | None = None
    of: Name = "prism"
    """the arm that a rule such as reversed starts from"""
    origin: str | None = Field(default=None, alias="from")
    """an arm and a share of its training, as in ``uniform@0.5``, to go on from"""
    map: Map = "matched"
    """how weights come from that arm's schedule to this one's"""
    # Limits of the rule enumerate, as ``design.Limits`` has them.
    start: list[PositiveInt] | None = None
    min_phases: PositiveInt = 1
    max_phases: PositiveInt | None = None
    min_phase_layers: PositiveInt = 1
    max_phase_layers: PositiveInt | None = None
    phase_multiple: PositiveInt = 1
    """only schedules whose phases are whole multiples of so many layers"""
    rules: list[Literal["monotonicity", "convergence", "smoothness", "preservation"]] | None = None
    most: NonNegativeInt = 100
    """arms that enumerate may give before it is refused"""


ARM_KEYS = frozenset(field.alias or name for name, field in ArmTable.model_fields.items())


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
        near = get_close_matches(str(source), packaged_studies(), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        there = ", ".join(packaged_studies())
        raise StudyError(f"{source}: no such study file, and none that ships: {there}{meant}")
    return found


def copy_study(name: str, out: Path | None = None) -> Path:
    """Copy a packaged study out as it is written; its base still resolves from anywhere."""
    if name not in packaged_studies():
        find_study(name)  # says what there is
        raise StudyError(f"{name}: is a file already; `prism study list` has those that ship")
    return copy_out(packaged_studies()[name], out)


def a_copy(file: Path) -> str:
    """What to change where a study is to be another one."""
    shipped = f": prism study list {file.stem} --out mine.toml"
    return f"a copy of the file{shipped if file in packaged_studies().values() else ''}"


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
    _check_looks(file, study)
    confirm = study.search.confirm if study.search else []
    if both := sorted(set(confirm) & set(study.seeds)):
        raise StudyError(
            f"{file}: search.confirm = {confirm}: the search itself has {both}, by which finalists "
            "were chosen; give fresh seeds"
        )
    if study.tune is not None:
        _check_tune(file, study, study.tune)
    return study


def _check_tune(file: Path, study: Study, tune: TuneStage) -> None:
    """A rate is found on seeds that do not judge it, once for each arm."""
    rates, seeds = tune.optim.lr, tune.seeds
    if rates != sorted(set(rates)):
        raise StudyError(f"{file}: tune.optim.lr = {rates}: give growing rates")
    if len(set(seeds)) < len(seeds):
        raise StudyError(f"{file}: tune.seeds = {seeds}: each seed once")
    if both := sorted(set(seeds) & set(study.seeds)):
        raise StudyError(
            f"{file}: tune.seeds = {seeds}: the comparison has {both}, too, and a rate that was "
            "chosen for a seed is at its best there; give seeds of their own"
        )
    for name in ("sweep", "search"):
        if getattr(study, name):
            raise StudyError(f"{file}: [tune] and [{name}] do not go together; drop one")


def _check_looks(file: Path, study: Study) -> None:
    """Seeds come in the blocks that the looks name."""
    looks, n = study.looks, len(study.seeds)
    if looks != sorted(set(looks)):
        raise StudyError(f"{file}: looks = {looks}: give growing numbers of seeds")
    if looks and n not in looks:
        raise StudyError(
            f"{file}: looks = {looks}, and {n} seeds: give as many seeds as the study is to be "
            "looked at with next, and add more when that look did not decide"
        )
    if not looks and "spending" in study.model_fields_set:
        raise StudyError(f"{file}: spending = {study.spending!r}: of no looks; name them in looks")


def dotted(file: Path, where: str, tables: dict[str, Any]) -> Changes:
    """Values of nested tables by dotted key."""
    for section, keys in tables.items():
        if not isinstance(keys, dict):
            raise StudyError(
                f"{file}: {where}.{section} = {keys!r}: write a section and a key, as in optim.lr"
            )
    return {f"{section}.{key}": v for section, keys in tables.items() for key, v in keys.items()}
