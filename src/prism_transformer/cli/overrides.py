"""Thin names for overrides, schedules without quotes, and hints for flags that no command has.

The one place where ``--seed 1`` becomes ``train.seed=1``. A recipe's values stay what they are,
dotted keys; these are only shorter to type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.exceptions import CycloptsError, UnknownOptionError

from prism_transformer.cli.terminal import Whole
from prism_transformer.core.errors import InputError

# What a flag means, where it has the name of no key or of several.
KEYS = {"lr": "optim.lr", "learning_rate": "optim.lr", "batch_size": "train.batch_tokens"}
STEPS = ("steps", "max_steps", "n_steps")
TAKES_OVERRIDES = ("train", "resume", "show", "bench", "study")

PIECE = re.compile(r"\d+(x\d+)?,?")  # of a schedule that a shell took apart
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
        Of weights and data: train.seed.
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


def given(
    recipe: str, overrides: Sequence[str], short: Short = NOTHING, default: str = "prism-micro"
) -> tuple[str, list[str]]:
    """The recipe and all overrides, whichever way they were written."""
    if "=" in recipe and not Path(recipe).exists():  # only overrides were given
        recipe, overrides = default, (recipe, *overrides)
    found = joined(overrides)
    if short.schedule:
        found.append(SCHEDULE + schedule_text(short.schedule))
    if short.seed is not None:
        found.append(f"train.seed={short.seed}")
    if short.lr is not None:
        found.append(f"optim.lr={short.lr}")
    if short.steps is not None:
        from prism_transformer.recipes.files import load_recipe

        if short.steps < 1:
            raise InputError(f"--steps {short.steps}: give at least 1")
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


def explained(error: CycloptsError, arguments: Sequence[str]) -> str:
    """What was wrong with a command line, and the override that does what a flag meant."""
    said = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError):
        flag, _, value = (error.token.keyword or error.token.value).partition("=")
        value = value or _after(flag, arguments)
        if arguments[0] == "study" and flag == "--seed":
            return f"{flag}: no such option; write --seeds {value}"
        if arguments[0] in TAKES_OVERRIDES and (hint := _override(flag, value)):
            return f"{flag}: no such option; write {hint}"
    return said


def _after(flag: str, arguments: Sequence[str]) -> str:
    """The value that stands behind a flag."""
    rest = list(arguments[list(arguments).index(flag) + 1 :]) if flag in arguments else []
    return rest[0] if rest and not rest[0].startswith("--") else "VALUE"


def _override(flag: str, value: str) -> str | None:
    """The override for a flag, if a recipe has a key of that name."""
    from prism_transformer.recipes.files import known_keys

    name = flag.lstrip("-").replace("-", "_").rpartition(".")[2]
    if name in STEPS:
        return (
            f"train.tokens=N, N being {value} x train.batch_tokens (`prism train --steps` does it)"
        )
    same = [key for key in known_keys() if key.rpartition(".")[2] == name and "." in key]
    key = KEYS.get(name) or (same[0] if same else None)
    return f"{key}={value}" if key else None
