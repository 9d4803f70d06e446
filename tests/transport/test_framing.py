"""Laws of the wire format: what is encoded decodes to the same; anything else is a BadFrame, cheaply."""

import struct
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msdata_transport import BadFrame, Limits, Message
from msdata_transport.framing import DTYPES, HEAD_MIN_BYTES, copy_message, decode_head, encode_head

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
arrays = hnp.arrays(
    st.sampled_from(list(DTYPES.values())), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
)
messages = st.builds(
    Message,
    kind=st.text(max_size=64),
    header=st.dictionaries(st.text(), plain, max_size=4),
    arrays=st.lists(arrays, max_size=4),
)


def head_of(
    body: object, *, num_arrays: int = 0, magic: bytes = b"MSDT", version: int = 1, reserved: int = 0
) -> bytes:
    packed = body if isinstance(body, bytes) else msgpack.packb(body)
    return struct.pack("<4sHHII", magic, version, reserved, len(packed), num_arrays) + packed


def head_of_array(dtype: object, shape: object) -> bytes:
    return head_of(["kind", {}, [[dtype, shape]]], num_arrays=1)


@settings(deadline=None)
@given(messages)
def test_decoding_gives_what_was_encoded(message: Message) -> None:
    head = decode_head(encode_head(message))
    assert (head.kind, head.header) == (message.kind, message.header)
    assert [(spec.dtype, spec.shape, spec.num_bytes) for spec in head.arrays] == [
        (array.dtype, array.shape, array.nbytes) for array in message.arrays
    ]


@settings(deadline=None)
@given(messages)
def test_a_copy_is_equal_and_shares_nothing(message: Message) -> None:
    copy = copy_message(message)
    for got, sent in zip(copy.arrays, message.arrays, strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
        assert got.flags.writeable
        assert not np.shares_memory(got, sent)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_a_bad_frame(data: bytes) -> None:
    decode_or_refuse(data)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_body_is_a_head_or_a_bad_frame(body: bytes, num_arrays: int) -> None:
    decode_or_refuse(head_of(body, num_arrays=num_arrays))


@settings(deadline=None)
@given(messages, st.data())
def test_a_changed_head_is_a_head_or_a_bad_frame(message: Message, data: st.DataObject) -> None:
    head = bytearray(encode_head(message))
    for _ in range(data.draw(st.integers(1, 4))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(head)))
    decode_or_refuse(bytes(head))
    decode_or_refuse(bytes(head[:cut]))


def decode_or_refuse(data: bytes) -> None:
    try:
        head = decode_head(data)
    except BadFrame:
        return
    encode_head(Message(kind=head.kind, header=head.header))  # what is let in could have been sent


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff" * 500,  # lists in lists, each claiming 4 billion items
        b"\xdd\x00\x10\x00\x00" * 1000,
        b"\xdf\xff\xff\xff\xff" * 500,  # the same with dicts
        b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes that are not there
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\x00\x01\x00\x00" * 400 + b"\xc0" * 70_000,
    ],
)
def test_false_claims_allocate_nothing(body: bytes) -> None:
    data = head_of(body)
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            decode_head(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 << 20


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "at least 16 bytes, got 0"),
        (b"x" * 15, "at least 16 bytes, got 15"),
        (head_of(["k", {}, []], magic=b"HTTP"), "begins with"),
        (head_of(["k", {}, []], reserved=1), "reserved 1"),
        (head_of(["k", {}, []], version=2), "version 1, the peer 2"),
        (head_of(["k", {}, []]) + b"x", "bytes follow its prefix"),
        (head_of(["k", {}, []])[:-1], "bytes follow its prefix"),
        (head_of(msgpack.packb(["k", {}, []]) + b"\xc0"), "1 bytes trail"),
        (head_of(["k", {}]), "something else"),
        (head_of({"kind": "k"}), "something else"),
        (head_of([1, {}, []]), "something else"),
        (head_of(["k" * 65, {}, []]), "characters in a kind: 65, at most 64"),
        (head_of(["k", {1: 2}, []]), "not msgpack"),
        (head_of(["k", {"x": {b"y": 2}}, []]), "keys in a header are str"),
        (head_of(["k", {"x": msgpack.ExtType(5, b"")}, []]), "code 5"),
        (head_of(["k", {"x": msgpack.Timestamp(1)}, []]), "not msgpack"),
        (head_of(["k", {}, [["<i4", [1]]]]), "counts 0 arrays and lists 1"),
        (head_of(["k", {}, []], num_arrays=1), "counts 1 arrays and lists 0"),
        (head_of(["k", {}, []], num_arrays=70_000), "arrays in a message: 70000, at most 65536"),
        (head_of_array("|O", [1]), "dtype '|O'"),
        (head_of_array(">i4", [1]), "dtype '>i4'"),
        (head_of_array(7, [1]), "described by"),
        (head_of_array("<i4", 1), "described by"),
        (head_of_array("<i4", [-1]), "got -1"),
        (head_of_array("<i4", [True]), "got True"),
        (head_of_array("<i4", [1.0]), "got 1.0"),
        (head_of_array("<i4", [1] * 33), "dimensions of array 0: 33, at most 32"),
        (head_of_array("<i4", [2**63, 2**63, 4]), "bytes in array 0"),
        (head_of_array("<i4", [0, 2**62]), "bytes in array 0"),
        (head_of_array("|u1", [(2 << 30) + 1]), "bytes in array 0: 2147483649, at most 2147483648"),
        (head_of(["k", {}, [["|u1", [2 << 30]]] * 5], num_arrays=5), "bytes in all arrays of a message"),
    ],
)
def test_refusals_say_rule_and_value(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame) as refusal:
        decode_head(data)
    assert why in str(refusal.value)


def test_limits_bind_both_sides() -> None:
    limits = Limits(max_head_bytes=200, max_arrays=2, max_array_bytes=80, max_message_bytes=100)
    good = Message(kind="k", arrays=[np.zeros(10), np.zeros(2)])
    assert decode_head(encode_head(good, limits), limits).kind == "k"
    for bad in (
        Message(kind="k", arrays=[np.zeros(1)] * 3),
        Message(kind="k", arrays=[np.zeros(11)]),
        Message(kind="k", arrays=[np.zeros(10), np.zeros(3)]),
        Message(kind="k", header={"x": "x" * 200}),
    ):
        with pytest.raises(BadFrame, match="at most"):
            encode_head(bad, limits)
        with pytest.raises(BadFrame, match="at most"):
            decode_head(encode_head(bad), limits)


@pytest.mark.parametrize(
    "bad", [{"max_head_bytes": HEAD_MIN_BYTES}, {"max_head_bytes": 2**32}, {"max_arrays": -1}]
)
def test_limits_refuse_nonsense(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot be"):
        Limits(**bad)


@pytest.mark.parametrize(
    "array",
    [
        np.ma.masked_array([1, 2]),
        np.array([object()]),
        np.array("text"),
        np.zeros((2, 3)).T,
        np.float64(1.0),
        [1],
    ],
)
def test_what_is_no_plain_array_is_refused(array: np.ndarray) -> None:
    with pytest.raises(BadFrame, match="array 0"):
        encode_head(Message(kind="k", arrays=[array]))


def test_a_tuple_arrives_as_a_list() -> None:
    assert decode_head(encode_head(Message(kind="k", header={"x": (1, (2, 3))}))).header == {"x": [1, [2, 3]]}


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}])
def test_text_that_is_no_unicode_is_refused(value: object) -> None:
    with pytest.raises(BadFrame, match="msgpack cannot carry"):
        encode_head(Message(kind="k", header={"x": value}))
