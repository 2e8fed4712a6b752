"""Predictors of schedules held against runs that were trained alone: the verb ``judge``.

Each is judged by how it ranks schedules (Kendall's tau) and by the loss of the schedule that it
calls best, less the least loss there is (regret). Intervals come from a bootstrap over schedules,
over seeds of the stand-alone runs and over the runs that predict. The stand-alone runs are noisy
themselves: how well one half of their seeds ranks the other is the ceiling. The effects of layers
are learnt from these very runs, so they are fitted on one half of the seeds and judged by the
other; there the bootstrap is over schedules alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.core.table import Column, Interval, Row, Table, words
from prism_transformer.recipe import Recipe
from prism_transformer.recipes.files import changed
from prism_transformer.schedule import HeadSchedule
from prism_transformer.search.ranking import (
    Array,
    Places,
    interval,
    kendall,
    regret,
    resampled,
    split_mean,
)
from prism_transformer.search.scores import (
    BLOCKS,
    ONE_SHOT,
    AnyScores,
    find_scores,
    trained_apart,
)
from prism_transformer.study.collected import Collected, finite, read_collected
from prism_transformer.study.factorial import levels

Statistic = Callable[[Array, Array], float]  # of what was predicted and what is true, by schedule

LEAST_ARMS = 4  # of which a ranking says anything at all
EFFECTS, MEAN_HEADS, RANDOM, CEILING = "layer effects", "mean head count", "random", "ceiling"


@dataclass(frozen=True)
class Truth:
    """Stand-alone runs: final losses of schedules by seed, a whole block of both."""

    name: str
    schedules: tuple[HeadSchedule, ...]
    losses: Array
    """(seeds, schedules), nats"""
    recipe: Recipe
    """of the runs, but for their schedule and seed"""

    def only(self, chosen: Sequence[int]) -> Truth:
        """The same of some schedules."""
        kept = tuple(self.schedules[index] for index in chosen)
        return replace(self, schedules=kept, losses=self.losses[:, list(chosen)])


@dataclass(frozen=True)
class Judgement:
    """How one predictor ranks the schedules of one truth."""

    truth: str
    predictor: str
    runs: int
    """that it predicts from"""
    arms: int
    seeds: int
    """of the stand-alone runs"""
    tau: float
    tau_interval: tuple[float, float]
    regret: float
    """nats"""
    regret_interval: tuple[float, float]


@dataclass(frozen=True)
class Verdicts:
    """Every predictor against every truth."""

    judged: tuple[Judgement, ...]
    left_out: tuple[str, ...] = ()
    """what could not be judged, and why"""

    @property
    def table(self) -> Table:
        """A row for each; a ceiling stands at the end of its truth."""
        columns = (
            *words("truth", "predictor"), Column("runs"), Column("arms"), Column("seeds"),
            Column("tau", places=2, sign=True), Column("tau 95 %", places=2, sign=True),
            Column("regret", "nats", 4), Column("regret 95 %", "nats", 4),
        )  # fmt: skip
        rows: tuple[Row, ...] = tuple(
            {"truth": j.truth, "predictor": j.predictor, "runs": j.runs, "arms": j.arms,
             "seeds": j.seeds, "tau": _finite(j.tau), "tau 95 %": _interval(j.tau_interval),
             "regret": _finite(j.regret), "regret 95 %": _interval(j.regret_interval)}
            for j in self.judged
        )  # fmt: skip
        return Table("predictors", columns, rows, title="Predictors against stand-alone runs")


def _finite(value: float) -> float | None:
    """The same number; None if it is not finite."""
    return value if np.isfinite(value) else None


def _interval(ends: tuple[float, float]) -> Interval | None:
    return Interval(*ends) if np.isfinite(ends).all() else None


def judge(
    truths: Sequence[Path | str], scores: Sequence[Path | str] = (), *, tell: Tell = silent
) -> Verdicts:
    """Hold predictors against collected studies.

    ``scores`` are runs that were asked by ``one_shot`` or ``block_scores``, or folders with such
    files. The mean head count, the effects of layers and chance need none.
    """
    found = find_scores(scores) if scores else []
    left: list[str] = []
    blocks = [truth for place in truths for truth in read_truths(place, left)]
    judged: list[Judgement] = []
    for truth in counted(tell, "studies", blocks, len(blocks)):
        judged += _judge(truth, found, left)
    return Verdicts(tuple(judged), tuple(left))


def read_truths(place: Path | str, left: list[str]) -> list[Truth]:
    """The stand-alone runs of a collected study, one truth for each point of its sweep."""
    collected = read_collected(Path(place))
    found = []
    for point, swept in enumerate(collected.points):
        name = ", ".join([collected.facts.name, *(f"{k}={v:g}" for k, v in swept.items())])
        truth = _truth(collected, point, name)
        if truth is None:
            left.append(f"{name}: fewer than {LEAST_ARMS} schedules have a finished run")
        else:
            found.append(truth)
    return found


def _truth(collected: Collected, point: int, name: str) -> Truth | None:
    """A whole block of seeds and schedules: all schedules, or those of the fullest seed."""
    arms = {arm.name: HeadSchedule(arm.heads) for arm in collected.facts.arms if not arm.changes}
    losses = finite(collected.final_loss(point))[list(arms)]
    whole = losses.dropna()
    if whole.empty:
        fullest = losses.notna().sum(axis=1).idxmax()
        there = losses.columns[losses.loc[fullest].notna()]
        whole = losses[there].dropna()  # every seed that has these
    if whole.shape[1] < LEAST_ARMS:
        return None
    recipe = changed(collected.facts.recipe, collected.points[point], name)
    kept = tuple(arms[str(each)] for each in whole.columns)
    return Truth(name, kept, whole.to_numpy(dtype=float), recipe)


def _judge(truth: Truth, scores: Sequence[AnyScores], left: list[str]) -> list[Judgement]:
    judged = []
    for kind in (ONE_SHOT, BLOCKS):
        usable, reasons = comparable(truth, [each for each in scores if each.kind == kind])
        left += [f"{truth.name}: {kind}: {why}" for why in reasons]
        if not usable:
            continue
        values = [[each.predicted(s) for s in truth.schedules] for each in usable]
        known = [
            i for i in range(len(truth.schedules)) if all(row[i] is not None for row in values)
        ]
        if len(known) < LEAST_ARMS:
            left.append(f"{truth.name}: {kind}: knows {len(known)} of its schedules")
            continue
        table = np.array([[row[i] for i in known] for row in values], dtype=float)
        judged.append(_of_values(truth.only(known), kind, table))
    effects = _effects(truth)
    if effects is None:
        left.append(f"{truth.name}: {EFFECTS}: needs two seeds, and more schedules than layers")
    else:
        judged.append(effects)
    heads = np.array([[s.mean_heads for s in truth.schedules]])
    judged += [_of_values(truth, MEAN_HEADS, heads), _random(truth), _ceiling(truth)]
    return judged


def comparable(
    truth: Truth, scores: Sequence[AnyScores]
) -> tuple[list[AnyScores], tuple[str, ...]]:
    """Scores of finished runs like the truth's, all asked alike; and why others do not count.

    Of several settings it is those that most runs were asked with, then those with the least
    tuning and the most windows.
    """
    if not scores:
        return [], ("no run was asked",)
    alike = [each for each in scores if not _unlike(each, truth)]
    counts = Counter(each.asked for each in alike)
    chosen = min(counts, key=lambda s: (-counts[s], s.steps, -s.windows, s.rate), default=None)
    used = [each for each in alike if each.asked == chosen]
    rest = {
        each.run: _unlike(each, truth) or f"asked with {each.asked} and not {chosen}"
        for each in scores
    }
    for each in used:
        rest.pop(each.run, None)
    reasons: dict[str, list[str]] = {}
    for run, reason in rest.items():
        reasons.setdefault(reason, []).append(run)
    return used, tuple(f"{', '.join(runs)}: {reason}" for reason, runs in reasons.items())


def _unlike(scores: AnyScores, truth: Truth) -> str:
    """What sets a run apart from those of the truth; nothing if its scores predict them."""
    recipe, model = truth.recipe, truth.recipe.model
    pairs: dict[str, tuple[object, object]] = {
        "d_model": (scores.d_model, model.d_model),
        "layers": (scores.n_layers, len(truth.schedules[0])),
        "h_base": (scores.h_base, model.h_base),
        "queries_per_kv": (scores.queries_per_kv, model.queries_per_kv),
        "objective": (scores.objective, recipe.train.objective),
        "boundaries": (scores.boundaries, recipe.data.boundaries),
        "learning rate": (scores.lr, recipe.optim.lr),
        "step": (scores.step, recipe.n_steps),
    }
    found = [f"{name} {a} and not {b}" for name, (a, b) in pairs.items() if a != b]
    return ", ".join(found or trained_apart(scores.recipe, recipe))


def _judgement(
    truth: Truth,
    predictor: str,
    runs: int,
    value: Callable[[Statistic], float],
    draw: Callable[[Statistic, np.random.Generator], float],
) -> Judgement:
    """Tau and regret, each as ``value`` gives it, with an interval of what ``draw`` resamples."""
    n_seeds, n_arms = truth.losses.shape
    tau, loss = ((value(each), interval(partial(draw, each))) for each in (kendall, regret))
    return Judgement(truth.name, predictor, runs, n_arms, n_seeds, *tau, *loss)


def _of_values(truth: Truth, predictor: str, values: Array) -> Judgement:
    """A predictor that never saw the stand-alone runs; values are (runs, schedules)."""

    def draw(statistic: Statistic, random: np.random.Generator) -> float:
        arms = resampled(random, truth.losses.shape[1])
        seeds = resampled(random, len(truth.losses))
        runs = resampled(random, len(values))
        return statistic(values[runs].mean(0)[arms], truth.losses[seeds].mean(0)[arms])

    def value(statistic: Statistic) -> float:
        return statistic(values.mean(0), truth.losses.mean(0))

    runs = 0 if predictor == MEAN_HEADS else len(values)
    return _judgement(truth, predictor, runs, value, draw)


def _of_halves(
    truth: Truth, predictor: str, runs: int, predict: Callable[[Array, Places], Array]
) -> Judgement:
    """A predictor that learns from one half of the seeds and is judged by the other."""
    n_arms = truth.losses.shape[1]

    def value(statistic: Statistic, arms: Places) -> float:
        def of(seen: Array, held: Array) -> float:
            return statistic(predict(seen, arms), held)

        return split_mean(truth.losses[:, arms], of)

    return _judgement(
        truth,
        predictor,
        runs,
        lambda statistic: value(statistic, np.arange(n_arms, dtype=np.int64)),
        lambda statistic, random: value(statistic, resampled(random, n_arms)),
    )


def _ceiling(truth: Truth) -> Judgement:
    """How one half of the seeds ranks the other."""
    return _of_halves(truth, CEILING, len(truth.losses) // 2, lambda seen, _arms: seen)


def _effects(truth: Truth) -> Judgement | None:
    """The sum of layers' effects, fitted on one half of the seeds, judged by the other."""
    n_arms, n_layers = truth.losses.shape[1], len(truth.schedules[0])
    if len(truth.losses) < 2 or n_arms <= n_layers + 1:
        return None
    counts = [n for s in truth.schedules for n in s.heads]
    wide, narrow = min(counts), max(counts)
    at = np.array([levels(s, wide, narrow) for s in truth.schedules])
    if np.linalg.matrix_rank(np.column_stack((np.ones(n_arms), at))) <= n_layers:
        return None

    def predict(seen: Array, arms: Places) -> Array:
        # The least change that explains what was seen: a drawn set of schedules may leave some
        # layers without any difference.
        table = np.column_stack((np.ones(len(arms)), at[arms]))
        return table @ np.linalg.lstsq(table, seen, rcond=None)[0]

    return _of_halves(truth, EFFECTS, n_arms * (len(truth.losses) // 2), predict)


def _random(truth: Truth) -> Judgement:
    """Chance: what any order of the schedules is worth."""
    actual = truth.losses.mean(0)
    expected = {kendall: 0.0, regret: float(actual.mean() - actual.min())}

    def draw(statistic: Statistic, random: np.random.Generator) -> float:
        return statistic(random.permutation(len(actual)).astype(float), actual)

    return _judgement(truth, RANDOM, 0, expected.__getitem__, draw)
