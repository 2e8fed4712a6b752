"""Workers that are killed, workers side by side, and real databases between them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import pandas as pd
import pytest

from prism_transformer.study.collected import read_collected
from tests.study.files import STAGES, STUDY, finish_study, learnt, tiny_plan, write_study

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "prism_transformer", "study"]
SLOWER = STUDY.replace("[arms]", "[recipe]\ntrain.tokens = 51_200\n[arms]") + STAGES  # 100 steps


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--heartbeat", "1", "--workers", "1"],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def expected(folder: Path, data: Path) -> pd.DataFrame:
    """The table of the same study, run here without interruption."""
    home = finish_study(tiny_plan(folder, data, SLOWER), folder / "uninterrupted")
    return learnt(home.collect())


def same(folder: Path, wanted: pd.DataFrame) -> None:
    found = read_collected(folder)
    assert found.facts.complete
    pd.testing.assert_frame_equal(learnt(found), wanted, check_dtype=False)


def test_killed_at_random_and_worked_on_by_two_gives_the_same_table(
    tmp_path: Path, data: Path
) -> None:
    file = write_study(tmp_path, data, SLOWER)
    draw = random.Random(1)
    for _ in range(6):
        pair = [start("run", file, cwd=tmp_path), start("run", file, cwd=tmp_path)]
        time.sleep(draw.uniform(4, 14))
        for worker in pair:
            worker.kill()
            worker.wait()
    last = [start("run", file, cwd=tmp_path), start("run", file, cwd=tmp_path)]
    for worker in last:
        said, _ = worker.communicate(timeout=300)
        assert worker.returncode == 0, said
    assert "prism against uniform" in said
    same(tmp_path / "studies" / "tiny" / "collected", expected(tmp_path, data))


@dataclass(frozen=True)
class Postgres:
    """A server, and how it dies and comes back."""

    url: str
    begin: Callable[[], None]
    kill: Callable[[], None]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of our own, on this machine alone."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *os.get_exec_path()]
    found = shutil.which("initdb", path=os.pathsep.join(map(str, folders)))
    if found is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses root

    def run(program: str, *arguments: str | Path) -> None:
        command = [*user, Path(found).with_name(program), "-D", home / "db", *arguments]
        subprocess.run(command, cwd="/", check=True, capture_output=True)

    # Not below pytest's folder, which other users may not enter.
    with TemporaryDirectory(prefix="prism-postgres-") as folder:
        home = Path(folder)
        if user:
            shutil.chown(home, "postgres")
        port = free_port()
        run("initdb", "-A", "trust", "-U", "lab")
        options = f"-p {port} -h 127.0.0.1 -k {home}"

        def begin() -> None:
            run("pg_ctl", "-w", "-o", options, "-l", home / "log", "start")

        def kill() -> None:
            os.kill(int((home / "db" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

        begin()
        try:
            yield Postgres(f"postgresql://lab@127.0.0.1:{port}/postgres", begin, kill)
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_two_workers_share_a_postgresql_and_one_is_killed(
    tmp_path: Path, data: Path, postgres: Postgres
) -> None:
    file = write_study(tmp_path, data, SLOWER)
    shared = ("--storage", postgres.url)
    begun = [*COMMAND, "plan", str(file), *shared, "--begin"]
    subprocess.run(begun, cwd=tmp_path, check=True, capture_output=True)
    workers = [start("work", file, *shared, cwd=tmp_path) for _ in range(2)]
    runs = tmp_path / "studies" / "tiny" / "runs"
    deadline = time.monotonic() + 120
    while len(list(runs.glob("*/checkpoints/step-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers[0].kill()
    workers[0].wait()
    said, _ = workers[1].communicate(timeout=300)
    assert workers[1].returncode == 0, said
    finished = start("run", file, *shared, cwd=tmp_path)
    said, _ = finished.communicate(timeout=300)
    assert finished.returncode == 0, said
    same(tmp_path / "studies" / "tiny" / "collected", expected(tmp_path, data))
    sessions = [
        len(run.sessions)
        for run in read_collected(tmp_path / "studies" / "tiny" / "collected").facts.runs
    ]
    assert sorted(sessions) == [1, 1, 1, 2]  # one run has been gone on with, none was done twice


def test_a_postgresql_that_is_killed_and_started_again_loses_nothing(
    tmp_path: Path, data: Path, postgres: Postgres
) -> None:
    file = write_study(tmp_path, data, SLOWER)
    shared = ("--storage", postgres.url)
    begun = [*COMMAND, "plan", str(file), *shared, "--begin"]
    subprocess.run(begun, cwd=tmp_path, check=True, capture_output=True)
    workers = [start("work", file, *shared, cwd=tmp_path) for _ in range(2)]
    runs = tmp_path / "studies" / "tiny" / "runs"
    deadline = time.monotonic() + 120
    while len(list(runs.glob("*/checkpoints/step-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    postgres.kill()
    time.sleep(4)
    postgres.begin()
    for worker in workers:
        said, _ = worker.communicate(timeout=400)
        assert worker.returncode == 0, said
    finished = start("run", file, *shared, cwd=tmp_path)
    said, _ = finished.communicate(timeout=300)
    assert finished.returncode == 0, said
    same(tmp_path / "studies" / "tiny" / "collected", expected(tmp_path, data))


def test_the_dashboard_shows_schedules_losses_and_rates(tmp_path: Path, data: Path) -> None:
    home = finish_study(tiny_plan(tmp_path, data), tmp_path / "tiny")
    port = free_port()
    storage = f"sqlite:///{home.folder / 'queue.db'}"
    command = [sys.executable, "-m", "optuna_dashboard._cli", storage, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                studies = json.load(urlopen(f"{address}/api/studies"))
                break
            except OSError:
                time.sleep(0.2)
        (study,) = studies["study_summaries"]
        details = json.load(urlopen(f"{address}/api/studies/{study['study_id']}"))
        page = urlopen(f"{address}/dashboard/").read().decode()
    finally:
        server.terminate()
        server.wait()
    assert "<html" in page
    assert study["study_name"] == "tiny"
    trials = details["trials"]
    assert {trial["state"] for trial in trials} == {"Complete"}
    arms = {param["param_external_value"] for t in trials for param in t["params"]}
    assert {"prism: 2x1 4x1 8x1", "uniform: 8x3"} <= arms
    for cell, trial in zip(home.plan.cells, trials, strict=True):
        assert trial["values"] == list(home.run_of(cell).values(20))
