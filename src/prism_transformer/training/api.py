"""Train a recipe or go on with a run: the one place where a run's parts come together.

``prism train``, ``prism resume`` and the workers of a study call these two. Launched by torchrun
they work as well: every process calls the same function, and only the first one tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from prism_transformer.core.disk import check_new
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Measured, Note, Tell, silent
from prism_transformer.data.corpora import EMBEDDED
from prism_transformer.data.mixture import Mixture, given
from prism_transformer.data.prepare import ensure_prepared
from prism_transformer.models.cost import parameters, size_text
from prism_transformer.recipe import Recipe, differences
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.device import begin, settle
from prism_transformer.training.distributed import all_alive, join_world
from prism_transformer.training.job import Job, check_change, new_job, resumed_job
from prism_transformer.training.loop import steps
from prism_transformer.training.objective import objective_of
from prism_transformer.training.run import RECIPE_FILE, Row, Run, is_run
from prism_transformer.training.start import Start, check_shape
from prism_transformer.training.stopping import Stopped


def train(
    recipe: Recipe | str | Path,
    folder: Path | str | None = None,
    *,
    start: Start | None = None,
    until: int | None = None,
    device: str = "auto",
    tell: Tell = silent,
) -> Run:
    """Train a model in a new folder; killed at any moment, ``resume`` goes on.

    ``recipe`` is a value, a file, or the name of one that ships; ``folder`` is under ``runs/`` when
    left out. ``start`` is what ``pretrained`` read, to begin from these weights in place of a draw.
    ``until`` is a step to stop after, saved. A signal that ends training early raises ``Stopped``,
    with everything saved.
    """
    if isinstance(recipe, Recipe):
        name = str(recipe.model.schedule).replace(" ", "-")
    else:
        name, recipe = Path(recipe).stem, load_recipe(recipe)
    place = Path(folder or default_folder(name, recipe))
    if is_run(place):
        raise InputError(f"{place}: is a run already; `prism resume {place}`, or another --out")
    check_new(place)
    if start is not None:
        check_shape(start, recipe)
    return _train(Run(place, recipe), until, device, tell, new=True, start=start)


def default_folder(name: str, recipe: Recipe) -> Path:
    """Where a run goes that nobody gave a place."""
    return Path("runs") / f"{name}-seed{recipe.train.seed}"


def resume(
    run: Run | Path | str,
    overrides: Sequence[str] | Recipe = (),
    *,
    until: int | None = None,
    device: str = "auto",
    tell: Tell = silent,
) -> Run:
    """Go on with a run from its newest sound checkpoint.

    ``overrides`` are those of the command that began it, so that the same line can be given again;
    or the whole recipe.
    A larger ``train.tokens`` lets the run go on for longer, where every step so far would have had
    the same learning rate under it; any other change of the recipe is refused.
    """
    opened = Run.open(run)
    wanted = (
        overrides
        if isinstance(overrides, Recipe)
        else load_recipe(opened.folder / RECIPE_FILE, overrides)
    )
    if differences(opened.recipe, wanted):
        check_change(opened.folder, opened.recipe, wanted)
    return _train(Run(opened.folder, wanted), until, device, tell, new=False)


def _train(
    run: Run,
    until: int | None,
    device: str,
    tell: Tell,
    *,
    new: bool,
    start: Start | None = None,
) -> Run:
    recipe = run.recipe
    if until is not None and (not isinstance(until, int) or not 1 <= until <= recipe.n_steps):
        raise InputError(f"--until {until}: the run has {recipe.n_steps} steps")
    objective_of(recipe)  # refuses what cannot be asked
    # Whatever is wrong with the device or the compiler is said before anything is written.
    settings = begin(settle(recipe, device))
    again = f"launch it again with `resume {run.folder}`, it goes on from the last checkpoint"
    with all_alive(again), join_world(settings.device) as world:
        tell = tell if world.is_first else silent
        if world.is_first and recipe.data.corpus == EMBEDDED:
            ensure_prepared(recipe, tell=tell)
        world.wait()  # nobody opens shards that the first process is still writing
        notes = [] if start is None else [f"begins from the weights of {start.source}"]
        opened = (
            new_job(run.folder, recipe, settings, world, start)
            if new
            else resumed_job(run.folder, recipe, settings, world, notes)
        )
        with opened as job:
            job.stop.tell = tell
            for line in [*_introduction(job), *notes]:
                tell(Note(line))
            _follow(job, until, tell)
    return run


def _follow(job: Job, until: int | None, tell: Tell) -> None:
    """Take the steps of a run and tell of each."""
    last = until or job.recipe.n_steps
    if until is not None and job.step >= until:
        tell(Note(f"{job.folder} is at step {job.step} already"))
        return
    loss = None
    tell(Advance("step", job.step, last, detail="validating" if job.step == 0 else ""))
    for row in steps(job, until):
        _tell_row(row, last, tell)
        if row["kind"] == "val":
            loss = row["loss"]
        while job.trackers and job.trackers.problems:
            tell(Note(job.trackers.problems.pop(0)))
    if job.step < last:
        raise Stopped(f"stopped at step {job.step}, saved; {job.how}", job.stop.signal)
    tell(Advance("step", last, last))
    if job.step < job.recipe.n_steps:
        tell(Note(f"stopped at step {job.step}, saved; {job.how}"))
        return
    if loss is not None:
        tell(Note(f"finished: validation loss {loss:.4f} nats after {job.step} steps"))
    verb = "generate" if job.recipe.model.attention == "causal" else "loss"
    tell(Note(f"{job.folder} is complete; try: prism {verb} {job.folder}"))


def _tell_row(row: Row, last: int, tell: Tell) -> None:
    tell(Measured(row))
    if row["kind"] == "val":
        seconds = f"({row['seconds']:.1f} s)"
        tell(Note(f"step {row['step']}  validation loss {row['loss']:.4f}  {seconds}"))
    elif row["kind"] == "train" and row["step"] < last:  # the last one ends when it is saved, too
        used = "" if row["utilisation"] is None else f"  {row['utilisation']:.0%} of peak"
        rate = f"{row['tokens_per_second']:,.0f} tokens/s"
        tell(Advance("step", row["step"], last, detail=f"loss {row['loss']:.4f}  {rate}{used}"))


def _introduction(job: Job) -> Iterator[str]:
    """What is about to happen, in a few lines."""
    recipe, settings, world = job.recipe, job.settings, job.world
    processes = "1 process" if world.size == 1 else f"{world.size} processes"
    yield (
        f"{job.folder}: {recipe.model.schedule} heads, "
        f"{size_text(parameters(recipe.model).total)} parameters, {recipe.n_steps:,} steps of "
        f"{recipe.train.batch_tokens:,} tokens, {recipe.train.micro_batch} sequences x "
        f"{job.passes} passes x {processes}"
    )
    yield from _epochs(job)
    compiled = "compiled" if settings.compiled else "not compiled"
    yield f"{settings.device}, {settings.precision}, {compiled}: {settings.compile_reason}"
    if settings.precision_reason:
        yield settings.precision_reason
    if None in (job.train.sha256 or (None,)):
        where = "data.mixture" if recipe.data.mixture else recipe.data.folder
        yield (
            f"{where}: shards without a manifest; header, length and token ids are "
            "checked, sha256 is not"
        )


def _epochs(job: Job) -> Iterator[str]:
    """How often the run sees its data; of a mixture, what each corpus gives."""
    recipe = job.recipe
    if isinstance(job.train, Mixture):
        for part, windows in zip(given(recipe), job.train.parts, strict=True):
            yield (
                f"mixture: {part.folder}: {part.share:.1%} of the training windows, "
                f"{part.windows:,}, {part.windows / len(windows):.2g} epochs of it"
            )
        yield f"validation: {recipe.data.folder}, whatever is mixed"
        return
    epochs = recipe.train.tokens / (len(job.train) * recipe.model.seq_len)
    if epochs > 1:
        yield f"{recipe.train.tokens:,} tokens are {epochs:.1f} epochs of {recipe.data.folder}"
