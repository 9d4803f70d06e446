"""Data checkpoints: the state of the stream beside the model, in one orbax manager.

Public names are loaded when they are first used; importing the package loads neither orbax nor JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msdata_jax.checkpoint.finding import find_states as find_states
    from msdata_jax.checkpoint.finding import load_state as load_state
    from msdata_jax.checkpoint.journal import JournalWriter as JournalWriter
    from msdata_jax.checkpoint.journal import read_journal as read_journal
    from msdata_jax.checkpoint.orbax_v0 import DataHandler as DataHandler
    from msdata_jax.checkpoint.orbax_v0 import DataRestore as DataRestore
    from msdata_jax.checkpoint.orbax_v0 import DataSave as DataSave
    from msdata_jax.checkpoint.orbax_v1 import DataCheckpointable as DataCheckpointable
    from msdata_jax.checkpoint.retention import KeepBases as KeepBases
    from msdata_jax.checkpoint.writer import Checkpointed as Checkpointed
    from msdata_jax.checkpoint.writer import Writer as Writer

_HOMES = {
    "Checkpointed": "writer",
    "DataCheckpointable": "orbax_v1",
    "DataHandler": "orbax_v0",
    "DataRestore": "orbax_v0",
    "DataSave": "orbax_v0",
    "JournalWriter": "journal",
    "KeepBases": "retention",
    "Writer": "writer",
    "find_states": "finding",
    "load_state": "finding",
    "read_journal": "journal",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'msdata_jax.checkpoint' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"msdata_jax.checkpoint.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
