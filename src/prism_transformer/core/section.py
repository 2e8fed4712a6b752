"""Typed sections of what users write: strict, frozen, and plain about what is wrong."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from prism_transformer.core.errors import MAX_WHOLE, InputError, explain

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # which has no public name


class Explained(ModelMetaclass):
    """What is wrong in ``ModelConfig(...)`` is said as plainly as what is wrong in a file.

    Not in ``__init__``: pydantic calls that for the parts of a whole as well, and would lose where
    in the whole they are.
    """

    def __call__(cls, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            lines = [_explained(cls, each) for each in wrong_values(error)]
            raise InputError("\n".join(lines)) from None


def wrong_values(error: ValidationError) -> list[Any]:
    """Its details, without those of values that would be derived from a wrong one."""
    return [each for each in error.errors() if each["type"] != "default_factory_not_called"]


def _explained(section: Any, details: Any) -> str:
    known = list(section.model_fields)
    close = get_close_matches(str((*details["loc"], "")[0]), known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return explain(section.__name__, details, remedies={"extra_forbidden": f"; {hint}"})


class Section(BaseModel, metaclass=Explained):
    """A part of a recipe or study: no unknown keys, no conversions, no change once it is read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _countable(cls, value: Any) -> Any:
        """Refuse whole numbers that no count or seed of ours can be."""
        if isinstance(value, int) and abs(value) > MAX_WHOLE:
            raise ValueError(f"Input should be at most {MAX_WHOLE}")
        return value
