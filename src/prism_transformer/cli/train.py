"""``prism train``, ``prism resume`` and ``prism generate``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prism_transformer.cli.options import Device, Flag, Whole, whole
from prism_transformer.cli.overrides import (
    DEFAULT_RECIPE,
    NOTHING,
    Short,
    joined,
    recipe_and_overrides,
)
from prism_transformer.cli.progress import show_progress, tell_line
from prism_transformer.cli.terminal import make_console
from prism_transformer.core.progress import is_first_process

LATER = "Stop after this step, saved; `prism resume` goes on from there."
Until = Annotated[int | None, Parameter(converter=whole, help=LATER)]
From = Annotated[str | None, Parameter(name="--from")]  # which Python has for itself


def train(
    recipe: str = DEFAULT_RECIPE,
    /,
    *overrides: str,
    short: Short = NOTHING,
    start: From = None,
    out: Path | None = None,
    resume: Flag = False,
    until: Until = None,
    device: Device = "auto",
) -> int:
    """Train a model; killed at any moment, `prism resume` continues to the same result.

    For several devices: torchrun --nproc-per-node 8 -m prism_transformer train RECIPE

    Parameters
    ----------
    recipe
        A file, or the name of one that ships (prism recipes).
    overrides
        Changes such as optim.lr=3e-4 or "model.schedule=3x2 12x10".
    start
        Weights to begin from in place of a draw: a run (its newest checkpoint), or a Prism
        model as `prism export` and `prism import` write it. Its shape must be the recipe's.
    out
        The new run folder; runs/, the recipe's name and its seed when left out.
    resume
        Go on if the folder is a run already; begin if it is not.
    """
    from prism_transformer.recipes.files import load_recipe

    recipe, changes = recipe_and_overrides(recipe, overrides, short)
    resolved = load_recipe(recipe, changes)
    if start is not None:
        from prism_transformer.training.naming import check_name

        check_name(start)
    # Only now torch, which takes a second to import: what is wrong has been said.
    from prism_transformer.training import api
    from prism_transformer.training.run import is_run

    folder = out or api.default_folder(Path(recipe).stem, resolved)
    if resume and is_run(folder):
        return _train(partial(api.resume, folder, resolved, until=until, device=device))
    weights = None
    if start is not None:
        from prism_transformer.hf.pretrained import pretrained  # takes seconds to import

        weights = pretrained(start)
    return _train(partial(api.train, resolved, folder, start=weights, until=until, device=device))


def resume(run: Path, /, *overrides: str, until: Until = None, device: Device = "auto") -> int:
    """Continue a run from its newest sound checkpoint: one whose files are all intact.

    Parameters
    ----------
    run
        A run folder.
    overrides
        As for prism train. A larger train.tokens makes the run longer if its learning rate so far
        is the same under it (optim.lr_schedule constant, or wsd before its decay); a run is refused
        if anything else of its recipe changes.
    """
    from prism_transformer.training import api

    return _train(partial(api.resume, run, joined(overrides), until=until, device=device))


def _train(verb: Callable[..., object]) -> int:
    """Train with a verb of ``training/api.py`` that lacks only ``tell``; the exit code."""
    from prism_transformer.training.stopping import Stopped

    console = make_console()
    try:
        with show_progress(console) as tell:
            verb(tell=tell)
    except Stopped as stop:
        # Under torchrun every process stops, and the first one speaks for all.
        if is_first_process():
            tell_line(console, str(stop))
        return stop.exit_code
    return 0


def generate(
    source: str,
    /,
    prompt: Annotated[str, Parameter(show_default=False)] = "",
    *,
    tokens: Whole = 200,
    temperature: float = 0.8,
    top_k: Whole | None = None,
    top_p: float | None = None,
    seed: Whole = 0,
    device: Device = "auto",
) -> None:
    """Continue a prompt with a trained model, word by word.

    Parameters
    ----------
    source
        A run (its newest checkpoint), a model that ships (nano or nano-uniform: trained,
        0.47M parameters), a Hugging Face folder or a hub name.
    prompt
        How the text begins; left out, the model begins a document of its own.
    tokens
        How many to write at most; the model may end sooner.
    temperature
        Below 1 likely tokens are drawn more often, above 1 less often; 0 takes the likeliest.
    top_k
        Draw from so many likeliest tokens only.
    top_p
        Draw from the likeliest tokens that have this probability together.
    seed
        Seed of the random draws; another seed gives another text.
    """
    from prism_transformer.training.naming import check_name
    from prism_transformer.training.run import is_run

    check_name(source)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character

    # By name: transformers takes seconds to import, and a run does without it.
    home = "training" if is_run(Path(source)) else "hf"
    made = import_module(f"prism_transformer.{home}.generate").generate(
        source, prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        device=device, stream=partial(print, end="", flush=True),
    )  # fmt: skip
    rate = made.n_tokens / max(made.seconds, 1e-9)
    print(f"\n{made.n_tokens} tokens, {rate:,.0f} tokens/s", file=sys.stderr)
