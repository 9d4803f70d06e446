"""Connections of a process that was killed."""

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Generator

import pytest
from msdata_transport.kept_sockets import SocketKeeper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfd_getfd is Linux's")

CHILD = """
import socket, sys, time
there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
there.send(b"here")
if sys.stdin.readline():
    there.close()
    print("closed", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def connected() -> Generator[tuple[subprocess.Popen[str], socket.socket]]:
    """A process that has a connection, and the other end of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", CHILD, str(server.getsockname()[1])]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        peer, _ = server.accept()
    peer.settimeout(20)
    with child, peer:
        try:
            assert peer.recv(4) == b"here"
            yield child, peer
        finally:
            child.kill()


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_peer_of_a_killed_process(is_kept: bool) -> None:
    with connected() as (child, peer):
        keeper = SocketKeeper(child.pid)
        if is_kept:
            keeper.look()
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        keeper.look()  # it is a matter of luck whether there is one more
        if is_kept:
            assert peer.send(b"x" * 1000) == 1000
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):  # silent
                peer.recv(1)
            peer.settimeout(20)
            keeper.close()
        with contextlib.suppress(ConnectionResetError):  # what was sent is lost
            assert peer.recv(1) == b""
    keeper.close()
    assert keeper.num_kept == 0


def test_what_a_living_process_closes_is_let_go() -> None:
    with connected() as (child, peer):
        keeper = SocketKeeper(child.pid)
        keeper.look()
        assert keeper.num_kept == 1
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("close\n")
        child.stdin.flush()
        assert child.stdout.readline() == "closed\n"
        keeper.look()
        assert keeper.num_kept == 1  # it may be dying
        keeper.look()
        assert keeper.num_kept == 0
        assert peer.recv(1) == b""
    keeper.close()
