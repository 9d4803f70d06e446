"""State files: what is written is read; a delta finds its base; every wrong file is a CheckpointError."""

import contextlib
import hashlib
import json
import os
import re
import struct
import zlib
from pathlib import Path

import msgpack
import numpy as np
import pytest
from checkpoint.states import play, runs
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.checkpoint.files import (
    FILE_NAME,
    BaseRef,
    decode,
    digest_of,
    encode_delta,
    encode_full,
    read_file,
    read_head,
    stored_digest,
    write_file,
)
from msdata_jax.checkpoint.finding import find_states, load_leaves, load_state
from msdata_jax.data_state import DataState
from msdata_jax.errors import CheckpointError

STATES = play(num_steps=8)
LEAVES = [state.to_leaves() for state in STATES]
FULL = encode_full(LEAVES[2], 3)
REF = BaseRef(where="3", digest=digest_of(FULL))
DELTA = encode_delta(LEAVES[3], 4, REF, LEAVES[2])


def item(root: Path, step: str) -> Path:
    folder = root / step / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / FILE_NAME


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 3 (full), 4 (a delta of 3) and 6 (full)."""
    write_file(item(tmp_path, "3"), FULL)
    write_file(item(tmp_path, "4"), DELTA)
    write_file(item(tmp_path, "6"), encode_full(LEAVES[5], 6))
    return tmp_path


@given(runs(), st.data())
def test_full_and_delta_give_the_state_back(states: list[DataState], data: st.DataObject) -> None:
    """Any state, and any state against any other as its base: other sources, plans and bad records too."""
    state = data.draw(st.sampled_from(states))
    other = data.draw(st.sampled_from(states) | runs().map(lambda each: each[-1]))
    leaves, base_leaves = state.to_leaves(), other.to_leaves()
    full, base = encode_full(leaves, state.step), encode_full(base_leaves, other.step)
    ref = BaseRef(where="7", digest=digest_of(base))
    delta = encode_delta(leaves, state.step, ref, base_leaves)
    read, of_delta = decode(full, "full"), decode(delta, "delta", decode(base, "base").leaves)
    assert read.leaves == of_delta.leaves == leaves
    assert (read.head.kind, read.head.step, read.head.base) == ("full", state.step, None)
    assert (of_delta.head.kind, of_delta.head.step, of_delta.head.base) == ("delta", state.step, ref)
    assert DataState.from_leaves(of_delta.leaves).to_leaves() == leaves


@given(
    st.dictionaries(st.text(max_size=4), st.binary(max_size=50)),
    st.dictionaries(st.text(max_size=4), st.binary(max_size=50)),
)
def test_any_leaves(leaves: dict[str, bytes], base_leaves: dict[str, bytes]) -> None:
    ref = BaseRef(where="0", digest="")
    assert decode(encode_full(leaves, 0), "x").leaves == leaves
    assert decode(encode_delta(leaves, 0, ref, base_leaves), "x", base_leaves).leaves == leaves


def test_large_leaves_are_packed_against_their_base_or_stored_whole() -> None:
    rng = np.random.default_rng(0)
    for size in (100, 40_000, 200_000, 1_200_000):
        before = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        after = before[: size - 50] + b"new" * 20
        base, leaves = {"a": before, "gone": b"x"}, {"a": after}
        delta = encode_delta(leaves, 1, REF, base)
        assert decode(delta, "x", base).leaves == leaves
        assert len(delta) < size + 400


# --- wrong bytes ------------------------------------------------------------------------------------------


@settings(max_examples=2000)
@given(st.sampled_from([FULL, DELTA]), st.data())
def test_any_flipped_bits_are_noticed(good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    bits = data.draw(st.integers(1, 255))
    bad = good[:at] + bytes([good[at] ^ bits]) + good[at + 1 :]
    with pytest.raises(CheckpointError):
        decode(bad, "x", LEAVES[2])


def test_every_truncation_is_noticed() -> None:
    for good in (FULL, DELTA):
        for length in {*range(200), *range(len(good) - 200, len(good)), *range(0, len(good), 97)}:
            with pytest.raises(CheckpointError):
                decode(good[:length], "x", LEAVES[2])


@settings(max_examples=500)
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_any_bytes_are_a_checkpoint_error(noise: bytes, ours: bool, signed: bool) -> None:
    data = struct.pack("<8sII", b"msdstate", 1, min(len(noise), 40)) + noise if ours else noise
    data = data + hashlib.sha256(data).digest() if signed else data
    with pytest.raises(CheckpointError):
        decode(data, "x", LEAVES[2])


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=7), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=1000)
@given(st.dictionaries(st.sampled_from(["step", "created", "base", "leaves", "removed"]), _VALUES), st.data())
def test_any_head_with_a_right_checksum(changes: dict[str, object], data: st.DataObject) -> None:
    """Such a file was made on purpose: it is refused, or read as what it says."""
    length = struct.unpack("<8sII", DELTA[:16])[2]
    head = msgpack.unpackb(DELTA[16 : 16 + length]) | changes
    if data.draw(st.booleans()):
        head["leaves"] = msgpack.unpackb(DELTA[16 : 16 + length])["leaves"]
        row = data.draw(st.integers(0, len(head["leaves"]) - 1))
        head["leaves"][row] = [*head["leaves"][row][:1], *data.draw(st.lists(_VALUES, max_size=4))]
    packed = msgpack.packb(head)
    body = struct.pack("<8sII", b"msdstate", 1, len(packed)) + packed + DELTA[16 + length : -32]
    try:
        leaves = decode(body + hashlib.sha256(body).digest(), "x", LEAVES[2]).leaves
        DataState.from_leaves(leaves)
    except CheckpointError:
        pass


@settings(max_examples=500)
@given(st.data())
def test_any_leaf_changed_with_a_right_checksum(data: st.DataObject) -> None:
    """What a file says under a right checksum is read as a state, or refused."""
    leaves = dict(LEAVES[2])
    name = data.draw(st.sampled_from(sorted(leaves)))
    at = data.draw(st.integers(0, len(leaves[name])))
    leaves[name] = leaves[name][:at] + data.draw(st.binary(max_size=4)) + leaves[name][at + 1 :]
    with contextlib.suppress(CheckpointError):
        DataState.from_leaves(decode(encode_full(leaves, 3), "x").leaves)


def test_a_packed_leaf_is_no_larger_than_any_that_is_written() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(2 << 20)) + packer.flush()
    leaves = [["step", 1, len(packed), 2 << 20]]
    head = msgpack.packb({"step": 1, "created": 1, "base": ["3", "00"], "leaves": leaves, "removed": []})
    body = struct.pack("<8sII", b"msdstate", 1, len(head)) + head + packed
    with pytest.raises(CheckpointError, match="cannot hold"):
        decode(body + hashlib.sha256(body).digest(), "x", LEAVES[2])


def test_no_size_is_believed() -> None:
    """A leaf that says it is huge is refused before room is made for it."""
    head = {
        "step": 1,
        "created": 1,
        "base": ["3", "00"],
        "leaves": [["step", 1, 4, 2**50]],
        "removed": [],
    }
    packed = msgpack.packb(head)
    body = struct.pack("<8sII", b"msdstate", 1, len(packed)) + packed + b"abcd"
    with pytest.raises(CheckpointError, match="cannot hold"):
        decode(body + hashlib.sha256(body).digest(), "x", LEAVES[2])


# --- wrong files ------------------------------------------------------------------------------------------


def test_files_are_read(root: Path) -> None:
    assert load_leaves(root / "3" / "data") == LEAVES[2]
    assert load_state(root / "4" / "data").to_leaves() == LEAVES[3]
    assert read_file(root / "4" / "data" / FILE_NAME).leaves == LEAVES[3]
    assert read_head(item(root, "4")).file_bytes == item(root, "4").stat().st_size == len(DELTA)


def spoil(root: Path, step: str, how: str) -> None:
    path = item(root, step)
    data = path.read_bytes()
    match how:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "flip":
            path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
        case "future":
            path.write_bytes(data[:8] + struct.pack("<I", 9) + data[12:])
        case "foreign":
            path.write_bytes(b"\x89PNG" + data)
        case "delta":
            path.write_bytes(DELTA)
        case "gone":
            path.unlink()
        case "another":
            path.write_bytes(encode_full(LEAVES[1], 2))


WRONG = [
    ("3", "cut", "cut off or damaged: the checksum of its"),
    ("3", "empty", "cut off after 0 bytes"),
    ("3", "flip", "cut off or damaged"),
    ("3", "future", "state file of version 9; this msdata_jax reads version 1"),
    ("3", "foreign", "no state of msdata_jax"),
    ("3", "gone", f"is empty or not there: it holds no {FILE_NAME}"),
    ("4", "flip", "cut off or damaged"),
]
WRONG_BASE = [
    ("flip", "needs its base: "),
    ("cut", "needs its base: "),
    ("gone", "that step's .* is gone: it was deleted by hand, or by a retention policy other than KeepBases"),
    ("another", "was made against another"),
    ("delta", "holds only what changed since 3"),
]


@pytest.mark.parametrize(("step", "how", "message"), WRONG)
def test_a_wrong_file_says_what_is_wrong_and_which_steps_are_left(
    root: Path, step: str, how: str, message: str
) -> None:
    spoil(root, step, how)
    left = {"3": ["6"], "4": ["3", "6"]}[step]
    with pytest.raises(CheckpointError, match=message) as error:
        load_state(root / step / "data")
    assert str(root / step / "data") in str(error.value)
    assert str(error.value).endswith(f"restore a step that can be read: {', '.join(left)}")
    assert str(error.value).count("restore") == 1


@pytest.mark.parametrize(("how", "message"), WRONG_BASE)
def test_a_wrong_base_is_named(root: Path, how: str, message: str) -> None:
    spoil(root, "3", how)
    with pytest.raises(CheckpointError, match=message) as error:
        load_state(root / "4" / "data")
    assert str(item(root, "3")) in str(error.value)
    assert re.search(r"restore a step that can be read: (3, )?6$", str(error.value))


def test_directories_of_others_are_told_apart(tmp_path: Path) -> None:
    grain, model, empty, other = (tmp_path / name for name in ("grain", "model", "empty", "other"))
    for folder in (grain, model, empty, other):
        folder.mkdir()
    (grain / "process_0-of-2.json").write_text(json.dumps({"next_index": 3}))
    (model / "_METADATA").write_text("{}")
    (model / "manifest.ocdbt").write_bytes(b"x")
    (other / "notes.txt").write_text("hello")
    for folder, message in (
        (grain, "state of a grain iterator"),
        (model, "arrays of a model that orbax wrote"),
        (empty, "is empty or not there"),
        (other, "in it are notes.txt"),
        (tmp_path / "missing", "is empty or not there"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_state(folder)
        if folder.exists():
            with pytest.raises(CheckpointError, match=message):
                find_states(folder)


def test_what_there_is_is_found_from_every_level(root: Path) -> None:
    torn = item(root, "7.orbax-checkpoint-tmp")
    torn.write_bytes(FULL[:100])
    spoil(root, "6", "future")
    found = find_states(root)
    assert [(each.step, each.item, each.head and each.head.kind) for each in found] == [
        (3, "data", "full"),
        (4, "data", "delta"),
        (6, "data", None),
    ]
    assert "version 9" in found[2].problem
    for path in (root / "4", root / "4" / "data", item(root, "4")):
        assert [each.file for each in find_states(path)] == [item(root, "4")]


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = item(tmp_path, "1")
    write_file(path, FULL)
    assert [each.name for each in path.parent.iterdir()] == [FILE_NAME]
    with pytest.raises(CheckpointError, match=r"cannot be written: .*make room or give another folder"):
        write_file(tmp_path / "nowhere" / FILE_NAME, FULL)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_file(Path("/dev/null") / FILE_NAME, FULL)


def test_a_pipe_or_device_is_no_file(root: Path) -> None:
    path = item(root, "6")
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir):
        path.unlink()
        make()
        for read in (read_file, read_head, lambda path: load_state(path.parent)):
            with pytest.raises(CheckpointError, match="no regular file"):
                read(path)
        assert stored_digest(path) is None
