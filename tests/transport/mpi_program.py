"""Run under mpiexec as `python -m mpi4py mpi_program.py SCENARIO [GROUP]`; each scenario is one function."""

import contextlib
import os
import queue
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from msdata_transport import BadFrame, Message, PeerLost, RunFolder, TooLate, conformance
from msdata_transport.mpi import MpiWire, Transfer, describe_mpi, join


def conforms(group: str) -> None:
    job = join(group)
    names = conformance.run(job.endpoint)
    job.leave(ok=True)
    say(f"passed {len(names)} checks at {job.endpoint.size} ranks")


def fails(group: str) -> None:
    """One check fails on one rank: all must say so and end."""

    def fails_on_last(party: conformance.Party) -> None:
        assert party.rank < party.size - 1, "broken on purpose"

    conformance.run(join(group).endpoint, [fails_on_last])


def joins(group: str) -> None:
    job = join(group)
    assert job.groups == {"planner": (0,), "loader": (1, 2), "constructor": (3, 4)}, job.groups
    assert job.group == group
    assert job.endpoint.rank == job.groups[group][job.group_rank]
    assert job.group_size == len(job.groups[group])
    assert len(job.hosts) == 5
    assert all(job.hosts), job.hosts
    text = f"from {group}, ü" * 100
    assert job.group_bcast(text if job.group_rank == 0 else None) == text
    if job.group_rank == 0:
        with pytest.raises(ValueError, match="at most"):
            job.group_bcast("x" * 70_000)
    assert describe_mpi().standard >= "3.0"
    job.leave(ok=True)
    say(f"joined as {job.group}")


def sends_garbage(group: str) -> None:
    """Rank 1 breaks the wire format in two ways, rank 0 must name it and go on with the others."""
    job = join(group)
    endpoint = job.endpoint
    lies = {1: Message(kind="x", arrays=[np.zeros(100)]), 2: None}
    if endpoint.rank == 0:
        for _ in lies:
            with pytest.raises(BadFrame, match="from rank") as bad:
                endpoint.receive(20)
            with pytest.raises(PeerLost) as lost:
                endpoint.receive(20)
            assert f"from rank {lost.value.rank}:" in str(bad.value)
            with pytest.raises(PeerLost):
                endpoint.send(lost.value.rank, Message(kind="x"))
        endpoint.send(3, Message(kind="well"))
        assert endpoint.receive(20) == (3, Message(kind="well", header={}))
        endpoint.close()
    elif endpoint.rank == 3:
        assert endpoint.receive(20) == (0, Message(kind="well", header={}))
        endpoint.send(0, Message(kind="well"))
        endpoint.close()
    else:
        lie = lies[endpoint.rank]
        wire = job._wire
        wire.start_send(0, b"no head of ours" if lie is None else conformance_head(lie))
        wire.start_send(0, b"less than the head says")
    job.leave(ok=False)
    say("went on")
    # Garbage was left on the way, so nobody may finalize; mpiexec kills the others when one leaves like this,
    # hence the last word by MPI's own barrier.
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    os._exit(0)


def conformance_head(message: Message) -> bytes:
    from msdata_transport.framing import encode_head

    return encode_head(message)


def forgets(group: str) -> None:
    job = join(group)
    names = conformance.run(job.endpoint, [], conformance.forgets)
    job.leave(ok=False)  # messages of the forgotten are on the way for ever
    say(f"passed {names} at {job.endpoint.size} ranks")
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    os._exit(0)


def gives_up(group: str) -> None:
    """The last rank is killed in the middle of sending; the others forget it, go on, and leave at once.

    Rank 0 hears of the death from the guard, and says so to rank 1.
    """
    job = join(group)
    endpoint, folder = job.endpoint, RunFolder.from_environment()
    victim, other = endpoint.size - 1, 1 - endpoint.rank
    assert folder is not None
    deaths: queue.Queue[tuple[int, str]] = queue.Queue()
    listener = None
    if endpoint.rank == 0:
        listener = folder.listen_for_deaths(lambda rank, how: deaths.put((rank, how)))
        folder.announce_formed()
    if endpoint.rank == victim:
        while endpoint.receive(20)[1].kind != "begin":
            pass
        for rank in range(victim):
            endpoint.send(rank, Message(kind="cut off", arrays=[np.zeros(4 << 20)] * 4))
        os.kill(os.getpid(), signal.SIGKILL)
    if endpoint.rank == 0:
        endpoint.send(victim, Message(kind="begin"))
    for _ in range(100):
        endpoint.send(victim, Message(kind="lost", arrays=[np.zeros(50_000)]))
    if endpoint.rank == 0:
        assert deaths.get(timeout=20) == (victim, "killed by signal 9")
        endpoint.send(other, Message(kind="lost"))
    else:
        while endpoint.receive(20)[0] != other:
            pass  # what the victim had sent
    endpoint.forget(victim, "it was killed")
    for number in range(100):
        endpoint.send(victim, Message(kind="lost", arrays=[np.zeros(50_000)]))
        endpoint.send(other, Message(kind="kept", header={"number": number}, arrays=[np.zeros(50_000)]))
    for number in range(100):
        sender, message = endpoint.receive(20)
        assert (sender, message.header["number"]) == (other, number)
    begin = time.monotonic()
    job.leave_without([victim], timeout_seconds=30.0)
    assert time.monotonic() - begin < 5.0
    if listener is not None:
        listener.close()
        folder.write_outcome({"ok": True, "lost": [{"rank": victim, "why": "killed by signal 9"}]})
        folder.done()
    say("went on")
    os._exit(0)


def outlives_two(role: str) -> None:
    """Of three loaders that feed a trainer one is killed, and another is stopped and fenced."""
    job = join(role)
    endpoint, folder = job.endpoint, RunFolder.from_environment()
    assert folder is not None
    planner, (trainer,), (killed, stopped, living) = 0, job.groups["trainer"], job.groups["loader"]
    deaths: queue.Queue[tuple[int, str]] = queue.Queue()
    if role == "planner":
        listener = folder.listen_for_deaths(lambda rank, how: deaths.put((rank, how)))
        folder.announce_formed()
        for rank in job.groups["loader"]:
            endpoint.send(rank, Message(kind="begin"))
        assert deaths.get(timeout=20) == (killed, "killed by signal 9")
        wait_for_state(int((endpoint.receive(20) or pytest.fail("woken"))[1].header["pid"]), "T")
        assert folder.kill(stopped)
        begin = time.monotonic()
        assert deaths.get(timeout=20) == (stopped, "killed by signal 9")
        say(f"fenced after {1e3 * (time.monotonic() - begin):.1f} ms")
        lost = [killed, stopped]
        for rank in (trainer, living):
            endpoint.send(rank, Message(kind="lost", header={"ranks": lost}))
        assert endpoint.receive(20) == (trainer, Message(kind="all is here", header={}))
        endpoint.send(living, Message(kind="end"))
        job.leave_without(lost, timeout_seconds=10.0)
        folder.write_outcome({"ok": True, "lost": [{"rank": r, "why": "killed by signal 9"} for r in lost]})
        folder.done()
        listener.close()
    elif role == "trainer":
        lost, num_kept = [], 0
        while num_kept < 200 or not lost:
            sender, message = endpoint.receive(20)
            if message.kind == "lost":
                lost = message.header["ranks"]
                for rank in lost:
                    endpoint.forget(rank)
            num_kept += sender == living
        endpoint.send(planner, Message(kind="all is here"))
        job.leave_without(lost, timeout_seconds=10.0)
    else:
        assert endpoint.receive(20) == (planner, Message(kind="begin", header={}))
        if endpoint.rank == stopped:
            endpoint.send(planner, Message(kind="stops", header={"pid": os.getpid()}))
            with pytest.raises(TooLate):
                endpoint.receive(0.1)
        for _ in range(200):
            endpoint.send(trainer, Message(kind="payload", arrays=[np.zeros(100_000)] * 2))
        if endpoint.rank != living:
            os.kill(os.getpid(), signal.SIGKILL if endpoint.rank == killed else signal.SIGSTOP)
        lost = endpoint.receive(20)[1].header["ranks"]
        assert endpoint.receive(20) == (planner, Message(kind="end", header={}))
        job.leave_without(lost, timeout_seconds=10.0)
    say(f"{role} left")
    os._exit(0)


def leaves_well(_group: str) -> None:
    """Under guards: nobody waits for a rank that is killed when the others are at their end already."""
    job = join("all")
    folder = RunFolder.from_environment()
    if job.endpoint.rank == 0 and folder is not None:
        folder.listen_for_deaths(lambda rank, how: None)
        folder.announce_formed()
        for rank in (1, 2):
            job.endpoint.send(rank, Message(kind="end"))
        job.endpoint.receive(20)
        job.endpoint.send(2, Message(kind="nobody takes it"))
    else:
        job.endpoint.receive(20)
        if job.endpoint.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        job.endpoint.send(0, Message(kind="ended"))
    begin = time.monotonic()
    job.leave(ok=True, timeout_seconds=3600.0)
    assert time.monotonic() - begin < 15.0
    if job.endpoint.rank == 0 and folder is not None:
        folder.write_outcome({"ok": True, "lost": []})
        folder.done()
    say("left well")


def fails_under_guard(how: str) -> None:
    """Rank 1 fails before it joins, or after it; the others would wait for a minute."""
    rank = int(os.environ["PMI_RANK"])
    if rank == 1 and how == "early":
        raise SystemExit("failed on purpose")
    job = join("all")
    if job.endpoint.rank == 1:
        if how == "status":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    job.endpoint.receive(60)


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline
        os.sched_yield()


def outlives(how: str) -> None:
    """The last rank vanishes in the middle of sending; the others go on without it."""
    job = join("all")
    endpoint = job.endpoint
    victim = endpoint.size - 1
    if endpoint.rank == victim:
        for rank in range(victim):
            endpoint.send(rank, Message(kind="cut off", arrays=[np.zeros(4 << 20)] * 4))
        if how == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    other = 1 - endpoint.rank
    for number in range(100):
        endpoint.send(victim, Message(kind="lost", arrays=[np.zeros(50_000)]))
        endpoint.send(other, Message(kind="kept", header={"number": number}, arrays=[np.zeros(50_000)]))
    for number in range(100):
        sender, message = endpoint.receive(20)
        if sender == victim:  # all of it left before the end came
            sender, message = endpoint.receive(20)
        assert (sender, message.header["number"]) == (other, number)
    with pytest.raises(TooLate, match=rf"ranks \[{victim}\]"):
        endpoint.close(timeout_seconds=2.0)
    job.leave(ok=False)
    say("survived")
    os._exit(0)


def breaks(group: str) -> None:
    """Rank 1 raises where nothing catches it, while the others wait: the launcher must end them all."""
    job = join(group)
    if job.endpoint.rank == 1:
        raise ValueError("broke on its way")
    job.endpoint.receive(60)


def leaves_early(group: str) -> None:
    """Rank 1 closes while large messages to it are on their way: both leave, and MPI_Finalize returns."""
    job = join(group)
    if job.endpoint.rank == 0:
        for _ in range(50):
            job.endpoint.send(1, Message(kind="large", arrays=[np.zeros(1 << 20), np.zeros(1 << 20)]))
    else:
        job.endpoint.receive(20)
    job.leave(ok=True)
    say("left")


def looks_past_errors(group: str) -> None:
    """Errors that name nobody are counted; errors that say a process failed become PeerLost."""
    from mpi4py import MPI

    class Broken:
        """It has a message of rank 0, and no call besides succeeds."""

        def Improbe(self, rank: int, *_: object) -> "Broken":
            return self if rank == 0 else self.Isend()

        def Isend(self, *_: object) -> "Broken":
            raise MPI.Exception(MPI.ERR_OTHER)

        Irecv = Isend

    job = join(group)
    wire = MpiWire(Broken())
    assert wire.probe(1) is None
    assert wire.start_send(0, b"x") is None
    assert wire.probe(0) == wire.probe(0) == 0
    assert wire.start_receive(0, bytearray(1)) is None
    assert not wire.finished(0, Transfer(MPI.REQUEST_NULL, 1))
    assert wire.num_nameless_errors == 3
    wire._lost = {MPI.ERR_OTHER}
    with pytest.raises(PeerLost, match="rank 1 is lost"):
        wire.probe(1)
    job.leave(ok=True)
    say("looked past")


def ends_short(group: str) -> None:
    """A receive that MPI ends without all of its bytes: cancelled, or of a shorter message."""
    from mpi4py import MPI

    job = join(group)
    comm, buffer = MPI.COMM_SELF, bytearray(8)
    wire = MpiWire(comm)
    cancelled = comm.Irecv([buffer, MPI.BYTE], 0, 1)
    cancelled.Cancel()
    with pytest.raises(PeerLost, match="rank 0 is lost: the connection to it broke"):
        wire.finished(0, Transfer(cancelled, 8))
    sent, short = comm.Isend([b"four", MPI.BYTE], 0, 1), comm.Irecv([buffer, MPI.BYTE], 0, 1)
    with pytest.raises(PeerLost, match="rank 0 is lost: the connection to it broke"):
        wire.finished(0, Transfer(short, 8))
    assert wire.finished(0, Transfer(sent, None))
    job.leave(ok=True)
    say("ended short")


def cut_off(group: str) -> None:
    """Ranks are killed in the middle of sending over a network; nothing broken of theirs is given out."""
    job = join(group)
    endpoint = job.endpoint
    number = 0
    while endpoint.rank:
        number += 1
        endpoint.send(0, Message(kind="whole", arrays=[np.full(5_000, number)] * 2))
        receiver = endpoint._others[0]
        if number > 60 and len(receiver.sending) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while receiver.waiting:
            with contextlib.suppress(TooLate):
                endpoint.receive(0.0)
    lost, expected = set(), [1] * endpoint.size
    while len(lost) < endpoint.size - 1:
        try:
            rank, message = endpoint.receive(20)
        except PeerLost as error:
            lost.add(error.rank)
            continue
        assert all((array == expected[rank]).all() for array in message.arrays)
        expected[rank] += 1
    assert min(expected[1:]) > 50
    say("got whole messages only")
    os._exit(0)


def say(text: str) -> None:
    # One write, so that lines of several ranks do not mix.
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "all")
