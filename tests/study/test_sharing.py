"""Shares of a machine: everybody gets something, nothing goes to two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_transformer.core.errors import InputError
from prism_transformer.study.plan import make_plan
from prism_transformer.study.sharing import (
    Machine,
    Need,
    Workers,
    gpu_names,
    need_of,
    share_out,
    this_machine,
)
from prism_transformer.study.spec import find_study

GB = 10**9
SMALL, LARGE = 470_000, 124_000_000
asked = st.one_of(st.just("auto"), st.integers(1, 20))
names = st.lists(st.integers(0, 99).map(str), unique=True, min_size=1, max_size=16).map(tuple)


@given(names, st.integers(1, 20), asked, st.integers(0, 40), st.integers(1, 128))
def test_no_gpu_goes_to_two_and_none_is_made_up(
    gpus: tuple[str, ...], processes: int, workers: Workers, cells: int, cores: int
) -> None:
    machine, need = Machine(cores, 100 * GB, gpus), Need(SMALL, GB, processes)
    too_many = processes * (1 if workers == "auto" else workers) > len(gpus)
    if too_many:
        with pytest.raises(InputError, match=f"there are {len(gpus)}"):
            share_out(machine, need, workers, cells)
        return
    shares = share_out(machine, need, workers, cells)
    given_out = [gpu for share in shares.each for gpu in share.gpus]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= set(gpus)
    assert {len(share.gpus) for share in shares.each} == {processes}
    assert 1 <= len(shares) <= max(1, cells)
    if workers == "auto":  # no worker more would have fitted, or found a cell
        assert len(shares) == min(max(1, cells), len(gpus) // processes)
    else:
        assert len(shares) == min(max(1, cells), workers)
    assert all(share.threads >= 1 for share in shares.each)


@given(
    st.integers(1, 128), st.integers(1, 500), st.sampled_from([SMALL, 50_000_000, LARGE]),
    st.integers(1, 8), asked, st.integers(0, 40), st.one_of(st.none(), st.integers(1, 4)),
)  # fmt: skip
def test_cores_and_memory_are_not_promised_twice(
    cores: int, free: int, size: int, processes: int, workers: Workers, cells: int,
    threads: int | None,
) -> None:  # fmt: skip
    machine, need = Machine(cores, free * GB, (), threads), Need(size, 3 * GB, processes)
    shares = share_out(machine, need, workers, cells)
    count = len(shares)
    assert 1 <= count <= max(1, cells)
    assert not any(share.gpus for share in shares.each)
    assert len({share.threads for share in shares.each}) == 1
    each = shares.each[0].threads
    assert each == threads if threads else each >= 1
    if workers != "auto":
        assert count == min(workers, max(1, cells))
    elif count > 1:  # one worker there must be, whatever it takes
        assert count * processes * each <= cores
        assert count * processes * need.memory <= machine.memory
    assert shares.reason.startswith(f"{count} worker")


def test_eight_devices_for_eight_workers() -> None:
    uuids = tuple(f"GPU-{n:08x}" for n in range(8))
    shares = share_out(Machine(64, 500 * GB, uuids), Need(LARGE, 30 * GB), 8, 24)
    variables = [share.variables for share in shares.each]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in variables] == list(uuids)
    assert {each["OMP_NUM_THREADS"] for each in variables} == {"8"}
    pairs = share_out(Machine(64, 500 * GB, uuids), Need(LARGE, 30 * GB, 2), "auto", 24)
    assert [each.variables["CUDA_VISIBLE_DEVICES"] for each in pairs.each] == [
        f"{uuids[n]},{uuids[n + 1]}" for n in (0, 2, 4, 6)
    ]


@pytest.mark.parametrize(
    ("machine", "need", "workers", "cells", "reason"),
    [
        (Machine(2, 20 * GB), Need(SMALL, GB), "auto", 32,
         "2 workers, 1 thread each: runs of 0.47M parameters side by side do more than one run on "
         "several threads"),
        (Machine(8, 100 * GB), Need(LARGE, GB), "auto", 32,
         "2 workers, 4 threads each: a model of 124M parameters makes use of 4 threads"),
        (Machine(8, 100 * GB), Need(LARGE, 40 * GB), "auto", 1,
         "1 worker, 8 threads: one run is left"),
        (Machine(8, 7 * GB), Need(SMALL, 2 * GB), "auto", 9,
         "3 workers, 2 threads each: free memory holds 3 runs of about 2.0 GB"),
        (Machine(8, 90 * GB, (), 2), Need(SMALL, GB), "auto", 9,
         "4 workers, 2 threads each: OMP_NUM_THREADS is 2"),
        (Machine(2, 90 * GB), Need(SMALL, GB), 3, 9,
         "3 workers, 1 thread each: as asked, more than the machine's 2 cores"),
        (Machine(1, 90 * GB), Need(SMALL, GB), "auto", 9, "1 worker, 1 thread: there is 1 core"),
        (Machine(8, 90 * GB), Need(SMALL, GB, 4), 2, 9,
         "2 workers, 4 processes of 1 thread each: as asked"),
        (Machine(8, 90 * GB, ("0", "1", "2")), Need(LARGE, GB), "auto", 2,
         "2 workers, 1 GPU each; 1 GPU idle"),
    ],
)  # fmt: skip
def test_the_reason_is_said(
    machine: Machine, need: Need, workers: Workers, cells: int, reason: str
) -> None:
    assert share_out(machine, need, workers, cells).reason == reason


@pytest.mark.parametrize("workers", [0, -1, "two", 1.5])
def test_what_is_no_number_of_workers_is_refused(workers: Workers) -> None:
    with pytest.raises(InputError, match="give 'auto' or a number"):
        share_out(Machine(2, GB), Need(SMALL, GB), workers, 3)


def test_the_users_list_of_gpus_is_what_is_shared() -> None:
    assert gpu_names(3, None) == ("0", "1", "2")
    assert gpu_names(2, "5, 3") == ("5", "3")
    assert gpu_names(1, "GPU-8932f937,99") == ("GPU-8932f937",)  # CUDA stops at what it lacks
    assert gpu_names(0, "") == ()
    assert gpu_names(0, None) == ()


def test_this_machine_has_what_the_user_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2")
    found = this_machine(2)
    assert (found.threads, found.gpus) == (3, ("6", "2"))
    assert found.cores >= 1
    assert found.memory > 10**8
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert this_machine(0).threads is None


def test_a_study_needs_what_its_largest_run_needs() -> None:
    nano, small = (
        need_of((cell.recipe for cell in make_plan(find_study(name)).cells), 1)
        for name in ("nano", "small")
    )
    assert nano.parameters < 500_000 < 120_000_000 < small.parameters
    assert 10**9 < nano.memory < 2 * 10**9 < small.memory
