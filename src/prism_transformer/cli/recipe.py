"""``prism show`` and ``prism recipes``."""

from __future__ import annotations

from pathlib import Path

from prism_transformer.cli.output import Json, print_json, print_rows


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
        print(f"wrote {copy_recipe(name, out)}")
        return
    rows = []
    for key in packaged_recipes():
        recipe = load_recipe(key)
        rows.append(
            {
                "name": key,
                "schedule": str(recipe.model.schedule),
                "d_model": recipe.model.d_model,
                "tokens": recipe.train.tokens,
            }
        )
    print_rows(rows, as_json)
