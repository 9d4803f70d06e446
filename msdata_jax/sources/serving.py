"""What a child process does: it opens a source and reads blocks of it as it is asked to."""

import os
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from msdata_jax.errors import MSDataError, RecipeError, SourceError
from msdata_jax.records import Block
from msdata_jax.sources.forking import ForkUnsafeError
from msdata_jax.sources.frames import BrokenFrame, describe_block, encode, unpack
from msdata_jax.sources.protocol import one_line
from msdata_jax.sources.reader import SourceReader
from msdata_jax.sources.watch import Board, Phase

_ERRORS = {each.__name__: each for each in (RecipeError, SourceError, ForkUnsafeError, MSDataError)}

OpenReader = Callable[[Board], SourceReader]


def serve(open_reader: OpenReader, board: Board, requests: int, replies: int) -> NoReturn:
    """Open the source and say so, then answer requests until there are no more."""
    try:
        reader = _answer(replies, board, None, lambda: open_reader(board))
        while reader is not None:
            method, *arguments = _receive_request(requests)
            _answer(replies, board, reader, lambda m=method, a=arguments: _METHODS[m](reader, board, *a))
    except SystemExit as error:  # of a transform
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    except MemoryError:
        board.note_out_of_memory()
    os._exit(1)


def raise_error(header: dict[str, Any]) -> None:
    """Raise the error that a reply holds, if any; of the class it had in the child where that is ours."""
    if "error" in header:
        name, message, trace = header["error"]
        error = _ERRORS.get(name, SourceError)(message)
        error.add_note(f"in a child process:\n{trace}")
        raise error


def _answer(replies: int, board: Board, reader: Any, call: Callable[[], Any]) -> Any:
    """Call, and send what comes of it. Returns the result, None where it raised."""
    result, arrays, header = None, [], {}
    try:
        result = call()
        if isinstance(result, Block):
            header, arrays = describe_block(result)
            header["read_seconds"] = result.read_seconds
        elif isinstance(result, SourceReader):
            header, reader = {"value": result.num_records}, result
        else:
            header = {"value": result}
        board.at(Phase.IDLE)
        pieces = encode({**header, **_figures(reader)}, arrays)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - it is raised in the parent
        result, pieces = None, encode({"error": _describe_error(error)})
    for piece in pieces:
        while piece:
            piece = piece[os.write(replies, piece) :]
    return result


def _describe_error(error: Exception) -> tuple[str, str, str]:
    ours = isinstance(error, MSDataError | BrokenFrame)
    message = str(error) if ours else f"reading failed in the child process: {one_line(error)}"
    return type(error).__name__, message, traceback.format_exc()[-4000:]


def _figures(reader: SourceReader) -> dict[str, int]:
    return {"num_open_files": reader.num_open_files, "num_retries": reader.num_retries}


def _read_block(
    reader: SourceReader, board: Board, start: int, stop: int, verdicts: dict[int, str], one_by_one: bool
) -> Block:
    board.one_by_one = one_by_one
    return reader.read_block(start, stop, verdicts)


_METHODS: dict[str, Callable[..., Any]] = {
    "read_block": _read_block,
    "fingerprint": lambda reader, _: reader.fingerprint(),
    "file_digests": lambda reader, _: reader.file_digests(),
    "locate": lambda reader, _, position: reader.locate(position),
}


def _receive_request(requests: int) -> list[Any]:
    """The next request; ends the process where there is none."""
    num_bytes = int.from_bytes(_receive(requests, 4), "little")
    return unpack(_receive(requests, num_bytes))


def _receive(requests: int, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        piece = os.read(requests, num_bytes - len(received))
        if not piece:
            os._exit(0)
        received += piece
    return received
