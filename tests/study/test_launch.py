"""The line that starts the processes of one run, on one machine and on several."""

from __future__ import annotations

import sys

import pytest
from submitit.slurm.slurm import _parse_node_list

from prism_transformer.core.errors import InputError
from prism_transformer.study.launch import first_host, launcher

SLURM = {
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "20017",
    "SLURM_JOB_NODELIST": "gpu[003-004]",
}


def test_one_machine_needs_torchrun_alone() -> None:
    line = launcher(8, {})
    assert line[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert line[-3:] == ["--standalone", "--nproc-per-node", "8"]
    assert launcher(8, SLURM | {"SLURM_NNODES": "1"}) == line


def test_several_nodes_run_the_same_line_and_meet_at_the_first() -> None:
    line = " ".join(launcher(16, SLURM))
    assert line.startswith("srun --nodes 2 --ntasks 2 --kill-on-bad-exit=1 ")
    assert line.endswith(
        "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint gpu003:20017 "
        "--rdzv-id 20017"
    )
    assert "--standalone" not in line
    assert "--cpus-per-task" not in line
    assert "srun --nodes 2 --ntasks 2 --kill-on-bad-exit=1 --cpus-per-task 96 " in " ".join(
        launcher(16, SLURM | {"SLURM_CPUS_PER_TASK": "96"})
    )


def test_two_jobs_with_one_first_node_meet_at_two_ports() -> None:
    ends = [launcher(16, SLURM | {"SLURM_JOB_ID": job})[-3] for job in ("20017", "40018")]
    assert ends == ["gpu003:20017", "gpu003:20018"]


def test_processes_that_do_not_share_the_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="7 processes do not share 2 nodes"):
        launcher(7, SLURM)


@pytest.mark.parametrize(
    "nodes",
    [
        "gpu1", "gpu1,gpu2", "gpu[1-4]", "gpu[003-007,9],cpu1", "cpu1,gpu[3-4]", "gpu[5,7]",
        "rack[2-3]node[08-10]", "127.0.0.[1-2]", "a-b.lab.org", "gpu[1-2]-ib,x",
    ],
)  # fmt: skip
def test_the_first_host_is_the_one_that_submitit_reads(nodes: str) -> None:
    assert first_host(nodes) == _parse_node_list(nodes)[0]
