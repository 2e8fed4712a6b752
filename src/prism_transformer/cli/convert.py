"""``prism export`` and ``prism import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from prism_transformer.cli.options import Flag
from prism_transformer.cli.overrides import Schedule, schedule_text
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, say
from prism_transformer.core.errors import InputError


def export(
    source: str,
    out: Path,
    /,
    *,
    as_: Annotated[Literal["prism", "llama"], Parameter(name="--as")] = "prism",
    code: Flag = False,
    gguf: Flag = False,
    type_: Annotated[Literal["f32", "f16", "q8_0"] | None, Parameter(name="--type")] = None,
    tokenizer: str | None = None,
    seed: int | None = None,
) -> None:
    """Write a run or a native model as a Hugging Face folder that stands alone.

    A run brings its tokenizer along, and its numbers for the model card.

    Parameters
    ----------
    source
        A run (its newest checkpoint), a native model folder, a Prism model of Hugging Face,
        a model that ships (nano, nano-uniform), or a recipe, for its initial weights.
    out
        The new folder: config, weights, generation config, tokenizer, model card. With --gguf the
        new file.
    as_
        llama: a plain Llama that needs no code of ours, of a uniform schedule.
    code
        Put the few files of code beside the weights, for where only transformers and torch are.
    gguf
        A file for llama.cpp instead, and what its one head width costs.
    type_
        Of a GGUF file's matrices; f32 when left out.
    tokenizer
        A Hugging Face tokenizer to put in: a folder or a hub name.
    seed
        Seed of a recipe's initial weights; the recipe's own when left out.
    """
    if gguf + code + (as_ == "llama") > 1:
        raise InputError("--gguf, --code and --as llama exclude each other")
    if type_ is not None and not gguf:
        raise InputError("--type is of a GGUF file: add --gguf")
    from prism_transformer.training.naming import check_source

    check_source(source)  # before what takes seconds to import
    if gguf:
        _export_gguf(source, out, type_ or "f32", tokenizer, seed)
        return
    from prism_transformer.hf import export as hf
    from prism_transformer.hf.vllm_plugin import cpu_note

    console = make_console()
    done = hf.export(source, out, tokenizer=tokenizer, seed=seed, form="code" if code else as_)
    if done.causal and (note := cpu_note(done.head_dims)):  # vLLM has no encoders
        say(console, f"note: {note}")
    say(console, f"wrote {done.folder}")


def _export_gguf(
    source: str,
    out: Path,
    kind: Literal["f32", "f16", "q8_0"],
    tokenizer: str | None,
    seed: int | None,
) -> None:
    from prism_transformer.hf.llamacpp import export_gguf

    padding = export_gguf(source, out, kind=kind, tokenizer=tokenizer, seed=seed)
    if padding.cache > 1:
        print(
            f"heads are padded to one width, {padding.width}: {padding.parameters:.2f} times the "
            f"parameters, {padding.cache:.2f} times the KV cache"
        )
        if padding.tiled_width < padding.width:
            print(
                f'trained with model.rope_frequencies = "tiled" the width would be '
                f"{padding.tiled_width}"
            )
    say(make_console(), f"wrote {out}, {out.stat().st_size / 1e6:.1f} MB")


def import_model(
    source: str, out: Path, /, *, schedule: Schedule = None, text: Path | None = None
) -> None:
    """Convert a Hugging Face model: a Prism model becomes native, a Llama becomes Prism.

    A Llama is written as a Hugging Face folder under the schedule you choose. Where a layer's head
    count changes, its function changes: the result is a start for further training, no more.

    Parameters
    ----------
    source
        A Hugging Face folder or hub name.
    out
        The new folder.
    schedule
        Heads per layer for a Llama: a preset or text such as 8x4 16x4 32x24.
    text
        A text file; prints a Llama's loss on it before and after.
    """
    from prism_transformer.hf import importing

    console, heads = make_console(), schedule_text(schedule) if schedule else None
    with show_progress(console) as tell:
        done = importing.import_model(source, out, schedule=heads, text=text, tell=tell)
    if done.loss_before is not None:
        losses = f"{done.loss_before:.4f} nats before, {done.loss_after:.4f} after"
        say(console, f"loss on {text}: {losses}")
    if done.llama_heads is not None:
        advice = (
            "train the model further before use" if done.n_changed else "the function is Llama's"
        )
        changed = f"{done.n_changed} of {len(done.schedule)} layers have another head count"
        say(console, f"{changed} than Llama's {done.llama_heads}: {advice}.")
    say(console, f"wrote {done.folder}")
