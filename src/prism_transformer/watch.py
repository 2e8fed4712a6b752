"""A training run as people see it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from prism_transformer.terminal import say
from prism_transformer.train.run import Row

LINE_SECONDS = 10  # between lines where there is no terminal


def watch(console: Console, rows: Iterable[Row], done: int, n_steps: int) -> Iterator[Row]:
    """Pass rows of metrics on and show them: step, loss, tokens/s, time left."""
    show = _bar if console.is_terminal else _lines
    return show(console, rows, done, n_steps)


def _bar(console: Console, rows: Iterable[Row], done: int, n_steps: int) -> Iterator[Row]:
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("validating", total=n_steps, completed=done)
        for row in rows:
            if row["kind"] == "train":
                bar.update(task, completed=row["step"], description=_now(row))
            elif row["kind"] == "val":
                tell(console, _validation(row))
            yield row


def _lines(console: Console, rows: Iterable[Row], done: int, n_steps: int) -> Iterator[Row]:
    started = last = monotonic()
    for row in rows:
        if row["kind"] == "val":
            tell(console, _validation(row))
        elif row["kind"] == "train" and monotonic() - last >= LINE_SECONDS:
            last = monotonic()
            left = (last - started) / (row["step"] - done) * (n_steps - row["step"])
            tell(console, f"step {row['step']} of {n_steps}  {_now(row)}  {left:,.0f} s left")
        yield row


def tell(console: Console, line: str) -> None:
    """Print, or go quiet where nobody reads any more: that is no reason to stop training."""
    try:
        say(console, line)
    except BrokenPipeError:
        console.quiet = True


def _now(row: Row) -> str:
    text = f"loss {row['loss']:.4f}  {row['tokens_per_second']:,.0f} tokens/s"
    used = row["utilisation"]
    return text if used is None else f"{text}  {used:.0%} of peak"


def _validation(row: Row) -> str:
    return f"step {row['step']}  validation loss {row['loss']:.4f}  ({row['seconds']:.1f} s)"
