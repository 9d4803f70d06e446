"""Worlds of several ranks in one process: torch's own backend that sends nothing."""

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def as_rank() -> Iterator[Callable[[int, int], None]]:
    """Become a rank of a world: call it with the rank and the number of ranks, as often as you like."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def leave() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def become(rank: int, world_size: int) -> None:
        leave()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield become
    leave()
