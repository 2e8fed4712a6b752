"""Hugging Face folders: writing one that stands alone, and reading one of ours or of Llama's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging as hf_logging

from prism_transformer.errors import InputError
from prism_transformer.folders import new_folder
from prism_transformer.hf.convert import check_llama
from prism_transformer.hf.modeling_prism import PrismForCausalLM
from prism_transformer.terminal import staircase

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- prism-transformer
---

# {name}

A [Prism Transformer](https://arxiv.org/abs/2606.27449) with {params} parameters: {n_layers} layers,
d_model {d_model}, context {seq_len}. Heads per layer: `{schedule}`.

```
{staircase}
```

```python
import prism_transformer.hf  # registers the architecture
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
```

{note}The schedule stands in `config.json` as `head_schedule`. Weights of every schedule have the
same shapes, so the weights carry it too; loading them under another is refused unless asked for.
"""


def write_hf(
    model: PrismForCausalLM, folder: Path, tokenizer: Any | None = None, note: str = ""
) -> None:
    """Write config, weights, generation config, tokenizer and model card to a new folder."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(model.generation_config, name, None) is None:
            setattr(model.generation_config, name, getattr(model.config, name))
    with new_folder(folder) as place, _quiet():
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        card = model_card(model, folder.resolve().name, note)
        (place / "README.md").write_text(card, "utf-8")


def model_card(model: PrismForCausalLM, name: str, note: str = "") -> str:
    """What the folder's README says: the model, its schedule drawn, how to load it."""
    config = model.config
    return CARD.format(
        name=name,
        params=f"{model.num_parameters() / 1e6:.1f}M",
        note=f"{note}\n\n" if note else "",
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        seq_len=config.max_position_embeddings,
        schedule=config.head_schedule,
        staircase=staircase(config.schedule),
    )


def read_config(source: str) -> Any:
    """The configuration of a Hugging Face model, by folder or hub name."""
    try:
        return AutoConfig.from_pretrained(source)
    except Exception as error:  # each configuration class fails in a way of its own
        raise InputError(f"{source}: not a Hugging Face model: {_first_line(error)}") from None


def read_prism(source: str) -> PrismForCausalLM:
    """A Prism model of ours, in the precision it was saved in."""
    return _load(PrismForCausalLM, source)


def check_weights(source: str) -> None:
    """Refuse a model whose file lacks weights: transformers would draw them at random."""
    _load(AutoModelForCausalLM, source, ("missing_keys",))


def read_llama(source: str) -> LlamaForCausalLM:
    """A Llama that can become a Prism model."""
    check_llama(read_config(source))
    return _load(LlamaForCausalLM, source)


def read_tokenizer(source: str, *, required: bool) -> Any | None:
    """The tokenizer of a folder or hub name; None where there is none and none is needed."""
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(source)
    except Exception as error:  # each tokenizer class fails in a way of its own
        if required:
            raise InputError(f"{source}: has no tokenizer: {_first_line(error)}") from None
        return None


def _load(
    kind: Any, source: str, problems: tuple[str, ...] = ("missing_keys", "unexpected_keys")
) -> Any:
    try:
        with _quiet():
            model, info = kind.from_pretrained(source, dtype="auto", output_loading_info=True)
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(f"{source}: cannot be loaded: {_first_line(error)}") from None
    for problem in problems:
        if info[problem]:
            names = ", ".join(sorted(info[problem])[:3])
            raise InputError(f"{source}: its weights have {problem.replace('_', ' ')}: {names}")
    return model.eval()


class _quiet:
    """No progress bars of transformers': ours or none."""

    def __enter__(self) -> None:
        self.shown = hf_logging.is_progress_bar_enabled()
        hf_logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        if self.shown:
            hf_logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
