"""From folders to views: studies that were collected, and runs of no study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, silent
from prism_transformer.reporting.views import MOST_ARMS, View
from prism_transformer.study.best_rates import Envelope
from prism_transformer.study.collected import (
    COLLECTED,
    LEARNING_RATE,
    RUNS,
    STUDY_FILE,
    Collected,
    is_collected,
    read_collected,
)
from prism_transformer.study.compare import Comparison, compare
from prism_transformer.study.sentences import remarks
from prism_transformer.training.run import RECIPE_FILE, is_run


def read_views(places: Sequence[Path], tell: Tell = silent) -> list[View]:
    """Every study in these folders at every point; runs of no study, those that belong together.

    What is neither is refused.
    """
    studies, runs = [], []
    for place in places:
        folders = _studies(place)
        studies += [read_collected(folder) for folder in folders]
        runs += [] if folders else _runs(place)
    if runs:
        from prism_transformer.study.single_runs import collect_runs, group_runs

        studies += map(collect_runs, group_runs(runs, tell))
    return views_of(studies)


def views_of(studies: Sequence[Collected]) -> list[View]:
    """Each of these studies, compared, at every point of its sweep."""
    views: list[View] = []
    keys: set[str] = set()
    for collected in studies:
        main = View(collected, 0, "", {}).main or ""
        # Of many arms the benchmarks of the main one alone are shown, and item tests take long.
        comparison = compare(collected, None if len(collected.arms) <= MOST_ARMS else {main})
        for point in range(len(collected.points)):
            key = _key(collected.facts.name, point if len(collected.points) > 1 else None, keys)
            keys.add(key)
            views.append(View(
                collected, point, key,
                compared={row.arm.name: row for row in comparison.rows if row.point == point},
                contrasts=tuple(each for each in comparison.contrasts if each.point == point),
                remarks=tuple(remarks(comparison)),
                envelope=_envelope(comparison, point),
                layers=comparison.layers[point],
            ))  # fmt: skip
    return views


def _envelope(comparison: Comparison, point: int) -> Envelope | None:
    """The one that begins at this point, so that a page shows it once."""

    def rest(values: Mapping[str, object]) -> dict[str, object]:
        return {key: value for key, value in values.items() if key != LEARNING_RATE}

    here = rest(comparison.points[point])
    if here in map(rest, comparison.points[:point]):
        return None
    return next((each for each in comparison.envelopes if each.values == here), None)


def _studies(place: Path) -> list[Path]:
    """Collected studies: this folder, the one of this study, or those of all studies in it."""
    for folder in (place, place / COLLECTED):
        if is_collected(folder):
            return [folder]
    inside = sorted(child for child in place.iterdir() if child.is_dir()) if place.is_dir() else []
    found = [child for child in inside if is_collected(child)]
    return found + [child / COLLECTED for child in inside if is_collected(child / COLLECTED)]


def _runs(place: Path) -> list[Path]:
    """Runs: this folder, those in it, or those of a study that was not collected yet."""
    if not place.is_dir():
        raise InputError(f"{place}: no such folder; give a study, a run, or a folder of runs")
    if is_run(place):
        return [place]
    for folder in (place, place / RUNS):
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        if runs := [child for child in found if is_run(child)]:
            return runs
    raise InputError(f"{place}: neither a study (no {STUDY_FILE}) nor a run (no {RECIPE_FILE})")


def _key(name: str, point: int | None, taken: set[str]) -> str:
    """A name that is safe as a file name and as an id."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "study"
    wanted = plain if point is None else f"{plain}-{point}"
    key, n = wanted, 2
    while key in taken:
        key, n = f"{wanted}-{n}", n + 1
    return key
