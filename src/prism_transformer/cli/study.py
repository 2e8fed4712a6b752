"""``prism study``: many runs, one question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from prism_transformer.cli.output import Device, Json, Whole, print_json, whole
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.study.plan import Plan
    from prism_transformer.study.queue import Queue
    from prism_transformer.study.study import Home

app = App(
    name="study",
    help="Many runs, one question: train, evaluate and compare arms.",
    help_epilogue="Start here:  prism study run demo",
)

Out = Annotated[
    Path | None, Parameter(help="The study's folder; studies/ and its name when left out.")
]
Storage = Annotated[
    str | None,
    Parameter(
        help="A database that workers share, as in postgresql://user@host/name; "
        "an SQLite file in the study's folder when left out."
    ),
]

AT_LEAST_ONE = Number(gte=1)


@Parameter(name="*")
@dataclass(frozen=True)
class Way:
    """Where and how a study is worked on: options that its commands share."""

    out: Out = None
    storage: Storage = None
    processes: Annotated[
        int | None,
        Parameter(
            converter=whole,
            validator=AT_LEAST_ONE,
            help="Processes that train one run together; what the study says when left out.",
        ),
    ] = None
    device: Device = "auto"
    heartbeat: Annotated[
        Whole,
        Parameter(
            validator=AT_LEAST_ONE,
            help="Seconds between signs of life; who misses six is taken for dead.",
        ),
    ] = 10


DEFAULT = Way()
EXAMPLE = "Example:  prism study"


@app.command(help_epilogue=f"{EXAMPLE} run demo")
def run(study: str, /, *, way: Way = DEFAULT) -> int:
    """Do everything that is not done yet, then compare; killed at any moment, call it again.

    Exit code 1 when a run failed; the others are finished all the same.

    Parameters
    ----------
    study
        A study file, or the name of one that ships (prism study list).
    """
    from prism_transformer.study.show import print_plan
    from prism_transformer.terminal import make_console

    console = make_console()
    home = _home(study, way.out, way.storage)
    print_plan(console, home, way.device)
    home.check()
    _prepare(console, home.plan)
    queue = _queue(home, way.heartbeat)
    home.begin(queue)
    _work(console, home, queue, way, more=False)
    return _finish(console, home)


@app.command(help_epilogue=f"{EXAMPLE} work small --storage postgresql://lab@db/prism")
def work(study: str, /, *, way: Way = DEFAULT) -> int:
    """Help with a study that was begun elsewhere, until nothing is left to do.

    As many machines as there are may do this at once; prism study plan --begin or prism study run
    comes first.

    Parameters
    ----------
    study
        The same study file as everywhere.
    """
    from prism_transformer.terminal import make_console

    console = make_console()
    home = _home(study, way.out, way.storage)
    home.check()
    queue = _queue(home, way.heartbeat)
    queue.counts()  # says it when nobody began
    _prepare(console, home.plan)
    _work(console, home, queue, way)
    return 1 if home.failures() else 0


@app.command(help_epilogue=f"{EXAMPLE} plan ablation")
def plan(
    study: str,
    /,
    *,
    out: Out = None,
    storage: Storage = None,
    begin: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show the runs of a study and how long they will take.

    Parameters
    ----------
    study
        A study file, or the name of one that ships.
    begin
        Also put them into the queue, for prism study work.
    """
    from prism_transformer.study.show import print_plan
    from prism_transformer.terminal import make_console

    home = _home(study, out, storage)
    home.check()
    if begin:
        home.begin(_queue(home, 10))
    if as_json:
        print_json(
            [
                {"run": c.name, "arm": c.arm, "point": home.plan.points[c.point], "seed": c.seed}
                | {"schedule": str(c.recipe.model.schedule), "steps": c.recipe.n_steps}
                for c in home.plan.cells
            ]
        )
        return
    print_plan(make_console(), home, device)


@app.command(help_epilogue=f"{EXAMPLE} status demo")
def status(
    study: str, /, *, out: Out = None, storage: Storage = None, as_json: Json = False
) -> None:
    """Show how far each run of a study is, and who is at it.

    Parameters
    ----------
    study
        A study file, or the name of one that ships.
    """
    from prism_transformer.cli.output import print_rows
    from prism_transformer.study.queue import QUEUE_FILE

    home = _home(study, out, storage)
    known = storage is not None or (home.folder / QUEUE_FILE).is_file()
    queue = _queue(home, 10) if known else None
    running = queue.running() if queue else {}
    failures = queue.failures() if queue else {}
    rows = []
    for cell in home.plan.cells:
        found = home.run_of(cell)
        todo = found.to_do(cell.recipe.n_steps)
        state = "done" if not todo else f"to do: {', '.join(todo)}"
        if cell.name in failures:
            state = f"failed: {failures[cell.name]}"
        if cell.name in running:
            state = f"running on {running[cell.name]}"
        rows.append(
            {"run": cell.name, "step": found.step, "of": cell.recipe.n_steps, "state": state}
        )
    print_rows(rows, as_json)


@app.command(help_epilogue=f"{EXAMPLE} collect nano from-other-machine --to results/nano")
def collect(
    study: str,
    /,
    *runs: Path,
    out: Out = None,
    storage: Storage = None,
    to: Path | None = None,
    note: str = "",
) -> None:
    """Write one table of everything that the runs of a study say.

    Parameters
    ----------
    study
        A study file, or the name of one that ships.
    runs
        More folders with runs of this study, brought here from machines that share no disk.
    to
        Where the table goes; collected/ in the study's folder when left out.
    note
        A remark that reports show with these results.
    """
    for folder in runs:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder")
    home = _home(study, out, storage)
    found = home.collect(runs, to, note)
    states = [each["state"] for each in found.facts["runs"]]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    print(f"{len(found.table):,} numbers of {len(states)} runs: {counted}")
    print(f"wrote {to or home.folder / 'collected'}")


@app.command(help_epilogue=f"{EXAMPLE} compare results/nano --json")
def compare(study: str, /, *, out: Out = None, as_json: Json = False) -> None:
    """Hold every arm of a study against its baseline, with what can and cannot be said.

    Parameters
    ----------
    study
        A study, or a folder that prism study collect wrote.
    """
    from prism_transformer.study.compare import compare as hold
    from prism_transformer.study.show import print_comparison
    from prism_transformer.study.table import is_collected, read_collected
    from prism_transformer.terminal import make_console

    place = Path(study)
    found = read_collected(place) if is_collected(place) else _home(study, out, None).collect()
    if as_json:
        print_json(hold(found).to_json())
    else:
        print_comparison(make_console(), found)


@app.command(help_epilogue=f"{EXAMPLE} search grid")
def search(study: str, /, *, way: Way = DEFAULT, as_json: Json = False) -> int:
    """Find the best schedules without training all to the end: the study's [search] says how.

    Parameters
    ----------
    study
        A study file with a [search], or the name of one that ships.
    """
    from dataclasses import asdict

    from prism_transformer.study.search import check_search
    from prism_transformer.study.search import search as run_search
    from prism_transformer.study.show import print_rung
    from prism_transformer.terminal import make_console

    console = make_console(stderr=as_json)
    home = _home(study, way.out, way.storage)
    check_search(home.plan)
    home.check()
    _prepare(console, home.plan)
    queue = _queue(home, way.heartbeat)
    standings = run_search(
        home,
        queue,
        lambda: _work(console, home, queue, way, more=False),
        lambda rung: print_rung(console, home.plan, rung),
    )
    home.collect()
    if as_json:
        print_json([asdict(each) for each in standings])
    return 1 if home.failures() else 0


@app.command(name="list", help_epilogue=f"{EXAMPLE} list")
def list_studies(*, as_json: Json = False) -> None:
    """List the studies that ship."""
    from prism_transformer.cli.output import print_rows
    from prism_transformer.study.file import packaged_studies
    from prism_transformer.study.plan import make_plan

    rows = []
    for name, file in packaged_studies().items():
        found = make_plan(file)
        rows.append(
            {
                "study": name,
                "arms": len(found.arms),
                "seeds": len(found.study.seeds),
                "runs": len(found.cells),
                "what": file.read_text("utf-8").partition("\n")[0].lstrip("# "),
            }
        )
    print_rows(rows, as_json)


def _home(study: str, out: Path | None, storage: str | None) -> Home:
    from prism_transformer.study.file import find_study
    from prism_transformer.study.plan import make_plan
    from prism_transformer.study.study import Home

    found = make_plan(find_study(study))
    return Home(found, out or Path("studies") / found.name, storage)


def _queue(home: Home, heartbeat: int) -> Queue:
    from prism_transformer.study.queue import Queue

    return Queue(home.plan, home.folder, home.storage, heartbeat)


def _prepare(console: Console, found: Plan) -> None:
    """Make the shards of every recipe that has none, each folder once."""
    from prism_transformer.cli.prepare import prepare_recipe

    recipes = {cell.recipe.data.folder: cell.recipe for cell in found.cells}
    for recipe in recipes.values():
        prepare_recipe(console, recipe)


def _work(console: Console, home: Home, queue: Queue, way: Way, *, more: bool = True) -> None:
    """Work until nothing is left, and with ``more`` until a search has come to its end."""
    from prism_transformer.study.picture import watched
    from prism_transformer.study.work import Worker

    together = home.plan.study.processes if way.processes is None else way.processes
    with watched(console, home.plan, home.folder) as watcher:
        worker = Worker(home.plan, home.folder, watcher, together, way.device)
        queue.work(worker.do, lambda: more and not queue.finished())


def _finish(console: Console, home: Home) -> int:
    """Collect, compare and report; what failed is named."""
    from prism_transformer.report.write import write_report
    from prism_transformer.study.show import print_comparison
    from prism_transformer.terminal import say

    found = home.collect()
    print_comparison(console, found)
    with console.status("drawing the report"):
        written = write_report([home.folder], home.folder / "report")
    say(console, f"table: {home.folder / 'collected'}")
    say(console, f"report: {written.page}")
    failures = home.failures()
    for name, reason in failures.items():
        say(console, f"FAILED  {name}: {reason}")
    return 1 if failures else 0
