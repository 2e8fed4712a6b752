"""What torch reads from the environment once: how its threads wait, how it takes GPU memory.

Between two parallel pieces of a step the threads of OpenMP spin, so that the next piece begins at
once. Beside another busy process they spin on a core that the thread they wait for could use, and
training falls to a quarter of its speed. Spinning for microseconds instead of milliseconds costs
a few per cent alone and keeps half of the speed beside a neighbour: benchmarks/neighbours.py.
"""

from __future__ import annotations

from collections.abc import MutableMapping

# libgomp, in torch's builds for Linux, counts turns of its loop; the runtimes of LLVM and Intel,
# elsewhere, milliseconds. Each ignores the other's variable.
POLITE = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
CHOICES = ("OMP_WAIT_POLICY", *POLITE)  # any of these is the user's own

# Training and validation want blocks of other sizes; segments that grow leave no gaps between them.
SEGMENTS = "expandable_segments:True"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # today's name, and the older one


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set it, unless the user chose."""
    if not any(name in environment for name in CHOICES):
        environment.update(POLITE)
    if not any(name in environment for name in ALLOCATOR):
        environment[ALLOCATOR[0]] = SEGMENTS
