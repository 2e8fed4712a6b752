"""``prism show`` and ``prism recipes``."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.cli.output import Json, print_json, print_rows
from prism_transformer.errors import InputError


def show(recipe: str, /, *overrides: str, as_json: Json = False) -> None:
    """Print a recipe with everything filled in, and every number it implies.

    The output is itself a recipe: the derived numbers are comments.

    Parameters
    ----------
    recipe
        A file, or the name of one that ships (prism recipes).
    overrides
        Changes such as optim.lr=3e-4 or "model.schedule=3x2 12x10".
    """
    from prism_transformer.describe import recipe_facts
    from prism_transformer.recipe_file import load_recipe, recipe_toml

    resolved = load_recipe(recipe, overrides)
    facts = recipe_facts(resolved)
    if as_json:
        print_json({"recipe": resolved.model_dump(), "derived": facts})
        return
    from prism_transformer.terminal import recipe_comments

    print(recipe_toml(resolved))
    print(recipe_comments(facts))


def recipes(name: str | None = None, /, *, out: Path | None = None, as_json: Json = False) -> None:
    """List the recipes that ship, or copy one out to change it.

    Parameters
    ----------
    name
        The recipe to copy; all are listed when left out.
    out
        Where to; the recipe's own name in this folder when left out. Never overwrites.
    """
    from prism_transformer.recipe_file import copy_recipe, load_recipe, packaged_recipes

    if name is not None:
        written = copy_recipe(name, out)
        if as_json:
            print_json({"wrote": str(written)})
        else:
            print(f"wrote {written}")
        return
    if out is not None:
        raise InputError(f"--out {out} is for copying; name the recipe too")
    rows = []
    for key, file in packaged_recipes().items():
        recipe = load_recipe(key)
        first_line = file.read_text("utf-8").partition("\n")[0]
        rows.append(
            {
                "name": key,
                "schedule": str(recipe.model.schedule),
                "d_model": recipe.model.d_model,
                "tokens": recipe.train.tokens,
                "about": first_line.removeprefix("# "),
            }
        )
    print_rows(rows, as_json)
