"""The paper's tables from collected studies, with the paper's own numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from prism_transformer import paper
from prism_transformer.report.table import (
    Cell,
    Column,
    Row,
    Table,
    interval,
    number,
    spread,
    text,
)
from prism_transformer.report.views import View
from prism_transformer.study.statistics import Ratio, ratio, summarise

PAPER = "paper"
EVALUATE = "prism eval RUN, then prism study collect"
INFERENCE = ("prefill", "decoding")


def make_table(
    key: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    views: Sequence[View],
    note: str = "",
    fill: str = "",
) -> Table:
    """A table of these rows; without any, one that says what would fill it."""
    filled = tuple(rows)
    made = "; ".join(dict.fromkeys(view.command for view in views))
    missing = "" if filled else "no run has these numbers yet"
    command = made if filled or not fill else fill
    return Table(key, title, tuple(columns), filled, note, command, missing)


def words(*names: str) -> list[Column]:
    """Columns of text."""
    return [Column(name, numeric=False) for name in names]


def paper_arm(view: View, arm: str) -> str | None:
    """Which of the paper's two arms this is, at its scale: ``baseline``, ``prism`` or neither."""
    scale = view.scale
    if scale is None or view.changes(arm):
        return None
    if view.schedule(arm) == scale.schedule:
        return "prism"
    return "baseline" if view.schedule(arm).heads == (scale.h_base,) * scale.n_layers else None


def paper_ablation(view: View, arm: str) -> paper.Ablation | None:
    """The paper's row of its ablation for this arm; only at the small scale."""
    if view.scale is None or view.scale.name != "small" or view.changes(arm):
        return None
    rows = paper.ablation().values()
    return next((row for row in rows if row.schedule == view.schedule(arm)), None)


def configurations(views: Sequence[View]) -> Table:
    """Table 1: the models and how long they train."""
    columns = [
        *words("study", "source"), Column("parameters"), Column("layers"), Column("d_model"),
        Column("h_base"), Column("context", "tokens"), Column("batch", "tokens"),
        Column("peak learning rate"), Column("training tokens"), Column("tokens per parameter"),
    ]  # fmt: skip
    rows = []
    for view in views:
        recipe, parameters = view.recipe, view.parameters
        values = (
            len(view.schedule(view.baseline)), view.d_model, view.h_base,
            recipe["model"]["seq_len"], recipe["train"]["batch_tokens"],
        )  # fmt: skip
        rows.append(
            Row((
                text(view.name), text("ours"), number(parameters, 0),
                *(number(value, 0) for value in values),
                Cell(f"{_learning_rate(view):.2g}", _learning_rate(view)), number(view.tokens, 0),
                number(view.tokens / parameters, 1),
            ))
        )  # fmt: skip
        if view.scale is not None:
            rows.append(_paper_configuration(view.name, view.scale))
    note = "Tokens in whole steps. The paper prints rounded sizes."
    return make_table("configurations", "Model configurations", columns, rows, views, note)


def _learning_rate(view: View) -> float:
    return float(view.recipe["optim"]["lr"])


def _paper_configuration(name: str, scale: paper.Scale) -> Row:
    cells = (
        text(name), text(PAPER), text(scale.params), number(scale.n_layers, 0),
        number(scale.d_model, 0), number(scale.h_base, 0), number(paper.text().context, 0),
        text(scale.batch), Cell(f"{scale.lr:.2g}", scale.lr), text(scale.tokens), text(None),
    )  # fmt: skip
    return Row(cells, paper=True)


def results(views: Sequence[View]) -> Table:
    """Table 2: loss, rate and time of every arm."""
    columns = [
        *words("study", "arm"), Column("seeds"), Column("validation loss", "nats/token"),
        Column("paper's loss", "nats/token"), Column("rate", "tokens/s"),
        Column("paper's rate", "tokens/s"), Column("training time", "h"),
        Column("paper's wall-clock", "h"),
    ]  # fmt: skip
    rows = []
    for view in views:
        losses = view.scalar("final_val_loss")
        rates = view.scalar("tokens_per_second").where(losses.notna())
        seconds = view.scalar("seconds").where(losses.notna())
        for arm in view.arms:
            kind = paper_arm(view, arm)
            scale = view.scale if kind else None
            cells = (
                text(view.name), text(arm), number(losses[arm].count(), 0), over_seeds(losses[arm]),
                _paper_loss(view, arm),
                over_seeds(rates[arm], 0), number(scale.tokens_per_second if scale else None, 0),
                over_seeds(seconds[arm] / 3600, hour_places(view)),
                number(scale.hours if scale else None, 2),
            )  # fmt: skip
            rows.append(Row(cells, arm))
    note = (
        "Mean and sample s.d. over runs that were trained to the end; a rate is each run's median "
        "step; training time is that of all steps, without validation and checkpoints. The paper: "
        "three seeds, 8 x H100."
    )
    return make_table("results", "Validation loss, rate and time", columns, rows, views, note)


def hour_places(view: View) -> int:
    """Decimals of an hour: two as the paper has, four where runs take minutes."""
    longest = view.scalar("seconds").max(axis=None)
    return 4 if longest < 900 else 2


def _paper_loss(view: View, arm: str) -> Cell:
    kind, row = paper_arm(view, arm), paper_ablation(view, arm)
    if kind is not None and view.scale is not None:
        return spread(view.scale.loss[kind], view.scale.loss_std[kind])
    return number(row.loss if row else None)


def over_seeds(values: Iterable[float], places: int = 4) -> Cell:
    """Mean and s.d. of those that are there."""
    known = [value for value in values if value == value]
    if not known:
        return text(None)
    summary = summarise(known)
    return spread(summary.mean, summary.sd, places)


def differences(views: Sequence[View]) -> Table:
    """Each arm less its baseline, seed by seed, and what that can bear."""
    columns = [
        *words("study", "arm"), Column("pairs"), Column("difference", "nats/token"),
        Column("95 % interval", "nats/token"), Column("s.d. of pairs", "nats/token"),
        Column("least detectable", "nats/token"), Column("p"), Column("p, Holm"),
        Column("least possible p"), Column("paper's", "nats/token"), *words("seed by seed"),
    ]  # fmt: skip
    rows = []
    for view in views:
        for arm in view.others:
            row = view.row(arm)
            test = row.difference
            if test is None:
                continue
            cells = (
                text(view.name), text(arm), number(test.n, 0), number(test.mean, sign=True),
                interval(test.low, test.high), number(test.sd), number(test.detectable),
                number(test.p, 3), number(row.adjusted_p, 3), number(test.p_floor, 3),
                number(paper_gap(view, arm), sign=True),
                text(", ".join(number(value, sign=True).text for value in test.differences)),
            )  # fmt: skip
            rows.append(Row(cells, arm))
    note = (
        "Validation loss, arm less baseline of the same seed: negative is better. t interval of "
        "the mean; least detectable: the true difference found in four of five such studies; p: "
        "exact sign flips, two-sided; Holm: adjusted for the arms of the study."
    )
    fill = "prism study run"
    return make_table(
        "differences", "Differences to the baseline", columns, rows, views, note, fill
    )


def paper_gap(view: View, arm: str) -> float | None:
    row = paper_ablation(view, arm)
    if row is not None and row.gain is not None:
        return -row.gain
    if view.scale is not None and paper_arm(view, arm) == "prism":
        return view.scale.gap
    return None


def ablation(views: Sequence[View]) -> Table:
    """Table 5: schedules with what they gain and what they cost."""
    columns = [
        *words("study", "arm", "schedule"), Column("mean heads"), Column("layers at base", "%"),
        Column("validation loss", "nats/token"), Column("difference", "nats/token"),
        Column("paper's", "nats/token"), Column("rate change", "%"), Column("95 % interval", "%"),
        Column("paper's", "%"),
    ]  # fmt: skip
    rows = []
    for view in views:
        losses = view.scalar("final_val_loss")
        for arm in view.arms:
            schedule, known = view.schedule(arm), paper_ablation(view, arm)
            found = view.row(arm).difference if arm != view.baseline else None
            change = rate_change(view, arm)
            cells = (
                text(view.name), text(arm), text(_described(view, arm)),
                number(schedule.mean_heads, 2),
                number(100 * share_at_base(view, arm), 0),
                over_seeds(losses[arm]),
                number(found.mean if found else None, sign=True),
                number(paper_gap(view, arm), sign=True),
                number(change[0], 1, sign=True), interval(change[1], change[2], 1),
                number(known.throughput_change if known else None, 1, sign=True),
            )  # fmt: skip
            rows.append(Row(cells, arm))
    note = "Differences and rates against the baseline of the same seed; negative loss is better."
    return make_table("ablation", "Schedules: gain and cost", columns, rows, views, note)


def layers_below_base(view: View, arm: str) -> int:
    """How many layers come before the first with the base head count."""
    heads = view.schedule(arm).heads
    return next((layer for layer, n in enumerate(heads) if n >= view.h_base), len(heads))


def share_at_base(view: View, arm: str) -> float:
    """How many of an arm's layers have the base head count."""
    heads = view.schedule(arm).heads
    return heads.count(view.h_base) / len(heads)


def _described(view: View, arm: str) -> str:
    changes = ", ".join(f"{key}={value}" for key, value in view.changes(arm).items())
    return f"{view.schedule(arm)}" + (f"; {changes}" if changes else "")


def rate_change(view: View, arm: str) -> tuple[float | None, float | None, float | None]:
    """Percent of the baseline's tokens per second: geometric mean over seeds and its t interval."""
    found = view.row(arm).throughput if arm != view.baseline else None
    if found is None:
        return None, None, None
    return percent(found)


def percent(found: Ratio) -> tuple[float, float, float]:
    """By how much a ratio differs from 1: mean, low and high end."""
    return 100 * (found.mean - 1), 100 * (found.low - 1), 100 * (found.high - 1)


def inference(views: Sequence[View]) -> Table:
    """Speed of inference, arm against baseline in interleaved rounds."""
    columns = [*words("study", "arm"), Column("seeds")]
    for kind in INFERENCE:
        columns += [
            Column(kind, "tokens/s"), Column(f"{kind}, change", "%"), Column("95 % interval", "%"),
        ]  # fmt: skip
    rows = []
    for view in views:
        rates = [view.scalar(f"inference.{kind}") for kind in INFERENCE]
        for arm in view.arms:
            if not rates[0][arm].any():
                continue
            cells = [text(view.name), text(arm), number(rates[0][arm].count(), 0)]
            for kind, rate in zip(INFERENCE, rates, strict=True):
                found = inference_ratio(view, arm, kind)
                mean, low, high = percent(found) if found else (None, None, None)
                cells += [over_seeds(rate[arm], 0), number(mean, 1, sign=True)]
                cells += [interval(low, high, 1)]
            rows.append(Row(tuple(cells), arm))
    note = (
        "One sequence at a time: prefill reads a whole context, decoding writes after a prompt; "
        "weights are drawn anew, as no speed depends on what was learnt. "
        "Each change is against the baseline in the same rounds, so that of the baseline itself "
        "is what the measurement makes of no difference."
    )
    return make_table(
        "inference", "Speed of inference", columns, rows, views, note, "a study with [inference]"
    )


def inference_ratio(view: View, arm: str, kind: str) -> Ratio | None:
    """Tokens per second to the baseline's, over the seeds that have it."""
    known = view.scalar(f"inference.{kind}.ratio")[arm].dropna()
    return None if known.empty else ratio(known, np.ones(len(known)))


def schedules(views: Sequence[View]) -> Table:
    """Table 4: the heads of every arm."""
    columns = [
        *words("study", "arm", "source"), Column("d_model"), Column("layers"), Column("h_base"),
        *words("schedule", "head widths"), Column("mean heads"),
    ]  # fmt: skip
    rows = []
    for view in views:
        for arm in view.arms:
            rows.append(_schedule_row(view, arm, "ours"))
            if paper_arm(view, arm) == "prism":
                rows.append(_schedule_row(view, arm, PAPER))
    note = "3x2 reads: 3 heads for 2 layers. Widths in channels, one for each phase."
    return make_table("schedules", "Head schedules", columns, rows, views, note)


def _schedule_row(view: View, arm: str, source: str) -> Row:
    schedule = view.schedule(arm)
    if source == PAPER and view.scale is not None:
        schedule = view.scale.schedule
    widths = ", ".join(str(view.d_model // phase.n_heads) for phase in schedule.phases)
    cells = (
        text(view.name), text(arm), text(source), number(view.d_model, 0),
        number(len(schedule), 0), number(view.h_base, 0), text(str(schedule)), text(widths),
        number(schedule.mean_heads, 2),
    )  # fmt: skip
    return Row(cells, arm, paper=source == PAPER)


def runs(views: Sequence[View]) -> Table:
    """What became of every run."""
    columns = [
        *words("study", "run", "arm"), Column("seed"), *words("state"), Column("rate", "tokens/s"),
        Column("training time", "h"), Column("peak memory", "GB"), *words("hardware", "failure"),
    ]  # fmt: skip
    rows = []
    for view in views:
        rates, seconds = view.scalar("tokens_per_second"), view.scalar("seconds")
        memory = view.scalar("memory_bytes")
        for run in view.runs:
            at = (run["seed"], run["arm"])
            cells = (
                text(view.name), text(run["run"]), text(run["arm"]), number(run["seed"], 0),
                text(run["state"]), number(rates.at[at], 0),
                number(seconds.at[at] / 3600, hour_places(view)),
                number(memory.at[at] / 1e9, 2), text(machine(run["hardware"])),
                text(run["failure"]),
            )  # fmt: skip
            rows.append(Row(cells, run["arm"]))
    return make_table("runs", "Every run", columns, rows, views, "GB: 10^9 bytes.")


def machine(hardware: dict | None) -> str:
    """The hardware of a run in a few words."""
    if not hardware:
        return ""
    if hardware.get("gpu"):
        return f"{hardware.get('gpus', 1)} x {hardware['gpu']}"
    cores = f", {hardware['cores']} cores" if hardware.get("cores") else ""
    return f"{hardware.get('processor', 'unknown processor')}{cores}"
