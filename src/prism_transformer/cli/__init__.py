"""The ``prism`` command: verbs only. Each imports what it needs when it runs."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

from cyclopts import App

from prism_transformer import __version__
from prism_transformer.cli.analyze import analyze, loss
from prism_transformer.cli.bench import app as bench_app
from prism_transformer.cli.convert import export, import_model
from prism_transformer.cli.doctor import doctor
from prism_transformer.cli.evaluate import evaluate
from prism_transformer.cli.prepare import prepare
from prism_transformer.cli.recipe import recipes, show
from prism_transformer.cli.report import report
from prism_transformer.cli.schedule import app as schedule_app
from prism_transformer.cli.study import app as study_app
from prism_transformer.cli.train import generate, resume, train
from prism_transformer.errors import InputError

app = App(
    name="prism",
    help="Progressive head schedules for Transformers: design, build, compare.",
    version=__version__,
    help_format="plaintext",
    help_epilogue="Start here:  prism demo",
)
app.command(schedule_app)
app.command(bench_app)
app.command(study_app)
app.command(show, help_epilogue="Example:  prism show prism-small optim.lr=3e-4 > mine.toml")
app.command(recipes, help_epilogue="Example:  prism recipes prism-small --out mine.toml")
app.command(prepare, help_epilogue="Example:  prism prepare sotu --out data/sotu")
app.command(train, help_epilogue="Example:  prism train prism-nano train.seed=1 --out runs/first")
app.command(resume, help_epilogue="Example:  prism resume runs/first")
app.command(generate, help_epilogue='Example:  prism generate runs/first --prompt "My fellow"')
app.command(
    analyze,
    help_epilogue="Example:  prism analyze runs/uniform --compare runs/prism --figure profile.svg",
)
app.command(loss, help_epilogue="Example:  prism loss runs/first --json")
app.command(
    evaluate,
    name="eval",
    help_epilogue="Example:  prism eval runs/first --tasks diagnostic --limit 20",
)
app.command(report, help_epilogue="Example:  prism report studies/nano --out report")
app.command(doctor, help_epilogue="Example:  prism doctor --json")
app.command(export, help_epilogue="Example:  prism export prism-small hf-prism-small")
app.command(
    import_model,
    name="import",
    help_epilogue='Example:  prism import path/to/llama prism-llama --schedule "8x4 16x4 32x24"',
)


@app.command(help_epilogue="Example:  prism demo")
def demo() -> int:
    """Run the study that shows everything at work, in a few minutes: prism study run demo."""
    from prism_transformer.cli.study import run

    return run("demo")


@app.command(help_epilogue="Example:  prism neutrality --out figures")
def neutrality(*, out: Path = Path("figures")) -> int:
    """Draw the paper's three schedules, build its small pair, and prove neutrality.

    Parameters
    ----------
    out
        Folder for the figures.
    """
    from prism_transformer.proof import prove
    from prism_transformer.terminal import make_console

    return 0 if prove(make_console(), out) else 1


# Which extra of ours brings a package that a command may not find.
EXTRAS = {
    "datasets": "data",
    "orjson": "data",
    "pyarrow": "data",
    "tiktoken": "data",
    "tokenizers": "data",
    "lm_eval": "eval",
    "jinja2": "report",
    "optuna": "study",
    "pandas": "report",
    "psycopg": "study",
    "scipy": "report",
}


def main() -> NoReturn:
    """Run the command; what the user can fix is printed plainly and exits with 2."""
    try:
        code = app(sys.argv[1:], result_action="return_int_as_exit_code_else_zero")
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        print(
            f"error: this needs {error.name}: pip install 'prism-transformer[{extra}]'",
            file=sys.stderr,
        )
        code = 2
    except BrokenPipeError:  # `prism ... | head`: the reader has seen enough, as for any program
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13  # SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        code = 2
    sys.exit(code)
