"""A collected study as a real one would look, drawn from a random generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from prism_transformer.recipes.files import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.study.collected import COLUMNS, ITEM_COLUMNS, Collected, StudyFacts

ARMS = {"uniform": "8x8", "prism": "2x2 4x2 8x4"}
TASKS = {"piqa": "acc", "wikitext": "word_perplexity"}
STATISTICS = ("distance", "sink", "distance_without_sink", "second_moment", "excess", "entropy")

Run = tuple[str, int, int]  # arm, point, seed
Number = tuple[str, int | None, int | None, float]  # metric, step, index, value


@dataclass(frozen=True)
class Study:
    """What to draw. The first arm is the baseline; the others differ from it by ``effect``."""

    arms: Mapping[str, str] = field(default_factory=lambda: ARMS)
    seeds: Sequence[int] = (0, 1, 2)
    points: Sequence[dict[str, Any]] = ({},)
    effect: float | Mapping[str, float] = -0.02
    """nats, of every other arm or by arm"""
    noise: float = 0.005
    """s.d. of the difference between two arms of a seed"""
    speed: float = 1.05
    """throughput of the others to the baseline's"""
    states: Mapping[Run, str] = field(default_factory=dict)
    """runs that are "incomplete", "failed" (half a curve each) or "missing"; else complete"""
    tasks: Mapping[str, str] = field(default_factory=lambda: TASKS)
    """the metric of each; ``acc...`` has right and wrong items, others log-likelihoods"""
    n_items: int = 40
    steps: Sequence[int] = tuple(range(0, 121, 20))
    """of validations"""
    scale: str | None = None
    draw_seed: int = 0

    @property
    def baseline(self) -> str:
        return next(iter(self.arms))

    def loss(self, run: Run) -> float:
        """Final loss: what the seed does to every arm, what the arm does, and noise."""
        arm, point, seed = run
        shared = self.draw(("", point, seed)).normal(3.5, 0.02)
        shift = self.effect if isinstance(self.effect, float | int) else self.effect.get(arm, 0)
        own = self.draw(run).normal(0, self.noise / np.sqrt(2))
        return float(shared + own + (0 if arm == self.baseline else shift))

    def draw(self, run: Run, what: str = "") -> np.random.Generator:
        """The same draws for a run whatever other runs there are."""
        arm, point, seed = run
        return np.random.default_rng([self.draw_seed, point, seed, *f"{arm}/{what}".encode()])


def make_collected(**what: Any) -> Collected:
    """A study with the fields of ``Study`` that are given."""
    study = Study(**what)
    runs = [
        (arm, point, seed)
        for point in range(len(study.points))
        for seed in study.seeds
        for arm in study.arms
    ]
    rows, items = [], []
    for run in runs:
        rows += [(*run, *number) for number in numbers(study, run)]
        if study.states.get(run, "complete") == "complete":
            items += [(*run, *item) for item in answers(study, run)]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"step": "Int64", "index": "Int64"})
    return Collected(facts(study, runs), table, pd.DataFrame(items, columns=ITEM_COLUMNS))


def numbers(study: Study, run: Run) -> Iterator[Number]:
    state = study.states.get(run, "complete")
    if state == "missing":
        return
    steps = study.steps if state == "complete" else study.steps[: -(-len(study.steps) // 2)]
    draw, last = study.draw(run, "curve"), study.steps[-1]
    for step in steps:
        # Down to the final loss like a power of the tokens seen, from that of a uniform guess.
        loss = study.loss(run) + (8.3 - 3.5) * (1 - step / last) ** 3
        yield "val_loss", step, None, loss
        yield "train_loss", step, None, loss + draw.normal(0, 0.01)
    faster = 1.0 if run[0] == study.baseline else study.speed
    rate = 20_000 * faster * np.exp(study.draw(run, "speed").normal(0, 0.003))
    yield "tokens_per_second", None, None, rate
    yield "seconds", None, None, steps[-1] * 2048 / rate
    yield "memory_bytes", None, None, 5e8
    if state == "complete":
        yield "final_val_loss", last, None, study.loss(run)
        yield from looks_inside(study, run)
        yield from scores(study, run)


def looks_inside(study: Study, run: Run) -> Iterator[Number]:
    """Attention by layer, speed of inference, and loss by position."""
    draw = study.draw(run, "inside")
    for layer, n_heads in enumerate(HeadSchedule.parse(study.arms[run[0]]).heads):
        yield "largest_logit", study.steps[-1], layer, 5 + draw.normal(0, 0.1)
        for statistic in STATISTICS:
            yield f"attention.{statistic}", None, layer, 40 / n_heads + draw.normal(0, 0.5)
    for kind, rate in (("prefill", 90_000), ("decoding", 800)):
        drawn = study.draw(run, kind)
        yield f"inference.{kind}", None, None, rate * np.exp(drawn.normal(0, 0.05))
        yield f"inference.{kind}.ratio", None, None, float(np.exp(drawn.normal(0, 0.001)))
    for power in range(9):
        yield "loss_at_position", None, 2**power, study.loss(run) + 4 / (power + 1)


def answers(study: Study, run: Run) -> Iterator[tuple[str, int, str, float, str]]:
    """Items (task, item, metric, value, cluster): hard ones are hard for every run."""
    for task, metric in study.tasks.items():
        draw = study.draw(run, task)
        chance = study.draw(("", 0, 0), task).uniform(0.2, 0.9, study.n_items)
        chance = chance - (study.loss(run) - 3.5)
        right = draw.random(study.n_items) < chance
        values = right if metric.startswith("acc") else -100 * study.loss(run) / (chance + 1)
        for item, value in enumerate(values):
            yield task, item, metric, float(value), str(item)


def scores(study: Study, run: Run) -> Iterator[Number]:
    for task, metric in study.tasks.items():
        values = [value for name, _, _, value, _ in answers(study, run) if name == task]
        score = np.mean(values) if metric.startswith("acc") else np.exp(-np.mean(values) / 50)
        yield f"eval.{task}.{metric}", None, None, float(score)
        yield f"eval.{task}.{metric}.stderr", None, None, float(np.std(values) / len(values) ** 0.5)
        yield f"eval.{task}.{metric}.items", None, None, float(len(values))


def facts(study: Study, runs: Sequence[Run]) -> StudyFacts:
    """As ``study.json`` would say it."""
    states = [study.states.get(run, "complete") for run in runs]
    known = {
        "format": 1,
        "name": "drawn",
        "question": "Does the drawn effect show?",
        "command": "prism study run drawn",
        "baseline": study.baseline,
        "scale": study.scale,
        "arms": [
            {
                "name": name,
                "schedule": schedule,
                "heads": list(HeadSchedule.parse(schedule).heads),
                "changes": {},
            }
            for name, schedule in study.arms.items()
        ],
        "points": list(study.points),
        "seeds": list(study.seeds),
        "recipe": load_recipe("baseline-micro").model_dump(mode="json"),
        "parameters": 2_100_000,
        "complete": set(states) <= {"complete"},
        "runs": [run_facts(run, state) for run, state in zip(runs, states, strict=True)],
    }
    return StudyFacts.model_validate(known)


def run_facts(run: Run, state: str) -> dict[str, Any]:
    arm, point, seed = run
    known = state != "missing"
    session = {
        "step": 0,
        "processes": 1,
        "device": "cpu",
        "precision": "fp32",
        "compiled": False,
        "threads": 2,
        "torch": "2.13.0",
        "started": "2026-01-01T00:00:00+00:00",
    }
    hashes = {"initial_weights": f"w{seed}", "data_order": f"o{seed}", "shards": "s"}
    return {
        "arm": arm,
        "point": point,
        "seed": seed,
        "run": f"{arm}-seed{seed}" + (f"-point{point}" if point else ""),
        "state": state,
        "failure": "loss is <nan> & no number" if state == "failed" else None,
        "hashes": hashes if known else None,
        "hardware": {"processor": "one", "cores": 2, "memory_bytes": 2**33} if known else None,
        "software": {"torch": "2.13.0"} if known else None,
        "sessions": [session] if known else [],
    }
