"""Blocks beside a checkpoint: all loaders are told, and the one who asked hears the sum, whoever is lost."""

from msdata_jax.roles import messages as m
from msdata_jax.roles.effects import Send
from msdata_jax.roles.saving import BlockSaving


def saved(folder: str, blocks: int, error: str = "") -> m.BlocksSaved:
    return m.BlocksSaved(folder=folder, num_blocks=blocks, num_bytes=100 * blocks, error=error)


def test_all_loaders_are_told_and_the_one_who_asked_hears_the_sum() -> None:
    saving = BlockSaving()
    pin, save = m.PinBlocks(step=4), m.SaveBlocks(step=4, folder="a")
    assert saving.ask(9, pin, [1, 2]) == [Send(rank=1, message=pin), Send(rank=2, message=pin)]
    assert saving.ask(9, save, [1, 2]) == [Send(rank=1, message=save), Send(rank=2, message=save)]
    assert saving.collect(2, saved("a", 3)) == []
    assert saving.collect(2, saved("b", 7)) == []  # nobody asked for that
    assert saving.collect(1, saved("a", 4)) == [Send(rank=9, message=saved("a", 7))]
    assert saving.collect(1, saved("a", 4)) == []


def test_the_first_error_is_told() -> None:
    saving = BlockSaving()
    saving.ask(9, m.SaveBlocks(step=4, folder="a"), [1, 2, 3])
    saving.collect(3, saved("a", 0, "disk full"))
    saving.collect(1, saved("a", 2))
    assert saving.collect(2, saved("a", 0, "gone")) == [Send(rank=9, message=saved("a", 2, "disk full"))]


def test_a_lost_loader_is_not_waited_for() -> None:
    saving = BlockSaving()
    saving.ask(8, m.SaveBlocks(step=4, folder="a"), [1, 2])
    saving.ask(9, m.SaveBlocks(step=5, folder="b"), [1, 2])
    assert saving.collect(1, saved("a", 2)) == []
    assert saving.lose(2) == [Send(rank=8, message=saved("a", 2))]
    assert saving.lose(1) == [Send(rank=9, message=saved("b", 0))]
    assert saving.lose(1) == []
