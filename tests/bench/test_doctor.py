"""prism doctor: every check runs here, and a broken machine is found."""

from __future__ import annotations

import json

import pytest

from prism_transformer.bench import doctor
from prism_transformer.bench.doctor import Diagnosis, diagnose, doctor_settings
from prism_transformer.training.device import Settings
from tests.conftest import Prism


@pytest.mark.slow
def test_every_check_runs_on_this_machine(prism: Prism) -> None:
    done = prism("doctor", "--device", "cpu", "--json")
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert list(found) == [
        "software", "device", "attention", "backends", "compiler", "bfloat16", "processes",
        "schedule", "loader", "tokenizer",
    ]  # fmt: skip
    # Speed is the machine's; what is computed must be right everywhere.
    for name in ("software", "attention", "backends", "compiler", "bfloat16", "processes"):
        assert found[name]["ok"], found[name]


def test_quick_checks() -> None:
    settings = doctor_settings("cpu")
    assert doctor.software(settings).ok
    assert "flash_attention" in doctor.attention(settings).found
    assert doctor.backends(settings).ok
    assert "tokens/s" in doctor.loader(settings).found
    assert "MB/s" in doctor.tokenizer(settings).found


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken(_settings: Settings) -> Diagnosis:
        raise RuntimeError("CUDA error: unspecified launch failure\nmore lines")

    found = diagnose(broken, doctor_settings("cpu"))
    assert (found.check, found.ok) == ("broken", False)
    assert found.found == "CUDA error: unspecified launch failure"
    assert found.remedy


def test_a_kernel_that_computes_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    monkeypatch.setattr(doctor, "causal_attention", lambda q, k, v: v + next(calls) * 1e-3)
    assert not doctor.backends(doctor_settings("cpu")).ok
