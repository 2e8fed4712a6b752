"""The ``prism`` command: arguments in, lines and an exit code out.

Each module parses, calls a verb of the library, and prints what comes back. ``options.py`` and
``terminal.py`` have what they share, ``progress.py`` draws what verbs tell. Read ``train.py``
first. Commands import what they need when they run, so that ``prism --help`` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter

from prism_transformer import __version__
from prism_transformer.cli.bench import app as bench_app
from prism_transformer.cli.bench import doctor
from prism_transformer.cli.compare import compare
from prism_transformer.cli.convert import export, import_model
from prism_transformer.cli.measure import analyze, evaluate, loss
from prism_transformer.cli.overrides import explained
from prism_transformer.cli.prepare import prepare
from prism_transformer.cli.recipe import neutrality, recipes, show
from prism_transformer.cli.report import report
from prism_transformer.cli.runs import runs
from prism_transformer.cli.schedule import app as schedule_app
from prism_transformer.cli.search import app as search_app
from prism_transformer.cli.search import reslice
from prism_transformer.cli.slurm import submit
from prism_transformer.cli.study import app as study_app
from prism_transformer.cli.terminal import make_console
from prism_transformer.cli.train import generate, resume, train
from prism_transformer.core.characters import KEPT, visible
from prism_transformer.core.errors import InputError, sentence
from prism_transformer.core.threads import prepare_environment

app = App(
    name="prism",
    help="Progressive head schedules for Transformers: design, build, compare.",
    version=__version__,
    help_format="markdown",
    help_epilogue="Start here:  prism demo",
    default_parameter=Parameter(negative_iterable=()),
    console=make_console(),
)
app.register_install_completion_command(
    help="Install completion for bash, zsh or fish; adds a line to the shell's start-up file."
)
app.command(schedule_app)
app.command(bench_app)
app.command(study_app)
app.command(search_app)
submitted = "submit small --partition gpu --gpus 8 --time 4:00:00"
study_app.command(submit, help_epilogue=f"Example:  prism study {submitted}")


def demo() -> int:
    """Train and compare three very small models, in a few minutes: prism study run demo."""
    from prism_transformer.cli.study import run

    return run("demo")


def help_for(*command: str) -> int:
    """Print what a command does and its options.

    Parameters
    ----------
    command
        Its name, as in train or study run; left out, all commands are listed.
    """
    return _run([*command, "--help"])


# Every other command, by an example of its use, which begins with its name.
COMMANDS: dict[str, Callable[..., Any]] = {
    "show prism-small optim.lr=3e-4 > mine.toml": show,
    "recipes prism-small --out mine.toml": recipes,
    "prepare sotu --out data/sotu": prepare,
    "train prism-micro train.seed=1 --out runs/first": train,
    "resume runs/first": resume,
    "reslice runs/first --schedule 1x2 2x2 4x4 --at 768 --out runs/second": reslice,
    'generate runs/first --prompt "My fellow"': generate,
    "analyze runs/uniform --compare runs/prism --figure profile.svg": analyze,
    "loss runs/first --json": loss,
    "eval runs/first --tasks diagnostic --limit 20": evaluate,
    "compare runs/baseline-micro-seed0 runs/prism-micro-seed0": compare,
    "report studies/nano --out report": report,
    "doctor --json": doctor,
    "export prism-small hf-prism-small": export,
    'import path/to/llama prism-llama --schedule "8x4 16x4 32x24"': import_model,
    "demo": demo,
    "neutrality --out figures": neutrality,
    "runs --json": runs,
    "help train": help_for,
}
for example, command in COMMANDS.items():
    app.command(command, name=example.split()[0], help_epilogue=f"Example:  prism {example}")

# What each extra of ours brings that a command may not find.
EXTRAS = {
    "data": ("datasets", "orjson", "pyarrow", "tiktoken", "tokenizers"),
    "eval": ("lm_eval",),
    "report": ("jinja2", "pandas", "scipy"),
    "slurm": ("submitit",),
    "study": ("optuna", "psycopg"),
}


def main() -> NoReturn:
    """Run the command; what the user can fix is printed plainly and exits with 2."""
    prepare_environment(os.environ)  # before a command imports torch
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # whatever a name holds, printing it never fails
            stream.reconfigure(errors="backslashreplace")
    problem, code = "", 0
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `prism ... | head`: the reader has seen enough, as for any program
        _drop_output()
        code = 128 + 13  # SIGPIPE
    except BaseException as error:
        known = _missing_extra(error) or sentence(error)
        if known is None:
            raise
        problem, code = known
        if isinstance(error, OSError):
            _drop_output()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # another Ctrl-C ends this without a traceback
    if problem:
        with suppress(OSError):
            print(f"error: {visible(problem, keep=KEPT)}", file=sys.stderr)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """The exit code of a command; a line that cannot be read is an error like any other."""
    try:
        return app(
            arguments,
            result_action="return_int_as_exit_code_else_zero",
            print_error=False,
            exit_on_error=False,
        )
    except CycloptsError as error:
        raise InputError(explained(error, arguments)) from None


def _missing_extra(error: BaseException) -> tuple[str, int] | None:
    """Which extra of ours brings a module that is not there."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
    words = f"this needs {name}: pip install 'prism-transformer[{extra}]'"
    return None if extra is None else (words, 2)


def _drop_output() -> None:
    """Send standard output nowhere: Python flushes it when it ends, and that would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
