"""Every schedule of a space under the weights of one run: the verb ``one_shot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Tell, counted, silent
from prism_transformer.recipe import Recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.paper import resolve
from prism_transformer.schedules.space import Sampling, Space
from prism_transformer.search.scores import (
    FOLDER,
    ONE_SHOT,
    OneShot,
    Settings,
    file_of,
    read_scores,
    trained_apart,
    write_scores,
)
from prism_transformer.search.shared import Shared, check_tuning
from prism_transformer.training.run import Run

KEEP_EVERY = 20.0  # seconds between files, so that a killed search goes on


def one_shot(
    run: Run | Path | str,
    *,
    space: Space | str | None = None,
    schedules: Sequence[HeadSchedule | str] = (),
    rules: frozenset[str] = frozenset(),
    windows: int | None = None,
    steps: int = 0,
    rate: float = 0.1,
    device: str = "auto",
    tell: Tell = silent,
) -> OneShot:
    """Validation loss of many schedules under the weights of a run that sampled schedules.

    Of all schedules of ``space``, the run's own when nothing is named, that keep the ``rules`` of
    the paper; and of those named in ``schedules``. ``windows`` of the validation slice are scored,
    all when left out, after ``steps`` of tuning at ``rate`` times the run's learning rate. What was
    measured alike before is kept, in RUN/search/one-shot.json; what was asked with other windows or
    steps in a file of its own beside it.
    """
    opened = Run.open(run)
    sampling = _sampling(opened)
    wanted = _wanted(opened.recipe, sampling, space, schedules, rules)
    check_tuning(steps, rate)
    shared = Shared.open(opened, device)
    asked = Settings(windows=shared.windows(windows))
    if steps:  # without any a rate means nothing, and losses are the same at all of them
        asked = asked.model_copy(update={"steps": steps, "rate": rate})
    file = file_of(opened.folder / FOLDER, ONE_SHOT, asked)
    found = _known(file, OneShot(**shared.facts, asked=asked, sampling=str(sampling), losses={}))
    losses, kept = dict(found.losses), monotonic()
    left = [each for each in wanted if str(each) not in losses]
    for schedule in counted(tell, "schedules", left, len(left), "schedules"):
        losses[str(schedule)] = shared.loss(schedule, asked)
        if monotonic() > kept + KEEP_EVERY:
            write_scores(file, found.model_copy(update={"losses": losses}))
            kept = monotonic()
    found = found.model_copy(update={"losses": losses})
    write_scores(file, found)
    return found.model_copy(update={"losses": {str(each): losses[str(each)] for each in wanted}})


def _sampling(run: Run) -> Sampling:
    sampling = run.recipe.train.schedule_sampling
    if sampling is None:
        own = run.recipe.model.schedule
        raise InputError(
            f"{run.folder}: was trained under {own} alone, so its weights say nothing of others; "
            f'begin a run with train.schedule_sampling, as in "train.schedule_sampling=layers '
            f'1/{max(own.heads)}x{len(own)}"'
        )
    return sampling


def _wanted(
    recipe: Recipe,
    sampling: Sampling,
    space: Space | str | None,
    schedules: Sequence[HeadSchedule | str],
    rules: frozenset[str],
) -> list[HeadSchedule]:
    """Every schedule that is asked for, once; refused where the run never saw such a layer."""
    named = [resolve(each) if isinstance(each, str) else each for each in schedules]
    if isinstance(space, str):
        space = Space.parse(space)
    if space is None and not named:
        space = sampling.space
    model = recipe.model
    if space is not None:
        space.check(model.d_model, model.n_layers, model.queries_per_kv)
    for schedule in named:
        schedule.expect_layers(model.n_layers)
    listed = [] if space is None else space.schedules(rules, model.d_model, model.h_base)
    found = list(dict.fromkeys([*listed, *named]))
    for schedule in found:
        sampling.space.expect(schedule)
    return found


def _known(file: Path, now: OneShot) -> OneShot:
    """What was measured before, if all but the losses is the same; else ``now``, without any."""
    before = read_scores(file) if file.is_file() else None
    if not isinstance(before, OneShot) or trained_apart(before.recipe, now.recipe):
        return now
    # What is left of a recipe may differ, such as how its run is watched; older files have none.
    known = before.model_copy(update={"recipe": now.recipe})
    return known if known.model_copy(update={"losses": {}}) == now else now
