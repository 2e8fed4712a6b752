"""``prism bench``: speed on this machine, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import App, Parameter

from prism_transformer.cli.output import Device, Figure, Json, Rounds, Whole, print_json
from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from prism_transformer.recipe import Recipe
    from prism_transformer.train.device import Settings

app = App(
    name="bench",
    help="Measure speed: interleaved rounds, medians, half the range as spread.",
    help_epilogue="Example:  prism bench schedules prism-nano --rounds 5",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Way:
    """Options that every measurement has."""

    rounds: Rounds = 5
    device: Device = "auto"
    out: Figure = None
    as_json: Json = False


DEFAULT = Way()


@app.command(help_epilogue="Example:  prism bench train prism-nano")
def train(
    recipe: str = "prism-nano",
    /,
    *overrides: str,
    batch: Whole = 8,
    length: Whole | None = None,
    way: Way = DEFAULT,
) -> None:
    """One training step, eager and compiled, and its share of the matrix product's rate.

    Parameters
    ----------
    recipe
        Whose model to measure.
    overrides
        Changes to the recipe.
    batch
        Sequences a step.
    length
        Tokens a sequence; the model's context when left out.
    """
    from prism_transformer.bench.tables import train_rows

    wanted, settings = _open(recipe, overrides, way.device)
    config = wanted.model
    rows = train_rows(config, batch, length or config.seq_len, way.rounds, settings, _watch)
    _report("training step", rows, settings, way, "way")


@app.command(help_epilogue="Example:  prism bench decode prism-nano")
def decode(
    recipe: str = "prism-nano",
    /,
    *overrides: str,
    way: Way = DEFAULT,
) -> None:
    """Decoding with the key-value cache, one sequence, after short and long prompts.

    Parameters
    ----------
    recipe
        Whose model to measure.
    overrides
        Changes to the recipe.
    """
    from prism_transformer.bench.tables import decode_rows

    wanted, settings = _open(recipe, overrides, way.device)
    longest = wanted.model.seq_len - 32
    lengths = sorted({min(16, longest), longest // 2, longest})
    rows = decode_rows(wanted.model, lengths, way.rounds, settings, _watch)
    _report("decoding", rows, settings, way, "way")


@app.command(help_epilogue="Example:  prism bench attention prism-nano")
def attention(
    recipe: str = "prism-nano",
    /,
    *overrides: str,
    batch: Whole = 4,
    length: Whole | None = None,
    way: Way = DEFAULT,
) -> None:
    """Attention alone, forward and backward, for each head count of a schedule.

    Parameters
    ----------
    recipe
        Whose schedule to measure; its base head count is what the others are compared with.
    overrides
        Changes to the recipe.
    batch
        Sequences.
    length
        Tokens a sequence; the model's context when left out.
    """
    from prism_transformer.bench.tables import attention_rows
    from prism_transformer.schedule import HeadSchedule

    wanted, settings = _open(recipe, overrides, way.device)
    config = wanted.model
    uniform = HeadSchedule((config.h_base,))
    rows = attention_rows(
        config.d_model, (uniform, config.schedule), batch, length or config.seq_len, way.rounds,
        settings, _watch,
    )  # fmt: skip
    _report("attention", rows, settings, way, "heads")


@app.command(help_epilogue='Example:  prism bench schedules prism-nano "2x4 8x4" reversed')
def schedules(
    recipe: str = "prism-nano",
    /,
    *others: str,
    batch: Whole = 4,
    length: Whole | None = None,
    way: Way = DEFAULT,
) -> None:
    """Schedules against the uniform twin: training, prefill, decoding, and layer by layer.

    All on one set of weights, with the schedule swapped.

    Parameters
    ----------
    recipe
        Whose model and schedule to measure.
    others
        More schedules: presets, text, or reversed.
    batch
        Sequences in training and prefill.
    length
        Tokens a sequence; the model's context when left out.
    """
    from prism_transformer.bench.tables import layer_rows, schedule_rows
    from prism_transformer.design import resolve, reverse
    from prism_transformer.schedule import HeadSchedule

    wanted, settings = _open(recipe, (), way.device)
    config = wanted.model
    uniform = HeadSchedule((config.h_base,) * config.n_layers)
    more = [reverse(config.schedule) if name == "reversed" else resolve(name) for name in others]
    chosen = list(dict.fromkeys([uniform, config.schedule, *more]))
    for schedule in chosen:
        if len(schedule) != config.n_layers:
            raise InputError(f"{schedule}: has {len(schedule)} layers, {recipe} {config.n_layers}")
        schedule.head_dims(config.d_model)  # says which layer does not fit
    size = (batch, length or config.seq_len, way.rounds)
    rows = schedule_rows(config, chosen, *size, settings, _watch)
    layers = layer_rows(config, chosen, *size, settings, _watch)
    _report("schedules", rows, settings, way, "schedule", layers)


@app.command(help_epilogue="Example:  prism bench data --megabytes 5")
def data(
    *,
    megabytes: Whole = 60,
    rounds: Rounds = 5,
    out: Figure = None,
    as_json: Json = False,
) -> None:
    """Tokenizing from JSONL to shards, against tiktoken on one thread.

    Parameters
    ----------
    megabytes
        Size of the corpus: the embedded one, repeated.
    """
    from prism_transformer.bench.tables import data_rows

    way = Way(rounds, "cpu", out, as_json)
    _, settings = _open("prism-nano", (), way.device)
    _report("tokenizing", data_rows(megabytes, rounds, _watch), settings, way, "way")


def _open(recipe: str, overrides: tuple[str, ...], device: str) -> tuple[Recipe, Settings]:
    from prism_transformer.recipe_file import load_recipe
    from prism_transformer.train.device import settle

    wanted = load_recipe(recipe, [*overrides, "train.compile=off", "train.precision=auto"])
    return wanted, settle(wanted, device)


def _watch(runs: Iterator[tuple[str, float]], total: int) -> Iterator[tuple[str, float]]:
    from prism_transformer.terminal import count_up, make_console

    return count_up(make_console(stderr=True), "measuring", runs, total)


def _report(
    what: str,
    rows: list[dict[str, Any]],
    settings: Settings,
    way: Way,
    label: str,
    layers: list[dict[str, Any]] | None = None,
) -> None:
    from prism_transformer.terminal import make_console, row_table, say
    from prism_transformer.train.environment import machine

    facts = machine(settings)
    if way.out is not None:
        from prism_transformer.plots.figures import save, speeds

        save(speeds(rows, label, what), way.out)
    if way.as_json:
        print_json(
            {"what": what, "machine": facts, "rows": rows} | ({"layers": layers} if layers else {})
        )
        return
    console = make_console()
    console.print(row_table(rows))
    if layers:
        say(console, "")
        say(console, "one layer of each phase, forward and backward")
        console.print(row_table(layers))
    say(console, ", ".join(f"{key} {value}" for key, value in facts.items()))
    if way.out is not None:
        say(console, f"wrote {way.out}")
