"""``prism study submit``: a study as an array job of Slurm."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from prism_transformer.cli.options import (
    AT_LEAST_ONE,
    Flag,
    Many,
    Override,
    StudyName,
    Whole,
    Work,
    whole,
)
from prism_transformer.cli.progress import show_progress
from prism_transformer.cli.terminal import make_console, say
from prism_transformer.core.errors import InputError

DEFAULT = Work()
Count = Annotated[int | None, Parameter(converter=whole, validator=AT_LEAST_ONE)]


def submit(
    study: StudyName,
    /,
    *overrides: Override,
    options: Work = DEFAULT,
    partition: str | None = None,
    gpus: Count = None,
    time: str | None = None,
    nodes: Annotated[Whole, Parameter(validator=AT_LEAST_ONE)] = 1,
    cpus: Count = None,
    memory: str | None = None,
    warning: Annotated[Whole, Parameter(validator=AT_LEAST_ONE)] = 120,
    workers: Count = None,
    sbatch: Many = (),
    dry_run: Flag = False,
) -> None:
    """Submit what is not done yet to Slurm: one array job, a task for each run.

    A task whose time is up, or that is preempted, is queued again and goes on from its checkpoint.
    Runs that are done or have a job already are left out, so the same line can be given again.

    Parameters
    ----------
    partition
        Where tasks run; the cluster's default when left out.
    gpus
        GPUs of each node that train one run together, a process on each.
    time
        Limit of a task as Slurm writes it: 4:00:00, 1-12, or minutes.
    nodes
        Nodes that train one run together.
    cpus
        CPUs of each node.
    memory
        Memory of each node, as in 64G.
    warning
        Seconds before the end of its time at which a task saves and stops.
    workers
        So many tasks that share the study's queue, instead of one for each run.
    sbatch
        Any other option of sbatch, as in account=lab; may be given again.
    dry_run
        Print the script and submit nothing; needs no Slurm.
    """
    from prism_transformer.study.slurm import Resources, submit_study

    for each in sbatch:
        if "=" not in each:
            raise InputError(f"--sbatch {each}: write an option and its value, as in account=lab")
    more = dict(each.split("=", 1) for each in sbatch)
    asked = Resources(partition, nodes, gpus, cpus, memory, time, warning, more)
    console, opened = make_console(stderr=dry_run), options.open(study, overrides)
    with show_progress(console) as tell:
        done = submit_study(
            opened,
            asked,
            workers=workers,
            processes=options.processes,
            device=options.device,
            heartbeat=options.heartbeat,
            dry_run=dry_run,
            tell=tell,
        )
    if not done.script:
        say(console, "nothing to submit: every run is done or has a job")
    elif dry_run:
        print(done.script, end="")
    else:
        tasks = f"{workers} workers" if workers else f"{len(done.cells)} runs"
        say(console, f"job {done.job}: {tasks}; scripts and logs: {done.folder}")
        if done.tuning and not workers:
            say(
                console,
                "These find the learning rate of each arm; when they are done, the same line "
                "submits the comparison, or what else its rates need.",
            )
