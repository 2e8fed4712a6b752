"""``prism analyze``, ``prism loss`` and ``prism eval``: what is measured of a model by its name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from prism_transformer.cli.options import Device, Flag, Json, Whole
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, print_json, print_table, say
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import is_first_process

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.analysis.profile import Profile
    from prism_transformer.eval.harness import Outcome
    from prism_transformer.eval.loss import TextLoss

Text = Annotated[
    str | None,
    Parameter(
        help="Text to measure on: a corpus as prism prepare takes it, or a folder with shards. "
        "Left out: a run's own validation slice; for other models the embedded corpus."
    ),
]
Checkpoint = Annotated[
    str | None,
    Parameter(help="Checkpoint of a run, such as step-100; the newest one when left out."),
]
Several = Annotated[list[str], Parameter(consume_multiple=True)]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)]


def analyze(
    *sources: str,
    compare: Several | None = None,
    sequences: Whole = 16,
    batch: Whole = 1,
    length: Whole | None = None,
    text: Text = None,
    checkpoint: Checkpoint = None,
    effective_rank: Flag = False,
    statistic: str = "distance",
    figure: Path | None = None,
    view: Path | None = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure how far back each head attends, and what may explain it.

    The paper's attention distance, exact and without a T x T matrix, for runs and for any Hugging
    Face causal LM. For several devices:
    torchrun --nproc-per-node 8 -m prism_transformer analyze SOURCE

    Parameters
    ----------
    sources
        Runs, Hugging Face folders, hub names or models that ship (nano, nano-uniform): one arm,
        a model for each seed.
    compare
        The other arm; the difference is this arm minus the first.
    sequences
        How many windows of text to average over.
    batch
        Sequences at once.
    length
        Tokens a sequence; the model's context when left out.
    effective_rank
        Also measure how many directions each head's outputs take.
    statistic
        What the chart and the figure show: distance, sink, distance_without_sink, second_moment,
        excess, entropy or effective_rank; of encoders also ahead, distance_back, distance_ahead.
    figure
        Also draw it here: .svg, .png or .pdf.
    view
        Instead, write a page that looks into one text: every head, and its weights over the words.
        Ends in .html; one model, or two with --compare.
    """
    from prism_transformer.training.naming import check_name

    if not sources:
        raise InputError("nothing to analyze; name a run or a Hugging Face model")
    names = (*sources, *(compare or ()))
    for name in names:
        check_name(name)  # before what takes seconds to import
    from prism_transformer.training.device import keep_memory

    _check_statistic(statistic, effective_rank, names, checkpoint)
    keep_memory()
    if view is not None:
        _check_view(sources, compare or (), figure)
        _write_view(names, view, statistic, text, length, checkpoint, device, as_json)
        return
    from prism_transformer.analysis.profile import attention_profile

    with show_progress(make_console(stderr=True)) as tell:
        measure = partial(
            attention_profile,
            sequences=sequences,
            batch=batch,
            length=length,
            text=text,
            checkpoint=checkpoint,
            effective_rank=effective_rank,
            device=device,
            tell=tell,
        )
        first, second = ([measure(name) for name in arm] for arm in (sources, compare or ()))
    if is_first_process():
        _print_profiles(first, second, statistic, figure, as_json)


def _print_profiles(
    first: list[Profile], second: list[Profile], statistic: str, figure: Path | None, as_json: bool
) -> None:
    """Print one arm or two, a profile for each seed of them, and draw them where asked."""
    from prism_transformer.analysis.profile import layer_figure, layer_table

    profiles, table = [*first, *second], layer_table(first, second, statistic)
    if figure is not None:
        from prism_transformer.figures.style import save

        save(layer_figure(first, second, statistic), figure)
    if as_json:
        named = [{"source": p.source, "text": p.text, **p.to_json()} for p in profiles]
        print_json({"statistic": statistic, "profiles": named, "rows": table.plain_rows()})
        return
    console = make_console()
    if second:
        arms = (", ".join(profile.source for profile in arm) for arm in (first, second))
        say(console, "first: {}; second: {}; difference: second less first".format(*arms))
    print_table(console, table)
    n, length = profiles[0].n_sequences, profiles[0].seq_len
    read = f"{n} {'sequence' if n == 1 else 'sequences'} of {length} tokens"
    say(console, f"{read}, {profiles[0].queries} of each; {profiles[0].text}")
    for file in (*(profile.file for profile in profiles), figure):
        if file:
            say(console, f"wrote {file}")


def _check_view(sources: Sequence[str], compare: Sequence[str], figure: Path | None) -> None:
    if len(sources) > 1 or len(compare) > 1:
        raise InputError("--view: shows one model, or two with --compare; name one for each")
    if figure is not None:
        raise InputError("--view and --figure: give one of them")


def _write_view(
    pair: Sequence[str],
    file: Path,
    statistic: str,
    text: str | None,
    length: int | None,
    checkpoint: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Write the page of one text, and say what the heads do on it."""
    from prism_transformer.analysis.profile import layer_table
    from prism_transformer.analysis.viewer import attention_view, check_view_file

    check_view_file(file)
    with show_progress(make_console(stderr=True)) as tell:
        found = attention_view(
            *pair, text=text, length=length, checkpoint=checkpoint, device=device, tell=tell
        )
    written = found.write(file)
    first, *second = found.profiles
    if as_json:
        print_json({"view": str(written), "profiles": [each.to_json() for each in found.profiles]})
        return
    console = make_console()
    if all(other.seq_len == first.seq_len for other in second):  # tokenizers may cut differently
        print_table(console, layer_table([first], second, statistic))
    text = found.models[0].text
    say(console, f"one text of {first.seq_len} tokens, {first.queries} of it; {text}")
    say(console, f"wrote {written}")


def _check_statistic(
    statistic: str, effective_rank: bool, names: Sequence[str], checkpoint: str | None
) -> None:
    """Refuse what will not be known now rather than after minutes of measuring."""
    from prism_transformer.analysis.both_ways import BOTH_WAYS
    from prism_transformer.analysis.observe import STATISTICS

    known = (*STATISTICS, *BOTH_WAYS, *(["effective_rank"] if effective_rank else []))
    if statistic not in known:
        raise InputError(f"--statistic {statistic!r}: is not one of {', '.join(known)}")
    if statistic not in BOTH_WAYS:
        return
    from prism_transformer.hf.load import sees_ahead

    for name in names:
        if not sees_ahead(name, checkpoint):
            raise InputError(f"--statistic {statistic}: is of encoders; {name} looks back only")


def loss(
    source: str,
    /,
    *,
    sequences: Whole | None = None,
    batch: Whole = 1,
    length: Whole | None = None,
    text: Text = None,
    checkpoint: Checkpoint = None,
    rope_scaling: str | None = None,
    extrapolate: Flag = False,
    keep: Flag = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure loss, perplexity and bits per byte on text, also by position in the context.

    For several devices: torchrun --nproc-per-node 8 -m prism_transformer loss SOURCE

    Parameters
    ----------
    source
        A run, a Hugging Face folder, a hub name, or a model that ships (nano, nano-uniform).
    sequences
        How many windows of text; all of a run's validation slice when left out, else 64.
    batch
        Sequences at once.
    length
        Tokens a sequence; the model's context when left out.
    rope_scaling
        Rescale rotary positions first: linear:2, ntk:2, dynamic:2 or yarn:4.
    extrapolate
        Go beyond the model's context with its positions as they are.
    keep
        Write it down beside the model's other measurements, where a study looks for it.
    """
    from prism_transformer.training.naming import check_name

    check_name(source)  # before what takes seconds to import
    from prism_transformer.eval.loss import text_loss

    with show_progress(make_console(stderr=True)) as tell:
        found = text_loss(
            source,
            sequences=sequences,
            batch=batch,
            length=length,
            text=text,
            checkpoint=checkpoint,
            rope_scaling=rope_scaling,
            extrapolate=extrapolate,
            device=device,
            tell=tell,
        )
    if not is_first_process():
        return
    if keep:
        found.write()
    if as_json:
        print_json(found.to_json())
    else:
        _print_loss(found)


def _print_loss(found: TextLoss) -> None:
    console = make_console()
    print_table(console, found.table)
    say(console, str(found))
    size = f"{found.loss.n_sequences} sequences of {found.length} tokens"
    say(console, f"{size}, standard error over them; {found.text}")


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
    force: Flag = False,
    as_json: Json = False,
) -> int:
    """Score a model zero-shot on benchmarks, through lm_eval; exit code 1 when a task failed.

    What is finished is not run again. For several GPUs, each with a share of the items:
    accelerate launch -m prism_transformer eval SOURCE

    Parameters
    ----------
    source
        A run, a Hugging Face folder, or a model's name on the hub.
    tasks
        piqa, hellaswag, arc_easy, winogrande, blimp, wikitext: all six when left out. And
        diagnostic, passkey and needle, which are built in and need no data.
    data
        A folder with the data; they come from the hub when left out. See docs/evaluation.md.
    limit
        Take so many items of each task, the first ones.
    checkpoint
        A run's checkpoint, as in step-200, or all; the newest one when left out.
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
    from prism_transformer.training.naming import check_name

    chosen = choose_tasks(tasks)  # a typing error is told before what takes seconds to import
    check_name(source)
    from prism_transformer.eval import harness

    console = make_console(stderr=as_json)
    console.quiet = not is_first_process()
    with show_progress(console) as tell:
        done = harness.evaluate(
            source,
            chosen,
            data=data,
            limit=limit,
            checkpoint=checkpoint,
            out=out,
            batch=batch,
            dtype=dtype,
            device=device,
            force=force,
            tell=tell,
        )
    if as_json and not console.quiet:
        print_json([_facts(outcome) for outcome in done.outcomes])
    elif not as_json:
        for outcome in done.outcomes:
            _print_outcome(console, outcome)
    return 1 if done.failures else 0


def _facts(outcome: Outcome) -> dict[str, Any]:
    """An outcome for ``--json``, without lm_eval's own output, which stays in the files."""
    results = {
        name: {key: value for key, value in result.items() if key != "harness"}
        for name, result in outcome.results.items()
    }
    place = {"model": outcome.name, "out": str(outcome.out)}
    return {**place, "results": results, "failures": outcome.failures}


def _print_outcome(console: Console, outcome: Outcome) -> None:
    size = ""
    if outcome.model.run is not None:
        from prism_transformer.training.run import Run

        size = f" ({Run.open(outcome.model.run).size} parameters)"
    say(console, f"\n{outcome.name}{size}, zero-shot; everything is in {outcome.out}")
    for diagnostic in (False, True):
        table = outcome.table(diagnostic=diagnostic)
        if table.rows and diagnostic:
            say(console, "\ndiagnostic, built in: not a benchmark, compare only with itself")
        if table.rows:
            print_table(console, table)
    for name, reason in outcome.failures.items():
        say(console, f"FAILED  {name}: {reason}")
