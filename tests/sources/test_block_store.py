"""Blocks on disk: what was written comes back equal, and what is not whole is not there."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.records import BadSample, Block, info_dtype
from msdata_jax.sources.block_store import BlockStore, block_key, write_blocks

DTYPE = info_dtype(("score",))


def make_block(start: int, stop: int, *, patches: bool = False) -> Block:
    samples, infos = [], np.zeros(stop - start, DTYPE)
    for number in range(start, stop):
        sample = {"tokens": np.arange(number % 7 + 1, dtype=np.int32) + number}
        if patches and number % 2:
            sample["patches"] = np.full((number % 3 + 1, 12), number % 256, np.uint8)
        samples.append(sample)
    infos["position"] = np.arange(start, stop)
    infos["score"] = -np.arange(start, stop)
    bad = [BadSample(position=stop, reason="took over 2 s", by_luck=True)]
    return Block(
        start=start, stop=stop, infos=infos, samples=samples, bad=bad, verdicts={stop: "took over 2 s"}
    )


def assert_equal(block: Block, wanted: Block) -> None:
    assert (block.start, block.stop, block.bad) == (wanted.start, wanted.stop, wanted.bad)
    assert block.verdicts == wanted.verdicts
    assert np.array_equal(block.infos, wanted.infos)
    for got, expected in zip(block.samples, wanted.samples, strict=True):
        assert got.keys() == expected.keys()
        assert all(np.array_equal(got[name], expected[name]) for name in got)


def test_blocks_of_several_writers_come_back(tmp_path: Path) -> None:
    blocks = {block_key("a", n, n + 4): make_block(n, n + 4, patches=n > 8) for n in range(0, 24, 4)}
    items = [(key, block, block.start + 5) for key, block in blocks.items()]
    num_blocks, num_bytes = write_blocks(tmp_path / "blocks", "rank_1", items[:2])
    assert num_blocks == 2
    assert num_bytes > sum(block.infos.nbytes for _, block, _ in items[:2])
    write_blocks(tmp_path / "blocks", "rank_2", items[2:])
    store = BlockStore(tmp_path / "blocks", DTYPE)
    for key, block, digest in items:
        found = store.read(key)
        assert found is not None
        assert found[1] == digest
        assert_equal(found[0], block)
    assert store.read(block_key("b", 0, 4)) is None  # of another recipe, or other data
    assert store.read(block_key("a", 0, 8)) is None


def test_a_folder_that_is_not_there_has_no_blocks(tmp_path: Path) -> None:
    assert BlockStore(tmp_path / "nowhere", DTYPE).read(block_key("a", 0, 4)) is None


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_damage_hides_blocks_and_never_changes_them(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)  # not Hypothesis: tensorstore's files differ in size from run to run
    folder = tmp_path_factory.mktemp("blocks")
    blocks = {block_key("a", n, n + 40): make_block(n, n + 40, patches=True) for n in range(0, 120, 40)}
    write_blocks(folder, "rank_1", [(key, block, 7) for key, block in blocks.items()])
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = rng.choice(files)
    whole = bytearray(file.read_bytes())
    at = rng.randrange(len(whole))
    if rng.random() < 0.5:
        whole[at] ^= rng.randint(1, 255)
    else:
        del whole[at:]
    file.write_bytes(whole)
    store = BlockStore(folder, DTYPE)
    for key, block in blocks.items():
        found = store.read(key)
        if found is not None:
            assert found[1] == 7
            assert_equal(found[0], block)
