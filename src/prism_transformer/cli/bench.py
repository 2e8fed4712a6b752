"""``prism bench``, speed on this machine in interleaved rounds, and ``prism doctor``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from prism_transformer.cli.options import Device, Figure, Flag, Json, Rounds, Whole, whole
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, print_json, print_table, say
from prism_transformer.core.errors import InputError, at_least_one

if TYPE_CHECKING:
    from prism_transformer.bench.measure import Conditions
    from prism_transformer.core.table import Table
    from prism_transformer.recipe import ModelConfig
    from prism_transformer.training.device import Settings

app = App(
    name="bench",
    help="Measure speed: interleaved rounds, medians, half the range as spread.",
    help_epilogue="Example:  prism bench schedules prism-micro --rounds 5",
)

Recipe = Annotated[str, Parameter(help="Whose model to measure.")]
Override = Annotated[str, Parameter(help="Changes to the recipe.")]
Batch = Annotated[int, Parameter(converter=whole, help="Sequences at once.")]
Length = Annotated[
    int | None,
    Parameter(converter=whole, help="Tokens a sequence; the model's context when left out."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """Options that every measurement has."""

    rounds: Rounds = 5
    device: Device = "auto"
    out: Figure = None
    as_json: Json = False


DEFAULT = Options()


@app.command(help_epilogue="Example:  prism bench train prism-micro")
def train(
    recipe: Recipe = "prism-micro",
    /,
    *overrides: Override,
    batch: Batch = 8,
    length: Length = None,
    options: Options = DEFAULT,
) -> None:
    """One training step, eager and compiled, and its share of the matrix product's rate."""
    from prism_transformer.bench.measure import train_table

    _run("training step", "way", train_table, options, recipe, overrides, batch, length)


@app.command(help_epilogue="Example:  prism bench decode prism-micro")
def decode(
    recipe: Recipe = "prism-micro", /, *overrides: Override, options: Options = DEFAULT
) -> None:
    """Decoding with the key-value cache, one sequence, after short and long prompts."""
    from prism_transformer.bench.measure import N_DECODED, decode_table

    def measure(config: ModelConfig, conditions: Conditions) -> Table:
        longest = config.seq_len - N_DECODED
        if longest < 1:
            raise InputError(
                f"{recipe}: model.seq_len = {config.seq_len}: decoding is measured over "
                f"{N_DECODED} tokens, and needs a longer context"
            )
        prompts = sorted({min(16, longest), max(1, longest // 2), longest})
        return decode_table(config, prompts, conditions)

    _run("decoding", "way", measure, options, recipe, overrides)


@app.command(help_epilogue="Example:  prism bench context prism-micro --longest 1024")
def context(
    recipe: Recipe = "prism-micro",
    /,
    *overrides: Override,
    batch: Batch = 1,
    longest: Length = None,
    options: Options = DEFAULT,
) -> None:
    """Reading and training against the length of sequences: speed, and memory.

    Lengths double from the model's context on.

    Parameters
    ----------
    longest
        Tokens of the longest sequence; eight times the model's context when left out.
    """
    from prism_transformer.bench.measure import context_table

    at_least_one(longest=longest)

    def measure(config: ModelConfig, conditions: Conditions) -> Table:
        first = config.seq_len
        last = 8 * first if longest is None else longest
        if last < first:
            raise InputError(
                f"--longest {last}: lengths begin with the model's context, {first}; give as many"
            )
        lengths = [first << n for n in range((last // first).bit_length())]
        return context_table(config, lengths, conditions)

    _run("length of sequences", "length", measure, options, recipe, overrides, batch)


@app.command(help_epilogue="Example:  prism bench attention prism-micro")
def attention(
    recipe: Recipe = "prism-micro",
    /,
    *overrides: Override,
    batch: Batch = 4,
    length: Length = None,
    options: Options = DEFAULT,
) -> None:
    """Attention alone, forward and backward, for each head count of a schedule.

    The recipe's base head count is what the others are compared with.
    """
    from prism_transformer.bench.measure import attention_table
    from prism_transformer.schedule import HeadSchedule

    def measure(config: ModelConfig, conditions: Conditions) -> Table:
        base = HeadSchedule((config.h_base,))
        return attention_table(config, (base, config.schedule), conditions)

    _run("attention", "heads", measure, options, recipe, overrides, batch, length)


@app.command(help_epilogue='Example:  prism bench schedules prism-micro "2x4 8x4" reversed')
def schedules(
    recipe: Recipe = "prism-micro",
    /,
    *others: str,
    batch: Batch = 4,
    length: Length = None,
    options: Options = DEFAULT,
) -> None:
    """Schedules against the uniform twin: training, prefill, decoding, and layer by layer.

    All on one set of weights, with the schedule swapped.

    Parameters
    ----------
    others
        More schedules: presets, text, or reversed.
    """
    from prism_transformer.bench.measure import layer_table, schedule_table
    from prism_transformer.schedule import HeadSchedule
    from prism_transformer.schedules.design import reverse
    from prism_transformer.schedules.paper import resolve

    def measure(config: ModelConfig, conditions: Conditions) -> tuple[Table, Table]:
        uniform = HeadSchedule.uniform(config.h_base, config.n_layers)
        more = (
            reverse(config.schedule) if each == "reversed" else resolve(each) for each in others
        )
        chosen = list(dict.fromkeys([uniform, config.schedule, *more]))
        for schedule in chosen:
            if len(schedule) != config.n_layers:
                depth = f"has {len(schedule)} layers, {recipe} {config.n_layers}"
                raise InputError(f"{schedule}: {depth}")
            schedule.head_dims(config.d_model)  # says which layer does not fit
        each = (config, chosen, conditions)
        return schedule_table(*each), layer_table(*each)

    _run("schedules", "schedule", measure, options, recipe, (), batch, length)


@app.command(help_epilogue="Example:  prism bench data --megabytes 5")
def data(
    *, megabytes: Whole = 60, rounds: Rounds = 5, out: Figure = None, as_json: Json = False
) -> None:
    """Tokenizing from JSONL, zstd and Parquet to shards, against tiktoken on one thread.

    Parameters
    ----------
    megabytes
        Size of the corpus: the embedded one, repeated.
    """
    from prism_transformer.bench.measure import data_table

    options = Options(rounds, "cpu", out, as_json)
    _run("tokenizing", "way", lambda _, conditions: data_table(megabytes, conditions), options)


def _run(
    what: str,
    label: str,
    measure: Callable[[ModelConfig, Conditions], Table | tuple[Table, Table]],
    options: Options,
    recipe: str = "prism-micro",
    overrides: Sequence[str] = (),
    batch: int = 1,
    length: int | None = None,
) -> None:
    """Measure the model of a recipe under a progress bar, and tell what came out."""
    from prism_transformer.bench.measure import Conditions
    from prism_transformer.recipes.files import load_recipe
    from prism_transformer.training.device import begin, settle

    at_least_one(rounds=options.rounds, batch=batch, length=length)  # before minutes of compiling
    wanted = load_recipe(recipe, [*overrides, "train.compile=off", "train.precision=auto"])
    settings = begin(settle(wanted, options.device))
    size = (options.rounds, batch, length or wanted.model.seq_len)
    with show_progress(make_console(stderr=True)) as tell:
        found = measure(wanted.model, Conditions(settings, *size, tell))
    table, layers = found if isinstance(found, tuple) else (found, None)
    _report(what, label, table, layers, settings, options)


def _report(
    what: str,
    label: str,
    table: Table,
    layers: Table | None,
    settings: Settings,
    options: Options,
) -> None:
    """Print what was measured on which machine, and draw it; ``layers`` are bench schedules'."""
    from prism_transformer.training.environment import machine

    facts = machine(settings)
    if options.out is not None:
        from prism_transformer.figures.sizes import speeds
        from prism_transformer.figures.style import save

        save(speeds(table, label, what), options.out)
    if options.as_json:
        more = {} if layers is None else {"layers": layers.plain_rows()}
        print_json({"what": what, "machine": facts, "rows": table.plain_rows()} | more)
        return
    console = make_console()
    print_table(console, table)
    if layers is not None:
        say(console, "\none layer of each phase, forward and backward")
        print_table(console, layers)
    say(console, ", ".join(f"{key} {value}" for key, value in facts.items()))
    if options.out is not None:
        say(console, f"wrote {options.out}")


def doctor(*, train: Flag = False, device: Device = "auto", as_json: Json = False) -> int:
    """Check in a few minutes that this machine is right for training, and say what to mend.

    Parameters
    ----------
    train
        Take 20 real steps of every model of the paper instead, on all GPUs: tokens/s, utilisation
        and memory beside the paper's and an estimate. Without a GPU, of the nano recipe (0.47M
        parameters).
    """
    if train:
        return _try_training(device, as_json)
    from prism_transformer.bench.doctor import CHECKS, diagnose, doctor_settings

    console = make_console()
    console.quiet = as_json
    settings, found = doctor_settings(device), []
    for check in CHECKS:
        with console.status(f"checking {check.__name__}"):
            each = diagnose(check, settings)
        found.append(each)
        say(console, f"{'ok  ' if each.ok else 'FAIL'}  {each.check:<10}  {each.found}")
        if each.remedy:
            say(console, f"{'':<18}{each.remedy}")
    failed = [each.check for each in found if not each.ok]
    say(console, f"{', '.join(failed)}: see above" if failed else "everything is right")
    if as_json:
        print_json([asdict(each) for each in found])
    return 1 if failed else 0


def _try_training(device: str, as_json: bool) -> int:
    from prism_transformer.bench.trial import trials

    with show_progress(make_console(stderr=True)) as tell:
        table = trials(device, tell=tell)
    if as_json:
        print_json(table.plain_rows())
    else:
        print_table(make_console(), table)
    return 1 if any(str(row["note"]).startswith("FAILED") for row in table.rows) else 0
