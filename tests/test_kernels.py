from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prism_transformer.design import presets
from prism_transformer.errors import InputError
from prism_transformer.kernels import UNKNOWN, layer_backends
from prism_transformer.schedule import HeadSchedule


def test_the_answer_is_torchs_own() -> None:
    schedule = HeadSchedule.parse("2x1 12x1")
    assert layer_backends(schedule, 768, seq_len=64) == ("flash_attention", "flash_attention")
    with sdpa_kernel(SDPBackend.MATH):
        assert layer_backends(schedule, 768, seq_len=64) == ("math", "math")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is absent")
def test_a_device_that_is_not_here_is_unknown() -> None:
    small = presets()["small"].schedule
    assert layer_backends(small, 768, "cuda", "bfloat16") == (UNKNOWN,) * 12
    assert layer_backends(small, 768, "meta") == (UNKNOWN,) * 12


@pytest.mark.parametrize(
    ("device", "dtype"), [("abacus", "float32"), ("cpu", "int8"), ("cpu", "nn")]
)
def test_unknown_names_are_refused(device: str, dtype: str) -> None:
    with pytest.raises(InputError):
        layer_backends(HeadSchedule.parse("2x2"), 768, device, dtype)
