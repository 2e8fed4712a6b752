"""Interleaved rounds, and tables of speeds: their rows, and what each is compared with."""

from __future__ import annotations

import pytest
import torch

from prism_transformer.bench import measure
from prism_transformer.bench.measure import (
    Conditions,
    Timing,
    against,
    attention_table,
    decode_table,
    interleave,
    layer_table,
    ratio,
    schedule_table,
    speeds,
)
from prism_transformer.core.errors import InputError
from prism_transformer.core.progress import Advance, Event
from prism_transformer.schedule import HeadSchedule
from prism_transformer.training.device import Settings
from tests.conftest import small_config

SETTINGS = Settings(torch.device("cpu"), "fp32", False, "")
UNIFORM, PRISM = HeadSchedule.parse("12x5"), HeadSchedule.parse("2x1 3x1 6x1 12x2")


def conditions(events: list[Event]) -> Conditions:
    return Conditions(SETTINGS, rounds=1, batch=1, length=16, tell=events.append)


def test_works_take_turns_after_one_warm_up_each() -> None:
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = interleave(works, 3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert {name: len(timing.seconds) for name, timing in found.items()} == {"a": 3, "b": 3}


def test_what_takes_twice_as_long_is_half_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def passing(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(measure, "perf_counter", lambda: now)
    found = interleave({"short": lambda: passing(2.0), "long": lambda: passing(4.0)}, 3)
    assert found["long"].seconds == (4.0, 4.0, 4.0)
    assert ratio(found["long"], found["short"]) == (0.5, 0.0)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = Timing((1.0, 10.0, 2.0)), Timing((2.0, 20.0, 5.0))  # one round was slow for both
    assert ratio(ours, theirs) == (2.0, 0.25)
    assert ours.median == 2.0


def test_speeds_are_those_of_the_seconds() -> None:
    found = {"first": Timing((2.0, 4.0)), "second": Timing((1.0, 1.0))}
    first, second = speeds(found, n_tokens=30)
    assert first == {"way": "first", "ms": 3000.0, "tokens/s": 10.0, "ratio": 1.0, "+-": 0.0}
    assert second == {"way": "second", "ms": 1000.0, "tokens/s": 30.0, "ratio": 3.0, "+-": 1.0}


def test_schedules_and_their_layers() -> None:
    events: list[Event] = []
    table = schedule_table(small_config(), (UNIFORM, PRISM), conditions(events))
    assert [(row["what"], row["schedule"]) for row in table.rows] == [
        (what, str(schedule))
        for what in ("training", "prefill", "decoding")
        for schedule in (UNIFORM, PRISM)
    ]
    assert table.values("ratio")[::2] == [1.0] * 3
    advances = [event for event in events if isinstance(event, Advance)]
    assert sum(event.done == event.total == 2 for event in advances) == 3
    encoder = small_config(attention="bidirectional")
    of_encoder = schedule_table(encoder, (UNIFORM, PRISM), conditions([]))
    assert set(of_encoder.values("what")) == {"training", "prefill"}
    with pytest.raises(InputError, match="an encoder does not decode"):
        decode_table(encoder, [4], conditions([]))
    layers = layer_table(small_config(), (UNIFORM, PRISM), conditions(events))
    assert [(row["layers"], row["heads"], row["width"]) for row in layers.rows] == [
        ("0-4", 12, 8), ("0", 2, 48), ("1", 3, 32), ("2", 6, 16), ("3-4", 12, 8),
    ]  # fmt: skip


def test_attention_and_decoding() -> None:
    table = attention_table(small_config(), (UNIFORM, PRISM), conditions([]))
    assert table.values("heads") == [12, 6, 3, 2]
    for row in table.rows:
        # 6 d T (T + 1): two products of d T (T + 1) / 2 multiply-adds, three times.
        assert row["GFLOP/s"] == pytest.approx(6 * 96 * 16 * 17 / row["ms"] / 1e6)  # type: ignore[operator]
    encoder = small_config("12x2 6x2", queries_per_kv=3, attention="bidirectional")
    for row in attention_table(encoder, (encoder.schedule,), conditions([])).rows:
        assert row["GFLOP/s"] == pytest.approx(12 * 96 * 16 * 16 / row["ms"] / 1e6)  # type: ignore[operator]
    with pytest.raises(InputError, match="2 heads are no multiple of queries_per_kv = 3"):
        attention_table(encoder, (PRISM,), conditions([]))
    table = decode_table(small_config(), (4, 8), conditions([]))
    assert table.values("way") == ["prompt of 4", "prompt of 8"]
    assert table.values("ratio")[0] == 1.0


@pytest.mark.parametrize("d_ff", [160, 96], ids=["one set of weights", "two"])
def test_both_are_timed_in_every_round(d_ff: int) -> None:
    found = against(small_config(), small_config("12x5", d_ff=d_ff), 8, 3, 2, SETTINGS)
    assert (found["prompt"], found["rounds"]) == (8, 2)
    assert {kind: each["tokens"] for kind, each in found["kinds"].items()} == {
        "prefill": 64, "decoding": 3,
    }  # fmt: skip
    for each in found["kinds"].values():
        assert len(each["seconds"]) == len(each["baseline_seconds"]) == 2
        assert min(each["seconds"] + each["baseline_seconds"]) > 0
