"""Native models and runs as Hugging Face folders that stand alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prism_transformer.data.tokenizer import open_tokenizer
from prism_transformer.errors import InputError
from prism_transformer.hf.convert import to_hf
from prism_transformer.hf.folder import write_hf
from prism_transformer.hf.tokenizer import to_hf_tokenizer
from prism_transformer.model import PrismLM
from prism_transformer.train.checkpoint import read_state
from prism_transformer.train.run import read_metrics, read_run
from prism_transformer.weights import load_model


def export_model(model: PrismLM, out: Path, words: Any | None = None, note: str = "") -> None:
    """Write a native model, with the tokenizer ``words``, to a new folder."""
    special = {
        name: getattr(words, name, None)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    if words is not None and len(words) > model.config.vocab_rows:
        raise InputError(
            f"the tokenizer has {len(words)} tokens, the model only {model.config.vocab_rows} rows"
        )
    wrapped = to_hf(model, **special)
    if words is not None:
        wrapped.config.num_tokens = len(words)
    write_hf(wrapped, out, words, note)


def export_checkpoint(run: Path, checkpoint: Path, out: Path, words: Any | None = None) -> None:
    """Write a run as it was at a checkpoint, with its tokenizer and its numbers."""
    words = words or _tokenizer_of(run)
    export_model(load_model(checkpoint), out, words, _numbers(run, checkpoint))


def _tokenizer_of(run: Path) -> Any:
    recipe = read_run(run)
    return to_hf_tokenizer(open_tokenizer(recipe.data.tokenizer, run), recipe.model.seq_len)


def _numbers(run: Path, checkpoint: Path) -> str:
    """What a model card says of a run."""
    recipe, state = read_run(run), read_state(checkpoint)
    last = [row for row in read_metrics(run, state.metrics_bytes) if row["kind"] == "val"][-1]
    return (
        f"Trained for {state.step:,} of {recipe.n_steps:,} steps, {state.tokens:,} tokens of "
        f"`{recipe.data.corpus}` (tokenizer `{recipe.data.tokenizer}`, seed {recipe.train.seed}). "
        f"Validation loss at step {last['step']:,}: {last['loss']:.4f} nats per token over "
        f"{recipe.data.val_tokens:,} tokens."
    )
