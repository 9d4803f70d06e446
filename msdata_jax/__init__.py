"""msdata_jax: a multi-source data layer for JAX SPMD training over MPI.

Public names are loaded when they are first used; importing the package loads none of jax, grain, mpi4py.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msdata_jax import checkpoint as checkpoint
    from msdata_jax import costs as costs
    from msdata_jax import scaling as scaling
    from msdata_jax.errors import BadSampleError as BadSampleError
    from msdata_jax.errors import CheckpointError as CheckpointError
    from msdata_jax.errors import JobFailed as JobFailed
    from msdata_jax.errors import LaunchError as LaunchError
    from msdata_jax.errors import MSDataError as MSDataError
    from msdata_jax.errors import RecipeError as RecipeError
    from msdata_jax.errors import SourceError as SourceError
    from msdata_jax.loader import DataLoader as DataLoader
    from msdata_jax.planning.graph import DGraph as DGraph
    from msdata_jax.processes import initialize as initialize
    from msdata_jax.recipe import Recipe as Recipe
    from msdata_jax.recipe import Source as Source
    from msdata_jax.records import IMAGE_TOKEN as IMAGE_TOKEN
    from msdata_jax.sources.audio import DecodeAudio as DecodeAudio
    from msdata_jax.sources.audio import PatchifyAudio as PatchifyAudio
    from msdata_jax.sources.images import DecodeImage as DecodeImage
    from msdata_jax.sources.images import Patchify as Patchify
    from msdata_jax.sources.lengths import Split as Split
    from msdata_jax.sources.lengths import Truncate as Truncate
    from msdata_jax.sources.tokenize import Tokenize as Tokenize
    from msdata_jax.sources.video import DecodeVideo as DecodeVideo

__version__ = "0.1.0"

_HOMES = {
    "BadSampleError": "errors",
    "CheckpointError": "errors",
    "JobFailed": "errors",
    "LaunchError": "errors",
    "MSDataError": "errors",
    "RecipeError": "errors",
    "SourceError": "errors",
    "initialize": "processes",
    "DataLoader": "loader",
    "DGraph": "planning.graph",
    "Recipe": "recipe",
    "Source": "recipe",
    "IMAGE_TOKEN": "records",
    "DecodeAudio": "sources.audio",
    "DecodeImage": "sources.images",
    "DecodeVideo": "sources.video",
    "Patchify": "sources.images",
    "PatchifyAudio": "sources.audio",
    "Split": "sources.lengths",
    "Truncate": "sources.lengths",
    "Tokenize": "sources.tokenize",
}

_MODULES = ("checkpoint", "costs", "scaling")

__all__ = ["__version__", *_MODULES, *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"msdata_jax.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'msdata_jax' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"msdata_jax.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
