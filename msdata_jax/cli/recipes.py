"""Finding the recipe that a file defines."""

import runpy
import sys
import sysconfig
import traceback
from pathlib import Path

import msdata_jax
from msdata_jax.errors import RecipeError
from msdata_jax.recipe import Recipe


def load_recipe(path: Path) -> Recipe:
    """The value named `recipe` of a Python file, which may import modules beside it.

    Raises:
        RecipeError: no such file, it defines no `recipe`, or it raised, whatever it raised; the message then
            shows the user's own frames and the error.
    """
    if not path.is_file():
        raise RecipeError(f"the recipe file {path} does not exist")
    sys.path.insert(0, str(path.resolve().parent))
    try:
        values = runpy.run_path(str(path), run_name="__msdata_recipe__")
    except (Exception, SystemExit) as error:
        raise RecipeError(_describe(path, error)) from error
    recipe = values.get("recipe")
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{path} should define `recipe = msd.Recipe(...)`; it defines "
            f"{'no such name' if recipe is None else type(recipe).__name__}"
        )
    return recipe


def _describe(path: Path, error: BaseException) -> str:
    """Where it failed, then the traceback as Python shows it, with frames of the user's own files only."""
    found = traceback.TracebackException.from_exception(error)
    pending = [found]
    while pending:
        each = pending.pop()
        frames = [frame for frame in each.stack if _is_users(frame.filename)]
        each.stack = traceback.StackSummary.from_list(frames)
        pending += [other for other in (each.__cause__, each.__context__) if other is not None]
    file, line = str(path), None
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    elif found.stack:
        file, line = found.stack[-1].filename, found.stack[-1].lineno
    where = f"{file}, line {line}" if line else file
    head = f"the recipe file {path} does not load: {type(error).__name__} at {where}"
    return "\n".join([head, "".join(found.format()).rstrip(), *_hint(error)])


def _is_users(filename: str) -> bool:
    """Whether a file is none of Python's, of an installed package's, or ours."""
    installed = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(msdata_jax.__file__).parent, *(Path(sysconfig.get_path(name)) for name in installed)]
    path = Path(filename)
    return not filename.startswith("<") and not any(path.is_relative_to(folder) for folder in folders)


def _hint(error: BaseException) -> list[str]:
    """What to say of a recipe that imports JAX where it is kept out."""
    if isinstance(error, ModuleNotFoundError) and error.name == "jax" and "jax" in sys.modules:
        return ["A recipe is loaded without JAX, since data ranks run without it: import JAX in train.py."]
    return []
