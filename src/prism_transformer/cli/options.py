"""Options that several commands have; of studies: which runs, where, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

if TYPE_CHECKING:
    from prism_transformer.study.folder import StudyFolder
    from prism_transformer.study.sharing import Crew


def whole(_type: type, tokens: Sequence[Token]) -> int:
    """Read a whole number; cyclopts' own reader would round 768.7 without a word."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number") from None


Json = Annotated[
    bool,
    Parameter(name="--json", negative=(), show_default=False, help="Print JSON for scripts."),
]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Many = Annotated[tuple[str, ...], Parameter(show_default=False)]
Whole = Annotated[int, Parameter(converter=whole)]
Device = Annotated[
    str,
    Parameter(
        help="cuda, cpu or mps (untested); when left out, cuda where there is one, else cpu.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int,
    Parameter(converter=whole, help="How often each variant is measured, in turn with the others."),
]
Figure = Annotated[Path | None, Parameter(help="Also write the figure here: .svg, .png or .pdf.")]


# -- studies ---------------------------------------------------------------------------------------

StudyName = Annotated[
    str, Parameter(help="A study file, or the name of one that ships (prism study list).")
]
Override = Annotated[
    str, Parameter(help="A change of the recipe of every arm, such as train.micro_batch=8.")
]

AT_LEAST_ONE = Number(gte=1)


def workers_asked(_type: type, tokens: Sequence[Token]) -> int | Literal["auto"]:
    """``auto`` or a whole number."""
    text = tokens[0].value
    if text != "auto" and (not text.isdecimal() or int(text) < 1):
        raise ValueError(f"Must be auto or a whole number from 1 on, not {text!r}.")
    return "auto" if text == "auto" else int(text)


Workers = Annotated[
    int | Literal["auto"],
    Parameter(
        converter=workers_asked,
        help="Runs side by side on this machine, each with GPUs or cores of its own; 1 trains in "
        "this process.",
    ),
]
Processes = Annotated[
    int | None,
    Parameter(
        converter=whole,
        validator=AT_LEAST_ONE,
        help="Processes that train one run together; what the study says when left out.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Which runs are meant and where they are: options that all commands of a study share.

    Parameters
    ----------
    out
        The study's folder; studies/ and its name when left out.
    storage
        A database that workers share, as in postgresql://user@host/name; an SQLite file in the
        study's folder when left out.
    seeds
        Only these of the study's seeds, as in 0,1 or 0-7.
    arms
        Only these of its arms, the baseline among them, as in uniform,prism.
    with_
        A folder that prism study collect wrote, whose complete runs count as done; may be given
        several times.
    """

    out: Path | None = None
    storage: str | None = None
    seeds: str | None = None
    arms: str | None = None
    with_: Annotated[
        tuple[Path, ...], Parameter(name="--with", negative=(), show_default=False)
    ] = ()

    def open(self, study: str, overrides: Sequence[str] = ()) -> StudyFolder:
        """The study that these options speak of."""
        from prism_transformer.study.folder import load_study

        return load_study(
            study, self.out, self.storage, overrides, self.seeds, self.arms, self.with_
        )


@Parameter(name="*")
@dataclass(frozen=True)
class Work(Place):
    """A place, and how its runs are worked on.

    Parameters
    ----------
    heartbeat
        Seconds between signs of life of a worker; one that misses six counts as dead.
    """

    processes: Processes = None
    device: Device = "auto"
    heartbeat: Annotated[Whole, Parameter(validator=AT_LEAST_ONE)] = 10


@Parameter(name="*")
@dataclass(frozen=True)
class WorkHere(Work):
    """The same, with the number of workers on this machine."""

    workers: Workers = "auto"

    @property
    def crew(self) -> Crew:
        """These options as the verbs of ``study/api.py`` take them."""
        from prism_transformer.study.sharing import Crew

        return Crew(self.device, self.workers, self.processes, self.heartbeat)


DEFAULT_PLACE, DEFAULT_WORK = Place(), WorkHere()
