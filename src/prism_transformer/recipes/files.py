"""Recipes on disk: TOML with a ``base``, dotted overrides, and errors that name file and key.

Later wins: the base file, the recipe, the overrides of the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from prism_transformer.core.disk import write_whole, writing
from prism_transformer.core.errors import InputError, explain, plain_reason
from prism_transformer.core.section import wrong_values
from prism_transformer.recipe import Recipe, differences
from prism_transformer.recipes.guesses import guessed, hint
from prism_transformer.schedules import paper

PACKAGED = Path(__file__).parent
RUN_RECIPE = "recipe.toml"  # in the folder of a run
STUDIES = "studies"  # its folder of study files, which are no recipes

# What may differ from the paper's recipe without changing what is learnt, schedules apart.
SAME_LEARNING = (
    *("train.micro_batch", "train.compile", "train.distribution", "train.seed", "train.precision"),
    *("train.activation_checkpointing", "model.schedule", "data.folder", "run."),
)
# And what may differ without changing how many tokens a second it trains on.
SAME_SPEED = ("train.seed", "data.", "optim.", "run.")

# What a file says (section -> key -> value), and which file or override said it.
Values = dict[str, Any]
Origins = dict[str, str]


class RecipeError(InputError):
    """A recipe that cannot be read, or a value in it that cannot be used."""


def packaged_recipes() -> dict[str, Path]:
    """The recipes that ship with the package, by name."""
    found = {path for path in PACKAGED.rglob("*.toml") if path.parent.name != STUDIES}
    return {path.relative_to(PACKAGED).with_suffix("").as_posix(): path for path in sorted(found)}


def find_recipe(source: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe given by path (relative to ``beside``) or by packaged name."""
    path = Path(source) if beside is None else beside / source
    if _is_file(path):
        return path
    packaged = packaged_recipes()
    name = Path(source).as_posix().removesuffix(".toml")
    if name in packaged:
        return packaged[name]
    # Who says nano means both arms of that size, neither of which is nearest by its letters.
    close = [each for each in packaged if each.endswith(f"-{name}")][::-1]
    close = close or get_close_matches(name, packaged, n=1)
    known = " or ".join(filter(None, (", ".join(map(repr, close[:-1])), *map(repr, close[-1:]))))
    remedy = f"did you mean {known}?" if close else "`prism recipes` lists those that ship"
    shown = str(source) if len(str(source)) <= 80 else f"{str(source)[:77]}..."
    if len(shown) == len(str(source)) and (path / RUN_RECIPE).is_file():
        raise RecipeError(
            f"{source}: is a run already: prism resume {source} continues it, and "
            f"{path / RUN_RECIPE} is its recipe"
        )
    if len(shown) == len(str(source)) and path.is_dir():
        raise RecipeError(f"{source}: is a folder, not a recipe file; {remedy}")
    raise RecipeError(
        f"{shown}: no such recipe file, and no packaged recipe of that name; {remedy}"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for any file
        return False


def load_recipe(source: str | Path, overrides: str | Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or packaged name; overrides look like ``optim.lr=3e-4``."""
    file = find_recipe(source)
    values, origins = Values(), Origins()
    for path, table in _chain(file):
        _merge(values, origins, table, str(path))
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, value = read_override(text)
        _merge(values, origins, _nested(key, value), f"override {text!r}")
    return _validated(values, origins, file)


def changed(recipe: Recipe, changes: Mapping[str, Any], origin: str) -> Recipe:
    """A recipe with other values, by their keys as in ``optim.lr``; errors name the origin."""
    values, origins = recipe.model_dump(), Origins()
    for key, value in changes.items():
        _merge(values, origins, _nested(key, value), origin)
    return _validated(values, origins, Path(origin))


def _validated(values: Values, origins: Origins, file: Path) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [_explain(details, origins, file) for details in wrong_values(error)]
        lines = [line + _steps_hint(line, values) for line in lines]
        raise RecipeError("\n".join(lines)) from None


def _steps_hint(line: str, values: Values) -> str:
    """What ``train.steps`` would be in tokens, for those who count in steps."""
    train = values.get("train", {})
    if "train.steps: unknown key" not in line or not isinstance(train.get("steps"), int):
        return ""
    batch = train.get("batch_tokens", 0)
    tokens = f"{train['steps']} steps of {batch} tokens are train.tokens={train['steps'] * batch}"
    return f"; a run's length is its tokens: {tokens}"


def recipe_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML that loads to the same recipe."""
    return tomli_w.dumps(recipe.model_dump())


def copy_recipe(name: str, out: Path | None = None) -> Path:
    """Copy a packaged recipe out as it is written; its base still resolves from anywhere."""
    if name not in packaged_recipes():
        find_recipe(name)  # says what there is
        raise RecipeError(f"{name}: is a file already; `prism recipes` lists those that ship")
    return copy_out(packaged_recipes()[name], out)


def copy_out(source: Path, out: Path | None = None) -> Path:
    """Copy a file that ships, into this folder unless a place is given; nothing is overwritten."""
    target = out or Path(source.name)
    if target.exists():
        raise RecipeError(f"{target}: exists already; give another place with --out")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, source.read_bytes())
    return target


def _chain(file: Path) -> list[tuple[Path, Values]]:
    """The recipe's tables, base first."""
    tables: dict[Path, tuple[Path, Values]] = {}
    path = file
    while path.resolve() not in tables:
        table = read_toml(path)
        base = table.pop("base", None)
        tables[path.resolve()] = (path, table)
        if base is None:
            return list(tables.values())[::-1]
        if not isinstance(base, str):
            raise RecipeError(f"{path}: base = {base!r} is not the path or name of a recipe")
        try:
            path = find_recipe(base, beside=path.parent)
        except RecipeError as error:
            raise RecipeError(f"{path}: base: {error}") from None
    raise RecipeError(f"{path}: is its own base, through {len(tables)} files; break the loop")


def read_toml(path: Path) -> Values:
    """A file's tables."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text at byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond all measure
        raise RecipeError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from None


def read_override(text: str) -> tuple[str, Any]:
    """Key and value of ``optim.lr=3e-4``; a value that is no TOML is taken as bare text."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name) or "\n" in text:
        meant = hint(section, value, list(known_keys())) if equals and not dot else None
        remedy = meant or "write section.key=value, as in optim.lr=3e-4"
        raise RecipeError(f"cannot read override {text!r}; {remedy}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def _nested(key: str, value: Any) -> Values:
    section, _, name = key.partition(".")
    return {section: {name: value}}


def _merge(values: Values, origins: Origins, table: Values, origin: str) -> None:
    for section, keys in table.items():
        if isinstance(keys, dict) and isinstance(values.get(section, {}), dict):
            values[section] = values.get(section, {}) | keys
            origins.update({f"{section}.{key}": origin for key in keys})
        else:
            values[section] = keys
        origins[section] = origin


def _explain(details: Mapping[str, Any], origins: Origins, file: Path) -> str:
    """One pydantic error as one line: the file or override that set it, key, reason, remedy."""
    key = ".".join(str(part) for part in details["loc"][:2])
    if not key and details["type"] == "value_error":
        # A rule between sections: say where each value it names was set.
        reason = plain_reason(details)
        named = [k for k in known_keys() if f"{k} " in reason and k in origins]
        return f"{reason} ({'; '.join(f'{k}: {origins[k]}' for k in named)})"
    remedies = {
        "missing": '; set it, or inherit it with base = "base/small"',
        "extra_forbidden": _suggestion(key, details["input"]),
    }
    # What is missing was set nowhere, so the file that was asked for is to blame.
    origin = origins.get(key, file)
    if len(details["loc"]) > 2:  # within a value, as in data.mixture.0.weight
        return explain(origin, details)
    return explain(
        file if details["type"] == "missing" else origin, details, key=key, remedies=remedies
    )


def _suggestion(key: str, value: Any) -> str:
    """The nearest known key: by spelling, of the same name in another section, or as meant."""
    if key == "train.steps" and isinstance(value, int):
        return ""  # ``_steps_hint`` says how many tokens those are
    known = list(known_keys())
    section, _, name = key.rpartition(".")
    same = [other for other in known if other.rpartition(".")[2] == name]
    if not same and (meant := guessed(name, str(value))):
        return f"; {meant}"
    close = same or get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(k for k in known if k.rpartition('.')[0] == section)}"


def known_keys() -> Iterable[str]:
    """Sections of a recipe, and their keys as overrides write them."""
    for section, field in Recipe.model_fields.items():
        yield section
        yield from (f"{section}.{key}" for key in field.annotation.model_fields)  # type: ignore[union-attr]


def paper_scale(recipe: Recipe, may_differ: tuple[str, ...] = SAME_LEARNING) -> paper.Scale | None:
    """The scale whose recipe this is, but for keys that begin like one of ``may_differ``."""
    for scale in paper.scales().values():
        for arm in ("baseline", "prism"):
            changes = differences(_packaged(f"{arm}-{scale.name}"), recipe)
            if all(line.startswith(may_differ) for line in changes):
                return scale
    return None


@cache
def _packaged(name: str) -> Recipe:
    return load_recipe(name)
