"""A web server on the loopback that serves a folder by ranges, with latency, and with faults where asked."""

import contextlib
import email.utils
import hashlib
import http.server
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_LARGE_BYTES = 4 << 20

Fault = Callable[["Handler"], bool]
"""Is asked before each answer; answers itself and returns True, or returns False."""


class RangeServer:
    """Serves a folder until the block ends.

    Attributes:
        url: of the folder, without a slash at its end.
        requests: ranges that were asked for, as (path, first byte, last byte), in order.
        seconds: how long each request takes at least.
        fault: see `Fault`; None for none.
        has_ranges: whether it serves ranges.
        has_tags: whether it sends ETags and times.
    """

    def __init__(self, folder: Path, *, seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds
        self.fault: Fault | None = None
        self.has_ranges = True
        self.has_tags = True
        self.lock = threading.Lock()
        self.requests: list[tuple[str, int, int]] = []
        self.seen: Counter[str] = Counter()
        handler = type("BoundHandler", (Handler,), {"owner": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = False  # closing waits for them
        self.connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "RangeServer":
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._server.shutdown()
        with self.lock:
            for each in self.connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join(10)

    def fail(self, times: int, how: Callable[["Handler"], None], path: str = "") -> None:
        """Let the next `times` requests whose path contains `path` fail."""
        left = [times]

        def fault(handler: "Handler") -> bool:
            with self.lock:
                if path not in handler.path or left[0] == 0:
                    return False
                left[0] -= 1
            how(handler)
            return True

        self.fault = fault


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    owner: RangeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """A range of a file, a whole file, or the links of a folder."""
        first, last = self._asked()
        with self.owner.lock:
            self.owner.requests.append((self.path, first, last))
            self.owner.seen.update(f"{name}: {value}" for name, value in self.headers.items())
        if self.owner.seconds:
            time.sleep(self.owner.seconds)
        if self.owner.fault is not None and self.owner.fault(self):
            return
        path = self.owner.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if path.is_dir():
            self._send_links(path)
        elif path.is_file():
            self.send_file(path)
        else:
            self.send_status(404)

    def send_file(self, path: Path, *, cut: int = 0) -> None:
        """The range that was asked for; without its last `cut` bytes, and then the connection ends."""
        size = path.stat().st_size
        first, last = self._asked()
        is_range = self.owner.has_ranges and last >= 0
        if is_range and first >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with path.open("rb") as stream:
            stream.seek(first if is_range else 0)
            part = stream.read(last + 1 - first if is_range else -1)
        self.send_response(206 if is_range else 200)
        if is_range:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{size}")
        if self.owner.has_tags:
            self.send_header("ETag", _tag_of(path))
            self.send_header("Last-Modified", email.utils.formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: len(part) - cut])
        if cut:
            self.close_connection = True

    def send_cut(self) -> None:
        """All but the last 100 bytes of what was asked for."""
        self.send_file(self.owner.folder / unquote(urlsplit(self.path).path).lstrip("/"), cut=100)

    def send_status(self, status: int) -> None:
        """An answer without content."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def drop(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def handle(self) -> None:
        """As usual, until the client is gone."""
        connection = self.connection
        with self.owner.lock:
            self.owner.connections.add(connection)
        with contextlib.suppress(OSError, ValueError):  # ValueError: the file of a dropped connection
            super().handle()
        with self.owner.lock:
            self.owner.connections.discard(connection)

    def finish(self) -> None:
        """As usual, where the connection is still there."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of http.server
        """Quiet."""

    def _asked(self) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(match[1]), int(match[2])) if match else (0, -1)

    def _send_links(self, folder: Path) -> None:
        names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
        body = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _tag_of(path: Path) -> str:
    """Of the content; of a large file of its time and size, which is less work."""
    stat = path.stat()
    what = f"{stat.st_mtime_ns}-{stat.st_size}".encode() if stat.st_size > _LARGE_BYTES else path.read_bytes()
    return f'"{hashlib.sha1(what).hexdigest()}"'
