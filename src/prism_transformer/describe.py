"""Everything we can say of a schedule or a recipe, as plain data: what ``--json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prism_transformer import cost, paper
from prism_transformer.design import bracketing_uniforms, reverse, shuffle
from prism_transformer.hardware import Alignment, check_hardware, degrees
from prism_transformer.recipe import Recipe
from prism_transformer.recipe_file import load_recipe
from prism_transformer.rules import check_rules
from prism_transformer.schedule import HeadSchedule

Facts = dict[str, Any]

DEVICES = 8
H100_PEAK_FLOPS = 989.4e12  # dense bfloat16, SXM5


def schedule_facts(
    schedule: HeadSchedule, d_model: int, h_base: int, backends: Sequence[str] | None = None
) -> Facts:
    """A schedule on a model of this width: layers, findings, degrees and controls."""
    findings = check_rules(schedule, d_model, h_base)
    facts: Facts = {
        "schedule": str(schedule),
        "heads": list(schedule.heads),
        "n_layers": len(schedule),
        "d_model": d_model,
        "h_base": h_base,
        "mean_heads": schedule.mean_heads,
        "degrees": list(degrees(schedule)),
    }
    if findings[0].ok:  # where a layer does not split d_model there are no widths to speak of
        findings += check_hardware(schedule, d_model)
        facts["layers"] = _layers(schedule, d_model, backends)
        facts["controls"] = {
            "reversed": str(reverse(schedule)),
            "shuffled:0": str(shuffle(schedule, 0)),
            "bracketing": [str(s) for s in bracketing_uniforms(schedule, d_model)],
        }
    facts["findings"] = [asdict(finding) for finding in findings]
    return facts


def _layers(schedule: HeadSchedule, d_model: int, backends: Sequence[str] | None) -> list[Facts]:
    rows: list[Facts] = []
    widths = schedule.head_dims(d_model)
    for layer, (n_heads, width) in enumerate(zip(schedule.heads, widths, strict=True)):
        kind = Alignment(width)
        rows.append(
            {
                "layer": layer,
                "heads": n_heads,
                "width": width,
                "power_of_two": kind.power_of_two,
                "flash_tile": kind.tile,
                "alignment": str(kind),
            }
        )
        if backends:
            rows[-1]["backend"] = backends[layer]
    return rows


def recipe_facts(recipe: Recipe) -> Facts:
    """Every number that a recipe implies."""
    config, train = recipe.model, recipe.train
    counts = cost.parameters(config)
    tokens = recipe.n_steps * train.batch_tokens
    per_token = cost.utilisation_flops(config, config.seq_len)
    memory = cost.memory(recipe)
    return {
        "parameters": {**asdict(counts), "total": counts.total},
        "layers": config.n_layers,
        "head_widths": list(config.head_dims),
        "steps": recipe.n_steps,
        "warmup_steps": recipe.warmup_steps,
        "tokens": tokens,
        "tokens_per_parameter": tokens / counts.total,
        "accumulation": {n: recipe.accumulation(n) for n in (1, DEVICES)},
        "flops_per_token": {
            "forward": cost.forward_flops(config, config.seq_len).total,
            "backward": cost.backward_flops(config, config.seq_len).total,
            "utilisation": per_token,
            "causal": cost.causal_flops(config, config.seq_len),
        },
        "training_flops": per_token * tokens,
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "kv_bytes_per_sequence": cost.kv_bytes(config, config.seq_len),
        "broken_rules": [
            str(finding)
            for finding in check_rules(config.schedule, config.d_model, config.h_base)
            if not finding.ok
        ],
        "hours_at_40_percent": cost.hours(
            tokens, cost.token_rate(per_token, DEVICES * H100_PEAK_FLOPS, 0.4)
        ),
        "paper": _paper_facts(recipe, tokens, per_token),
    }


def _paper_facts(recipe: Recipe, tokens: int, flops_per_token: int) -> Facts | None:
    """The paper's time for this model on 8 x H100: from its throughput, and as it prints it."""
    scale = _paper_scale(recipe)
    if scale is None:
        return None
    rate = scale.tokens_per_second
    peak = DEVICES * H100_PEAK_FLOPS
    return {
        "scale": scale.name,
        "tokens_per_second": rate,
        "hours": cost.hours(tokens, rate),
        "printed_hours": scale.hours,
        "utilisation": rate / cost.token_rate(flops_per_token, peak, 1.0),
    }


def _paper_scale(recipe: Recipe) -> paper.Scale | None:
    """The scale whose model and token budget these are; another has no throughput to expect."""
    for name, scale in paper.scales().items():
        for arm in ("baseline", "prism"):
            known = load_recipe(f"{arm}-{name}")
            seeded = known.train.model_copy(update={"seed": recipe.train.seed})
            if (recipe.model, recipe.train) == (known.model, seeded):
                return scale
    return None
