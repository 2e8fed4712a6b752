"""Greedy tokens of vLLM against Hugging Face's; ``make test-vllm`` runs this where vLLM is.

Everything is float32: in bfloat16 two kernels may differ in a token that is a tie.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

vllm = pytest.importorskip("vllm", reason="make test-vllm has an environment for it")

from tests.hf.models import byte_level_tokenizer, prism  # noqa: E402

pytestmark = pytest.mark.slow

LENGTHS = (3, 17, 40, 64)
NEW = 24
MODELS: dict[str, dict[str, Any]] = {
    "uniform": {"head_schedule": "6x3"},
    "ragged": {"head_schedule": "1x1 2x1 3x1 6x1"},
    "gqa": {"head_schedule": "2x1 6x2", "queries_per_kv": 2},
    "padded": {"head_schedule": "2x1 4x1 8x1 12x1", "queries_per_kv": 2},  # 96, 48, 24, 16 wide
}


def saved(folder: Path, **fields: Any) -> Any:
    """A model on disk with a tokenizer, and itself."""
    words = byte_level_tokenizer("a head is a narrow view of the stream " * 40)
    shape: dict[str, Any] = {"hidden_size": 192, "vocab_size": 384, "num_tokens": len(words)}
    special: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    model = prism(**(shape | special | fields))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return model


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(3, 280, (length,), generator=draw).tolist() for length in LENGTHS]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_offline_tokens_are_hugging_faces(name: str, tmp_path: Path) -> None:
    model = saved(tmp_path, **MODELS[name])
    engine = vllm.LLM(str(tmp_path), dtype="float32", max_model_len=128, enforce_eager=True)
    asked = vllm.SamplingParams(temperature=0.0, max_tokens=NEW, min_tokens=NEW)
    found = engine.generate([{"prompt_token_ids": each} for each in prompts()], asked)
    tokens = [list(each.outputs[0].token_ids) for each in found]
    assert tokens == [greedy(model, each) for each in prompts()]


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """The server of ``vllm serve`` on this machine, by its port.

    Started as a module: the command of the CPU build asks for the version of a package ``vllm``,
    which it is not.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    options = ["--dtype", "float32", "--max-model-len", "128", "--enforce-eager"]
    place = ["--model", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command = [*program, *place, *options]
    with subprocess.Popen(command, env={**os.environ, "VLLM_NO_USAGE_STATS": "1"}) as server:
        try:
            _wait(server, port)
            yield port
        finally:
            server.terminate()
            server.wait(60)


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        assert server.poll() is None, "the server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(1)
    raise TimeoutError("the server does not answer")


def test_a_server_answers_an_openai_client_with_the_same_tokens(tmp_path: Path) -> None:
    from openai import OpenAI

    model = saved(tmp_path, **MODELS["ragged"])
    with served(tmp_path) as port:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=600)
        for prompt in prompts():
            answer = client.completions.create(
                model=str(tmp_path),
                prompt=prompt,
                max_tokens=NEW,
                temperature=0.0,
                # Not the text: these models write bytes that are no characters.
                extra_body={"min_tokens": NEW, "return_token_ids": True},
            )
            extra: Any = answer.choices[0]
            assert extra.token_ids == greedy(model, prompt)


def test_a_model_that_ships_writes_the_same_text_as_prism_generate(tmp_path: Path) -> None:
    """Its heads are 64, 32 and 16 wide; the last have no kernel and are padded."""
    from prism_transformer import generate
    from prism_transformer.hf.export import export

    export("nano", tmp_path / "hf")
    engine = vllm.LLM(str(tmp_path / "hf"), dtype="float32", max_model_len=128, enforce_eager=True)
    asked = vllm.SamplingParams(temperature=0.0, max_tokens=48)
    for prompt in ("My fellow citizens", "The war", "In the last year"):
        ours = generate("nano", prompt=prompt, tokens=48, temperature=0.0)
        (found,) = engine.generate([prompt], asked)
        assert prompt + found.outputs[0].text == ours.text


def test_widths_above_every_kernel_are_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path, head_schedule="1x1 12x1", hidden_size=768)
    code = (
        "import sys, vllm; "
        "vllm.LLM(sys.argv[1], dtype='float32', max_model_len=128, enforce_eager=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode
    assert "no CPU kernel for heads 768 wide; 512 is most" in done.stdout + done.stderr
