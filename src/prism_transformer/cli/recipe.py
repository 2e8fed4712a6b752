"""``prism show`` and ``prism recipes``, with the numbers a recipe implies, and ``neutrality``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_transformer.cli.options import Json
from prism_transformer.cli.overrides import NOTHING, Short, recipe_and_overrides
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import (
    estimate,
    list_or_copy,
    make_console,
    print_json,
    print_staircase,
    print_table,
    say,
)
from prism_transformer.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.recipe import Recipe

Facts = dict[str, Any]

DEVICES = 8  # H100s in the paper's machine
SHORTEST_HOURS = 0.1  # below, a time is written in minutes or seconds
PROOF_TOKENS = 256  # in the sequence that both models of the proof are run on


def show(recipe: str, /, *overrides: str, short: Short = NOTHING, as_json: Json = False) -> None:
    """Print a recipe with everything filled in, and every number it implies.

    The output is itself a recipe: the derived numbers are comments.

    Parameters
    ----------
    recipe
        A file, or the name of one that ships (prism recipes).
    overrides
        Changes such as optim.lr=3e-4 or "model.schedule=3x2 12x10".
    """
    from prism_transformer.recipes.files import load_recipe, recipe_toml

    resolved = load_recipe(*recipe_and_overrides(recipe, overrides, short))
    facts = recipe_facts(resolved)
    if as_json:
        print_json({"recipe": resolved.model_dump(), "derived": facts})
    else:
        print(recipe_toml(resolved))
        print(recipe_comments(facts))


def recipes(name: str | None = None, /, *, out: Path | None = None, as_json: Json = False) -> None:
    """List the recipes that ship, or copy one out to change it.

    Parameters
    ----------
    name
        The recipe to copy; all are listed when left out.
    out
        Where to; the recipe's own name in this folder when left out. Never overwrites.
    """
    from prism_transformer.recipes.files import copy_recipe

    rows = partial(_recipe_rows, as_json)
    list_or_copy("recipe", name, out, copy_recipe, rows, as_json)


def _recipe_rows(as_json: bool) -> list[Facts]:
    from prism_transformer.models.cost import parameters, size_text
    from prism_transformer.recipes.files import load_recipe, packaged_recipes

    # Those that others are based on come last: one trains the others.
    shipped = sorted(packaged_recipes().items(), key=lambda each: "/" in each[0])
    rows = []
    for name, file in shipped:
        recipe = load_recipe(name)
        tokens = recipe.train.tokens
        rows.append({
            "name": name,
            "schedule": str(recipe.model.schedule),
            "parameters": size_text(parameters(recipe.model).total),
            "d_model": recipe.model.d_model,
            "tokens": tokens if as_json else _si(tokens).replace("G", "B"),
            "about": file.read_text("utf-8").partition("\n")[0].removeprefix("# "),
        })  # fmt: skip
    return rows


def recipe_facts(recipe: Recipe) -> Facts:
    """Every number that a recipe implies."""
    from prism_transformer.models import cost
    from prism_transformer.schedules.hardware import PEAK_FLOPS
    from prism_transformer.schedules.rules import check_rules

    config, seq_len = recipe.model, recipe.model.seq_len
    causal = config.attention == "causal"
    counts, memory = cost.parameters(config), cost.memory(recipe)
    tokens = recipe.n_steps * recipe.train.batch_tokens
    per_token = cost.utilisation_flops(config, seq_len)
    peak_rate = cost.token_rate(per_token, DEVICES * PEAK_FLOPS["H100"], 1.0)
    rules = check_rules(config.schedule, config.d_model, config.h_base)
    return {
        "parameters": {**asdict(counts), "total": counts.total},
        "layers": config.n_layers,
        "head_widths": list(config.head_dims),
        "steps": recipe.n_steps,
        "warmup_steps": recipe.warmup_steps,
        "tokens": tokens,
        "tokens_per_parameter": cost.tokens_per_parameter(recipe),
        "accumulation": {n: recipe.accumulation(n) for n in (1, DEVICES)},
        "flops_per_token": {
            "forward": cost.forward_flops(config, seq_len).total,
            "backward": cost.backward_flops(config, seq_len).total,
            "utilisation": per_token,
            "needed": cost.needed_flops(config, seq_len),
        },
        "training_flops": per_token * tokens,
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "kv_bytes_per_sequence": cost.kv_bytes(config, seq_len) if causal else None,
        "broken_rules": [str(finding) for finding in rules if not finding.ok],
        "hours_at_40_percent": cost.hours(tokens, 0.4 * peak_rate),
        "paper": _paper_facts(recipe, tokens, peak_rate),
    }


def _paper_facts(recipe: Recipe, tokens: int, peak_rate: float) -> Facts | None:
    """The paper's time for this model on 8 x H100: from its throughput, and as it prints it."""
    from prism_transformer.models import cost
    from prism_transformer.recipes.files import SAME_SPEED, paper_scale

    scale = paper_scale(recipe, SAME_SPEED)
    if scale is None:
        return None
    rate = scale.tokens_per_second
    return {
        "scale": scale.name,
        "tokens_per_second": rate,
        "hours": cost.hours(tokens, rate),
        "printed_hours": scale.hours,
        "utilisation": rate / peak_rate,
    }


def recipe_comments(facts: Facts) -> str:
    """A recipe's derived numbers as TOML comments, so that the whole output is a recipe."""
    from prism_transformer.schedule import HeadSchedule
    from prism_transformer.schedules.rules import spans

    counts, flops = facts["parameters"], facts["flops_per_token"]
    broken = "; ".join(facts["broken_rules"])
    # As a schedule the widths are cut into phases: they change where head counts do.
    widths = HeadSchedule.parse(facts["head_widths"]).phases
    passes = {n: each for n, each in facts["accumulation"].items() if each is not None}
    rows = {
        "parameters": f"{counts['total']:,}: embedding {_si(counts['embedding'])}, "
        + (f"lm_head {_si(counts['lm_head'])}, " if counts["lm_head"] else "")
        + f"attention "
        f"{_si(counts['attention'])}, SwiGLU {_si(counts['mlp'])}, norms {_si(counts['norms'])}",
        "layers": f"{facts['layers']}; "
        + (f"breaks {broken}" if broken else "keeps the paper's rules"),
        "head widths": ", ".join(f"{each.n_heads} in {spans(each.layers)}" for each in widths),
        "steps": f"{facts['steps']:,}, of which {facts['warmup_steps']:,} warmup; "
        f"{facts['tokens']:,} tokens, {facts['tokens_per_parameter']:.3g} per parameter",
        "accumulation": ", ".join(
            f"{each} on {n} device{'s' * (n > 1)}" for n, each in passes.items()
        ),
        "FLOPs/token": f"forward {_si(flops['forward'])}, backward {_si(flops['backward'])}; for "
        f"utilisation {_si(flops['utilisation'])} (6N + 12LdT), needed {_si(flops['needed'])}",
        "FLOPs": f"{facts['training_flops']:.3g} in all",
        "memory": _memory(facts["memory_bytes"]),
        **_cache(facts["kv_bytes_per_sequence"]),
        "8 x H100": f"{_time(facts['hours_at_40_percent'])} at 40% utilisation"
        + (f"; {_paper_time(facts['paper'])}" if facts["paper"] else ""),
    }
    return "\n".join(f"# {name:<12}  {value}" for name, value in rows.items())


def _cache(n_bytes: int | None) -> dict[str, str]:
    """Nothing of an encoder, which keeps no keys and values."""
    if n_bytes is None:
        return {}
    return {"KV cache": f"{n_bytes / 2**20:.1f} MiB a full sequence in bf16"}


def _time(hours: float) -> str:
    """Hours, as the paper counts; in smaller units below a tenth of an hour."""
    return f"{hours:.3g} h" if hours >= SHORTEST_HOURS else estimate(3600 * hours)


def _memory(n_bytes: dict[str, int]) -> str:
    names = {"optimizer": "AdamW"}
    gib = {names.get(part, part): f"{size / 2**30:.2f} GiB" for part, size in n_bytes.items()}
    total = gib.pop("total")
    parts = ", ".join(f"{part} {size}" for part, size in gib.items())
    much = "; more than an 80 GB device has" if n_bytes["total"] > 80e9 else ""
    return f"{total} a device: {parts}{much}"


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


def neutrality(*, out: Path = Path("figures")) -> int:
    """Draw the paper's schedules, and show that both its small models cost the same.

    Parameters
    ----------
    out
        Folder for the figures.
    """
    from prism_transformer.models.neutrality import prove_neutrality
    from prism_transformer.recipes.files import load_recipe

    console = make_console()
    _draw_paper(console, out)
    console.print(
        f"\n[bold]neutrality[/bold]: the small pair, built and run on {PROOF_TOKENS} tokens"
    )
    pair = [load_recipe(f"{name}-small").model for name in ("baseline", "prism")]
    with show_progress(console) as tell:
        found = prove_neutrality(pair[0], pair[1], PROOF_TOKENS, tell=tell)
    print_table(console, found.table, {"yes": "green", "NO": "red"})
    console.print(
        f"and yet the logits differ, by up to {found.logits_apart:.3g}: the schedule acts."
    )
    return 0 if found.holds else 1


def _draw_paper(console: Console, out: Path) -> None:
    """Its three schedules in the terminal, each with its rank among our designs, and as figures."""
    from prism_transformer.schedule import HeadSchedule
    from prism_transformer.schedules.design import propose
    from prism_transformer.schedules.paper import SCALES, presets

    scales = [presets()[scale] for scale in SCALES]
    for preset in scales:
        schedule = preset.schedule
        ranked = propose(preset.d_model, len(schedule), preset.h_base)
        rank = [proposal.schedule for proposal in ranked].index(schedule) + 1
        console.print(
            f"\n[bold]{preset.description}[/bold]: {schedule}   number {rank} of the designs for "
            f"d_model {preset.d_model}, {len(schedule)} layers, {preset.h_base} heads"
        )
        print_staircase(console, schedule)
    try:
        from prism_transformer.figures.schedules import head_schedules
        from prism_transformer.figures.style import save
    except InputError as missing:  # without matplotlib; the proof does not need it
        say(console, f"\nno figures: {missing}")
        return
    console.print()
    for preset in scales:
        twin = HeadSchedule.uniform(preset.h_base, len(preset.schedule))
        file = out / f"schedule-{preset.name}.png"
        save(head_schedules(twin, preset.schedule, preset.d_model), file)
        say(console, f"wrote {file}")
