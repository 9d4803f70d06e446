"""Batches as torchtitan's trainer takes them."""

from collections.abc import Mapping

import torch

IGNORED = -100
"""The label of a place that the loss leaves out."""


def titan_batch(batch: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs and labels of a batch, for the loader slot of torchtitan.

    Weights of targets other than 0 and 1 are lost, for labels know of none.

    Args:
        batch: with `tokens`, `positions`, `targets` and `loss_mask`.

    Returns:
        `input` (tokens) and `positions` (places inside their sample), int64 `[rows, seq_len]`; and the
        labels, int64 `[rows, seq_len]`, -100 where there is no target.
    """
    labels = batch["targets"].long().masked_fill(batch["loss_mask"] == 0, IGNORED)
    return {"input": batch["tokens"].long(), "positions": batch["positions"].long()}, labels
