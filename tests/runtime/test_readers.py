"""The sources of a loader: what was being read when another loader was lost is read in a child process."""

import contextlib

import numpy as np
import zarr

import msdata_jax as msd
from msdata_jax.runtime.data_rank import _Readers
from msdata_jax.sources.isolation import IsolatedReader
from msdata_jax.sources.reader import SourceReader


def open_both(tmp_path, data):
    """The kind of reader that suspects get, and whether it reads what the loader's own one does."""
    source = msd.Source(data, [msd.Split(8)])
    strategy = msd.DGraph().mix({"a": 1}).pad(seq_len=8, rows=2)
    readers = _Readers(msd.Recipe(sources={"a": source}, strategy=strategy), read_seconds=60.0)
    with contextlib.closing(readers.open(0, True)) as before:
        first = before.read_block(0, 4, {})
    mine = readers.open(0, False).read_block(0, 4, {})
    with contextlib.closing(readers.open(0, True)) as reader:
        block = reader.read_block(0, 4, {})
    assert readers.open(0, False).read_block(0, 4, {}).infos.tolist() == mine.infos.tolist()
    readers.close_all()
    for each in (first, block):
        assert each.infos.tolist() == mine.infos.tolist()
        for sample, other in zip(each.samples, mine.samples, strict=True):
            np.testing.assert_array_equal(sample["tokens"], other["tokens"])
    return type(reader)


def test_suspects_are_read_in_a_child(tmp_path):
    records = [{"tokens": np.arange(1, 5 + index, dtype=np.int32)} for index in range(6)]
    assert open_both(tmp_path, records) is IsolatedReader


def test_but_for_sources_that_no_child_can_read(tmp_path):
    """tensorstore aborts the children of a process that has used it."""
    tokens = np.arange(1, 61, dtype=np.int32)
    for name in ("a.zarr", "b.zarr"):
        group = zarr.create_group(str(tmp_path / name))
        for array, values in (("tokens", tokens), ("offsets", np.arange(0, 61, 10))):
            group.create_array(array, shape=values.shape, dtype=values.dtype, chunks=(20,))[:] = values
    own = _Readers(
        msd.Recipe(
            sources={"b": msd.Source(str(tmp_path / "b.zarr"))},
            strategy=msd.DGraph().mix({"b": 1}).pad(seq_len=8, rows=2, oversize="truncate"),
        ),
        read_seconds=60.0,
    )
    own.open(0, False)
    assert open_both(tmp_path, str(tmp_path / "a.zarr")) is SourceReader
    own.close_all()
