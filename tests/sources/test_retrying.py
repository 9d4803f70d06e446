"""Reads that fail for want of the disk or the network: real files and datasets that fail a few times."""

import errno
import os

import numpy as np
import pytest

from msdata_jax.errors import SourceError
from msdata_jax.recipe import Source
from msdata_jax.sources import SourceReader
from msdata_jax.sources import storage as storage_module
from msdata_jax.sources.files import open_files
from msdata_jax.sources.memory import MemoryRecords
from msdata_jax.sources.protocol import BadRecord, is_transient, says_transient
from msdata_jax.sources.retrying import RetryingRecords
from msdata_jax.sources.watch import Watch


class Clock(Watch):
    """A watch that notes how long it would have slept."""

    def __init__(self):
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)


class Flaky:
    """Records that raise for the first reads of some indices."""

    def __init__(self, num_records, errors):
        self._num_records = num_records
        self._errors = {index: list(each) for index, each in errors.items()}
        self.num_reads = dict.fromkeys(range(num_records), 0)

    def __len__(self):
        return self._num_records

    def __getitem__(self, index):
        self.num_reads[index] += 1
        if self._errors.get(index):
            raise self._errors[index].pop(0)
        return {"tokens": [index]}


def os_error(number):
    return OSError(number, os.strerror(number))


def opened(data, clock, max_retries=3):
    return RetryingRecords(MemoryRecords(data), max_retries, clock.sleep)


def test_only_what_failed_is_read_again():
    clock = Clock()
    data = Flaky(6, {2: [os_error(errno.EIO)] * 2, 4: [ConnectionResetError("by peer")]})
    records = opened(data, clock)
    found = records.read(np.arange(6))
    assert [record["tokens"] for record in found] == [[n] for n in range(6)]
    assert list(data.num_reads.values()) == [1, 1, 3, 1, 2, 1]
    assert clock.slept == [0.05, 0.1]
    assert records.num_retries == 2


def test_what_is_wrong_with_the_data_is_not_tried_again():
    clock = Clock()
    errors = [ValueError("no"), OSError("no image"), os_error(errno.ENOENT), os_error(errno.EACCES)]
    records = opened(Flaky(4, {n: [error] for n, error in enumerate(errors)}), clock)
    found = records.read(np.arange(4))
    assert all(isinstance(record, BadRecord) and not record.transient for record in found)
    assert clock.slept == []


@pytest.mark.parametrize(("max_retries", "slept"), [(0, []), (8, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0])])
def test_pauses_double_up_to_a_bound_and_then_the_record_is_bad(max_retries, slept):
    clock = Clock()
    records = opened(Flaky(1, {0: [os_error(errno.ETIMEDOUT)] * 99}), clock, max_retries)
    [bad] = records.read(np.arange(1))
    assert bad.transient
    assert os.strerror(errno.ETIMEDOUT) in bad.reason
    assert clock.slept == slept
    assert records.num_retries == max_retries


@pytest.fixture
def flaky_disk(monkeypatch):
    """`fail(*numbers)`: the next reads of files fail with these errors; returns the descriptors read."""
    failures, descriptors = [], []

    class FlakyOs:
        def __getattr__(self, name):
            return getattr(os, name)

        def pread(self, descriptor, size, offset):
            descriptors.append(descriptor)
            if failures:
                raise os_error(failures.pop(0))
            return os.pread(descriptor, size, offset)

    monkeypatch.setattr(storage_module, "os", FlakyOs())
    failures_of = failures.extend
    return lambda *numbers: failures_of(numbers) or descriptors


def test_a_disk_that_fails_is_read_again_through_a_new_handle(tmp_path, helpers, flaky_disk):
    path = helpers.write_jsonl(tmp_path / "a.jsonl", helpers.make_docs(5))
    clock = Clock()
    records = RetryingRecords(open_files(path, {}, keep_damaged=False), 3, clock.sleep)
    expected = records.read(np.arange(5))
    first_file = os.stat(path).st_ino
    os.rename(path, f"{path}.old")  # a stale handle reads the file that was
    helpers.write_jsonl(tmp_path / "a.jsonl", helpers.make_docs(5))
    assert os.stat(path).st_ino != first_file
    flaky_disk(errno.ESTALE, errno.EIO)
    assert records.read(np.arange(5)) == expected
    assert clock.slept == [0.05, 0.1]
    assert records.num_open_files == 1
    open_paths = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert str(tmp_path / "a.jsonl") in open_paths
    assert f"{path}.old" not in open_paths
    records.close()


def test_a_disk_that_goes_on_failing_ends_the_data(tmp_path, helpers, flaky_disk):
    path = helpers.write_jsonl(tmp_path / "a.jsonl", helpers.make_docs(5))
    clock = Clock()
    reader = SourceReader("a", 0, Source(path, read_retries=2), seed=1, watch=clock)
    flaky_disk(*[errno.EIO] * 9)
    with pytest.raises(SourceError, match=rf"{path} can no longer be read: .*, in 3 tries; .*read_retries"):
        reader.read_block(0, 5)
    assert clock.slept == [0.05, 0.1]
    assert reader.num_retries == 2
    reader.close()
    with pytest.raises(SourceError, match="closed"):
        reader.read_block(0, 5)
    assert reader.num_retries == 2


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_file_that_is_gone_may_come_back(tmp_path, helpers, comes_back):
    path = helpers.write_jsonl(tmp_path / "a.jsonl", helpers.make_docs(5))

    class Disk(Clock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if comes_back and len(self.slept) == 2:
                os.rename(f"{path}.away", path)

    disk = Disk()
    records = RetryingRecords(open_files(path, {}, keep_damaged=False), 3, disk.sleep)
    os.rename(path, f"{path}.away")
    if comes_back:
        assert len(records.read(np.arange(5))) == 5
        assert len(disk.slept) == 2
    else:
        with pytest.raises(SourceError, match=r"can no longer be opened: No such file .*, in 4 tries"):
            records.read(np.arange(5))
    records.close()


def test_a_record_given_up_by_luck_is_a_verdict():
    data = Flaky(4, {2: [os_error(errno.EIO)] * 2})
    source = Source(data, on_bad_sample="skip", shuffle=False, read_retries=1)
    reader = SourceReader("a", 0, source, seed=1, watch=Clock())
    block = reader.read_block(0, 4)
    [bad] = block.bad
    assert (bad.position, bad.by_luck) == (2, True)
    assert block.verdicts == {2: bad.reason}
    assert reader.read_block(0, 4).bad == []  # the disk is well again
    again = reader.read_block(0, 4, block.verdicts)
    assert (list(again.bad), again.verdicts) == ([bad], block.verdicts)


def test_which_errors_may_pass():
    assert is_transient(TimeoutError())
    assert is_transient(BlockingIOError(errno.EAGAIN, "later"))
    assert not is_transient(OSError("Corrupt snappy compressed data"))
    assert not is_transient(RuntimeError("Input/output error"))
    assert says_transient("UNKNOWN: pread() failed: Input/output error reading a")
    assert not says_transient("DATA_LOSS: chunk hash mismatch")
