"""What people see in a terminal: the staircase of a schedule, tables, findings, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from prism_transformer.describe import Facts
from prism_transformer.rules import layer_ranges
from prism_transformer.schedule import HeadSchedule

T = TypeVar("T")

MARGIN = 13  # columns left of the staircase: "   12 heads |"


def make_console(*, stderr: bool = False) -> Console:
    """Standard output: colours on a terminal, plain lines elsewhere."""
    return _Console(highlight=False, stderr=stderr)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command's ``main`` decide the exit code; rich would make it 1."""
        raise BrokenPipeError


def say(console: Console, text: str) -> None:
    """Print a line that may hold anything, paths included: no markup, no wrapping."""
    console.print(text, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """How long, in the unit that suits."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def staircase(schedule: HeadSchedule, columns: int = 80, block: str = "█") -> str:
    """The schedule as a picture: a step per head count, a column or two per layer."""
    room = max(columns - MARGIN, 8)
    per_column = -(-len(schedule) // room)  # layers that share one column of a deep model
    cell = 2 if per_column == 1 and 2 * len(schedule) <= room else 1
    heads = schedule.heads[::per_column]
    lines = []
    for level in sorted(set(heads), reverse=True):
        row = "".join((block if n >= level else " ") * cell for n in heads)
        lines.append(f"{level:>5} head{'s' if level > 1 else ' '} |{row.rstrip()}")
    last = str(len(schedule) - 1)
    axis = f"0{last:>{max(len(heads) * cell - 1, len(last) + 1)}}"
    shared = "" if per_column == 1 else f"\n{'':{MARGIN}}{per_column} layers a column"
    return "\n".join([*lines, f"{'layer':>{MARGIN - 2}}  {axis}{shared}"])


def print_schedule(console: Console, facts: Facts) -> None:
    """Heading, staircase, layers by phase, findings, controls."""
    console.print(f"[bold]{facts['schedule']}[/bold]", end="   ")
    console.print(
        f"{facts['n_layers']} layers, d_model {facts['d_model']}, h_base {facts['h_base']}, "
        f"mean {facts['mean_heads']:.3g} heads\n"
    )
    print_staircase(console, HeadSchedule.parse(facts["heads"]))
    if "layers" in facts:
        console.print()
        console.print(_layer_table(facts["layers"]))
        if any(row.get("backend") == "unknown" for row in facts["layers"]):
            console.print("unknown: torch can only say on a machine that has the device")
    console.print()
    print_findings(console, facts["findings"])
    if "controls" in facts:
        console.print("\n[bold]controls[/bold] for a fair comparison")
        console.print(f"  reversed    {facts['controls']['reversed']}")
        console.print(f"  shuffled    {facts['controls']['shuffled:0']}   (seed 0)")
        console.print(f"  bracketing  {', '.join(facts['controls']['bracketing'])}")


def print_staircase(console: Console, schedule: HeadSchedule) -> None:
    """Draw the staircase, in ASCII where the terminal knows nothing else."""
    block = "█" if "utf" in console.encoding.lower() else "#"
    console.print(staircase(schedule, console.width, block), markup=False, soft_wrap=True)


def _layer_table(layers: Sequence[Facts]) -> Table:
    """One row per phase: its layers are alike."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("layers", "heads", "width"):
        table.add_column(name, justify="right")
    table.add_column("on CUDA", overflow="fold")
    with_backend = "backend" in layers[0]
    if with_backend:
        table.add_column("SDPA backend")
    for run in _runs(layers):
        first = run[0]
        span = layer_ranges([row["layer"] for row in run]).partition(" ")[2]
        cells = [span, str(first["heads"]), str(first["width"]), first["alignment"]]
        table.add_row(*cells, *([first["backend"]] if with_backend else []))
    return table


def _runs(layers: Sequence[Facts]) -> list[list[Facts]]:
    runs: list[list[Facts]] = []
    for row in layers:
        if runs and runs[-1][-1]["heads"] == row["heads"]:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def print_findings(console: Console, findings: Sequence[Facts]) -> None:
    """Each rule with its verdict; a broken one with its layers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rule", "kind", "", "why"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        where = f" ({layer_ranges(finding['layers'])})" if finding["layers"] else ""
        table.add_row(
            finding["rule"], finding["kind"], _verdict(finding), finding["reason"] + where
        )
    console.print(table)


def _verdict(finding: Facts) -> str:
    if finding["ok"]:
        return "[green]holds[/green]"
    if finding["kind"] == "hardware":
        return "[yellow]note[/yellow]"
    return "[red]broken[/red]"


def recipe_comments(facts: Facts) -> str:
    """A recipe's derived numbers as TOML comments, so that the whole output is a recipe."""
    counts, memory, flops = facts["parameters"], facts["memory_bytes"], facts["flops_per_token"]
    rows = [
        (
            "parameters",
            f"{counts['total']:,}: embedding {_si(counts['embedding'])}, attention "
            f"{_si(counts['attention'])}, SwiGLU {_si(counts['mlp'])}, norms "
            f"{_si(counts['norms'])}",
        ),
        ("layers", _layers_and_rules(facts)),
        ("head widths", _spans(facts["head_widths"])),
        (
            "steps",
            f"{facts['steps']:,}, of which {facts['warmup_steps']:,} warmup; "
            f"{facts['tokens']:,} tokens, {facts['tokens_per_parameter']:.3g} per parameter",
        ),
        ("accumulation", _accumulation(facts["accumulation"])),
        (
            "FLOPs/token",
            f"forward {_si(flops['forward'])}, backward {_si(flops['backward'])}; for "
            f"utilisation {_si(flops['utilisation'])} (6N + 12LdT), causal {_si(flops['causal'])}",
        ),
        ("FLOPs", f"{facts['training_flops']:.3g} in all"),
        (
            "memory",
            f"{_gib(memory['total'])} a device: weights {_gib(memory['weights'])}, gradients "
            f"{_gib(memory['gradients'])}, AdamW {_gib(memory['optimizer'])}, casts "
            f"{_gib(memory['casts'])}, activations {_gib(memory['activations'])}, "
            f"loss {_gib(memory['loss'])}"
            + ("; more than an 80 GB device has" if memory["total"] > 80e9 else ""),
        ),
        ("KV cache", f"{facts['kv_bytes_per_sequence'] / 2**20:.1f} MiB a full sequence in bf16"),
        ("8 x H100", _time(facts)),
    ]
    return "\n".join(f"# {name:<12}  {value}" for name, value in rows)


def _layers_and_rules(facts: Facts) -> str:
    broken = "; ".join(facts["broken_rules"])
    return f"{facts['layers']}; " + (f"breaks {broken}" if broken else "keeps the paper's rules")


def _spans(widths: Sequence[int]) -> str:
    """Head widths by layer: ``256 in 0-1, 64 in 2-11``."""
    phases = HeadSchedule.parse(widths).phases
    spans = (layer_ranges(phase.layers).partition(" ")[2] for phase in phases)
    return ", ".join(f"{p.n_heads} in {span}" for p, span in zip(phases, spans, strict=True))


def _accumulation(passes: dict[int, int | None]) -> str:
    parts = [
        f"{n} on {devices} device{'s' if devices > 1 else ''}"
        for devices, n in passes.items()
        if n is not None
    ]
    return ", ".join(parts)


def _time(facts: Facts) -> str:
    hours = f"{facts['hours_at_40_percent']:.3g} h at 40% utilisation"
    return f"{hours}; {_paper_time(facts['paper'])}" if facts["paper"] else hours


def _paper_time(facts: Facts) -> str:
    longer = facts["printed_hours"] / facts["hours"] - 1
    return (
        f"{facts['hours']:.2f} h at the paper's {facts['tokens_per_second']:,} tokens/s "
        f"({facts['utilisation']:.0%} utilisation); it prints {facts['printed_hours']:.2f} h, "
        f"{longer:.0%} longer"
    )


def _si(value: float) -> str:
    """1234567 as 1.23M."""
    units = ["", "k", "M", "G", "T"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.4g}{units[0]}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB"


def progress(console: Console, what: str, items: Sequence[tuple[str, T]]) -> Iterator[T]:
    """Hand out named items: a bar with time left on a terminal, a line for each elsewhere."""
    if not console.is_terminal:
        for index, (name, item) in enumerate(items, start=1):
            console.print(f"{what} {name} ({index} of {len(items)})")
            yield item
        return
    yield from count_up(console, what, (item for _, item in items), len(items))


@contextmanager
def byte_progress(
    console: Console, what: str, total: int | None, done: int
) -> Iterator[Callable[[int], None]]:
    """A function to tell of bytes: a bar with MB/s and time left, or a line now and then."""
    if not console.is_terminal:
        yield _byte_lines(console, what, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda n_bytes: bar.advance(task, n_bytes)


def _byte_lines(console: Console, what: str, done: int) -> Callable[[int], None]:
    """Print progress every ten seconds."""
    started = last = monotonic()
    before = done

    def report(n_bytes: int) -> None:
        nonlocal done, last
        done += n_bytes
        if monotonic() - last >= 10:
            last = monotonic()
            rate = (done - before) / (last - started)
            console.print(f"{what}: {done / 1e6:.0f} MB of text, {rate / 1e6:.1f} MB/s")

    return report


@contextmanager
def work_progress(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to tell how much is done of how much: a bar, or a line now and then."""
    if not console.is_terminal:
        yield _work_lines(console, what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _work_lines(console: Console, what: str) -> Callable[[int, int], None]:
    """Print progress every ten seconds."""
    started = last = monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if monotonic() - last >= 10 and done:
            last = monotonic()
            left = (last - started) / done * (total - done)
            say(console, f"{what}: {done:,} of {total:,}, about {left:.0f} s left")

    return report


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Items per second, once there is one to measure."""
        return Text("" if task.speed is None else f"{task.speed:.2g}/s")


def count_up(console: Console, what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Pass items on while telling how many of them are done."""
    with work_progress(console, what) as report:
        for done, item in enumerate(items, start=1):
            yield item
            report(done, total)


def row_table(rows: Sequence[Facts]) -> Table:
    """Rows of equal keys as a table; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key, value in rows[0].items():
        text = isinstance(value, str)
        table.add_column(key, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
