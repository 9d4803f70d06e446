"""Finding the recipe that a file defines."""

import runpy
import sys
from pathlib import Path

from msdata_jax.errors import RecipeError
from msdata_jax.recipe import Recipe


def load_recipe(path: Path) -> Recipe:
    """The value named `recipe` of a Python file, which may import modules beside it.

    Raises:
        RecipeError: no such file, or it defines no `recipe`.
    """
    if not path.is_file():
        raise RecipeError(f"the recipe file {path} does not exist")
    sys.path.insert(0, str(path.resolve().parent))
    values = runpy.run_path(str(path), run_name="__msdata_recipe__")
    recipe = values.get("recipe")
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{path} should define `recipe = msd.Recipe(...)`; it defines "
            f"{'no such name' if recipe is None else type(recipe).__name__}"
        )
    return recipe
