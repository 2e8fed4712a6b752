"""Export to Hugging Face: a model and its tokenizer as a folder that needs nothing else."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from prism_transformer.core.disk import check_new, new_folder, read_json
from prism_transformer.core.errors import InputError
from prism_transformer.data.tokenizer import (
    GPT2_PATTERN,
    BpeTokenizer,
    Gpt2Tokenizer,
    Tokenizer,
    byte_characters,
)
from prism_transformer.hf.as_llama import to_llama
from prism_transformer.hf.code import AUTO_MAP, code_files
from prism_transformer.hf.configuration_prism import PrismConfig
from prism_transformer.hf.load import (
    NamedModel,
    Source,
    given_tokenizer,
    named_model,
    quiet,
    read_any,
    read_config,
    read_model,
    read_tokenizer,
)
from prism_transformer.hf.modeling_masked import model_class
from prism_transformer.hf.names import SCHEDULE, to_llama_names
from prism_transformer.hf.vllm_plugin import cpu_note
from prism_transformer.model import PrismLM
from prism_transformer.models.cost import size_text
from prism_transformer.models.weights import load_model
from prism_transformer.recipes.files import load_recipe
from prism_transformer.training.checkpoint import read_state
from prism_transformer.training.naming import shipped_models
from prism_transformer.training.run import (
    is_run,
    read_environment,
    read_metrics,
    read_run,
    run_tokenizer,
)

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
MASKING = ("share", "replaced", "random")
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")

Form = Literal["prism", "code", "llama"]
AnyPrism = Any
"""``PrismForCausalLM``, or ``PrismForMaskedLM`` of a bidirectional model"""

LOADING = tomllib.loads(Path(__file__).with_name("loading.toml").read_text("utf-8"))

CARD = Path(__file__).with_name("card.md").read_text("utf-8")


@dataclass(frozen=True)
class Exported:
    """A folder, and what an engine may want to know of the model in it."""

    folder: Path
    head_dims: tuple[int, ...]
    """head width of each layer"""
    causal: bool = True


def to_hf(model: PrismLM, **fields: Any) -> AnyPrism:
    """The Hugging Face model with the weights of a native one."""
    config = PrismConfig.from_native(model.config, **fields)
    with torch.device("meta"):
        wrapped = model_class(config)(config)
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    return with_weights(wrapped, to_llama_names(weights, config.queries_per_kv))


def with_weights(model: AnyPrism, weights: dict[str, Tensor]) -> AnyPrism:
    """Give a model built on the meta device its weights, and with them its schedule."""
    weights[SCHEDULE] = torch.tensor(model.config.schedule.heads)
    missing = model.load_state_dict(weights, strict=False, assign=True).missing_keys
    tied = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    assert missing == tied, missing
    model.tie_weights()
    return model.eval()


def export(
    source: Source,
    out: Path | str,
    *,
    tokenizer: str | None = None,
    seed: int | None = None,
    form: Form = "prism",
) -> Exported:
    """Write a model to a new folder, for Hugging Face and what is built on it.

    ``source`` is a run, a native model folder, a Prism model of Hugging Face, one that ships
    (``nano``, ``nano-uniform``), or a recipe, for its initial weights. A run brings its tokenizer
    along; ``tokenizer``, a Hugging Face one by folder or hub name, stands in its place. ``seed`` is
    of a recipe's weights. ``form`` is ``prism``; ``code`` with the code beside the weights, for
    where our package is not; or ``llama``, a plain Llama, of a uniform schedule.
    """
    out = Path(out)
    check_new(out)
    opened = open_export(source, tokenizer, seed)
    write_hf(opened, out, form)
    config = opened.model.config.native
    return Exported(out, config.head_dims, config.attention == "causal")


@dataclass(frozen=True)
class Opened:
    """A model in memory with what goes with it."""

    model: AnyPrism
    tokenizer: Any | None = None
    """Hugging Face's"""
    note: str = ""
    """what a model card says of where it comes from"""


def open_export(source: Source, tokenizer: str | None = None, seed: int | None = None) -> Opened:
    """Read whatever a user exports."""
    given = given_tokenizer(tokenizer) if tokenizer is not None else None
    place = Path(fspath(source))
    if not place.exists():
        place = shipped_models().get(fspath(source), place)
    if place.is_dir() and seed is not None:
        raise InputError(f"{fspath(source)}: is a trained model; --seed is for recipes")
    if is_run(place):
        return open_run(named_model(source), given)
    if (place / "config.json").is_file():
        if (config := read_config(str(place))).model_type != "prism":
            raise InputError(f"{place}: is a {config.model_type} model, not Prism")
        model = read_model(model_class(config), str(place))
        return Opened(model, given or read_tokenizer(str(place), required=False))
    if place.is_dir():
        return open_native(load_model(place), given)
    recipe = load_recipe(fspath(source), [] if seed is None else [f"train.seed={seed}"])
    return open_native(PrismLM(recipe.model, recipe.train.seed), given)


@contextmanager
def as_hf(model: NamedModel) -> Iterator[str]:
    """A model as other libraries open it: a run is exported to a folder that goes afterwards."""
    if model.run is None:
        read_any(model.source)  # for its refusal of missing weights, which lm_eval would accept
        yield model.source
        return
    with TemporaryDirectory(prefix="prism-hf-") as folder:
        write_hf(open_run(model), Path(folder) / "hf")
        yield str(Path(folder) / "hf")


def open_run(model: NamedModel, tokenizer: Any | None = None) -> Opened:
    """Read a run as it was at a checkpoint, with its tokenizer and its numbers."""
    assert model.run is not None
    assert model.checkpoint is not None
    recipe = read_run(model.run)
    if tokenizer is None:
        mask = recipe.model.mask_token if recipe.train.objective == "masked" else None
        tokenizer = to_hf_tokenizer(run_tokenizer(model.run, recipe), recipe.model.seq_len, mask)
    note = _run_note(model.run, model.checkpoint)
    opened = open_native(load_model(model.checkpoint), tokenizer, note)
    if recipe.train.objective == "masked":
        shares = {name: getattr(recipe.train, f"mask_{name}") for name in MASKING}
        opened.model.config.masking = shares
    return opened


def open_native(model: PrismLM, tokenizer: Any | None = None, note: str = "") -> Opened:
    """Wrap a native model, with its Hugging Face tokenizer where it has one."""
    n_rows = model.config.vocab_rows
    if tokenizer is not None and len(tokenizer) > n_rows:
        raise InputError(f"the tokenizer has {len(tokenizer)} tokens, the model only {n_rows} rows")
    wrapped = to_hf(model, **{name: getattr(tokenizer, name, None) for name in SPECIAL_TOKENS})
    if tokenizer is not None:
        wrapped.config.num_tokens = len(tokenizer)
    return Opened(wrapped, tokenizer, note)


def write_hf(opened: Opened, folder: Path, form: Form = "prism") -> None:
    """Write config, weights, generation config, tokenizer and model card to a new folder."""
    model = opened.model
    for name in SPECIAL_TOKENS if model.can_generate() else ():
        if getattr(model.generation_config, name, None) is None:
            setattr(model.generation_config, name, getattr(model.config, name))
    written = to_llama(model) if form == "llama" else model
    with new_folder(folder) as place, quiet():
        written.save_pretrained(place)
        if form == "code":
            _add_code(place)
        if opened.tokenizer is not None:
            opened.tokenizer.save_pretrained(place)
        card = model_card(model, folder.resolve().name, opened.note, form)
        (place / "README.md").write_text(card, "utf-8")


def _add_code(folder: Path) -> None:
    """Put the code beside the weights, and say in the config that it is there."""
    for name, text in code_files().items():
        (folder / name).write_text(text, "utf-8")
    config = read_json(folder / "config.json") | {"auto_map": AUTO_MAP}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def model_card(model: AnyPrism, name: str, note: str = "", form: Form = "prism") -> str:
    """What the folder's README says: the model, its schedule drawn, which tools run it and how."""
    causal = model.config.attention == "causal"
    return CARD.format(
        name=name,
        params=size_text(model.num_parameters()),
        note=f"{note}\n\n" if note else "",
        config=model.config,
        staircase=model.config.schedule.staircase(),
        load=LOADING[form] if causal else LOADING[form].replace("CausalLM", "MaskedLM"),
        pipeline="text-generation" if causal else "fill-mask",
        engines=_engines(model, form),
    )


def _engines(model: AnyPrism, form: Form) -> str:
    """Which engines serve the folder, and how."""
    if model.config.attention != "causal":
        return 'A masked language model: `pipeline("fill-mask")` finds what its mask token hides.'
    if form == "llama":
        return (
            "Whatever runs a Llama runs this folder: vLLM, llama.cpp's own converter, and others."
        )
    note = cpu_note(model.config.native.head_dims)
    vllm = "- vLLM: `vllm serve path/to/this/folder`, with prism-transformer installed beside it"
    file = "`prism export path/to/this/folder model.gguf --gguf` makes a file for a stock build"
    return f"{vllm}{note and f' ({note})'}.\n- llama.cpp: {file}."


def _run_note(run: Path, checkpoint: Path) -> str:
    """What a model card says of a run."""
    recipe, state = read_run(run), read_state(checkpoint)
    data = recipe.data
    start = read_environment(run).get("start")
    trained = (
        f"Trained for {state.step:,} of {recipe.n_steps:,} steps, {state.tokens:,} tokens of "
        f"`{data.trained_on}` (tokenizer `{data.tokenizer}`, seed {recipe.train.seed})"
        + ("." if start is None else f", from the weights of `{start['source']}`.")
    )
    losses = [row for row in read_metrics(run, state.metrics_bytes) if row["kind"] == "val"]
    if not losses:  # the weights that a run began from are saved before they are validated
        return trained
    last = losses[-1]
    return (
        f"{trained} Validation loss at step {last['step']:,}: {last['loss']:.4f} nats per token "
        f"over {data.val_tokens:,} tokens."
    )


def to_hf_tokenizer(tokenizer: Tokenizer, seq_len: int, mask: int | None = None) -> Any:
    """A fast tokenizer that gives the same tokens; only there does the end of text have a name.

    So has the mask, of a masked language model, whose number it is.
    """
    vocabulary, merges = _vocabulary(tokenizer)
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    ids = {END_OF_TEXT: tokenizer.end_of_text}
    if mask is not None:
        # Texts of several lengths are filled up with what no text holds.
        special |= {"mask_token": MASK, "pad_token": END_OF_TEXT}
        ids[MASK] = mask
    for name, number in ids.items():
        for spare in range(len(vocabulary), number):  # ids that no text becomes
            vocabulary[f"<|unused{spare}|>"] = spare
        vocabulary[name] = number
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in ids])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=seq_len,
        **special,
        clean_up_tokenization_spaces=False,
    )


def _vocabulary(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens by their spelling, and the pairs that merge, in the order they are merged."""
    if isinstance(tokenizer, BpeTokenizer):
        model = json.loads(tokenizer.bpe.to_str())["model"]
        return dict(model["vocab"]), [(left, right) for left, right in model["merges"]]
    if isinstance(tokenizer, Gpt2Tokenizer):
        ranks = tokenizer.encoding._mergeable_ranks
        pairs = [_merge(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
        vocabulary = {_spelled(token): rank for token, rank in ranks.items()}
        return vocabulary, [(_spelled(left), _spelled(right)) for left, right in pairs]
    return {character: byte for byte, character in enumerate(byte_characters())}, []


def _spelled(token: bytes) -> str:
    characters = byte_characters()
    return "".join(characters[byte] for byte in token)


def _merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that become this one: what is left of it when only earlier merges are done."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        rank, place = min(
            (ranks.get(parts[i] + parts[i + 1], ranks[token]), i) for i in range(len(parts) - 1)
        )
        assert rank < ranks[token]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]
