from __future__ import annotations

import torch

from prism_transformer.models import cost
from prism_transformer.models.neutrality import measure, prove_neutrality
from tests.conftest import small_config


def test_schedules_differ_in_logits_alone() -> None:
    schedules = ["12x5", "2x1 3x1 6x1 12x2", "12x2 6x1 3x1 2x1", "1x5"]
    measured = [measure(small_config(text), 32) for text in schedules]
    for one in measured[1:]:
        assert one.n_params == measured[0].n_params
        assert one.weights == measured[0].weights
        assert one.forward_flops == measured[0].forward_flops
        assert one.backward_flops == measured[0].backward_flops
        assert one.kv_bytes == measured[0].kv_bytes
        assert not torch.equal(one.logits, measured[0].logits)
    assert measured[0].kv_bytes == 2 * 5 * 32 * 96 * 4


def test_the_attention_term_is_counted_and_grows_with_the_square_of_the_length() -> None:
    config = small_config()
    for seq_len in (16, 32, 64):
        seen = measure(config, seq_len)
        matrices = seq_len * cost.forward_flops(config, seq_len).matrices
        attention = seen.forward_flops - matrices
        assert attention == 4 * config.n_layers * config.d_model * seq_len**2
        # Flash kernels compute q k' once more on the way back: five products instead of four.
        backward = seen.backward_flops - 2 * matrices
        assert backward == attention * 5 // 2


def test_a_pair_is_proven_neutral_and_another_is_not() -> None:
    uniform, prism = small_config("12x5"), small_config()
    found = prove_neutrality(uniform, prism, 32)
    assert found.holds
    assert found.logits_apart > 0
    assert found.table.values("equal") == ["yes"] * 5
    assert not prove_neutrality(prism, prism, 32).holds  # nothing acts
    wider = prove_neutrality(small_config("12x5", d_ff=192), prism, 32)
    assert not wider.holds
    assert wider.table.rows[0]["equal"] == "NO"
