from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prism_transformer.core.threads import ALLOCATOR, CHOICES, POLITE, SEGMENTS, prepare_environment


def test_sets_every_runtime_where_nobody_chose() -> None:
    environment = {"OMP_NUM_THREADS": "4"}
    prepare_environment(environment)
    assert environment == {"OMP_NUM_THREADS": "4", **POLITE, ALLOCATOR[0]: SEGMENTS}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_of_the_user_stands(name: str) -> None:
    environment = {name: "theirs"}
    prepare_environment(environment)
    assert environment == {name: "theirs", ALLOCATOR[0]: SEGMENTS}


@pytest.mark.parametrize("name", ALLOCATOR)
def test_so_does_one_of_the_allocator(name: str) -> None:
    environment = {name: "max_split_size_mb:128"}
    prepare_environment(environment)
    assert environment == {name: "max_split_size_mb:128", **POLITE}


@pytest.mark.parametrize(("own", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_commands_set_it_before_openmp_is_loaded(own: dict[str, str], expected: str) -> None:
    """libgomp itself says what it read, if it is the runtime of this torch."""
    code = "import sys; sys.argv = ['prism', '--version']\n"
    code += "from prism_transformer.cli import main\n"
    code += "try: main()\nexcept SystemExit: import torch"
    rest = {key: value for key, value in os.environ.items() if key not in CHOICES}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**rest, **own, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this torch does not run on libgomp")
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr
