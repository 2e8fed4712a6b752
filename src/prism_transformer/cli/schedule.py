"""``prism schedule``: show, check, design, list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, Parameter

from prism_transformer.cli.options import Flag, Json, Whole
from prism_transformer.cli.overrides import schedule_text
from prism_transformer.cli.terminal import (
    make_console,
    print_json,
    print_rows,
    print_staircase,
    print_table,
    say,
)
from prism_transformer.core.errors import InputError
from prism_transformer.core.table import Column, Table, words

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.schedule import HeadSchedule

Facts = dict[str, Any]

# Rules without which there is no model, where the others only say that it is not the paper's.
IMPOSSIBLE = {"divisibility", "grouping"}
VERDICTS = {"holds": "green", "note": "yellow", "broken": "red"}

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


DEFAULT_MODEL = Model()


@app.command(help_epilogue='Example:  prism schedule show "3x2 6x2 8x2 12x6" --d-model 768')
def show(
    *schedule: str,
    model: Model = DEFAULT_MODEL,
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
        A preset (prism schedule list) or text such as 3x2 12x10 or 3,3,12,12.
    against
        The schedule on the figure's left; the uniform twin when left out.
    figure
        Write the paper's Figure 1 to this .svg, .pdf or .png.
    device
        Ask torch which attention backend it would run there: cpu, cuda, mps.
    dtype
        Precision for that question; float32 on the CPU and else bfloat16 when left out.
    """
    if against is not None and figure is None:
        raise InputError(f"--against {against} is for a figure; give --figure too")
    if dtype is not None and device is None:
        raise InputError(f"--dtype {dtype} is for asking torch; give --device too")
    shown, d_model, h_base = _read_schedule(schedule, model)
    shown.head_dims(d_model)
    backends = None
    if device is not None:
        from prism_transformer.schedules import hardware

        backends = hardware.layer_backends(shown, d_model, device, dtype)
    if figure is not None:
        _draw_figure(figure, shown, against, d_model, h_base)
    facts = schedule_facts(shown, d_model, h_base, backends)
    if as_json:
        print_json(facts | ({"figure": str(figure)} if figure else {}))
        return
    console = make_console()
    print_schedule(console, facts)
    if figure is not None:
        say(console, f"\nwrote {figure}")


@app.command(
    help_epilogue='Example:  prism schedule check "4x3 8x3 16x18" --d-model 1024 --h-base 16',
)
def check(
    *schedule: str, model: Model = DEFAULT_MODEL, queries_per_kv: Whole = 1, as_json: Json = False
) -> int:
    """Hold a schedule against the paper's rules; exit code 1 when one is broken.

    The three constraints and two guidelines decide. Findings on hardware are advice. Exit code 2
    when no model can have it.

    Parameters
    ----------
    schedule
        A preset (prism schedule list) or text such as 3x2 12x10 or 3,3,12,12.
    queries_per_kv
        Queries that share a key-value head (GQA); every layer must admit it.
    """
    from prism_transformer.schedules.rules import check_grouping

    checked, d_model, h_base = _read_schedule(schedule, model)
    facts = schedule_facts(checked, d_model, h_base)
    if queries_per_kv != 1:
        facts["findings"].append(asdict(check_grouping(checked, queries_per_kv)))
    broken = [each["rule"] for each in facts["findings"] if _verdict(each) == "broken"]
    if as_json:
        print_json(facts | {"ok": not broken})
    else:
        console = make_console()
        print_findings(console, facts["findings"])
        result = f"breaks {', '.join(broken)}" if broken else "keeps every rule"
        impossible = "; no model can have it" if IMPOSSIBLE & set(broken) else ""
        console.print(f"\n{checked}: {result}{impossible}")
    return InputError.exit_code if IMPOSSIBLE & set(broken) else 1 if broken else 0


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
    learned: Flag = False,
    evidence: Path | None = None,
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
    learned
        Propose by each method instead: the paper's rule, layer effects of runs trained alone, and
        block scores of trained runs; each with how reliable it was.
    evidence
        For --learned, a learned.json of `prism search evaluate`; what ships when left out.
    """
    from rich.padding import Padding

    from prism_transformer.schedules.design import propose

    shared = {"queries_per_kv": queries_per_kv, "tensor_parallel": tensor_parallel}
    if learned or evidence is not None:
        _print_learned(d_model, layers, h_base, shared, evidence, as_json)
        return
    proposals = propose(d_model, layers, h_base, most=most, **shared)
    if as_json:
        print_json([asdict(p) | {"schedule": str(p.schedule)} for p in proposals])
        return
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


def _print_learned(
    d_model: int, layers: int, h_base: int, shared: dict[str, int], file: Path | None, as_json: bool
) -> None:
    from prism_transformer.search.learned import propose_learned, read_learned

    known = read_learned(file)
    proposals = propose_learned(d_model, layers, h_base, learned=known, **shared)
    if as_json:
        print_json([asdict(p) | {"schedule": str(p.schedule)} for p in proposals])
        return
    console = make_console()
    for each in proposals:
        say(console, f"{each.schedule}  ({each.source})")
        for reason in each.reasons:
            say(console, f"   {reason}")
    if not known.sources:
        say(console, "\nNothing was learnt yet: `prism search evaluate` writes what is.")


@app.command(name="list", help_epilogue="Example:  prism schedule list --json")
def list_presets(*, as_json: Json = False) -> None:
    """List the paper's schedules: three models and the rows of its ablation."""
    from prism_transformer.schedules.paper import presets

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


def _read_schedule(words: Sequence[str], model: Model) -> tuple[HeadSchedule, int, int]:
    """A schedule with its d_model and h_base, taken from the preset where not given."""
    from prism_transformer.schedules.paper import presets, resolve

    if not words:
        raise InputError("name a preset (prism schedule list) or a schedule such as 3x2 12x10")
    text = schedule_text(words)
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
    from prism_transformer.figures.schedules import head_schedules
    from prism_transformer.figures.style import check_format, save
    from prism_transformer.schedule import HeadSchedule
    from prism_transformer.schedules.paper import presets, resolve

    check_format(file)
    left = resolve(against) if against else HeadSchedule.uniform(h_base, len(schedule))
    left.expect_layers(len(schedule))
    preset = presets().get(against or "")
    if preset is not None and preset.d_model != d_model:
        raise InputError(f"preset {against} is for d_model {preset.d_model}, not {d_model}")
    save(head_schedules(left, schedule, d_model), file)


def schedule_facts(
    schedule: HeadSchedule, d_model: int, h_base: int, backends: Sequence[str] | None = None
) -> Facts:
    """A schedule on a model of this width, for ``--json``: layers, findings, degrees, controls."""
    from prism_transformer.schedules import design, hardware, rules

    findings = rules.check_rules(schedule, d_model, h_base)
    facts: Facts = {
        "schedule": str(schedule),
        "heads": list(schedule.heads),
        "n_layers": len(schedule),
        "d_model": d_model,
        "h_base": h_base,
        "mean_heads": schedule.mean_heads,
        "degrees": list(hardware.degrees(schedule)),
    }
    if findings[0].ok:  # where a layer does not split d_model there are no widths to speak of
        findings += hardware.check_hardware(schedule, d_model)
        facts["layers"] = _layers(schedule, d_model, backends)
        facts["controls"] = {
            "reversed": str(design.reverse(schedule)),
            "shuffled:0": str(design.shuffle(schedule, 0)),
            "bracketing": [str(s) for s in design.bracketing_uniforms(schedule, d_model)],
        }
    return facts | {"findings": [asdict(finding) for finding in findings]}


def _layers(schedule: HeadSchedule, d_model: int, backends: Sequence[str] | None) -> list[Facts]:
    from prism_transformer.schedules.hardware import Alignment

    kinds = map(Alignment, schedule.head_dims(d_model))
    return [
        {
            "layer": layer,
            "heads": schedule.heads[layer],
            "width": kind.width,
            "power_of_two": kind.power_of_two,
            "flash_tile": kind.tile,
            "alignment": str(kind),
            **({"backend": backends[layer]} if backends else {}),
        }
        for layer, kind in enumerate(kinds)
    ]


def print_schedule(console: Console, facts: Facts) -> None:
    """Heading, staircase, layers by phase, findings, controls."""
    from prism_transformer.schedule import HeadSchedule
    from prism_transformer.schedules.hardware import UNKNOWN

    schedule = HeadSchedule(tuple(facts["heads"]))
    console.print(f"[bold]{schedule}[/bold]", end="   ")
    console.print(
        f"{facts['n_layers']} layers, d_model {facts['d_model']}, h_base {facts['h_base']}, "
        f"mean {facts['mean_heads']:.3g} heads\n"
    )
    print_staircase(console, schedule)
    if "layers" in facts:
        console.print()
        print_table(console, _phase_table(schedule, facts["layers"]))
        if any(row.get("backend") == UNKNOWN for row in facts["layers"]):
            console.print(f"{UNKNOWN}: torch can only say on a machine that has the device")
    console.print()
    print_findings(console, facts["findings"])
    if "controls" in facts:
        console.print("\n[bold]controls[/bold] for a fair comparison")
        console.print(f"  reversed    {facts['controls']['reversed']}")
        console.print(f"  shuffled    {facts['controls']['shuffled:0']}   (seed 0)")
        console.print(f"  bracketing  {', '.join(facts['controls']['bracketing'])}")


def _phase_table(schedule: HeadSchedule, layers: Sequence[Facts]) -> Table:
    """One row per phase: its layers are alike."""
    from prism_transformer.schedules.rules import spans

    columns = [Column("layers"), Column("heads"), Column("width")]
    columns.append(Column("alignment", numeric=False, name="on CUDA"))
    if "backend" in layers[0]:
        columns.append(Column("backend", numeric=False, name="SDPA backend"))
    rows = []
    for phase in schedule.phases:
        facts = layers[phase.first_layer] | {"layers": spans(phase.layers)}
        rows.append({column.key: facts[column.key] for column in columns})
    return Table("phases", tuple(columns), tuple(rows))


def print_findings(console: Console, findings: Sequence[Facts]) -> None:
    """Each rule with its verdict; a broken one with its layers."""
    from prism_transformer.schedules.rules import layer_ranges

    rows = tuple(
        {
            "rule": finding["rule"],
            "kind": finding["kind"],
            "verdict": _verdict(finding),
            "why": finding["reason"]
            + (f" ({layer_ranges(finding['layers'])})" if finding["layers"] else ""),
        }
        for finding in findings
    )
    print_table(console, Table("findings", words(*rows[0]), rows), VERDICTS)


def _verdict(finding: Facts) -> str:
    if finding["ok"]:
        return "holds"
    return "note" if finding["kind"] == "hardware" else "broken"
