"""``prism analyze`` and ``prism loss``."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prism_transformer.cli.output import Json, Whole, print_json
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from prism_transformer.analysis.profile import Profile
    from prism_transformer.eval.loss import Loss
    from prism_transformer.eval.source import Source

Text = Annotated[
    str | None,
    Parameter(
        help="Text to measure on: a corpus as prism prepare takes it, or a folder with shards. "
        "Left out: a run's own validation slice; for other models the embedded corpus."
    ),
]
Checkpoint = Annotated[
    str | None, Parameter(help="Of a run, such as step-100; the newest sound one when left out.")
]
Several = Annotated[list[str], Parameter(consume_multiple=True)]


def analyze(
    *sources: str,
    compare: Several | None = None,
    sequences: Whole = 16,
    batch: Whole = 1,
    length: Whole | None = None,
    text: Text = None,
    checkpoint: Checkpoint = None,
    effective_rank: bool = False,
    statistic: str = "distance",
    figure: Path | None = None,
    as_json: Json = False,
) -> None:
    """Where each head attends: the paper's attention distance, and what may explain it.

    Exact, without a T x T matrix, for runs and for any Hugging Face causal LM.

    Parameters
    ----------
    sources
        Runs, Hugging Face folders or hub names: one arm, a source for each seed.
    compare
        The other arm; the difference is this one minus the first.
    sequences
        How many windows of text to average over.
    batch
        Sequences at once.
    length
        Tokens a sequence; the model's context when left out.
    effective_rank
        Also how many directions each head's outputs take.
    statistic
        What the chart and the figure show: distance, sink, distance_without_sink, second_moment,
        excess, entropy or effective_rank.
    figure
        Also draw it here: .svg, .png or .pdf.
    """
    from prism_transformer.analysis.chart import check_comparable
    from prism_transformer.analysis.observe import STATISTICS
    from prism_transformer.eval.source import open_source
    from prism_transformer.train.device import keep_memory

    keep_memory()
    if not sources:
        raise InputError("nothing to analyze; name a run or a Hugging Face model")
    known = (*STATISTICS, *(["effective_rank"] if effective_rank else []))
    if statistic not in known:
        raise InputError(f"--statistic {statistic!r}: is not one of {', '.join(known)}")
    arms: list[list[tuple[Source, Profile]]] = []
    for names in (sources, compare or ()):
        arms.append([])
        for name in names:
            source = open_source(
                name, checkpoint=checkpoint, text=text, length=length, windows=sequences
            )
            profile = _measure(source, sequences, batch, effective_rank)
            profile.write(source.home, {"source": source.name, "text": source.text})
            arms[-1].append((source, profile))
    check_comparable([profile for arm in arms for _, profile in arm])
    _show(arms, statistic, figure, as_json)


def _measure(source: Source, sequences: int, batch: int, effective_rank: bool) -> Profile:
    from prism_transformer.analysis.profile import attention_profile
    from prism_transformer.terminal import count_up, make_console

    total = -(-sequences // batch)
    batches = (rows[:, :-1] for rows in source.batches(sequences, batch))
    watched = count_up(make_console(stderr=True), f"measuring {source.name}", batches, total)
    return attention_profile(source.model, watched, effective_rank=effective_rank)


def _show(
    arms: list[list[tuple[Source, Profile]]], statistic: str, figure: Path | None, as_json: bool
) -> None:
    from prism_transformer.analysis.chart import profile_rows
    from prism_transformer.plots.figures import save
    from prism_transformer.plots.profiles import compare_profiles

    first, second = ([profile for _, profile in arm] for arm in arms)
    rows = profile_rows(first, second, statistic)
    if figure is not None:
        if second:
            drawn = compare_profiles(
                [each.means(statistic) for each in first],
                [each.means(statistic) for each in second],
                _names(arms),
                second[0].n_progressive,
                statistic,
            )
        else:
            drawn = first[0].plot(statistic)
        save(drawn, figure)
    if as_json:
        print_json(
            {
                "statistic": statistic,
                "profiles": [
                    {"source": source.name, "text": source.text, **profile.to_json()}
                    for arm in arms
                    for source, profile in arm
                ],
                "rows": rows,
            }
        )
        return
    _print(arms, rows, figure)


def _names(arms: list[list[tuple[Source, Profile]]]) -> tuple[str, str]:
    """What tells the arms apart: their schedules, or else their names."""
    from prism_transformer.schedule import HeadSchedule

    one, two = (str(HeadSchedule(arm[0][1].schedule)) for arm in arms)
    return (one, two) if one != two else (arms[0][0][0].name, arms[1][0][0].name)


def _print(
    arms: list[list[tuple[Source, Profile]]], rows: list[dict[str, Any]], figure: Path | None
) -> None:
    from prism_transformer.analysis import PROFILE_FILE
    from prism_transformer.terminal import make_console, row_table, say

    console = make_console()
    console.print(row_table(rows))
    source, profile = arms[0][0]
    say(
        console,
        f"{profile.n_sequences} sequences of {profile.seq_len} tokens, last half of each; "
        f"{source.text}",
    )
    for arm in arms:
        for source, _ in arm:
            say(console, f"wrote {source.home / PROFILE_FILE}")
    if figure is not None:
        say(console, f"wrote {figure}")


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
    extrapolate: bool = False,
    as_json: Json = False,
) -> None:
    """Loss, perplexity and bits per byte on text, also by position in the context.

    Parameters
    ----------
    source
        A run, a Hugging Face folder or a hub name.
    sequences
        How many windows of text; all of a run's validation slice when left out, else 64.
    batch
        Sequences at once.
    length
        Tokens a sequence; the model's context when left out.
    rope_scaling
        Rescale rotary positions first: linear:2, dynamic:2 or yarn:4.
    extrapolate
        Go beyond the model's context with its positions as they are.
    """
    from prism_transformer.eval.loss import check_context, measure_loss, with_rope_scaling
    from prism_transformer.eval.source import open_source
    from prism_transformer.hf.convert import to_hf
    from prism_transformer.model import PrismLM
    from prism_transformer.terminal import count_up, make_console

    opened = open_source(
        source, checkpoint=checkpoint, text=text, length=length, windows=sequences or 64
    )
    # What is published is what is measured.
    model: Any = to_hf(opened.model) if isinstance(opened.model, PrismLM) else opened.model
    if rope_scaling is not None:
        model = with_rope_scaling(model, rope_scaling)
    count = sequences or opened.n_scored or min(64, len(opened.rows))
    check_context(model, opened.seq_len, extrapolate)
    windows = opened.batches(count, batch)
    batches = count_up(make_console(stderr=True), "scoring", windows, -(-count // batch))
    found = measure_loss(model, batches)
    n_bytes = sum(opened.n_bytes(rows[:, 1:].numpy()) for rows in opened.batches(count, batch))
    facts = {
        "source": opened.name,
        "text": opened.text,
        "sequences": found.n_sequences,
        "length": opened.seq_len,
        "tokens": found.n_tokens,
        "loss": found.mean,
        "error": None if isnan(found.error) else found.error,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte(n_bytes),
    }
    if as_json:
        print_json(facts | {"by_position": found.by_position.tolist()})
        return
    _print_loss(found, facts)


def _print_loss(found: Loss, facts: dict[str, Any]) -> None:
    from prism_transformer.terminal import make_console, row_table, say

    console = make_console()
    console.print(row_table(found.doubling()))
    say(
        console,
        f"loss {found.mean:.4f} +- {found.error:.4f} nats, perplexity {found.perplexity:.2f}, "
        f"{facts['bits_per_byte']:.4f} bits per byte",
    )
    say(
        console,
        f"{found.n_sequences} sequences of {facts['length']} tokens, standard error over them; "
        f"{facts['text']}",
    )
