"""Small JSON files: read whole within a bound, written whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msdata_jax.errors import RecipeError

MOST_BYTES = 32 << 20
T = TypeVar("T")


def read_json(path: Path, what: str, parse: Callable[[Any], T]) -> T:
    """What `parse` makes of a file's JSON.

    Args:
        path: the file.
        what: it is, for messages.
        parse: raises RecipeError where the value is none of these.

    Raises:
        RecipeError: it cannot be read, is too large or no JSON, or as `parse` says; names the file.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise RecipeError(f"it has over {MOST_BYTES >> 20} MiB")
        return parse(json.loads(content))
    except OSError as error:
        raise RecipeError(f"the {what} {path} cannot be read: {error.strerror or error}") from error
    except RecursionError:
        raise RecipeError(f"the {what} {path} cannot be used: it is nested too deep") from None
    except ValueError as error:  # a RecipeError is one
        raise RecipeError(f"the {what} {path} cannot be used: {error}") from error


def write_json(path: Path, value: Any) -> None:
    """Put JSON in the place of `path` at once. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(value, indent=1) + "\n")
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
