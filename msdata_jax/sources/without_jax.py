"""grain on data ranks: it imports JAX (and orbax) when it can, about 130 MiB a process, and works without."""

import importlib
import sys
from types import ModuleType


def block_jax() -> bool:
    """Make every later `import jax` of this process fail, as if it were not installed.

    For processes that only serve data, before the recipe (which may import grain) is imported. It cannot be
    undone, so a library does not call it on its own.

    Returns:
        whether JAX is kept out; False where it had been imported before.
    """
    return sys.modules.setdefault("jax", None) is None  # type: ignore[arg-type]


def import_grain_without_jax() -> ModuleType:
    """Block JAX and import grain, whose map, filter, shuffle, batch, mix and pack work without it.

    Raises:
        ImportError: grain is not installed.
    """
    block_jax()
    return importlib.import_module("grain")
