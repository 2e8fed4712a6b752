"""Names of models, judged before anything is imported that takes seconds or asked that is far.

A folder, a model that ships, or a name on the hub; what is none of these by its looks was mistyped.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from prism_transformer.core.errors import InputError
from prism_transformer.recipes.files import find_recipe, packaged_recipes

SHIPPED = Path(__file__).parents[1] / "hf" / "shipped"
HOMES = ("runs", "studies")  # where runs are made when nobody says where
NEAR = 0.7
HUB_NAME = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b", re.ASCII)  # the hub's own rule


def shipped_models() -> dict[str, Path]:
    """The trained models that come with the package, by name; a README beside them says how."""
    return {folder.name: folder for folder in sorted(SHIPPED.iterdir()) if folder.is_dir()}


def check_name(name: str) -> None:
    """Refuse a name that can be no model, at once and without the hub.

    What passes is a folder, a model that ships, or a name that the hub might know.
    """
    path, ship = Path(name), shipped_models()
    if path.is_dir() or (name in ship and not path.exists()):
        return
    if path.is_file():
        raise InputError(f"{name}: is a file; a model is a run or a Hugging Face folder")
    if name in packaged_recipes():
        raise InputError(
            f"{name}: is a recipe, not a model: prism train {name} makes one; trained ones that "
            f"ship: {', '.join(ship)}"
        )
    if looks_local(name) or get_close_matches(name, ship, n=1, cutoff=NEAR):
        raise InputError(no_such(name))


def check_source(name: str) -> None:
    """The same for what may also be a recipe, whose initial weights are meant."""
    if Path(name).is_dir() or name in shipped_models():
        return
    if get_close_matches(name, shipped_models(), n=1, cutoff=NEAR):
        raise InputError(no_such(name))
    find_recipe(name)


def looks_local(name: str) -> bool:
    """Whether a name is a path, and never one on the hub, which are OWNER/NAME or a single word."""
    path = Path(name)
    if not HUB_NAME.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        return True
    if len(path.parts) > 2 or name.startswith((".", "/", "~")) or name.endswith("/"):
        return True
    return len(path.parts) == 2 and (path.parts[0] in HOMES or path.parent.is_dir())


def no_such(name: str) -> str:
    """That a name is no model here, and the nearest that is."""
    near = nearest(name)
    meant = f"; did you mean {near}?" if near else ""
    ship = "" if looks_local(name) else f", none that ships ({', '.join(shipped_models())})"
    return f"{name}: there is no such run or Hugging Face folder{ship}{meant}"


def nearest(name: str) -> str | None:
    """A model that ships, or a folder here or in ``runs``, of nearly that name."""
    places = (Path(name).parent, Path("runs"))
    there = [str(each) for place in places if place.is_dir() for each in place.iterdir()]
    folders = [each for each in there if Path(each).is_dir()]
    close = get_close_matches(name, [*shipped_models(), *folders], n=1, cutoff=NEAR)
    return close[0] if close else None
