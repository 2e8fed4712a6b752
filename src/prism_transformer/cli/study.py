"""``prism study``: many runs, one question."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from prism_transformer.cli.compare import print_comparison
from prism_transformer.cli.options import (
    DEFAULT_PLACE,
    DEFAULT_WORK,
    Device,
    Flag,
    Json,
    Override,
    Place,
    Processes,
    StudyName,
    Workers,
    WorkHere,
)
from prism_transformer.cli.terminal import (
    duration,
    estimate,
    list_or_copy,
    make_console,
    print_json,
    print_rows,
    print_staircase,
    print_table,
    say,
)
from prism_transformer.core.errors import InputError
from prism_transformer.core.table import number_of, table_of

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.study.folder import StudyFolder
    from prism_transformer.study.halving import Standing
    from prism_transformer.study.plan import Plan
    from prism_transformer.study.sharing import Crew

app = App(
    name="study",
    help="Many runs, one question: train, evaluate and compare arms.",
    help_epilogue="Start here:  prism study run demo",
)

START_SECONDS = 60  # about what a run needs on GPUs before its first step, to compile above all
ARMS_DRAWN = 4  # staircases before a table takes over
EXAMPLE = "Example:  prism study"


@app.command(help_epilogue=f"{EXAMPLE} run small train.micro_batch=8 --seeds 0,1")
def run(study: StudyName, /, *overrides: Override, options: WorkHere = DEFAULT_WORK) -> int:
    """Train and evaluate what is not done yet, then compare; after a kill, run it again.

    Exit code 1 when a run failed; the others are finished all the same.
    """
    from prism_transformer.cli.picture import show_study
    from prism_transformer.reporting.live import live_page
    from prism_transformer.reporting.write import PAGE, report
    from prism_transformer.study.api import run_study
    from prism_transformer.study.sentences import answer

    console, opened = make_console(), options.open(study, overrides)
    _print_plan(console, opened, options.crew)
    out = opened.folder / "report"
    say(console, f"page, while runs come in: {(out / PAGE).resolve().as_uri()}")
    opened = _tuned(console, opened, options, out)
    with show_study(console, opened) as tell, live_page(opened, out, tell) as told:
        result = run_study(opened, tell=told, **asdict(options.crew))
    print_comparison(console, result.comparison)
    with console.status("drawing the report"):
        written = report([opened.folder], out)
    for name, reason in result.failures.items():
        say(console, f"FAILED  {name}: {reason}")
    console.print()
    for line in answer(result.collected.facts, result.comparison):
        say(console, line)
    say(console, f"table: {opened.folder / 'collected'}")
    say(console, f"report: {written.page}")
    return 1 if result.failures else 0


@app.command(help_epilogue=f"{EXAMPLE} work small --storage postgresql://lab@db/prism")
def work(
    study: StudyName,
    /,
    *overrides: Override,
    options: WorkHere = DEFAULT_WORK,
    cell: tuple[str, ...] | None = None,
) -> int:
    """Help with a study that was begun elsewhere, until nothing is left to do.

    As many machines as there are may do this at once; prism study plan --begin or prism study run
    comes first, with the same overrides.

    Parameters
    ----------
    cell
        Do this run alone, by its name in prism study plan, without a queue; may be given again.
    """
    from prism_transformer.cli.picture import show_study
    from prism_transformer.study.api import work_on
    from prism_transformer.study.slurm import do_cells

    opened = options.open(study, overrides)
    with show_study(make_console(), opened) as tell:
        if cell:  # here and now: no queue to tell that one is alive, nobody beside it
            failures = do_cells(opened, cell, replace(options.crew, workers=1), tell=tell)
        else:
            failures = work_on(opened, options.crew, tell=tell)
    return 1 if failures else 0


@app.command(help_epilogue=f"{EXAMPLE} plan ablation")
def plan(
    study: StudyName,
    /,
    *overrides: Override,
    place: Place = DEFAULT_PLACE,
    begin: Flag = False,
    device: Device = "auto",
    workers: Workers = "auto",
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Show the runs of a study, how long they will take, and the disk that they need.

    Parameters
    ----------
    begin
        Also put them into the queue, for prism study work.
    """
    from prism_transformer.study.forecast import forecast
    from prism_transformer.study.sharing import Crew

    opened, crew = place.open(study, overrides), Crew(device, workers, processes)
    opened.check()
    first = opened.tuner if opened.plan.untuned else opened
    if begin:
        first.begin(first.queue(), first.left if opened.plan.untuned else None)
    if not as_json:
        _print_plan(make_console(), opened, crew)
        return
    rows = [
        {"run": c.name, "arm": c.arm, "point": place.plan.points[c.point], "seed": c.seed}
        | {"schedule": str(c.recipe.model.schedule), "steps": c.recipe.n_steps}
        for place in ([opened.tuner] if opened.tuning else []) + [opened]
        for c in place.plan.cells
    ]
    print_json({"runs": rows, "forecast": asdict(forecast(opened, crew))})


@app.command(help_epilogue=f"{EXAMPLE} status demo")
def status(
    study: StudyName, /, *overrides: Override, place: Place = DEFAULT_PLACE, as_json: Json = False
) -> None:
    """Show how far each run of a study is, which worker trains it, and its job on Slurm."""
    from prism_transformer.study.slurm import status_with_jobs

    print_rows(status_with_jobs(place.open(study, overrides)).plain_rows(), as_json)


@app.command(help_epilogue=f"{EXAMPLE} collect nano from-other-machine --to results/nano")
def collect(
    study: StudyName,
    /,
    *runs: str,
    place: Place = DEFAULT_PLACE,
    to: Path | None = None,
    note: Annotated[str, Parameter(show_default=False)] = "",
    rates_compare_nothing: Flag = False,
) -> None:
    """Write the results of all runs of a study as one table.

    Parameters
    ----------
    study
        A study; or a folder that an older version collected, which gets what it lacks.
    runs
        More folders with runs of this study, brought here from machines that share no disk; and
        overrides, as for prism study run.
    to
        Where the table goes; collected/ in the study's folder when left out.
    note
        A remark that reports show with these results, in place of those that came --with others.
    rates_compare_nothing
        The machine did other work while these runs were trained: their rates are shown, but stand
        in no comparison, figure or claim of speed.
    """
    from prism_transformer.study.collected import is_collected
    from prism_transformer.study.folder import collect_anew

    if is_collected(Path(study)):
        wrote = " and ".join(collect_anew(Path(study)))
        say(make_console(), f"{study}: {f'wrote {wrote}' if wrote else 'its sums hold'}")
        return
    folders = [Path(each) for each in runs if "=" not in each or Path(each).is_dir()]
    if missing := [each for each in folders if not each.is_dir()]:
        raise InputError(f"{missing[0]}: there is no such folder")
    opened = place.open(study, [each for each in runs if Path(each) not in folders])
    found = opened.collect(folders, to, note, rates_compare=not rates_compare_nothing)
    states = [each.state for each in found.facts.runs]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    print(f"{len(found.table):,} numbers of {len(states)} runs: {counted}")
    say(make_console(), f"wrote {to or opened.folder / 'collected'}")


@app.command(help_epilogue=f"{EXAMPLE} compare results/nano --json")
def compare(
    study: str, /, *overrides: Override, place: Place = DEFAULT_PLACE, as_json: Json = False
) -> None:
    """Compare every arm of a study with its baseline, and the arms that its contrasts name.

    With what can and cannot be said, seed by seed.

    Parameters
    ----------
    study
        A study, or a folder that prism study collect wrote.
    """
    from prism_transformer.study.api import collected_of
    from prism_transformer.study.collected import is_collected
    from prism_transformer.study.compare import compare as against_baseline

    if is_collected(Path(study)):
        if overrides or place != DEFAULT_PLACE:
            raise InputError(f"{study}: is a collected folder; options are for a study file")
        found = collected_of(study)
    else:
        found = collected_of(place.open(study, overrides))
    comparison = against_baseline(found)
    if as_json:
        print_json(comparison.to_json())
    else:
        print_comparison(make_console(), comparison)


@app.command(help_epilogue=f"{EXAMPLE} search grid")
def search(
    study: StudyName,
    /,
    *overrides: Override,
    options: WorkHere = DEFAULT_WORK,
    as_json: Json = False,
) -> int:
    """Find the best schedules without training all to the end: the study's [search] says how."""
    from prism_transformer.cli.picture import show_study
    from prism_transformer.study.api import run_study
    from prism_transformer.study.halving import confirming, search_study

    console, opened = make_console(stderr=as_json), options.open(study, overrides)
    standings: list[Standing] = []
    with show_study(console, opened) as tell:
        for rung in search_study(opened, options.crew, tell=tell):
            say(console, f"\n{rung.table.title}")
            print_table(console, rung.table)
            if rung.beside_others:
                say(console, rung.table.note)
            standings += rung.standings
    failures, found = dict(opened.failures()), [asdict(each) for each in standings]
    stage = opened.plan.study.search
    if stage is None or not stage.confirm:
        if as_json:
            print_json(found)
        return 1 if failures else 0
    fresh = confirming(opened, [each.arm for each in rung.standings if each.kept])
    say(console, f"\nconfirming the best with fresh seeds: {', '.join(map(str, stage.confirm))}")
    with show_study(console, fresh) as tell:
        result = run_study(fresh, tell=tell, **asdict(options.crew))
    print_comparison(console, result.comparison)
    if as_json:
        print_json({"standings": found, "confirmed": result.comparison.to_json()})
    return 1 if failures | dict(result.failures) else 0


@app.command(name="list", help_epilogue=f"{EXAMPLE} list small --out mine.toml")
def list_studies(
    name: str | None = None, /, *, out: Path | None = None, as_json: Json = False
) -> None:
    """List the studies that ship, or copy one out to change it.

    Parameters
    ----------
    name
        The study to copy; all are listed when left out.
    out
        Where to; the study's own name in this folder when left out. Never overwrites.
    """
    from prism_transformer.study.spec import copy_study

    list_or_copy("study", name, out, copy_study, _study_rows, as_json)


def _study_rows() -> list[dict[str, Any]]:
    from prism_transformer.models.cost import parameters, size_text
    from prism_transformer.study.plan import make_plan
    from prism_transformer.study.spec import packaged_studies

    return [
        {"study": each.name, "arms": len(each.arms), "seeds": len(each.study.seeds)}
        | {"runs": len(each.cells), "to tune": _tuning_runs(each)}
        | {"parameters": size_text(parameters(each.base.model).total)}
        | {"what": each.file.read_text("utf-8").partition("\n")[0].lstrip("# ")}
        for each in map(make_plan, packaged_studies().values())
    ]


def _tuning_runs(plan: Plan) -> int:
    """Runs that find the rates of its arms, before any rate is added."""
    tune = plan.study.tune
    return len(plan.arms) * len(tune.optim.lr) * len(tune.seeds) if tune else 0


def _print_plan(console: Console, study: StudyFolder, crew: Crew) -> None:
    """The arms of a study, how many runs they are, how long those take, and by how many workers."""
    from prism_transformer.study.forecast import forecast, shares_of

    plan = study.plan
    if plan.study.question:
        say(console, plan.study.question)
    if len(plan.arms) <= ARMS_DRAWN:
        for arm in plan.arms:
            console.print(f"\n[bold]{arm.name}[/bold]  {arm.schedule}  {arm.more}".rstrip())
            print_staircase(console, arm.schedule)
    else:
        rows = [
            {"arm": arm.name, "schedule": str(arm.schedule), "mean heads": arm.schedule.mean_heads}
            | {"changes": arm.more}
            for arm in plan.arms
        ]
        print_table(console, table_of("arms", rows))
    if study.tuning:
        _print_tuning(console, study, crew)
    left = forecast(study, crew)
    done = sum(not run.to_do(run.cell.recipe.n_steps) for run in study.runs)
    collected = f" and {len(study.earlier)} collected before" if study.earlier else ""
    swept = f" x {len(plan.points)} points" if len(plan.points) > 1 else ""
    size = f"{number_of(plan.arms, 'arm')} x {number_of(plan.study.seeds, 'seed')}{swept}"
    runs = f"{number_of(plan.cells, 'run')} of {plan.base.n_steps:,} steps, {done} done{collected}"
    say(console, f"\n{plan.name}: {size} = {runs}")
    here, there = left.training_seconds, left.h100_training_seconds
    scored, scored_there = left.evaluation_seconds, left.h100_evaluation_seconds
    small = there < START_SECONDS * len(study.runs)
    limit = "; models this small do not reach that, and starting a run takes longer" * small
    for line in (
        f"this machine: training about {estimate(here)}, evaluation {estimate(scored)} "
        f"({left.why})",
        f"8 x H100: training {estimate(there)}, evaluation {estimate(scored_there)} (arithmetic "
        f"alone, at 40 % utilisation{limit})",
        f"disk: {left.disk_bytes / 1e9:.3g} GB for checkpoints and metrics",
    ):
        say(console, line)
    if done < len(study.runs):
        say(console, shares_of(study, crew).reason)


def _tuned(console: Console, study: StudyFolder, options: WorkHere, out: Path) -> StudyFolder:
    """The study with the learning rate of each arm; those not known yet are found now."""
    from prism_transformer.cli.picture import show_study
    from prism_transformer.reporting.live import live_page
    from prism_transformer.study.api import tune_round

    while study.plan.untuned:
        tuner = study.tuner
        with show_study(console, tuner) as tell, live_page(tuner, out, tell) as told:
            study = tune_round(study, options.crew, tell=told)
        for name, rate in study.tuning.best.items() if study.tuning else ():
            say(console, f"{name}: best learning rate {rate:g}")
    return study


def _print_tuning(console: Console, study: StudyFolder, crew: Crew) -> None:
    """The runs that find the rates, how long they take, and what is found already."""
    from prism_transformer.study.forecast import forecast

    stage, tuner, found = study.plan.study.tune, study.tuner, study.tuning
    if stage is None or found is None:
        return
    best = ", ".join(f"{arm} {rate:g}" for arm, rate in found.best.items())
    if not study.plan.untuned:
        say(console, f"\ntuned: the learning rate of each arm is found: {best}")
        return
    rates = ", ".join(f"{rate:g}" for rate in stage.optim.lr)
    expected = forecast(tuner, crew)
    done = len(tuner.plan.cells) - len(tuner.left)
    say(
        console,
        f"\ntuning first: {len(tuner.plan.arms)} arms at {rates}, with the seeds "
        f"{', '.join(map(str, stage.seeds))}: {len(tuner.plan.cells)} runs, {done} done, up to "
        f"{stage.extend} rates more for an arm that is best at the end of them; takes about "
        f"{duration(expected.training_seconds)} ({expected.why})"
        f"{f'; found: {best}' if best else ''}",
    )
