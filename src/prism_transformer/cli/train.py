"""``prism train``, ``prism resume`` and ``prism generate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prism_transformer.cli.output import Device, Whole, whole
from prism_transformer.errors import InputError, RunError

Until = Annotated[
    int | None,
    Parameter(
        converter=whole, help="Stop after this step, saved; `prism resume` goes on from there."
    ),
]

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.recipe import Recipe
    from prism_transformer.train.job import Job


def train(
    recipe: str = "prism-nano",
    /,
    *overrides: str,
    out: Path | None = None,
    until: Until = None,
    device: Device = "auto",
) -> int:
    """Train a model; killed at any moment, `prism resume` goes on as if nothing had happened.

    For several devices: torchrun --nproc-per-node 8 -m prism_transformer train RECIPE

    Parameters
    ----------
    recipe
        A file, or the name of one that ships (prism recipes).
    overrides
        Changes such as optim.lr=3e-4 or "model.schedule=3x2 12x10".
    out
        The new run folder; runs/, the recipe's name and its seed when left out.
    """
    from prism_transformer.folders import check_new
    from prism_transformer.recipe_file import load_recipe

    resolved = load_recipe(recipe, overrides)
    folder = out or Path("runs") / f"{Path(recipe).stem}-seed{resolved.train.seed}"
    if (folder / "recipe.toml").exists():
        raise InputError(f"{folder}: is a run already; `prism resume {folder}`, or another --out")
    check_new(folder)
    return _train(folder, resolved, until, device, new=True)


def resume(run: Path, /, *overrides: str, until: Until = None, device: Device = "auto") -> int:
    """Go on with a run from its newest sound checkpoint.

    Parameters
    ----------
    run
        A run folder.
    overrides
        As for prism train; a run is refused if they change its recipe.
    """
    from prism_transformer.recipe import differences
    from prism_transformer.recipe_file import load_recipe
    from prism_transformer.train.run import RECIPE_FILE, read_run

    recipe = read_run(run)
    changed = differences(recipe, load_recipe(run / RECIPE_FILE, overrides))
    if changed:
        raise InputError(f"{run}: a run keeps its recipe; this would change " + "; ".join(changed))
    return _train(run, recipe, until, device, new=False)


def _train(folder: Path, recipe: Recipe, until: int | None, device: str, *, new: bool) -> int:
    from prism_transformer.cli.prepare import prepare_embedded
    from prism_transformer.terminal import make_console
    from prism_transformer.train.device import settle
    from prism_transformer.train.distributed import join_world
    from prism_transformer.train.job import new_job, resumed_job

    if until is not None and not 1 <= until <= recipe.n_steps:
        raise InputError(f"--until {until}: the run has {recipe.n_steps} steps")
    settings = settle(recipe, device)
    console = make_console()
    notes: list[str] = []
    with _all_alive(folder), join_world(settings.device) as world:
        console.quiet = not world.is_first
        if world.is_first:
            prepare_embedded(console, recipe)
        world.wait()
        opened = (
            new_job(folder, recipe, settings, world)
            if new
            else resumed_job(folder, recipe, settings, world, notes)
        )
        with opened as job:
            return _run(console, job, until, notes)


def _run(console: Console, job: Job, until: int | None, notes: list[str]) -> int:
    from prism_transformer.train.loop import train as rows
    from prism_transformer.watch import tell, watch

    for line in [*_introduction(job), *notes]:
        tell(console, line)
    loss = None
    if until is not None and job.step >= until:
        tell(console, f"{job.folder} is at step {job.step} already")
        return 0
    for row in watch(console, rows(job, until), job.step, until or job.recipe.n_steps):
        if row["kind"] == "val":
            loss = row["loss"]
        while job.trackers and job.trackers.problems:
            tell(console, job.trackers.problems.pop(0))
    if job.step < job.recipe.n_steps:
        tell(console, f"stopped at step {job.step}, saved; {job.how}")
        return 0 if job.step == until else 128 + job.stop.signal
    if loss is not None:
        tell(console, f"finished: validation loss {loss:.4f} nats after {job.step} steps")
    tell(console, f"{job.folder} is complete; try: prism generate {job.folder}")
    return 0


def _introduction(job: Job) -> Iterator[str]:
    """What is about to happen, in a few lines."""
    recipe, settings = job.recipe, job.settings
    processes = "1 process" if job.world.size == 1 else f"{job.world.size} processes"
    yield (
        f"{job.folder}: {recipe.model.schedule} heads, {recipe.n_steps:,} steps of "
        f"{recipe.train.batch_tokens:,} tokens, {recipe.train.micro_batch} sequences x "
        f"{job.passes} passes x {processes}"
    )
    epochs = recipe.train.tokens / (len(job.train) * recipe.model.seq_len)
    if epochs > 1:
        yield f"{recipe.train.tokens:,} tokens are {epochs:.1f} epochs of {recipe.data.folder}"
    compiled = "compiled" if settings.compiled else "not compiled"
    yield f"{settings.device}, {settings.precision}, {compiled}: {settings.compile_reason}"
    if job.train.sha256 is None:
        yield (
            f"{recipe.data.folder}: shards without a manifest; header, length and token ids are "
            "checked, sha256 is not"
        )


@contextmanager
def _all_alive(folder: Path) -> Iterator[None]:
    """Say it plainly when another process of the job is gone."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or "gloo" in str(error)
        if not lost:
            raise
        reason = str(error).strip().partition("\n")[0]
        raise RunError(
            f"another process of this job is gone ({reason}); launch it again with "
            f"`resume {folder}`, it goes on from the last checkpoint"
        ) from None


def generate(
    run: Path,
    /,
    *,
    prompt: str = "",
    tokens: Whole = 200,
    temperature: float = 0.8,
    top_k: Whole | None = None,
    top_p: float | None = None,
    seed: Whole = 0,
) -> None:
    """Let a trained model write, word by word.

    Parameters
    ----------
    run
        A run folder; its newest sound checkpoint speaks.
    prompt
        How the text begins; left out, the model begins a document of its own.
    tokens
        How many to write at most; the model may end sooner.
    temperature
        Below 1 bolder in its likeliest words, above 1 wilder; 0 always takes the likeliest.
    top_k
        Draw from so many likeliest tokens only.
    top_p
        Draw from the likeliest tokens that have this probability together.
    seed
        Another seed, another text.
    """
    import sys
    from codecs import getincrementaldecoder
    from io import TextIOWrapper
    from time import perf_counter

    import torch

    from prism_transformer.sampling import check_sampling, stream
    from prism_transformer.train.trained import open_trained

    check_sampling(tokens, temperature, top_k, top_p)
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: not between 0 and 2^63")
    if prompt.encode(errors="ignore").decode() != prompt:
        raise InputError("--prompt: is not UTF-8 text")
    model, words = open_trained(run)
    begin = [words.end_of_text, *words.encode_batch([prompt])[0].tolist()]
    room = model.config.seq_len - len(begin)
    if room < 1:
        raise InputError(f"the prompt has {len(begin)} tokens, the model sees {room + len(begin)}")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know every character
    sys.stdout.write(prompt)
    started, count = perf_counter(), 0
    decode = getincrementaldecoder("utf-8")("replace").decode  # a character may take two tokens
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    for drawn in stream(model, torch.tensor([begin]), min(tokens, room), **how):
        token = int(drawn)
        count += 1
        if token == words.end_of_text:
            break
        sys.stdout.write(decode(words.piece(token)))
        sys.stdout.flush()
    sys.stdout.write(decode(b"", True))
    seconds = perf_counter() - started
    print(f"\n{count} tokens, {count / seconds:,.0f} tokens/s", file=sys.stderr)
