"""Readers in child processes: equal to plain ones, and alive whatever a decoder does."""

import contextlib
import ctypes
import io
import os
import random
import select
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.errors import RecipeError, SourceError
from msdata_jax.recipe import Source
from msdata_jax.records import Block, info_dtype
from msdata_jax.sources import (
    DecodeImage,
    IsolatedReader,
    Patchify,
    SourceReader,
    Split,
    Tokenize,
    open_reader,
)
from msdata_jax.sources.frames import BrokenFrame, describe_block, encode, receive_block, receive_header

NEVER_SECONDS = 3600


others = set()
"""Children of this process that no reader here has started, such as a library's."""


def children():
    """Process ids of this process's children but for the others, zombies too."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as stream:
            found |= set(map(int, stream.read().split()))
    return found - others


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """No child, thread or descriptor outlives its reader."""
    others.clear()
    others.update(children())
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() == set()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def isolated():
    """`isolated(data, transforms, **fields)` opens an isolated reader, and closes it at the end."""
    readers = []

    def open_isolated(data, transforms=(), **fields):
        source = Source(data, transforms, **{"isolate": True, "shuffle": False, **fields})
        readers.append(open_reader("a", 2, source, seed=1))
        assert isinstance(readers[-1], IsolatedReader)
        return readers[-1]

    yield open_isolated
    for reader in readers:
        reader.close()


def as_lists(block):
    samples = [{key: (each.dtype, each.tolist()) for key, each in s.items()} for s in block.samples]
    infos = (block.infos.dtype, block.infos.tolist())
    return (block.start, block.stop, infos, samples, list(block.bad), dict(block.verdicts))


DATA = [{"n": n, "tokens": np.arange(n % 9)} for n in range(23)]


def crash(record):
    ctypes.string_at(0)
    return record


def leave(record):
    os._exit(3)


def raise_system_exit(record):
    raise SystemExit(4)


def hang(record):
    threading.Event().wait(NEVER_SECONDS)
    return record


def hang_with_the_lock(record):
    ctypes.PyDLL(None).sleep(NEVER_SECONDS)  # a decoder that never gives up Python's lock
    return record


def kill_itself(record):
    os.kill(os.getpid(), signal.SIGKILL)
    return record


def take_too_much(record):
    np.ones(1 << 60, np.int8)
    return record


def only_for(number, act):
    return lambda record: act(record) if record["n"] == number else record


BAD_ENDS = {
    crash: "decoder crashed: signal 11 (SIGSEGV) (record 5)",
    leave: "decoder ended its process with status 3 (record 5)",
    raise_system_exit: "decoder ended its process with status 4 (record 5)",
    hang: "decoder took over 0.5 s (record 5)",
    hang_with_the_lock: "decoder took over 0.5 s (record 5)",
    kill_itself: "decoder crashed: signal 9 (SIGKILL) (record 5)",
    take_too_much: "decoder ran out of memory (MemoryError) (record 5)",
}


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@pytest.mark.parametrize("act", BAD_ENDS, ids=lambda act: act.__name__)
def test_a_bad_end_costs_a_sample(isolated, act, policy):
    seconds = 0.5 if act in (hang, hang_with_the_lock) else None
    reader = isolated(DATA, [only_for(5, act)], on_bad_sample=policy, sample_seconds=seconds)
    block = reader.read_block(2, 8)
    [bad] = block.bad
    assert (bad.position, bad.reason, bad.by_luck) == (5, BAD_ENDS[act], True)
    assert block.verdicts == {5: BAD_ENDS[act]}
    expected = [2, 3, 4, 6, 6, 7] if policy == "replace" else [2, 3, 4, 6, 7]
    assert [len(sample["tokens"]) for sample in block.samples] == expected
    assert reader.num_deaths == 1
    assert reader.read_block(8, 12).bad == []
    # Read again elsewhere, also without isolation: equal, and not tried.
    plain = SourceReader(
        "a", 2, Source(DATA, [only_for(5, act)], on_bad_sample=policy, shuffle=False), seed=1
    )
    for again in (reader.read_block(2, 8, block.verdicts), plain.read_block(2, 8, block.verdicts)):
        assert as_lists(again) == as_lists(block)
    assert reader.num_deaths == 1


def test_several_bad_ends_in_one_block(isolated):
    transforms = [only_for(n, act) for n, act in ((3, crash), (4, leave), (5, kill_itself), (9, crash))]
    reader = isolated(DATA, transforms, on_bad_sample="replace")
    block = reader.read_block(0, 5)
    assert list(block.verdicts) == [3, 4, 5]  # 5 was tried as a substitute
    assert [bad.position for bad in block.bad] == [3, 4]
    assert [len(sample["tokens"]) for sample in block.samples] == [1, 2, 6, 6]
    plain = SourceReader("a", 2, Source(DATA, transforms, on_bad_sample="replace", shuffle=False), seed=1)
    assert as_lists(plain.read_block(0, 5, block.verdicts)) == as_lists(block)


@pytest.mark.parametrize("act", [crash, hang, kill_itself], ids=lambda act: act.__name__)
def test_a_bad_end_that_does_not_come_again_costs_nothing(isolated, tmp_path, act):
    def once(record):
        if record["n"] == 5 and not (tmp_path / "done").exists():
            (tmp_path / "done").touch()
            act(record)
        return record

    reader = isolated(DATA, [once], sample_seconds=1.0)
    block = reader.read_block(2, 8)
    assert (list(block.bad), dict(block.verdicts)) == ([], {})
    assert reader.num_deaths == 1


class Dataset:
    """Reads in batches; one of its records crashes the reader, and perhaps any batch does."""

    def __init__(self, culprit=None, *, only_batches=False):
        self._culprit = culprit
        self._only_batches = only_batches

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        if self._culprit in indices and (len(indices) > 1 or not self._only_batches):
            ctypes.string_at(0)
        return [DATA[index] for index in indices]


def test_the_culprit_of_a_batched_read_is_found(isolated):
    reader = isolated(Dataset(4), on_bad_sample="skip")
    block = reader.read_block(1, 8)
    reason = "reading crashed: signal 11 (SIGSEGV) (record 4)"
    assert [(bad.position, bad.reason) for bad in block.bad] == [(4, reason)]
    assert block.infos["position"].tolist() == [1, 2, 3, 5, 6, 7]
    deaths = reader.num_deaths
    assert as_lists(reader.read_block(1, 8, block.verdicts)) == as_lists(block)
    assert reader.num_deaths == deaths
    assert reader.read_block(4, 5).verdicts == {4: reason}


def test_a_batched_read_that_alone_crashes_costs_nothing(isolated):
    block = isolated(Dataset(4, only_batches=True)).read_block(1, 8)
    assert block.bad == []
    assert block.infos["position"].tolist() == list(range(1, 8))


def fail_on_sevens(record):
    if record["n"] % 7 == 0:
        raise ValueError(f"seven in {record['n']}")
    return record


def with_patches(record):
    count = record["n"] % 3
    tokens = np.concatenate([np.full(count, -1), record["tokens"]])
    return {"tokens": tokens, "patches": np.full((count, 5), record["n"], np.uint8)} if count else record


def leave_out_fives(record):
    return None if record["n"] % 5 == 0 else record


def measure(record):
    return {"twice": 2 * len(record["tokens"])}


def test_an_isolated_reader_equals_a_plain_one_on_any_block():
    readers = []
    for policy in ("raise", "skip", "replace"):
        transforms = [leave_out_fives, fail_on_sevens, with_patches, Split(3)]
        fields = {"on_bad_sample": policy, "measure": measure, "columns": ("twice",)}
        pair = [Source(DATA, transforms, isolate=isolate, **fields) for isolate in (False, True)]
        readers.append([open_reader("a", 2, source, seed=5, columns=("other", "twice")) for source in pair])

    @settings(deadline=None)
    @given(
        st.sampled_from(readers),
        st.integers(0, 60),
        st.integers(0, 40),
        st.dictionaries(st.integers(0, 120), st.text(max_size=9), max_size=20),
    )
    def check(pair, start, count, verdicts):
        plain, isolated = [reader.read_block(start, start + count, verdicts) for reader in pair]
        assert as_lists(plain) == as_lists(isolated)
        assert all(
            each.flags.owndata and each.flags.writeable for s in isolated.samples for each in s.values()
        )

    try:
        check()
        for plain, isolated in readers:
            assert isolated.num_records == plain.num_records
            assert isolated.fingerprint() == plain.fingerprint()
            assert isolated.locate(30) == plain.locate(30)
            with pytest.raises(ValueError, match="got 3 and 2"):
                isolated.read_block(3, 2)
    finally:
        for reader in [reader for pair in readers for reader in pair]:
            reader.close()


def test_files_of_every_format(isolated, write, helpers, huggingface_file):
    path = write(helpers.make_docs(60))
    fields = {"on_bad_sample": "skip", "shuffle": True}
    plain = SourceReader("a", 2, Source(path, [Tokenize(huggingface_file)], **fields), seed=1)
    reader = isolated(path, [Tokenize(huggingface_file)], **fields)
    assert reader.num_open_files == 0
    for start in (0, 40):
        assert as_lists(reader.read_block(start, start + 40)) == as_lists(plain.read_block(start, start + 40))
    assert reader.num_open_files == plain.num_open_files == 1
    assert reader.fingerprint() == plain.fingerprint()
    assert reader.file_digests() == plain.file_digests()
    assert reader.locate(70) == plain.locate(70)
    plain.close()
    reader.close()
    assert reader.num_open_files == 0


def test_blocks_that_are_larger_than_the_pipe(isolated):
    data = [{"tokens": np.full(64, -1), "patches": np.full((64, 30_000), n, np.uint8)} for n in range(4)]
    block = isolated(data).read_block(0, 4)
    assert [sample["patches"].shape for sample in block.samples] == [(64, 30_000)] * 4
    assert all((sample["patches"] == n).all() for n, sample in enumerate(block.samples))


def test_threads_read_at_once_in_children_of_their_own(isolated):
    barrier = threading.Barrier(4)
    reader = isolated(DATA, [only_for(5, crash), only_for(11, leave)], on_bad_sample="replace")
    plain = SourceReader("a", 2, Source(DATA, [only_for(99, crash)], shuffle=False), seed=1)
    verdicts, found = {5: BAD_ENDS[crash]}, {}
    verdicts[11] = "decoder ended its process with status 3 (record 11)"

    def read(start):
        barrier.wait(60)
        for first in range(start, start + 12, 4):
            found[first] = reader.read_block(first, first + 4)

    for _ in range(2):  # the children outlive the threads that asked for them
        threads = [threading.Thread(target=read, args=(start,)) for start in (0, 2, 24, 26)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(found) == 12
        for start, block in found.items():
            assert {p % 23: why for p, why in block.verdicts.items()}.items() <= verdicts.items()
            good = [p for p in range(start, start + 4) if p % 23 not in verdicts and DATA[p % 23]["n"] % 9]
            expected = plain.read_block(start, start + 4)
            for position in good:
                assert [
                    s["tokens"].tolist()
                    for s, i in zip(block.samples, block.infos, strict=True)
                    if i["position"] == position
                ] == [
                    s["tokens"].tolist()
                    for s, i in zip(expected.samples, expected.infos, strict=True)
                    if i["position"] == position
                ]
        found.clear()
    assert 1 <= len(children()) <= 4


def test_a_child_that_was_killed_while_idle_is_started_anew(isolated):
    reader = isolated(DATA)
    expected = as_lists(reader.read_block(0, 9))
    [pid] = children()
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)
    assert as_lists(reader.read_block(0, 9)) == expected
    assert reader.num_deaths == 0
    assert len(children() - {pid}) == 1


def test_a_child_is_not_killed_by_its_number(isolated, monkeypatch):
    """Which is another process's once it was reaped, as where SIGCHLD is ignored."""
    reader = isolated(DATA)
    reader.read_block(0, 9)
    [pid] = children()

    def kill(number, _signal):
        raise AssertionError(f"{number} is killed by its number")

    monkeypatch.setattr(os, "kill", kill)
    reader.close()
    assert pid not in children()


def test_close_ends_a_read_that_hangs(isolated, tmp_path):
    started, errors = tmp_path / "started", []
    os.mkfifo(started)

    def hang_and_say_so(record):
        started.write_text("yes")
        return hang(record)

    reader = isolated(DATA, [only_for(5, hang_and_say_so)])

    def read():
        try:
            reader.read_block(0, 9)
        except SourceError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert started.read_text() == "yes"
    reader.close()
    reader.close()
    thread.join(timeout=60)
    assert errors == ["the source is closed; open a new IsolatedReader to read on"]
    with pytest.raises(SourceError, match="closed"):
        reader.read_block(0, 2)


class Opening:
    """A transform that does something when it is opened."""

    def __init__(self, act):
        self._act = act

    def open(self):
        self._act({})

    def __call__(self, record):
        return record


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (Source("/no/such.jsonl"), SourceError),
        (Source([]), SourceError),
        (Source([1], [Tokenize("/no/such.json")]), RecipeError),
        (Source([1], [Split]), RecipeError),
    ],
)
def test_what_is_wrong_at_open_is_the_error_of_a_plain_reader(source, error):
    import dataclasses

    messages = []
    for isolate in (False, True):
        with pytest.raises(error) as caught:
            open_reader("a", 0, dataclasses.replace(source, isolate=isolate), seed=1)
        assert type(caught.value) is error
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_crash_at_open_is_an_error(isolated):
    with pytest.raises(SourceError, match=r"source 'a': the child process that opens it crashed: .*SIGSEGV"):
        isolated(DATA, [Opening(crash)])


def test_an_error_that_a_plain_reader_raises_is_raised(isolated, tmp_path, helpers):
    path = helpers.write_jsonl(tmp_path / "a.jsonl", helpers.make_docs(5))
    reader = isolated(path, read_retries=0)
    os.rename(path, f"{path}.away")
    with pytest.raises(SourceError, match=rf"^{path} can no longer be opened: .*, in 1 tries") as caught:
        reader.read_block(0, 5)
    assert "in a child process" in caught.value.__notes__[0]
    os.rename(f"{path}.away", path)
    assert len(reader.read_block(0, 5).bad) == 5  # no tokens in them; the child lives on


class Flaky:
    """A dataset whose disk fails as often as asked, in each process."""

    def __init__(self, num_failures):
        self._left = num_failures

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2 and self._left:
            self._left -= 1
            raise OSError(5, "Input/output error")
        return {"tokens": [index]}


def test_pauses_between_tries_are_not_time_of_the_sample(isolated):
    reader = isolated(Flaky(4), sample_seconds=0.6, read_retries=4)
    assert reader.read_block(0, 4).bad == []  # after 0.05 + 0.1 + 0.2 + 0.4 seconds
    assert (reader.num_retries, reader.num_deaths) == (4, 0)


class Lines:
    """A dataset that holds a file open and moves in it."""

    def __init__(self, path):
        self._stream = open(path, "rb", buffering=0)  # noqa: SIM115

    def __len__(self):
        return 200

    def __getitem__(self, index):
        self._stream.seek(4 * index)
        return {"tokens": np.frombuffer(self._stream.read(4), np.int32)}


def test_files_that_a_dataset_holds_open_have_a_place_of_their_own_in_each_child(isolated, tmp_path):
    (tmp_path / "numbers").write_bytes(np.arange(200, dtype=np.int32).tobytes())
    data, wrong = Lines(tmp_path / "numbers"), []
    reader = isolated(data)

    def read():
        for _ in range(20):
            block = reader.read_block(0, 200)
            wrong.extend(n for n, each in enumerate(block.samples) if each["tokens"].tolist() != [n])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    data._stream.close()


def test_a_child_holds_no_descriptor_of_its_parent(isolated):
    parent_end, child_end = os.pipe()

    def count_pipes(record):
        names = []
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing
                names.append(os.readlink(f"/proc/self/fd/{number}"))
        return {"tokens": [sum(name.startswith("pipe:") for name in names)]}

    [sample] = isolated(DATA, [count_pipes]).read_block(0, 1).samples
    assert sample["tokens"].tolist() == [2]  # its own
    os.close(child_end)
    assert os.read(parent_end, 1) == b""
    os.close(parent_end)


PARENT = """
import ctypes, os, sys
from msdata_jax.recipe import Source
from msdata_jax.sources import open_reader

def say_and_hang(record):
    os.write(1, f"{os.getpid()}\\n".encode())
    ctypes.PyDLL(None).sleep(3600)

reader = open_reader("a", 0, Source([1], [say_and_hang], isolate=True), seed=1)
reader.read_block(0, 1)
"""


def test_a_child_dies_with_its_parent():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert select.select([pidfd], [], [], 60)[0]
        os.close(pidfd)


BESIDE_JAX = """
import threading
import jax
from msdata_jax.recipe import Source
from msdata_jax.sources import open_reader

jax.numpy.ones(3).block_until_ready()
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
print("before", end="")  # stays in the parent's buffer
reader = open_reader("a", 0, Source([{"tokens": [7]}], [lambda r: print("child") or r], isolate=True), seed=1)
print(reader.read_block(0, 1).samples[0]["tokens"].tolist())
reader.close()
"""


def test_no_warning_beside_threads_and_jax():
    command = [sys.executable, "-W", "error", "-c", BESIDE_JAX]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child", "before[7]"]


# --- the frames


def test_frames_that_are_broken_are_never_another_error():
    samples = [{"tokens": np.arange(3, dtype=np.int32)} for _ in range(3)]
    samples[1]["patches"] = np.ones((2, 4), np.uint8)
    block = Block(start=1, stop=4, infos=np.zeros(3, info_dtype()), samples=samples, verdicts={2: "\udcff"})
    frame = b"".join(encode(*describe_block(block)))

    def receive(content):
        stream = io.BytesIO(content)

        def fill(view):
            piece = stream.read(len(view))
            if len(piece) < len(view):
                raise EOFError
            view[:] = piece

        header, num_bytes = receive_header(fill)
        return receive_block(header, num_bytes, info_dtype(), fill)

    assert as_lists(receive(frame)) == as_lists(block)
    rng = random.Random(1)
    for _ in range(3000):
        mutant = bytearray(frame)
        for _ in range(rng.randrange(1, 4)):
            mutant[rng.randrange(120)] = rng.randrange(256)
        try:
            receive(bytes(mutant))
        except (BrokenFrame, EOFError):
            continue


# --- malformed real images


@pytest.mark.parametrize("isolate", [False, True])
def test_malformed_real_images_are_samples_or_counted(tmp_path, helpers, broken_images, isolate):
    members = [
        (f"{n:03d}.{name.rpartition('.')[2]}", content) for n, (name, content) in broken_images.items()
    ]
    path = helpers.write_tar(tmp_path / "a.tar", members)
    # tga, tif, ppm, ico are no formats of DecodeImage: the bytes are given to it all the same
    transforms = [only_image, DecodeImage(), Patchify(32, max_patches=64)]
    fields = {"isolate": isolate, "sample_seconds": 60.0 if isolate else None}
    source = Source(path, transforms, on_bad_sample="skip", shuffle=False, **fields)
    reader = open_reader("a", 0, source, seed=1)
    block = reader.read_block(0, len(members))
    reader.close()
    assert reader.num_records == len(members)
    assert not block.verdicts
    good, bad = block.infos["position"].tolist(), {each.position: each.reason for each in block.bad}
    assert sorted([*good, *bad]) == list(range(len(members)))
    names = {n: name for n, (name, _) in broken_images.items()}
    assert "premature-end.png" in [names[position] for position in good]
    reasons = {names[position]: reason for position, reason in bad.items()}
    assert all(reason.startswith("DecodeImage: ") and "of a.tar" in reason for reason in reasons.values())
    assert "4128062500 pixels, max_pixels is" in reasons["issue205.jpg"]
    assert "cut short or damaged" in reasons["premature-end.jpg"]
    assert all(0 < len(sample["patches"]) <= 64 for sample in block.samples)


def only_image(record):
    [content] = [value for key, value in record.items() if key != "__key__"]
    return {"image": content}
