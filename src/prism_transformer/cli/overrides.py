"""Short options for overrides, schedules without quotes, and hints for flags that do not exist.

The one place where ``--seed 1`` becomes ``train.seed=1``: everything behind it sees dotted keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.exceptions import (
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from prism_transformer.cli.options import Whole
from prism_transformer.core.errors import InputError, at_least_one
from prism_transformer.recipes.guesses import hint

DEFAULT_RECIPE = "prism-micro"
TAKES_OVERRIDES = ("train", "resume", "show", "bench", "study")

PIECE = re.compile(r"\d+(x\d+)?,?")  # of a schedule that the shell split at its spaces
SCHEDULE = "model.schedule="

Schedule = Annotated[tuple[str, ...] | None, Parameter(consume_multiple=True)]


@Parameter(name="*")
@dataclass(frozen=True)
class Short:
    """Shorter names for what is changed most.

    Parameters
    ----------
    schedule
        Heads per layer, as in 3x2 12x10: model.schedule.
    seed
        Seed of weights and data order: train.seed.
    steps
        Length of the run: train.tokens for so many steps.
    lr
        Learning rate: optim.lr.
    """

    schedule: Schedule = None
    seed: Whole | None = None
    steps: Whole | None = None
    lr: float | None = None


NOTHING = Short()


def recipe_and_overrides(
    recipe: str, overrides: Sequence[str], short: Short = NOTHING
) -> tuple[str, list[str]]:
    """The recipe's name and its overrides as dotted keys, whichever way they were written."""
    if "=" in recipe and not Path(recipe).exists():  # only overrides were given
        recipe, overrides = DEFAULT_RECIPE, (recipe, *overrides)
    found = joined(overrides)
    if short.schedule:
        found.append(SCHEDULE + schedule_text(short.schedule))
    if short.seed is not None:
        found.append(f"train.seed={short.seed}")
    if short.lr is not None:
        found.append(f"optim.lr={short.lr}")
    if short.steps is not None:
        from prism_transformer.recipes.files import load_recipe

        at_least_one(steps=short.steps)
        batch = load_recipe(recipe, found).train.batch_tokens
        found.append(f"train.tokens={short.steps * batch}")
    return recipe, found


def joined(overrides: Sequence[str]) -> list[str]:
    """Overrides with the pieces of an unquoted schedule put together again."""
    found: list[str] = []
    for each in overrides:
        if found and found[-1].startswith(SCHEDULE) and PIECE.fullmatch(each):
            found[-1] += f" {each}"
        else:
            found.append(each)
    return found


def schedule_text(words: Sequence[str]) -> str:
    """A schedule from the words that a shell made of it."""
    if len(words) > 1:
        for word in words:
            if not all(map(PIECE.fullmatch, word.split())):
                raise InputError(
                    f"{word!r}: is no part of a schedule such as 3x2 12x10; put what is not before "
                    "the schedule, or the schedule in quotes"
                )
    return " ".join(words)


# By command and flag that it has not: what to write instead.
_RECIPE = "a recipe needs no flag: write prism train {value}"
_MODEL = "a model needs no flag: write prism {command} {value}"
_CORPUS = "text needs no flag: write prism prepare {value}"
_STUDY = "a study needs no flag: write prism study run {value}"
_DEVICES = "write torchrun --nproc-per-node {value} -m prism_transformer train RECIPE"
_DATA = "`prism prepare {value}` makes shards of text, and prints the line that trains on them"
FLAG_HINTS: dict[str, dict[str, str]] = {
    "train": {
        **dict.fromkeys(("config", "recipe", "model"), _RECIPE),
        **dict.fromkeys(("gpus", "n-gpus", "num-gpus", "nproc", "devices", "world-size"), _DEVICES),
        **dict.fromkeys(("data", "dataset", "corpus", "text", "input", "data-dir"), _DATA),
        **dict.fromkeys(("output", "output-dir", "save-dir", "run", "name"), "write --out {value}"),
        **dict.fromkeys(
            ("checkpoint", "init-from", "pretrained", "weights"), "write --from {value}"
        ),
        "seeds": "a run has one seed, --seed 1; several: prism study run STUDY --seeds {value}",
        "dry-run": "`prism show RECIPE` prints what would be trained",
        "epochs": "write --steps N; `prism prepare` says how many tokens the text has",
    },
    "prepare": {
        **dict.fromkeys(("input", "text", "data", "dataset", "corpus", "file", "path"), _CORPUS),
        **dict.fromkeys(("vocab", "vocab-size"), "write --tokenizer bpe:{value}"),
        **dict.fromkeys(("key", "field", "column"), "write --text-key {value}"),
        **dict.fromkeys(("output", "output-dir"), "write --out {value}"),
    },
    "generate": {
        **dict.fromkeys(("model", "run", "checkpoint"), _MODEL),
        **dict.fromkeys(("length", "max-length", "max-tokens", "n"), "write --tokens {value}"),
        **dict.fromkeys(("text", "input"), "write --prompt {value}"),
    },
    **dict.fromkeys(("analyze", "loss", "eval"), dict.fromkeys(("model", "run"), _MODEL)),
    "study": {
        "seed": "write --seeds {value}",
        "arm": "write --arms {value}",
        "config": _STUDY,
        "study": _STUDY,
    },
    "schedule": dict.fromkeys(("heads", "n-heads"), "write --h-base {value}"),
}


def explained(error: CycloptsError, arguments: Sequence[str]) -> str:
    """What was wrong with a command line, and what to write instead."""
    said = " ".join(str(error).split())
    command = " ".join(error.command_chain or ())
    if isinstance(error, UnknownOptionError):
        near = "Did you mean" in said
        return _option_hint(error, arguments) or (
            said if near else f"{said} See prism {command} --help"
        )
    if isinstance(error, UnusedCliTokensError):
        left = " ".join(error.unused_tokens or ())
        return (
            f"{left!r}: `prism {command}` takes no more words; put what belongs together in "
            f"quotes, or see prism {command} --help"
        )
    if isinstance(error, UnknownCommandError) and (meant := _command_hint(arguments)):
        return f"{said.partition(' Available')[0]} {meant}"
    if type(error) is MissingArgumentError and error.argument and command:
        return f"{said} See prism {command} --help"
    return said


def _option_hint(error: UnknownOptionError, arguments: Sequence[str]) -> str | None:
    """What to write instead of an unknown flag; None where cyclopts' own guess is as good."""
    flag, _, value = (error.token.keyword or error.token.value).partition("=")
    command, value = arguments[0], value or _value_after(flag, arguments)
    name = flag.lstrip("-").rpartition(".")[2]
    meant = FLAG_HINTS.get(command, {}).get(name.replace("_", "-"))
    if meant is None and command in TAKES_OVERRIDES:
        from prism_transformer.recipes.files import known_keys

        near = "Did you mean" not in str(error)  # else an option of this command is nearer
        meant = hint(name, value, list(known_keys()), near=near)
    return meant and f"{flag}: no such option; {meant.format(command=command, value=value)}"


def _command_hint(arguments: Sequence[str]) -> str | None:
    """The command that was meant, such as ``study run demo`` by ``study demo``."""
    from prism_transformer.schedules.paper import presets

    first, second = (*arguments, "", "")[:2]
    if first in ("version", "-v", "-V"):
        return "Write prism --version"
    if first == "schedule" and (second in presets() or PIECE.fullmatch(second)):
        return f"Write prism schedule show {' '.join(arguments[1:])}"
    if first == "bench":
        from prism_transformer.recipes.files import packaged_recipes

        if second in packaged_recipes():
            return f"Write prism bench schedules {second}"
    if first == "study":
        from prism_transformer.study.spec import packaged_studies

        if second in packaged_studies() or second.endswith(".toml"):
            return f"Write prism study run {' '.join(arguments[1:])}"
    return None


def _value_after(flag: str, arguments: Sequence[str]) -> str:
    """The value that stands behind a flag."""
    rest = list(arguments[list(arguments).index(flag) + 1 :]) if flag in arguments else []
    return rest[0] if rest and not rest[0].startswith("--") else "VALUE"
