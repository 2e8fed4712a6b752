"""``prism eval``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from prism_transformer.cli.output import Device, Json, Whole, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.eval.harness import Outcome

Force = Annotated[bool, Parameter(negative=(), show_default=False)]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)]


def evaluate(
    source: str,
    /,
    *,
    tasks: Names = (),
    data: Path | None = None,
    limit: Whole | None = None,
    checkpoint: str | None = None,
    out: Path | None = None,
    batch: Whole = 16,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: Device = "auto",
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Score a model without examples, through lm_eval; exit code 1 when a task failed.

    What is finished is not run again. For several GPUs, each with a share of the items:
    accelerate launch -m prism_transformer eval SOURCE

    Parameters
    ----------
    source
        A run, a Hugging Face folder, or a model's name on the hub.
    tasks
        piqa, hellaswag, arc_easy, winogrande, blimp, wikitext: all six when left out. And
        diagnostic, which is built in and needs no data.
    data
        A folder with the data; they come from the hub when left out. See docs/evaluation.md.
    limit
        Take so many items of each task, the first ones.
    checkpoint
        A run's checkpoint, as in step-200, or all; the newest sound one when left out.
    out
        Where results go; RUN/eval/step-N or eval/NAME when left out.
    batch
        Texts at a time; results do not depend on it.
    dtype
        Precision of the weights.
    force
        Run finished tasks again.
    """
    from prism_transformer.eval.tasks import choose_tasks

    chosen = choose_tasks(tasks)  # before what takes seconds to import
    from prism_transformer.eval.harness import Options
    from prism_transformer.eval.harness import evaluate as run
    from prism_transformer.eval.subjects import find_subjects
    from prism_transformer.terminal import make_console

    console = make_console(stderr=as_json)
    subjects = find_subjects(source, checkpoint, out)
    options = Options(limit, dtype, batch, device, force)
    outcomes = run(console, subjects, chosen, data, options)
    if as_json:
        if not console.quiet:
            print_json([_facts(outcome) for outcome in outcomes])
    else:
        _print(console, outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _facts(outcome: Outcome) -> dict[str, Any]:
    """What a script would read; the harness's own output stays in the files."""
    results = {
        name: {key: value for key, value in result.items() if key != "harness"}
        for name, result in outcome.results.items()
    }
    return {
        "model": outcome.subject.name,
        "out": str(outcome.subject.out),
        "results": results,
        "failures": outcome.failures,
    }


def _print(console: Console, outcomes: Sequence[Outcome]) -> None:
    from prism_transformer.terminal import row_table, say

    for outcome in outcomes:
        say(console, f"\n{outcome.subject.name}, zero-shot; everything is in {outcome.subject.out}")
        for diagnostic in (False, True):
            rows = [
                _shown(row)
                for result in outcome.results.values()
                if result["diagnostic"] == diagnostic
                for row in result["rows"]
            ]
            if rows and diagnostic:
                say(console, "\ndiagnostic, built in: not a benchmark, compare only with itself")
            if rows:
                console.print(row_table(rows))
        for name, reason in outcome.failures.items():
            say(console, f"FAILED  {name}: {reason}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    value, error = row["value"], row["stderr"]
    return row | {
        "value": f"{value:.4f}" if value < 1e4 else f"{value:.4g}",
        "stderr": "-" if error is None else f"± {error:.4f}",
    }
