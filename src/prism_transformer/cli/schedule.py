"""``prism schedule``: show, check, design, list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App, Parameter

from prism_transformer.cli.output import Json, Whole, print_json, print_rows
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from prism_transformer.schedule import HeadSchedule

app = App(
    name="schedule",
    help="Design and inspect head schedules.",
    help_epilogue="Example:  prism schedule show small",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Model:
    """The model that a schedule is for.

    Parameters
    ----------
    d_model
        Model width; a preset knows its own.
    h_base
        Heads of the uniform twin; the schedule's largest count when left out.
    layers
        Refuse a schedule of another depth.
    """

    d_model: Whole | None = None
    h_base: Whole | None = None
    layers: Whole | None = None


UNKNOWN = Model()


@app.command(help_epilogue='Example:  prism schedule show "3x2 6x2 8x2 12x6" --d-model 768')
def show(
    schedule: str,
    /,
    *,
    model: Model = UNKNOWN,
    against: str | None = None,
    figure: Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    as_json: Json = False,
) -> None:
    """Draw a schedule and tell what it does to every layer.

    Parameters
    ----------
    schedule
        A preset (prism schedule list) or text such as "3x2 12x10" or "3,3,12,12".
    against
        The schedule on the figure's left; the uniform twin when left out.
    figure
        Write the paper's Figure 1 to this .svg, .pdf or .png.
    device
        Ask torch which attention backend it would run there: cpu, cuda, mps.
    dtype
        Precision for that question; float32 on the CPU and else bfloat16 when left out.
    """
    from prism_transformer.describe import schedule_facts

    if against is not None and figure is None:
        raise InputError(f"--against {against} is for a figure; give --figure too")
    if dtype is not None and device is None:
        raise InputError(f"--dtype {dtype} is for asking torch; give --device too")
    shown, d_model, h_base = _read_schedule(schedule, model)
    shown.head_dims(d_model)
    backends = None
    if device is not None:
        from prism_transformer.kernels import layer_backends

        backends = layer_backends(shown, d_model, device, dtype)
    if figure is not None:
        _draw_figure(figure, shown, against, d_model, h_base)
    facts = schedule_facts(shown, d_model, h_base, backends)
    if as_json:
        print_json(facts | ({"figure": str(figure)} if figure else {}))
        return
    from prism_transformer.terminal import make_console, print_schedule, say

    console = make_console()
    print_schedule(console, facts)
    if figure is not None:
        say(console, f"\nwrote {figure}")


@app.command(
    help_epilogue='Example:  prism schedule check "4x3 8x3 16x18" --d-model 1024 --h-base 16',
)
def check(
    schedule: str,
    /,
    *,
    model: Model = UNKNOWN,
    as_json: Json = False,
) -> int:
    """Hold a schedule against the paper's rules; exit code 1 when one is broken.

    The three constraints and two guidelines decide. Findings on hardware are advice.

    Parameters
    ----------
    schedule
        A preset (prism schedule list) or text such as "3x2 12x10" or "3,3,12,12".
    """
    from prism_transformer.describe import schedule_facts

    checked, d_model, h_base = _read_schedule(schedule, model)
    facts = schedule_facts(checked, d_model, h_base)
    broken = [f for f in facts["findings"] if not f["ok"] and f["kind"] != "hardware"]
    facts["ok"] = not broken
    if as_json:
        print_json(facts)
    else:
        from prism_transformer.terminal import make_console, print_findings

        console = make_console()
        print_findings(console, facts["findings"])
        rules = ", ".join(f["rule"] for f in broken)
        console.print(f"\n{checked}: " + (f"breaks {rules}" if broken else "keeps every rule"))
    return 1 if broken else 0


@app.command(
    help_epilogue="Example:  prism schedule design --d-model 4096 --layers 32 --h-base 32 "
    "--queries-per-kv 4",
)
def design(
    *,
    d_model: Whole,
    layers: Whole,
    h_base: Whole,
    queries_per_kv: Whole = 1,
    tensor_parallel: Whole = 1,
    most: Whole = 5,
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
        print_json([asdict(p) | {"schedule": str(p.schedule)} for p in proposals])
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


@app.command(name="list", help_epilogue="Example:  prism schedule list --json")
def list_presets(*, as_json: Json = False) -> None:
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
    print_rows(rows, as_json)


def _read_schedule(text: str, model: Model) -> tuple[HeadSchedule, int, int]:
    """A schedule with its d_model and h_base, taken from the preset where not given."""
    from prism_transformer.design import presets, resolve

    preset = presets().get(text)
    schedule = resolve(text)
    if model.layers is not None:
        schedule.expect_layers(model.layers)
    d_model, h_base = model.d_model, model.h_base
    if d_model is None:
        if preset is None:
            raise InputError(f"give the model's width for {text!r}, as in --d-model 768")
        d_model = preset.d_model
    if h_base is None:
        h_base = preset.h_base if preset else max(schedule.heads)
    return schedule, d_model, h_base


def _draw_figure(
    file: Path, schedule: HeadSchedule, against: str | None, d_model: int, h_base: int
) -> None:
    from prism_transformer.design import presets, resolve
    from prism_transformer.plots.figures import check_format, head_schedules, save
    from prism_transformer.schedule import HeadSchedule

    check_format(file)
    left = resolve(against) if against else HeadSchedule.uniform(h_base, len(schedule))
    left.expect_layers(len(schedule))
    preset = presets().get(against or "")
    if preset is not None and preset.d_model != d_model:
        raise InputError(f"preset {against} is for d_model {preset.d_model}, not {d_model}")
    save(head_schedules(left, schedule, d_model), file)
