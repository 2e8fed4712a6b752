from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from prism_transformer.analysis.profile import attention_profile
from prism_transformer.core.errors import InputError, RunError
from prism_transformer.data.tokenizer import ByteTokenizer
from prism_transformer.eval.diagnostic import minimal_pairs
from prism_transformer.eval.harness import evaluate
from prism_transformer.eval.loss import text_loss
from prism_transformer.eval.pseudo import PseudoLM, open_any
from prism_transformer.hf.export import Opened, to_hf, to_hf_tokenizer, write_hf
from prism_transformer.model import PrismLM
from tests.conftest import small_config

MASK, BEGIN = 257, 256
SHAPE: dict[str, Any] = {"attention": "bidirectional", "vocab_size": MASK + 1, "seq_len": 96}


def weights() -> PrismLM:
    model = PrismLM(small_config("2x1 6x1", **SHAPE)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3 if weight.dim() > 1 else 1)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pseudo") / "encoder"
    write_hf(Opened(to_hf(weights()), to_hf_tokenizer(ByteTokenizer(), 96, MASK)), place)
    return place


@torch.no_grad()
def plain(context: list[int], continuation: list[int]) -> float:
    """One token after the other, each masked by itself, through the native model."""
    model, total = weights(), 0.0
    for place, token in enumerate(continuation, start=len(context)):
        ids = torch.tensor([[*context, *continuation]])
        ids[0, place] = MASK
        total += model(ids)[0, place].log_softmax(-1)[token].item()
    return total


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_scores_against_a_plain_loop_whatever_the_batch(folder: Path, batch: int) -> None:
    lm = open_any(str(folder), "float32", batch, "cpu")
    assert isinstance(lm, PseudoLM)
    texts = [
        ([BEGIN], list(b"a cat")),
        (list(b"the dog"), list(b" ran")),
        ([BEGIN], list(b"x" * 9)),
    ]
    found = lm._loglikelihood_tokens([(("", ""), *text) for text in texts])
    assert [score for score, _ in found] == pytest.approx([plain(*t) for t in texts], rel=1e-4)


def test_what_does_not_fit_is_said(folder: Path) -> None:
    lm = open_any(str(folder), "float32", 4, "cpu")
    with pytest.raises(RunError, match="must be scored whole, the model sees 96"):
        lm._loglikelihood_tokens([(("", ""), [BEGIN], [1] * 97)])
    with pytest.raises(RunError, match="has no perplexity of a whole text"):
        lm.loglikelihood_rolling([])
    lm._loglikelihood_tokens([(("", ""), [1] * 95, [2, 3])])
    assert lm.truncated == 1


def test_a_masked_model_whose_tokenizer_has_no_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be asked of it; where it attends to can be seen all the same."""
    monkeypatch.chdir(tmp_path)  # where the profile is kept
    words = to_hf_tokenizer(ByteTokenizer(), 96)
    write_hf(Opened(to_hf(weights()), words), tmp_path / "maskless")
    source = str(tmp_path / "maskless")
    with pytest.raises(InputError, match="is a masked language model, and its tokenizer has no"):
        text_loss(source, sequences=1)
    with pytest.raises(InputError, match="is a masked language model, and its tokenizer has no"):
        open_any(source, "float32", 4, "cpu")
    assert attention_profile(source, sequences=1, length=16).n_sequences == 1


@pytest.mark.slow
def test_minimal_pairs_are_judged_by_them(folder: Path, tmp_path: Path) -> None:
    outcome = evaluate(folder, ["diagnostic"], limit=2, out=tmp_path / "out").outcomes[0]
    assert not outcome.failures
    rows = {row["task"]: row for row in outcome.results["diagnostic"]["rows"]}
    right = []
    for pairs in minimal_pairs().values():
        for good, bad in pairs[:2]:
            right.append(plain([BEGIN], list(good.encode())) > plain([BEGIN], list(bad.encode())))
    assert rows["diagnostic_pairs"]["value"] == pytest.approx(sum(right) / len(right))
