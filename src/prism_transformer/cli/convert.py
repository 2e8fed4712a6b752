"""``prism export`` and ``prism import``."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from prism_transformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from prism_transformer.model import PrismLM

MAX_WINDOWS = 64  # a loss before and after needs no more text
MAX_CHARACTERS = 1_000_000


def export(
    source: str, out: Path, /, *, tokenizer: str | None = None, seed: int | None = None
) -> None:
    """Write a run or a native model as a Hugging Face folder that stands alone.

    A run brings its tokenizer along, and its numbers for the model card.

    Parameters
    ----------
    source
        A run (its newest sound checkpoint), a native model folder, or a recipe, for its initial
        weights.
    out
        The new folder: config, weights, generation config, tokenizer, model card.
    tokenizer
        A Hugging Face tokenizer to put in: a folder or a hub name.
    seed
        Seed of a recipe's initial weights; the recipe's own when left out.
    """
    from prism_transformer.folders import check_new
    from prism_transformer.hf.export import export_checkpoint, export_model
    from prism_transformer.hf.folder import read_tokenizer
    from prism_transformer.train.run import is_run
    from prism_transformer.train.trained import newest_model

    check_new(out)
    words = read_tokenizer(tokenizer, required=True) if tokenizer else None
    if is_run(Path(source)):
        _refuse_seed(source, seed)
        export_checkpoint(Path(source), newest_model(Path(source)), out, words)
    else:
        export_model(_native(source, seed), out, words)
    print(f"wrote {out}")


def import_model(
    source: str,
    out: Path,
    /,
    *,
    schedule: str | None = None,
    text: Path | None = None,
) -> None:
    """Read a Hugging Face model: a Prism model becomes native, a Llama becomes Prism.

    A Llama is written as a Hugging Face folder under the schedule you choose. Where a layer's head
    count changes, its function changes: the result is a start for further training, no more.

    Parameters
    ----------
    source
        A Hugging Face folder or hub name.
    out
        The new folder.
    schedule
        Heads per layer for a Llama: a preset or text such as "8x4 16x4 32x24".
    text
        A text file; prints a Llama's loss on it before and after.
    """
    from prism_transformer.folders import check_new
    from prism_transformer.hf.folder import read_config

    check_new(out)
    kind = read_config(source).model_type
    if kind == "prism":
        _import_prism(source, out, schedule, text)
    elif schedule is None:
        raise InputError(
            f"{source}: is a {kind} model; choose its heads per layer with --schedule "
            "(prism schedule design proposes some)"
        )
    else:
        _import_llama(source, out, schedule, text)
    print(f"wrote {out}")


def _native(source: str, seed: int | None) -> PrismLM:
    """A folder's model, or a recipe's with its initial weights."""
    from prism_transformer.model import PrismLM
    from prism_transformer.recipe_file import load_recipe
    from prism_transformer.weights import load_model

    if Path(source).is_dir():
        _refuse_seed(source, seed)
        return load_model(Path(source))
    recipe = load_recipe(source)
    return PrismLM(recipe.model, recipe.train.seed if seed is None else seed)


def _refuse_seed(source: str, seed: int | None) -> None:
    if seed is not None:
        raise InputError(f"{source}: is a trained model; --seed is for recipes")


def _import_prism(source: str, out: Path, schedule: str | None, text: Path | None) -> None:
    from prism_transformer.hf.convert import to_native
    from prism_transformer.hf.folder import read_prism
    from prism_transformer.weights import save_model

    if schedule or text:
        raise InputError(f"{source}: is a Prism model; --schedule and --text are for Llamas")
    save_model(to_native(read_prism(source)), out)


def _import_llama(source: str, out: Path, schedule: str, text: Path | None) -> None:
    from prism_transformer.design import resolve
    from prism_transformer.hf.convert import from_llama
    from prism_transformer.hf.folder import read_llama, read_tokenizer, write_hf
    from prism_transformer.terminal import make_console

    chosen = resolve(schedule)
    words = read_tokenizer(source, required=text is not None)
    llama = read_llama(source)
    if words is not None and len(words) > llama.config.vocab_size:
        raise InputError(f"{source}: has {len(words)} tokens for {llama.config.vocab_size} rows")
    tokens = None if text is None else _tokens(text, words)
    console = make_console()
    before = None if tokens is None else _loss(console, "before", llama, tokens)
    heads = llama.config.num_attention_heads
    model = from_llama(llama, chosen, None if words is None else len(words))
    changed = sum(n != heads for n in chosen.heads)
    if tokens is not None:
        after = _loss(console, "after", model, tokens)
        console.print(f"loss on {text}: {before:.4f} nats before, {after:.4f} after")
    console.print(
        f"{changed} of {len(chosen)} layers have another head count than Llama's {heads}: "
        + ("train the model further before use." if changed else "the function is Llama's.")
    )
    note = f"Converted from a Llama, {heads} heads in every layer, not trained since."
    write_hf(model, out, words, note if changed else "")


def _tokens(text: Path, tokenizer: Any) -> Any:
    import torch

    try:
        with text.open(encoding="utf-8") as stream:
            content = stream.read(MAX_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text}: cannot be read as text: {error}") from None
    tokens = tokenizer(content, add_special_tokens=False, verbose=False)["input_ids"]
    if len(tokens) < 2:
        raise InputError(f"{text}: has {len(tokens)} tokens; a loss needs at least 2")
    return torch.tensor(tokens)


def _loss(console: Console, when: str, model: Any, tokens: Any) -> float:
    """Mean loss over the first windows of a text."""
    from prism_transformer.hf.convert import window_losses
    from prism_transformer.terminal import count_up

    seq_len = min(model.config.max_position_embeddings, 1024, len(tokens))
    count = min(len(tokens) // seq_len, MAX_WINDOWS)
    losses = window_losses(model, tokens[: count * seq_len], seq_len)
    return fmean(count_up(console, f"loss {when}", losses, count))
