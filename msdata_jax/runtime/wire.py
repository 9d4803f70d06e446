"""Role messages as transport messages: fields that are arrays travel as arrays, the others in the header."""

from dataclasses import fields
from typing import Any

import numpy as np
from msdata_transport import Message

from msdata_jax.errors import MSDataError
from msdata_jax.roles.messages import WIRE_MESSAGES, RoleMessage

_KINDS = {kind.__name__: kind for kind in WIRE_MESSAGES}
_RECORD_FIELD_DTYPES = ("<i4", "<i8")


def encode(message: RoleMessage, session: int = 0) -> Message:
    """The transport message of a role message, marked with the number of its session."""
    values: dict[str, Any] = {}
    names: list[str] = []
    records: dict[str, list[list[str]]] = {}
    arrays: list[np.ndarray] = []
    for each in fields(message):
        value = getattr(message, each.name)
        if not isinstance(value, np.ndarray):
            values[each.name] = value
            continue
        value = np.ascontiguousarray(value)
        if value.dtype.names:
            records[each.name] = [[name, value.dtype[name].str] for name in value.dtype.names]
            value = value.view(np.uint8)
        names.append(each.name)
        arrays.append(value)
    header = {"session": session, "values": values, "arrays": names, "records": records}
    return Message(kind=type(message).__name__, header=header, arrays=tuple(arrays))


def session_of(message: Message) -> object:
    """The number of the session that a message belongs to; None where it is none of ours."""
    return message.header.get("session")


def decode(message: Message) -> RoleMessage:
    """The role message of a transport message.

    Raises:
        MSDataError: it is none of ours, or its fields do not fit.
    """
    kind = _KINDS.get(message.kind)
    header = message.header
    if kind is None or set(header) != {"session", "values", "arrays", "records"}:
        raise MSDataError(f"a message of kind {message.kind!r} is none that roles exchange")
    if len(header["arrays"]) != len(message.arrays) or not set(header["records"]) <= set(header["arrays"]):
        raise MSDataError(
            f"a {message.kind} message names the arrays {header['arrays']} and has {len(message.arrays)}, "
            f"records {sorted(header['records'])}"
        )
    arrays = dict(zip(header["arrays"], message.arrays, strict=True))
    for name, described in header["records"].items():
        arrays[name] = _as_records(message.kind, arrays[name], described)
    values = {**header["values"], **arrays}
    if set(values) != {each.name for each in fields(kind)}:
        raise MSDataError(
            f"a {message.kind} message has fields {sorted(values)}; versions of msdata_jax differ"
        )
    return kind(**values)


def _as_records(kind: str, raw: np.ndarray, described: list[list[str]]) -> np.ndarray:
    if any(dtype not in _RECORD_FIELD_DTYPES for _, dtype in described):
        raise MSDataError(f"a {kind} message has records of {described}; only {_RECORD_FIELD_DTYPES} travel")
    dtype = np.dtype([(name, each) for name, each in described])
    if raw.dtype != np.uint8 or raw.size % dtype.itemsize:
        raise MSDataError(f"a {kind} message has {raw.size} bytes of records of {dtype.itemsize} bytes")
    return raw.view(dtype)
