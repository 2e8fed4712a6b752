"""The ``prism`` command: verbs only. Each imports what it needs when it runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, Parameter

from prism_transformer import __version__
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from prism_transformer.schedule import HeadSchedule

Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON for scripts."),
]

app = App(
    name="prism",
    help="Progressive head schedules for Transformers: design, build, compare.",
    version=__version__,
    help_format="plaintext",
    help_epilogue="Start here:  prism demo",
)
schedule_app = App(
    name="schedule",
    help="Design and inspect head schedules.",
    help_epilogue="Example:  prism schedule show small",
)
app.command(schedule_app)


@schedule_app.command(
    name="show", help_epilogue='Example:  prism schedule show "3x2 6x2 8x2 12x6" --d-model 768'
)
def schedule_show(
    schedule: str,
    /,
    *,
    d_model: int | None = None,
    h_base: int | None = None,
    layers: int | None = None,
    against: str | None = None,
    figure: Path | None = None,
    device: str | None = None,
    dtype: str = "float32",
    as_json: Json = False,
) -> None:
    """Draw a schedule and tell what it does to every layer.

    Parameters
    ----------
    schedule
        A preset (prism schedule list) or text such as "3x2 12x10" or "3,3,12,12".
    d_model
        Model width; a preset knows its own.
    h_base
        Heads of the uniform twin; the schedule's largest count when left out.
    layers
        Refuse a schedule of another depth.
    against
        The schedule on the figure's left; the uniform twin when left out.
    figure
        Write the paper's Figure 1 to this .svg, .pdf or .png.
    device
        Ask torch which attention backend it would run there: cpu, cuda, mps.
    dtype
        Precision for that question.
    """
    from prism_transformer.describe import schedule_facts

    shown, d_model, h_base = _read_schedule(schedule, d_model, h_base, layers)
    shown.head_dims(d_model)
    backends = None
    if device is not None:
        from prism_transformer.kernels import layer_backends

        backends = layer_backends(shown, d_model, device, dtype)
    if figure is not None:
        _draw_figure(figure, shown, against, d_model, h_base)
    facts = schedule_facts(shown, d_model, h_base, backends)
    if as_json:
        _print_json(facts)
        return
    from prism_transformer.terminal import make_console, print_schedule

    console = make_console()
    print_schedule(console, facts)
    if figure is not None:
        console.print(f"\nwrote {figure}")


@schedule_app.command(
    name="check",
    help_epilogue='Example:  prism schedule check "4x3 8x3 16x18" --d-model 1024 --h-base 16',
)
def schedule_check(
    schedule: str,
    /,
    *,
    d_model: int | None = None,
    h_base: int | None = None,
    layers: int | None = None,
    as_json: Json = False,
) -> int:
    """Hold a schedule against the paper's rules; exit code 1 when one is broken.

    The three constraints and two guidelines decide. Findings on hardware are advice.

    Parameters
    ----------
    schedule
        A preset (prism schedule list) or text such as "3x2 12x10" or "3,3,12,12".
    d_model
        Model width; a preset knows its own.
    h_base
        Heads of the uniform twin; the schedule's largest count when left out.
    layers
        Refuse a schedule of another depth.
    """
    from prism_transformer.describe import schedule_facts

    checked, d_model, h_base = _read_schedule(schedule, d_model, h_base, layers)
    facts = schedule_facts(checked, d_model, h_base)
    broken = [f for f in facts["findings"] if not f["ok"] and f["kind"] != "hardware"]
    facts["ok"] = not broken
    if as_json:
        _print_json(facts)
    else:
        from prism_transformer.terminal import make_console, print_findings

        console = make_console()
        print_findings(console, facts["findings"])
        rules = ", ".join(f["rule"] for f in broken)
        console.print(f"\n{checked}: " + (f"breaks {rules}" if broken else "keeps every rule"))
    return 1 if broken else 0


@schedule_app.command(
    name="design",
    help_epilogue="Example:  prism schedule design --d-model 4096 --layers 32 --h-base 32 "
    "--queries-per-kv 4",
)
def schedule_design(
    *,
    d_model: int,
    layers: int,
    h_base: int,
    queries_per_kv: int = 1,
    tensor_parallel: int = 1,
    most: int = 5,
    as_json: Json = False,
) -> None:
    """Propose schedules for a model of your own, best first, with reasons.

    Parameters
    ----------
    d_model
        Model width.
    layers
        Number of layers.
    h_base
        Heads of the uniform model.
    queries_per_kv
        Queries that share a key-value head (GQA); every layer must admit it.
    tensor_parallel
        Devices that share a layer's heads; every layer must admit it.
    most
        How many to propose.
    """
    from dataclasses import asdict

    from prism_transformer.design import propose

    proposals = propose(
        d_model,
        layers,
        h_base,
        queries_per_kv=queries_per_kv,
        tensor_parallel=tensor_parallel,
        most=most,
    )
    if as_json:
        _print_json([asdict(p) | {"schedule": str(p.schedule)} for p in proposals])
        return
    from rich.padding import Padding

    from prism_transformer.terminal import make_console, print_staircase

    console = make_console()
    for rank, proposal in enumerate(proposals, start=1):
        console.print(f"[bold]{rank}. {proposal.schedule}[/bold]")
        for reason in proposal.reasons:
            console.print(Padding(reason, (0, 0, 0, 3)))
        if rank == 1:
            print_staircase(console, proposal.schedule)
    console.print(
        "\nRanked by the paper's design criteria; no loss was measured for this shape.",
        style="dim",
    )


@schedule_app.command(name="list", help_epilogue="Example:  prism schedule list --json")
def schedule_list(*, as_json: Json = False) -> None:
    """List the paper's schedules: three models and the rows of its ablation."""
    from prism_transformer.design import presets

    rows = [
        {
            "name": preset.name,
            "schedule": str(preset.schedule),
            "d_model": preset.d_model,
            "h_base": preset.h_base,
            "mean_heads": preset.schedule.mean_heads,
            "description": preset.description,
        }
        for preset in presets().values()
    ]
    _print_rows(rows, as_json)


@app.command(help_epilogue="Example:  prism show prism-small optim.lr=3e-4 > mine.toml")
def show(recipe: str, /, *overrides: str, as_json: Json = False) -> None:
    """Print a recipe with everything filled in, and every number it implies.

    The output is itself a recipe: the derived numbers are comments.

    Parameters
    ----------
    recipe
        A file, or the name of one that ships (prism recipes).
    overrides
        Changes such as optim.lr=3e-4 or "model.schedule=3x2 12x10".
    """
    from prism_transformer.describe import recipe_facts
    from prism_transformer.recipe_file import load_recipe, recipe_toml

    resolved = load_recipe(recipe, overrides)
    facts = recipe_facts(resolved)
    if as_json:
        _print_json({"recipe": resolved.model_dump(), "derived": facts})
        return
    from prism_transformer.terminal import recipe_comments

    print(recipe_toml(resolved))
    print(recipe_comments(facts))


@app.command(help_epilogue="Example:  prism recipes prism-small --out mine.toml")
def recipes(name: str | None = None, /, *, out: Path | None = None, as_json: Json = False) -> None:
    """List the recipes that ship, or copy one out to change it.

    Parameters
    ----------
    name
        The recipe to copy; all are listed when left out.
    out
        Where to; the recipe's own name in this folder when left out. Never overwrites.
    """
    from prism_transformer.recipe_file import copy_recipe, load_recipe, packaged_recipes

    if name is not None:
        print(f"wrote {copy_recipe(name, out)}")
        return
    rows = []
    for key in packaged_recipes():
        recipe = load_recipe(key)
        rows.append(
            {
                "name": key,
                "schedule": str(recipe.model.schedule),
                "d_model": recipe.model.d_model,
                "tokens": recipe.train.tokens,
            }
        )
    _print_rows(rows, as_json)


@app.command(help_epilogue="Example:  prism demo --out prism-demo")
def demo(*, out: Path = Path("prism-demo")) -> int:
    """Draw the paper's three schedules, build its small pair, and prove neutrality.

    Parameters
    ----------
    out
        Folder for the figures.
    """
    from prism_transformer.demo import run_demo
    from prism_transformer.terminal import make_console

    return 0 if run_demo(make_console(), out) else 1


def _read_schedule(
    text: str, d_model: int | None, h_base: int | None, layers: int | None
) -> tuple[HeadSchedule, int, int]:
    """A schedule with its d_model and h_base, taken from the preset where not given."""
    from prism_transformer.design import presets, resolve

    preset = presets().get(text)
    schedule = resolve(text)
    if layers is not None:
        schedule.expect_layers(layers)
    width = d_model or (preset.d_model if preset else None)
    if width is None:
        raise InputError(f"give the model's width for {text!r}, as in --d-model 768")
    base = h_base or (preset.h_base if preset else max(schedule.heads))
    return schedule, width, base


def _draw_figure(
    file: Path, schedule: HeadSchedule, against: str | None, d_model: int, h_base: int
) -> None:
    from prism_transformer.design import resolve
    from prism_transformer.report.figures import check_format, head_schedules, save
    from prism_transformer.schedule import HeadSchedule

    check_format(file)
    left = resolve(against) if against else HeadSchedule.uniform(h_base, len(schedule))
    save(head_schedules(left, schedule, d_model), file)


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    from prism_transformer.terminal import make_console, row_table

    make_console().print(row_table(rows))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def main() -> NoReturn:
    """Run the command; what the user can fix is printed plainly and exits with 2."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `prism ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
