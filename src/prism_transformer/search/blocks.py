"""What each layer's head count is worth alone: the verb ``block_scores``.

After the recipe of Puzzle (Bercovich et al. 2024): in a trained model one layer at a time gets
another head count, is tuned briefly with all others fixed, and the loss is recorded. Such scores
add up, so that ``solve.py`` finds the best schedule of all without training any.
"""

from __future__ import annotations

from pathlib import Path

from prism_transformer.bench.measure import Conditions, attention_table
from prism_transformer.core.progress import Begun, Tell, counted, silent
from prism_transformer.recipe import Map
from prism_transformer.schedule import HeadSchedule
from prism_transformer.schedules.space import Space
from prism_transformer.search.scores import BLOCKS, FILES, FOLDER, Blocks, Settings, write_scores
from prism_transformer.search.shared import Shared, check_tuning
from prism_transformer.training.run import Run

ROUNDS = 5  # in which head counts take turns


def block_scores(
    run: Run | Path | str,
    space: Space | str,
    *,
    windows: int | None = None,
    steps: int = 32,
    rate: float = 0.1,
    timed: bool = True,
    device: str = "auto",
    tell: Tell = silent,
) -> Blocks:
    """Loss of a run with each layer at each head count of a space alone, tuned for some steps.

    Every layer is tuned at its own head count, too, and scores are differences to that. ``timed``
    measures how long attention takes at each count on this machine. Written to
    RUN/search/blocks.json.
    """
    opened = Run.open(run)
    space = Space.parse(space) if isinstance(space, str) else space
    model = opened.recipe.model
    space.check(model.d_model, model.n_layers, model.queries_per_kv)
    check_tuning(steps, rate)
    shared = Shared.open(opened, device)
    asked = Settings(windows=shared.windows(windows), steps=steps, rate=rate)
    own = model.schedule.heads
    pairs = [
        (layer, n)
        for layer, counts in enumerate(space.choices)
        for n in sorted({*counts, own[layer]})
    ]
    # Speeds that belong to heads cannot be matched; there is no other map for them.
    how: Map = "reshape" if model.rope_frequencies == "split" else "matched"
    losses: list[dict[int, float]] = [{} for _ in own]
    for layer, n_heads in counted(tell, "blocks", pairs, len(pairs), "blocks"):
        schedule = HeadSchedule((*own[:layer], n_heads, *own[layer + 1 :]))
        losses[layer][n_heads] = shared.loss(schedule, asked, layer=layer, how=how)
    times = _times(shared, sorted({n for _, n in pairs}), tell) if timed else {}
    found = Blocks(
        **shared.facts, asked=asked, schedule=str(model.schedule), losses=tuple(losses),
        milliseconds=times,
    )  # fmt: skip
    write_scores(opened.folder / FOLDER / FILES[BLOCKS], found)
    return found


def _times(shared: Shared, counts: list[int], tell: Tell) -> dict[int, float]:
    """Milliseconds of one layer's attention with its backward, as ``prism bench attention``."""
    tell(Begun("attention"))
    recipe = shared.run.recipe
    conditions = Conditions(
        shared.settings, ROUNDS, recipe.train.micro_batch, recipe.model.seq_len, tell
    )
    table = attention_table(recipe.model, [HeadSchedule(tuple(counts))], conditions)
    return {int(str(row["heads"])): float(str(row["ms"])) for row in table.rows}
