"""Which model a user named, and reading it.

A run's checkpoint, a Hugging Face folder, one of the two models that ship, or the hub.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.utils import get_session
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from prism_transformer.core.disk import file_sha256
from prism_transformer.core.errors import InputError, first_line
from prism_transformer.data.tokenizer import BPE_FILE
from prism_transformer.models.weights import CONFIG_FILE
from prism_transformer.training.checkpoint import check_checkpoint, newest_model
from prism_transformer.training.measured import own_sums
from prism_transformer.training.naming import check_name, looks_local, no_such, shipped_models
from prism_transformer.training.run import checkpoint_folder, checkpoints, is_run, read_run

# Said, not left out: the libraries would ask whether code of the folder may run.
NO_REMOTE_CODE = {"trust_remote_code": False}
HUB_SECONDS = 10  # after which the hub counts as not reachable
ALL = "all"  # every checkpoint of a run, in place of a checkpoint's name
MODEL_FILES = ("config.json", "*.safetensors", "*.bin", "tokenizer*", "vocab*", "merges*")

Source = str | PathLike[str]
"""What a user gives: a path, a name on the hub, or a ``Run``, which stands for its folder."""


@dataclass(frozen=True)
class NamedModel:
    """One model, not opened yet."""

    source: str
    run: Path | None = None
    checkpoint: Path | None = None
    """set where there is a run, and known to be sound"""
    name: str = ""
    """what a model that ships is called; its source is a folder of the package"""

    def __str__(self) -> str:
        if self.checkpoint is not None:
            return f"{self.run}, {self.checkpoint.name}"
        return self.name or self.source

    @property
    def sums(self) -> dict[str, str]:
        """What tells a run's model from others, to be kept with what is measured of it."""
        return {} if self.checkpoint is None else own_sums(self.checkpoint)

    def home(self, what: str) -> Path:
        """Where results of a kind are kept: in the run, or below here where there is none."""
        if self.run is not None and self.checkpoint is not None:
            return self.run / what / self.checkpoint.name
        return Path(what) / str(self).strip("/").replace("/", "--")


def named_model(source: Source, checkpoint: str | None = None) -> NamedModel:
    """A run at a checkpoint, the newest one when left out; or any other model."""
    name = fspath(source)
    if is_run(Path(name)):
        return NamedModel(name, Path(name), _checkpoint(Path(name), checkpoint))
    if checkpoint is not None:
        raise InputError(f"{name}: is not a run; --checkpoint is for runs")
    check_name(name)
    path = Path(name)
    if not path.exists() and name in shipped_models():
        return NamedModel(str(shipped_models()[name]), name=name)
    if not path.is_dir() and not _on_hub(name, "config.json"):
        raise InputError(f"{no_such(name)}; and the hub cannot be reached")
    return NamedModel(name)


def _on_hub(name: str, file: str) -> bool:
    """Whether something can be had by its name: from the cache, or from a hub that answers."""
    return isinstance(try_to_load_from_cache(name, file), str) or hub_answers()


def given_tokenizer(name: str) -> Any:
    """A tokenizer that a user named: a folder, or a name that the hub might know."""
    if not Path(name).is_dir():
        if Path(name).exists() or looks_local(name):
            raise InputError(f"{name}: is no folder with a tokenizer, and no name on the hub")
        if not _on_hub(name, "tokenizer_config.json"):
            raise InputError(f"{name}: there is no such folder, and the hub cannot be reached")
    return read_tokenizer(name, required=True)


def named_models(source: Source, checkpoint: str | None = None) -> list[NamedModel]:
    """The same, where ``checkpoint`` may also be ``all``, oldest first."""
    run = Path(fspath(source))
    if checkpoint != ALL or not is_run(run):
        return [named_model(source, checkpoint)]
    found = checkpoints(run)
    if not found:
        raise InputError(f"{run}: has no checkpoint yet")
    for each in found:
        check_checkpoint(each)
    return [NamedModel(str(run), run, each) for each in found]


def _checkpoint(run: Path, name: str | None) -> Path:
    if name is None:
        return newest_model(run)
    found = {folder.name: folder for folder in checkpoints(run)}
    step = name.removeprefix("step-")
    # With or without the zeros that keep folders in order.
    full = checkpoint_folder(run, int(step)).name if step.isdecimal() else name
    if full not in found:
        raise InputError(
            f"{run}: has no checkpoint {name!r}; it has {', '.join(found) or 'none yet'}"
        )
    check_checkpoint(found[full])
    return found[full]


def model_sums(model: NamedModel) -> dict[str, str]:
    """What tells a model from any other: a sha256 for each file, or the hub's commit.

    A model that has no config or no tokenizer is refused here, before anything long begins.
    """
    if model.run is not None and model.checkpoint is not None:
        return _run_sums(model.run, model.checkpoint)
    folder, config = Path(model.source), read_config(model.source)
    read_tokenizer(model.source, required=True)
    if not folder.is_dir():
        return {"commit": str(getattr(config, "_commit_hash", None))}
    files = {file for pattern in MODEL_FILES for file in folder.glob(pattern)}
    return {file.name: file_sha256(file) for file in sorted(files)}


def _run_sums(run: Path, checkpoint: Path) -> dict[str, str]:
    tokenizer = run / BPE_FILE
    return {
        **own_sums(checkpoint),
        "tokenizer": file_sha256(tokenizer) if tokenizer.exists() else read_run(run).data.tokenizer,
    }


def read_config(source: str) -> Any:
    """The configuration of a Hugging Face model, by folder or hub name."""
    folder = Path(source)
    if folder.is_dir() and not (folder / "config.json").is_file():
        hint = (
            f"`prism export {folder} OUT --tokenizer ...` makes one of it"
            if (folder / CONFIG_FILE).is_file()
            else "`prism train` makes a run, `prism export` a Hugging Face folder"
        )
        raise InputError(f"{folder}: is neither a run nor a Hugging Face folder; {hint}")
    try:
        return AutoConfig.from_pretrained(source, **NO_REMOTE_CODE)
    except Exception as error:  # each configuration class fails in a way of its own
        raise InputError(f"{source}: not a Hugging Face model: {first_line(error)}") from None


def read_tokenizer(source: str, *, required: bool) -> Any | None:
    """The tokenizer of a folder or hub name; None where there is none and none is needed."""
    try:
        with quiet():
            return AutoTokenizer.from_pretrained(source, **NO_REMOTE_CODE)
    except Exception as error:  # each tokenizer class fails in a way of its own
        if required:
            why = first_line(error).rstrip(" :")
            raise InputError(
                f"{source}: has no tokenizer ({why}); put one into the folder, or name it with "
                "--tokenizer where a command has that"
            ) from None
        return None


def read_model(kind: Any, source: str, *, spare: bool = False, dtype: Any = "auto") -> Any:
    """A model of a class with all of its weights: transformers would draw missing ones at random.

    ``spare``: the file may hold weights that the model has no use for, such as a head's.
    """
    try:
        with quiet():
            model, info = kind.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **NO_REMOTE_CODE
            )
    except InputError:
        raise
    except Exception as error:  # each format of weights fails in a way of its own
        if type(error).__name__ == "UnpicklingError":  # whose words tell how to run what is in it
            raise InputError(
                f"{source}: its weights are damaged, or hold more than tensors, which is never "
                "run; safetensors hold nothing else"
            ) from None
        raise InputError(f"{source}: cannot be loaded: {first_line(error)}") from None
    for problem in ("missing_keys", "unexpected_keys")[: 1 if spare else 2]:
        if info[problem]:
            names = ", ".join(sorted(info[problem])[:3])
            raise InputError(f"{source}: its weights have {problem.replace('_', ' ')}: {names}")
    return model.eval()


def read_any(source: str, dtype: Any = "auto") -> Any:
    """Any causal or masked LM."""
    kind = AutoModelForMaskedLM if is_masked(read_config(source)) else AutoModelForCausalLM
    return read_model(kind, source, spare=True, dtype=dtype)


def is_masked(config: Any) -> bool:
    """Whether a model is one that finds masked tokens, by the class that it was saved as."""
    return any(
        name.endswith("ForMaskedLM") for name in getattr(config, "architectures", None) or ()
    )


def sees_ahead(source: Source, checkpoint: str | None = None) -> bool:
    """Whether each position of a model sees those behind it too: known without its weights."""
    named = named_model(source, checkpoint)
    if named.run is not None:
        return read_run(named.run).model.attention == "bidirectional"
    return is_masked(read_config(named.source).get_text_config())


def context_of(model: Any) -> int | None:
    """Tokens that a Hugging Face model, or its config, was made for, where it says so."""
    config = getattr(model, "config", model)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def quiet() -> Iterator[None]:
    """No bars, advice or warnings of libraries: progress is told, and what matters is an error."""
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def hub_answers() -> bool:
    """Whether the hub is there, asked once: the libraries would try again for half a minute."""
    answered: list[bool] = []

    def ask() -> None:
        with suppress(Exception):  # of whichever HTTP library the hub's client uses
            get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
            answered.append(True)

    # On a thread that nobody waits for: a name server that is silent knows no such limit.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return bool(answered)


@contextmanager
def only_cached() -> Iterator[None]:
    """Take from the cache what is there, and fail at once for the rest."""
    from datasets import config

    # Both libraries read the environment only when they are imported, so their values are set.
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
