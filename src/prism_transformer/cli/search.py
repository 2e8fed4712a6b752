"""``prism search``: schedules by one set of weights; ``prism reslice``: a run under another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from prism_transformer.cli.options import Device, Flag, Json, Many, Whole
from prism_transformer.cli.overrides import schedule_text
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, print_json, print_table, say
from prism_transformer.core.errors import InputError

SHOWN = 10  # schedules of a long list

Windows = Annotated[
    int | None,
    Parameter(help="How many windows of the validation slice to use; all when left out."),
]
Rate = Annotated[float, Parameter(help="Learning rate of the tuning, as a share of the run's.")]

app = App(
    name="search",
    help="Score many schedules with the weights of one run. To train arms: prism study search.",
    help_epilogue="Start here:  prism search one-shot runs/shared",
)


@app.command(
    name="one-shot",
    help_epilogue='Example:  prism search one-shot runs/shared --space "1/4x8" --windows 256',
)
def one_shot(
    run: Path,
    /,
    *,
    space: str | None = None,
    schedule: Many = (),
    rules: Flag = False,
    windows: Windows = None,
    steps: Whole = 0,
    rate: Rate = 0.1,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure the validation loss of every schedule of a space with the weights of one run.

    The run must have been trained with train.schedule_sampling. Killed, the same command goes on.

    Parameters
    ----------
    run
        A run folder.
    space
        Head counts that layers may have, as in 1/2/4x8; the run's own space when left out.
    schedule
        Also this one, such as 1x2 2x2 4x4; may be given several times, and then without a space.
    rules
        Only schedules that keep every rule of the paper.
    steps
        Steps of tuning under each schedule before its loss is measured.
    """
    from prism_transformer.schedules.design import RULES
    from prism_transformer.search.one_shot import one_shot
    from prism_transformer.search.scores import FOLDER, ONE_SHOT, file_of

    console = make_console(stderr=as_json)
    with show_progress(console) as tell:
        found = one_shot(
            run, space=space, schedules=schedule, rules=RULES if rules else frozenset(),
            windows=windows, steps=steps, rate=rate, device=device, tell=tell,
        )  # fmt: skip
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    table = found.table
    print_table(console, replace(table, rows=table.rows[:SHOWN]))
    if len(table) > SHOWN:
        place = file_of(run / FOLDER, ONE_SHOT, found.asked)
        say(console, f"and {len(table) - SHOWN} more in {place}")


@app.command(
    help_epilogue='Example:  prism search blocks runs/uniform --space "1/2/4x8" --steps 32'
)
def blocks(
    run: Path,
    /,
    *,
    space: str,
    windows: Windows = None,
    steps: Whole = 32,
    rate: Rate = 0.1,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure what each head count does to the loss of each layer alone, and its time.

    Parameters
    ----------
    run
        A run folder, best of a model with the same heads in every layer.
    space
        Head counts that layers are tried with, as in 1/2/4x8.
    steps
        Steps of tuning the layer after its change, with all others fixed.
    """
    from prism_transformer.search.blocks import block_scores

    console = make_console(stderr=as_json)
    with show_progress(console) as tell:
        found = block_scores(
            run, space, windows=windows, steps=steps, rate=rate, device=device, tell=tell
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    print_table(console, found.table)
    say(console, f"nats, less is better; next: prism search solve {run}")


@app.command(help_epilogue="Example:  prism search solve runs/uniform --within 1.0")
def solve(
    *scores: Path,
    free: Flag = False,
    within: float | None = None,
    queries_per_kv: Whole = 1,
    as_json: Json = False,
) -> None:
    """Find the best schedule by block scores, exactly, for every budget of attention time.

    Parameters
    ----------
    scores
        Runs that `prism search blocks` has scored, or files of it; their mean counts.
    free
        Without the paper's rules.
    within
        Only schedules whose attention takes at most so many times as long as the run's own.
    queries_per_kv
        Queries that share a key-value head (GQA); every layer must admit it.
    """
    from prism_transformer.schedules.design import RULES
    from prism_transformer.search.scores import BLOCKS, Blocks, find_scores
    from prism_transformer.search.solve import best_within, frontier, frontier_table, mean_problem

    if not scores:
        raise InputError("name runs that `prism search blocks` has scored")
    found = [each for each in find_scores(scores, BLOCKS) if isinstance(each, Blocks)]
    rules = frozenset[str]() if free else RULES
    problem, base = mean_problem(found, rules, queries_per_kv)
    solutions = frontier(problem)
    if within is not None:
        if not base:
            raise InputError("--within: these scores have no times; score a run anew")
        best = best_within(solutions, within, base)
        solutions = [each for each in solutions if each.time <= best.time]
    table = frontier_table(solutions, base)
    if as_json:
        print_json(table.plain_rows())
        return
    console = make_console()
    print_table(console, table)
    timed = "; time: of attention, as a share of the run's own" if base else ""
    say(console, f"predicted loss less the run's own, nats; the last is the best{timed}")


@app.command(
    help_epilogue="Example:  prism search evaluate runs/shared --truth results/factorial "
    "--out results/search"
)
def evaluate(
    *scores: Path,
    truth: tuple[Path, ...],
    paths: Path | None = None,
    out: Path = Path("search"),
    readme: Path | None = None,
    as_json: Json = False,
) -> None:
    """Compare what every predictor of schedules says with runs that were trained alone.

    Kendall's tau and regret with bootstrap intervals; the ceiling is how well one half of those
    runs' seeds ranks the other.

    Parameters
    ----------
    scores
        Runs that `prism search one-shot` or `blocks` has scored, or folders of such files;
        what is in --out counts as well.
    truth
        A collected study whose arms are schedules; may be given several times.
    paths
        A collected study with arms that leave others, such as reslice.
    out
        Where tables, figures and scores go.
    readme
        A file that gets the summary, between its marks "search: begin" and "search: end".
    """
    from prism_transformer.search.write import write_search

    console = make_console(stderr=as_json)
    with show_progress(console) as tell:
        done = write_search(out, truth, scores, paths, readme=readme, tell=tell)
    if as_json:
        print_json({
            "predictors": done.verdicts.table.plain_rows(),
            "paths": [] if done.paths is None else done.paths.plain_rows(),
            "missing": list(done.verdicts.left_out),
        })  # fmt: skip
        return
    if done.verdicts.judged:
        print_table(console, done.verdicts.table)
    if done.paths is not None and done.paths.rows:
        print_table(console, done.paths)
    for line in done.verdicts.left_out:
        say(console, f"not judged: {line}")
    say(console, f"wrote {done.summary.parent}")


def reslice(
    run: Path,
    /,
    *,
    schedule: Annotated[tuple[str, ...], Parameter(consume_multiple=True)],
    out: Path | None = None,
    at: Whole | None = None,
    map_: Annotated[Literal["reshape", "matched"], Parameter(name="--map")] = "matched",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Continue a run under another schedule, with its optimizer, as a new run.

    Prints the validation loss before the change and right after it, both ways; `prism resume` then
    trains the new run to the end.

    Parameters
    ----------
    run
        A run folder.
    schedule
        Heads per layer, such as 1x2 2x2 4x4, or a preset.
    out
        The new run folder; beside the old one when left out.
    at
        The step of a checkpoint; the newest one when left out.
    map_
        matched: weights are moved for the least change of function. reshape: they stay as they are.
    """
    from prism_transformer.training.reslicing import reslice as change
    from prism_transformer.training.run import Run

    text = schedule_text(schedule)
    home = Run.open(run).folder
    home = home.resolve() if home.name in ("", "..") else home  # "." and ".." name nothing
    place = out or home.with_name(f"{home.name}-{text.replace(' ', '-')}")
    console = make_console(stderr=as_json)
    with show_progress(console) as tell:
        done = change(run, text, place, step=at, how=map_, device=device, tell=tell)
    if as_json:
        print_json(
            {"run": str(done.run.folder), "step": done.step, "losses": done.table.plain_rows()}
        )
        return
    print_table(console, done.table)
