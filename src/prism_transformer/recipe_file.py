"""Recipes on disk: TOML with a ``base``, dotted overrides, and errors that name file and key.

Later wins: the base file, the recipe, the overrides of the command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from prism_transformer.errors import InputError
from prism_transformer.recipe import Recipe

PACKAGED = Path(__file__).parent / "recipes"
STUDIES = "studies"  # its folder of study files, which are no recipes

REMEDIES = {
    "int_type": "; write digits only, as in 1_000_000",
    "bool_type": "; write true or false",
}

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
    close = get_close_matches(name, packaged, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`prism recipes` lists those that ship"
    shown = str(source) if len(str(source)) <= 80 else f"{str(source)[:77]}..."
    if len(shown) == len(str(source)) and path.is_dir():
        raise RecipeError(f"{source}: is a folder, not a recipe file; {hint}")
    raise RecipeError(f"{shown}: no such recipe file, and no packaged recipe of that name; {hint}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for any file
        return False


def load_recipe(source: str | Path, overrides: str | Sequence[str] = ()) -> Recipe:
    """Read a recipe by path or packaged name; overrides look like ``optim.lr=3e-4``."""
    file = find_recipe(source)
    values: Values = {}
    origins: Origins = {}
    for path, table in _chain(file):
        _merge(values, origins, table, str(path))
    for text in [overrides] if isinstance(overrides, str) else overrides:
        _merge(values, origins, _read_override(text), f"override {text!r}")
    return _validated(values, origins, file)


def changed(recipe: Recipe, changes: Mapping[str, Any], origin: str) -> Recipe:
    """A recipe with other values, by their keys as in ``optim.lr``; errors name the origin."""
    values: Values = recipe.model_dump()
    origins: Origins = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        _merge(values, origins, {section: {name: value}}, origin)
    return _validated(values, origins, Path(origin))


def _validated(values: Values, origins: Origins, file: Path) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [_explain(details, origins, file) for details in error.errors()]
        raise RecipeError("\n".join(lines)) from None


def recipe_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML that loads to the same recipe."""
    return tomli_w.dumps(recipe.model_dump())


def copy_recipe(name: str, out: Path | None = None) -> Path:
    """Copy a packaged recipe out as it is written; its base still resolves from anywhere."""
    if name not in packaged_recipes():
        find_recipe(name)  # says what there is
        raise RecipeError(f"{name}: is a file already; `prism recipes` lists those that ship")
    source = packaged_recipes()[name]
    target = out or Path(source.name)
    if target.exists():
        raise RecipeError(f"{target}: exists already; give another place with --out")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text("utf-8"))
    except OSError as error:
        raise RecipeError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def _chain(file: Path) -> list[tuple[Path, Values]]:
    """The recipe's tables, base first."""
    tables: list[tuple[Path, Values]] = []
    seen: set[Path] = set()
    path: Path | None = file
    while path is not None:
        if path.resolve() in seen:
            raise RecipeError(f"{path}: is its own base, through {len(seen)} files; break the loop")
        seen.add(path.resolve())
        table = read_toml(path)
        base = table.pop("base", None)
        if base is not None and not isinstance(base, str):
            raise RecipeError(f"{path}: base = {base!r} is not the path or name of a recipe")
        tables.append((path, table))
        path = None if base is None else _find_base(base, path)
    return tables[::-1]


def _find_base(base: str, file: Path) -> Path:
    try:
        return find_recipe(base, beside=file.parent)
    except RecipeError as error:
        raise RecipeError(f"{file}: base: {error}") from None


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


def _read_override(text: str) -> Values:
    """``optim.lr=3e-4`` as a nested table; a value that is no TOML is taken as bare text."""
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name) or "\n" in text:
        raise RecipeError(
            f"cannot read override {text!r}; write section.key=value, as in optim.lr=3e-4"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    return {section: {name: parsed}}


def _merge(values: Values, origins: Origins, table: Values, origin: str) -> None:
    for section, keys in table.items():
        if isinstance(keys, dict) and isinstance(values.get(section, {}), dict):
            values[section] = values.get(section, {}) | keys
            origins.update({f"{section}.{key}": origin for key in keys})
        else:
            values[section] = keys
        origins[section] = origin


def _explain(details: Any, origins: Origins, file: Path) -> str:
    """One pydantic error as one line: file, key, what is wrong, the remedy."""
    key = ".".join(str(part) for part in details["loc"][:2])
    where = f"{origins.get(key, file)}: {key}" if key else str(file)
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(key)}"
    if kind == "missing":
        return f'{file}: {key}: missing; set it, or inherit it with base = "base/small"'
    if kind == "model_type":
        return f"{where}: expected a table, as in [{key}]"
    reason = details["msg"].removeprefix("Value error, ")
    if not key:  # a rule between sections: say where each value it names was set
        named = [k for k in _known_keys() if f"{k} " in reason and k in origins]
        return f"{reason} ({'; '.join(f'{k}: {origins[k]}' for k in named)})"
    shown = "" if isinstance(value, dict) else f" = {value!r}"
    return f"{where}{shown}: {reason}{REMEDIES.get(kind, '')}"


def _suggestion(key: str) -> str:
    """The nearest known key: by spelling, or of the same name in another section."""
    known = list(_known_keys())
    section, _, name = key.rpartition(".")
    same = [other for other in known if other.rpartition(".")[2] == name]
    close = same or get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(k for k in known if k.rpartition('.')[0] == section)}"


def _known_keys() -> Iterable[str]:
    for section, field in Recipe.model_fields.items():
        yield section
        yield from (f"{section}.{key}" for key in field.annotation.model_fields)  # type: ignore[union-attr]
