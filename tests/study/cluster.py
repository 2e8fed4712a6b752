"""A Slurm of our own on this machine: two nodes of one processor each, for as long as a block."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
# Names that can be resolved anywhere: processes of a run on both meet at the first.
NODES = ("127.0.0.1", "127.0.0.2")
START = 120.0  # seconds for daemons that take two on an idle machine

CONFIG = """
ClusterName=prism
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
MpiDefault=none
SlurmctldPort={port}
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdSpoolDir={home}/spool-%n
SlurmdPidFile={home}/slurmd-%n.pid
SlurmdLogFile={home}/slurmd-%n.log
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be no Slurm here."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd has to be started by root"


@dataclass(frozen=True)
class Cluster:
    """Commands find it by its environment."""

    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        """What a command of Slurm's says."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states(self) -> dict[str, str]:
        """Tasks that are there, by job and index."""
        lines = self.ask("squeue", "--noheader", "--array", "--format", "%F_%K %T").splitlines()
        return dict(line.split() for line in lines)

    def shell_of(self, task: str) -> int:
        """The process of a task's script."""
        (number,) = self.ask("squeue", "--noheader", "--jobs", task, "--format", "%A").split()
        home = str(Path(self.environment["SLURM_CONF"]).parent).encode()  # another may run beside
        script = f"/job{int(number):05}/slurm_script".encode()
        (shell,) = [
            int(each.parent.name)
            for each in Path("/proc").glob("[0-9]*/cmdline")
            if home in (line := _content(each)) and script in line
        ]
        return shell

    def time_is_up(self, task: str) -> None:
        """Send what Slurm sends before the time of a task is up, to the shell of its script."""
        # Not by scancel --batch: for a task of an array it delivers the signal, takes that for a
        # failure, and repeats it (22.05).
        os.kill(self.shell_of(task), signal.SIGUSR1)

    def kill(self, task: str) -> None:
        """End what a task runs, as the system does when memory is out."""
        shell = self.shell_of(task)
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text("ascii")
        for number in children.split():
            os.kill(int(number), signal.SIGKILL)

    def wait_until(self, done: Callable[[], bool], seconds: float = 480) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, self.ask("squeue", "--array")
            time.sleep(0.1)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start the daemons; whatever happens, they and their jobs end with the block."""
    # Not below pytest's folder, which munge may not enter; and a socket's path must be short.
    with TemporaryDirectory(prefix="prism-slurm-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        host = socket.gethostname()
        ports = iter(_free_ports(3))
        port = next(ports)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={next(ports)} CPUs=1"
            for name in NODES
        )
        config = home / "slurm.conf"
        config.write_text(CONFIG.format(host=host, home=home, port=port, nodes=nodes), "utf-8")
        (home / "state").mkdir()
        environment = {**os.environ, "SLURM_CONF": str(config), "OMP_NUM_THREADS": "1"}
        found, daemons = Cluster(environment), [_munge(home / "munge")]
        try:
            daemons.append(_start(["slurmctld", "-D"], environment))
            daemons += [_start(["slurmd", "-D", "-N", name], environment) for name in NODES]
            deadline = time.monotonic() + START
            while _idle(environment) < len(NODES):
                assert all(daemon.poll() is None for daemon in daemons), _last_words(home)
                if time.monotonic() > deadline:  # a machine on which Slurm does not start
                    pytest.skip(f"no idle nodes within {START:.0f} s: {_last_words(home)}")
                time.sleep(0.1)
            yield found
        finally:
            if len(daemons) > 1 and daemons[1].poll() is None:
                _cancel_all(found)
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in reversed(daemons):
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has just ended
        return b""


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    for path in (folder, folder / "key"):
        shutil.chown(path, "munge", "munge")
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    command = ["munged", "--foreground", f"--seed-file={folder / 'seed'}", *options]
    daemon = _start(command, dict(os.environ), user="munge")
    deadline = time.monotonic() + START
    while not (folder / "socket").exists():
        assert daemon.poll() is None, (folder / "log").read_text("utf-8")
        assert time.monotonic() < deadline, "munged makes no socket"
        time.sleep(0.05)
    return daemon


def _start(
    command: list[str], environment: dict[str, str], user: str | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, user=user, cwd="/", preexec_fn=_die_with_parent,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _die_with_parent() -> None:
    """Also when pytest itself is killed."""
    ask_for_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(ask_for_signal, signal.SIGTERM)


def _idle(environment: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--states=idle"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return len(done.stdout.splitlines())


def _last_words(home: Path) -> str:
    return "\n".join(log.read_text("utf-8")[-2000:] for log in home.glob("*.log"))


def _cancel_all(found: Cluster) -> None:
    """Leave no process of a job behind."""
    for how in (["--full", "--signal=KILL"], []):
        subprocess.run(["scancel", *how, "--user=root"], env=found.environment, check=False)
    for _ in range(100):
        asked = subprocess.run(["squeue", "-h"], env=found.environment, capture_output=True)
        if not asked.stdout:
            return
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    free = [socket.socket() for _ in range(count)]
    for each in free:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in free]
    for each in free:
        each.close()
    return ports
