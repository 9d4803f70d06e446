"""Stands in for MaxText's `create_data_iterator`: the train iterator of a run, fed by msdata_jax."""

from pathlib import Path
from typing import Any

from jax.sharding import Mesh, PartitionSpec
from recipe import PLACE_AXES, ROW_AXES, ROWS, SEQ_LEN, recipe

from msdata_jax.grain import GlobalBatchIterator


def create_data_iterator(config: Any, mesh: Mesh) -> tuple[GlobalBatchIterator, None]:
    """The train iterator; and None for evaluation, which is a job of its own.

    Args:
        config: MaxText's; `max_target_length`, `global_batch_size_to_load`, `steps` and `checkpoint_dir` are
            used.
        mesh: of the model.

    Raises:
        ValueError: the recipe packs other rows than the run trains on.
    """
    if (config.global_batch_size_to_load, config.max_target_length) != (ROWS, SEQ_LEN):
        raise ValueError(
            f"the run trains on {config.global_batch_size_to_load} rows of {config.max_target_length} "
            f"tokens, the recipe packs {ROWS} of {SEQ_LEN}: set MSDATA_ROWS and MSDATA_SEQ_LEN on all "
            "ranks, or per_device_batch_size and max_target_length"
        )
    train = GlobalBatchIterator(
        recipe,
        mesh=mesh,
        spec=PartitionSpec(ROW_AXES, PLACE_AXES),
        num_steps=config.steps,
        journal=_journal(config.checkpoint_dir),
    )
    return train, None


def _journal(checkpoint_dir: str) -> Path | None:
    """With a journal a run goes on at once; it is written to a file system."""
    return None if "://" in checkpoint_dir else Path(checkpoint_dir) / "data_journal"
