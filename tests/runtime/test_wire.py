from dataclasses import fields, replace
from typing import get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msdata_transport import Message
from strategies import AXES, arrays, make_infos

from msdata_jax.errors import MSDataError
from msdata_jax.roles import messages as m
from msdata_jax.runtime import wire


def travel(message):
    """Encoded, its header through msgpack as on a real wire, decoded."""
    encoded = wire.encode(message)
    assert all(not each.dtype.hasobject and each.dtype.names is None for each in encoded.arrays)
    header = msgpack.unpackb(msgpack.packb(encoded.header))
    arrays = tuple(np.frombuffer(each.tobytes(), each.dtype).reshape(each.shape) for each in encoded.arrays)
    return wire.decode(replace(encoded, header=header, arrays=arrays))


def assert_same(sent, received):
    assert type(received) is type(sent)
    for each in fields(sent):
        value, other = getattr(sent, each.name), getattr(received, each.name)
        assert type(other) is type(value), each.name
        if isinstance(value, np.ndarray):
            assert other.dtype == value.dtype
            assert other.shape == value.shape
            assert np.array_equal(other, value), each.name
        else:
            assert other == value, each.name


# --- any message: strategies by the name of a field, else by its annotation ---------------------------------

_FIELDS = {
    "figures": st.dictionaries(st.text(max_size=8), st.integers(0, 9) | st.text(max_size=8), max_size=3),
    "infos": st.integers(0, 4).map(lambda n: make_infos(n, range(n), columns=("frames",) if n % 2 else ())),
    "axis_names": st.lists(st.sampled_from(AXES), unique=True),
    "row_axes": st.lists(st.sampled_from(AXES), unique=True),
    "patches": arrays(np.uint8, 2, 3) | arrays(np.uint8, 0, 0),
    "state": arrays(np.uint8, 7) | arrays(np.uint8, 0),
    "tokens": arrays(np.int32, 5),
    "rows": arrays(np.int64, 3),
    **dict.fromkeys(
        ("source_samples", "source_tokens", "group_costs", "unbalanced_costs"), arrays(np.int64, 2)
    ),
}
_KINDS = {
    "int": st.integers(-1, 2**62),
    "bool": st.booleans(),
    "float": st.floats(0, 1e9),
    "str": st.text(max_size=20),
    "list[int]": st.lists(st.integers(0, 2**40), max_size=4),
    "list[str]": st.lists(st.text(max_size=20), max_size=3),
    # Tuples come out as lists, which the roles take apart all the same.
    "list[tuple[int, str]]": st.lists(
        st.tuples(st.integers(0, 2**40), st.text(max_size=20)).map(list), max_size=3
    ),
    "list[tuple[int, str, bool]]": st.lists(
        st.tuples(st.integers(0, 2**40), st.text(max_size=20), st.booleans()).map(list), max_size=3
    ),
    "Mapping[str, str]": st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    "Mapping[str, bytes]": st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3),
    "ndarray": arrays(np.int32, 4) | arrays(np.int32, 0),
}


def role_messages(kind):
    """Messages of one class from `roles.messages`."""
    values = {}
    for each in fields(kind):
        is_plain = isinstance(each.type, type) and not get_args(each.type)
        annotation = each.type.__name__ if is_plain else str(each.type).replace("collections.abc.", "")
        values[each.name] = _FIELDS[each.name] if each.name in _FIELDS else _KINDS[annotation]
    return st.builds(kind, **values)


@pytest.mark.parametrize("kind", m.WIRE_MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_makes_the_round_trip(kind):
    @given(role_messages(kind))
    def makes_the_round_trip(message):
        assert_same(message, travel(message))

    makes_the_round_trip()


def test_messages_of_a_ranks_own_work_do_not_travel():
    for kind in (m.Opened, m.BlockRead):
        assert kind not in m.WIRE_MESSAGES
    with pytest.raises(MSDataError, match="kind 'Opened' is none that roles exchange"):
        wire.decode(wire.encode(m.Opened(source=0, num_records=1, fingerprint="f", files={})))


def block_ready():
    infos = make_infos(1, [3, 4], columns=("frames",))
    return m.BlockReady(source=1, start=0, stop=2, infos=infos, bad=[], verdicts=[], digest=5, seconds=0.5)


def changed(**changes):
    message = wire.encode(block_ready())
    return replace(message, header={**message.header, **changes})


def test_user_columns_travel():
    assert travel(block_ready()).infos.dtype.names[-1] == "frames"


def test_slices_travel_as_they_are():
    infos = make_infos(0, range(10))[::3]
    assert travel(replace(block_ready(), infos=infos)).infos["tokens"].tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            Message(kind="Gossip", header={"session": 0, "values": {}, "arrays": [], "records": {}}),
            "kind 'Gossip' is none",
        ),
        (Message(kind="Stop", header={}), "kind 'Stop' is none"),
        (
            Message(kind="Stop", header={"session": 0, "values": {"now": 1}, "arrays": [], "records": {}}),
            "versions",
        ),
        (
            Message(kind="Release", header={"session": 0, "values": {}, "arrays": [], "records": {}}),
            r"has fields \[\]; versions",
        ),
        (changed(records={"infos": [["source", "<f8"]]}), "only .*'<i8'.* travel"),
        (changed(records={"infos": [["source", "|O"]]}), "only .*'<i8'.* travel"),
        (changed(records={"infos": [["source", "<i8"], ["part", "<i4"], ["x", "<i8"]]}), "of 20 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(message, says):
    with pytest.raises(MSDataError, match=says):
        wire.decode(message)
