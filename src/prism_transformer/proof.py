"""``prism neutrality``: the paper's schedules drawn, and neutrality proven on real models."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from prism_transformer import cost
from prism_transformer.design import Preset, presets, propose
from prism_transformer.errors import InputError
from prism_transformer.neutrality import Measurement, measure
from prism_transformer.recipe import ModelConfig
from prism_transformer.recipe_file import load_recipe
from prism_transformer.schedule import HeadSchedule
from prism_transformer.terminal import print_staircase, progress, say

SCALES = ("small", "medium", "large")
SEQ_LEN = 256


def prove(console: Console, out: Path) -> bool:
    """Draw, build, count and compare; True when the pair is neutral."""
    for scale in SCALES:
        _draw(console, presets()[scale])
    _save_figures(console, out)
    console.print(f"\n[bold]neutrality[/bold]: the small pair, built and run on {SEQ_LEN} tokens")
    configs = [load_recipe(f"{name}-small").model for name in ("baseline", "prism")]
    labelled = [(str(config.schedule), config) for config in configs]
    pair = [measure(config, SEQ_LEN) for config in progress(console, "building", labelled)]
    return _print_neutrality(console, configs[1], pair)


def _draw(console: Console, preset: Preset) -> None:
    schedule = preset.schedule
    ranked = propose(preset.d_model, len(schedule), preset.h_base)
    rank = [proposal.schedule for proposal in ranked].index(schedule) + 1
    console.print(
        f"\n[bold]{preset.description}[/bold]: {schedule}   number {rank} of the designs for "
        f"d_model {preset.d_model}, {len(schedule)} layers, {preset.h_base} heads"
    )
    print_staircase(console, schedule)


def _save_figures(console: Console, out: Path) -> None:
    try:
        from prism_transformer.plots.figures import head_schedules, save
    except InputError as missing:  # the rest does not need it
        say(console, f"\nno figures: {missing}")
        return
    console.print()
    for scale in SCALES:
        preset = presets()[scale]
        uniform = HeadSchedule.uniform(preset.h_base, len(preset.schedule))
        file = out / f"schedule-{scale}.png"
        save(head_schedules(uniform, preset.schedule, preset.d_model), file)
        say(console, f"wrote {file}")


def _print_neutrality(console: Console, config: ModelConfig, pair: list[Measurement]) -> bool:
    """Measured side by side, and against the closed forms of ``cost.py``."""
    uniform, prism = pair
    # torch counts the attention kernel's own recomputation of q k' in the backward pass.
    recomputed = cost.forward_flops(config, SEQ_LEN).attention // 2
    rows = [
        ("parameters", uniform.n_params, prism.n_params, cost.parameters(config).total),
        (
            "forward FLOPs",
            uniform.forward_flops,
            prism.forward_flops,
            SEQ_LEN * cost.forward_flops(config, SEQ_LEN).total,
        ),
        (
            "backward FLOPs",
            uniform.backward_flops,
            prism.backward_flops,
            SEQ_LEN * (cost.backward_flops(config, SEQ_LEN).total + recomputed),
        ),
        (
            "KV cache bytes",
            uniform.kv_bytes,
            prism.kv_bytes,
            cost.kv_bytes(config, SEQ_LEN, cost.FLOAT32_BYTES),
        ),
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("measured", "uniform", "prism", "closed form", "equal"):
        table.add_column(name, justify="left" if name == "measured" else "right")
    for name, *values in rows:
        table.add_row(name, *(f"{value:,}" for value in values), _yes(len(set(values)) == 1))
    same_start = uniform.weights == prism.weights
    table.add_row(
        "initial weights", uniform.weights[:12], prism.weights[:12], "-", _yes(same_start)
    )
    console.print(table)
    apart = (uniform.logits - prism.logits).abs().max().item()
    console.print(f"and yet the logits differ, by up to {apart:.3g}: the schedule acts.")
    return same_start and all(len(set(values)) == 1 for _, *values in rows) and apart > 0


def _yes(equal: bool) -> str:
    return "[green]yes[/green]" if equal else "[red]NO[/red]"
