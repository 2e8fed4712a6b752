"""What people guess that a recipe's values are called, and what does it here.

For flags that no command has, and for keys that no recipe has.
"""

from __future__ import annotations

from difflib import get_close_matches

# The key that is meant. Names that a key has anyway need no line.
KEYS = {
    "learning_rate": "optim.lr", "max_lr": "optim.lr", "rate": "optim.lr",
    "scheduler": "optim.lr_schedule", "lr_scheduler": "optim.lr_schedule",
    "warmup_ratio": "optim.warmup_fraction",
    "wd": "optim.weight_decay", "clip": "optim.grad_clip", "clip_grad": "optim.grad_clip",
    "max_grad_norm": "optim.grad_clip", "gradient_clip": "optim.grad_clip",
    "dim": "model.d_model", "width": "model.d_model", "hidden_size": "model.d_model",
    "n_embd": "model.d_model", "embed_dim": "model.d_model",
    "ffn": "model.d_ff", "d_mlp": "model.d_ff", "intermediate_size": "model.d_ff",
    "context": "model.seq_len", "context_length": "model.seq_len", "block_size": "model.seq_len",
    "seq_length": "model.seq_len", "max_seq_len": "model.seq_len", "ctx": "model.seq_len",
    "vocab": "model.vocab_size", "rope_theta": "model.rope_base", "theta": "model.rope_base",
    "gqa": "model.queries_per_kv",
    "max_tokens": "train.tokens", "micro_batch_size": "train.micro_batch",
    "dtype": "train.precision", "amp": "train.precision", "random_seed": "train.seed",
    "checkpoint_steps": "run.checkpoint_every", "save_every": "run.checkpoint_every",
    "save_steps": "run.checkpoint_every", "save_interval": "run.checkpoint_every",
    "eval_every": "run.val_every", "eval_steps": "run.val_every", "eval_interval": "run.val_every",
}  # fmt: skip

_LAYERS = "a model's layers are those of its schedule: write model.schedule=8x{value}, {value} "
_LAYERS += "layers of 8 heads each"
_HEADS = "a model's heads are those of its schedule: write model.schedule={value}x8, {value} heads "
_HEADS += "in each of 8 layers"
_KV = "key-value heads follow each layer's own count: write model.queries_per_kv=N, the queries "
_KV += "that share one"
_BATCH = "a batch is counted in tokens: write train.batch_tokens=N, N being {value} x model.seq_len"
_STEPS = (
    "write train.tokens=N, N being {value} x train.batch_tokens (`prism train --steps` does it)"
)
_EPOCHS = "a run's length is its tokens: write train.tokens=N, N being {value} x the corpus' tokens"
_WARMUP = "warmup is a share of all steps: write optim.warmup_fraction=F, F being {value} / steps"
_TRACKER = "write 'run.trackers=[\"{value}\"]'"
_NO_OPTIMIZER = "AdamW is the one optimizer; its values are optim.lr, optim.beta1 and so on"

# What is meant where no key has that value as it stands.
SAID = {
    **dict.fromkeys(("layers", "layer", "n_layers", "n_layer", "num_layers", "depth"), _LAYERS),
    **dict.fromkeys(("num_hidden_layers",), _LAYERS),
    **dict.fromkeys(("heads", "head", "n_heads", "n_head", "num_heads"), _HEADS),
    **dict.fromkeys(("num_attention_heads",), _HEADS),
    **dict.fromkeys(("kv_heads", "n_kv_heads", "num_key_value_heads"), _KV),
    **dict.fromkeys(("batch", "batch_size"), _BATCH),
    **dict.fromkeys(("steps", "max_steps", "n_steps", "num_steps", "iters", "max_iters"), _STEPS),
    **dict.fromkeys(("epochs", "epoch", "n_epochs", "num_train_epochs"), _EPOCHS),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_iters"), _WARMUP),
    **dict.fromkeys(("tracker", "report_to", "logger"), _TRACKER),
    **dict.fromkeys(("optimizer", "optim", "opt"), _NO_OPTIMIZER),
    **{name: _TRACKER.format(value=name) for name in ("wandb", "tensorboard", "trackio")},
    **{name: f"write train.precision={name}" for name in ("bf16", "fp32", "fp64")},
    "fp16": "write train.precision=bf16; float16 is not among auto, bf16, fp32 and fp64",
    "compile": "write train.compile=on, off or auto",
    "no_compile": "write train.compile=off",
    "fsdp": "write train.distribution=fully_shard",
    "dropout": "models here have none; optim.weight_decay is what holds them back",
    "log_every": "every step is in the run's metrics.jsonl",
}


def guessed(name: str, value: str) -> str | None:
    """What to write in place of a name, without its section, that other tools have for a value."""
    if name in SAID:
        return SAID[name].format(value=value)
    return f"write {KEYS[name]}={value}" if name in KEYS else None


def hint(name: str, value: str, known: list[str], *, near: bool = True) -> str | None:
    """The same, or the key of ``known`` that is called so, or nearly; None if there is none.

    ``name`` may be spelled as a flag.
    """
    name = name.lower().replace("-", "_")
    by_name = {key.rpartition(".")[2]: key for key in reversed(known) if "." in key}
    if found := guessed(name, value):
        return found
    close = [name] if name in by_name else []
    if near and not close:
        close = get_close_matches(name, by_name, n=1, cutoff=0.75)
    return f"write {by_name[close[0]]}={value}" if close else None
