"""Tokens per second of greedy generation: ours, Hugging Face, llama.cpp as f32 and q8_0, vLLM.

One sequence and a batch, the same untrained weights, all engines in turn in every round: the ratio
to ours is taken round by round, so that what else the machine does slows both. Beside each: the
bytes of weights that one step reads, which is what bounds it on a CPU. An engine that is not
installed is left out and named; all of them run in the environment of ``make test-vllm`` after
``pip install gguf xllamacpp``. VLLM_CPU_KVCACHE_SPACE=1 keeps vLLM's cache at 1 GB.

    python benchmarks/serving.py [--recipe prism-small] [--batch 16] [--tokens 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from prism_transformer import PrismLM, load_recipe
from prism_transformer.bench.measure import Timing, interleave, ratio
from prism_transformer.data.tokenizer import open_tokenizer
from prism_transformer.hf.export import open_native, to_hf_tokenizer, write_hf
from prism_transformer.hf.llamacpp import GgufType, write_gguf
from prism_transformer.models.sampling import sample

PROMPT = 32  # tokens that are read before the first is written

Work = Callable[[], object]


def llamacpp(opened: Any, file: Path, kind: GgufType, batch: int, n_new: int) -> Work:
    """A server in this process that is asked ``batch`` times at once."""
    import xllamacpp

    write_gguf(opened.model, opened.tokenizer, file, kind)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.verbosity = str(file), batch, -1
    params.n_ctx = batch * (PROMPT + n_new + 8)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(params)
    asked = {"n_predict": n_new, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    questions = [asked | {"prompt": row} for row in prompts(batch).tolist()]
    pool = ThreadPoolExecutor(batch)
    return lambda: list(pool.map(server.handle_completions, questions))


def prompts(batch: int) -> Tensor:
    """The same random tokens for everybody, below every vocabulary."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(1, 250, (batch, PROMPT), generator=draw)


def works(native: PrismLM, opened: Any, place: Path, batch: int, n_new: int) -> dict[str, Work]:
    """Every engine that is here, each writing ``n_new`` tokens a sequence."""
    text = prompts(batch)
    greedy = {"max_new_tokens": n_new, "min_new_tokens": n_new, "do_sample": False}
    mask = torch.ones_like(text)
    found: dict[str, Work] = {
        "ours": lambda: sample(native, text, n_new, temperature=0.0),
        "hugging face": lambda: opened.model.generate(text, attention_mask=mask, **greedy),
    }
    kinds: tuple[GgufType, ...] = ("f32", "q8_0")
    for kind in kinds if here("xllamacpp") else ():
        file = place / f"{batch}-{kind}.gguf"
        found[f"llama.cpp {kind}"] = llamacpp(opened, file, kind, batch, n_new)
    if here("vllm"):
        found["vllm"] = vllm_work(place / "hf", batch, n_new)
    return found


def here(engine: str) -> bool:
    """Whether an engine is installed."""
    return find_spec(engine) is not None


@cache
def vllm_engine(folder: Path, longest: int) -> Any:
    """One engine for all batches, in float32."""
    import vllm

    return vllm.LLM(
        str(folder), dtype="float32", max_model_len=longest, enable_prefix_caching=False
    )


def vllm_work(folder: Path, batch: int, n_new: int) -> Work:
    """vLLM, offline, asked for the whole batch at once."""
    import vllm

    engine = vllm_engine(folder, PROMPT + n_new + 8)
    asked = vllm.SamplingParams(temperature=0.0, max_tokens=n_new, min_tokens=n_new)
    questions = [{"prompt_token_ids": row} for row in prompts(batch).tolist()]
    return lambda: engine.generate(questions, asked, use_tqdm=False)


def show(timings: dict[str, Timing], read: dict[str, int], batch: int, n_new: int) -> None:
    """One row of a Markdown table for each engine."""
    for name, timing in timings.items():
        speed = batch * n_new / timing.median
        times, spread = ratio(timing, timings["ours"])
        print(
            f"| {name} | {batch} | {speed:.1f} | {times:.2f} ± {spread:.2f} | "
            f"{read[name] / 1e6:.0f} MB |",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="prism-small")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    missing = [engine for engine in ("xllamacpp", "vllm") if not here(engine)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    native = PrismLM(load_recipe(options.recipe).model).eval()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        words = to_hf_tokenizer(open_tokenizer("bytes", place), native.config.seq_len)
        opened = open_native(native, words)
        opened.model.config.num_tokens = native.config.vocab_size  # all rows, as the others have
        write_hf(opened, place / "hf")
        own = sum(weight.nbytes for weight in native.parameters())
        print("| engine | sequences | tokens/s | times ours | weights read per step |")
        print("|---|---|---|---|---|")
        for batch in (1, options.batch):
            found = works(native, opened, place, batch, options.tokens)
            read = dict.fromkeys(found, own)
            for file in place.glob(f"{batch}-*.gguf"):
                read[f"llama.cpp {file.stem.split('-')[1]}"] = file.stat().st_size
            show(interleave(found, options.rounds), read, batch, options.tokens)


if __name__ == "__main__":
    main()
