"""Run under mpiexec as `python -m mpi4py mpi_program.py SCENARIO [GROUP]`; each scenario is one function."""

import os
import signal
import sys

import numpy as np
import pytest
from msdata_transport import BadFrame, Message, PeerLost, TooLate, conformance
from msdata_transport.mpi import MpiWire, describe_mpi, join


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
        def Iprobe(self, *_: object) -> bool:
            raise MPI.Exception(MPI.ERR_OTHER)

        Isend = Irecv = Iprobe

    job = join(group)
    wire = MpiWire(Broken())
    assert wire.probe(0) is None
    assert wire.start_send(0, b"x") is None
    assert wire.start_receive(0, bytearray(1)) is None
    assert not wire.finished(0, MPI.REQUEST_NULL)
    assert wire.num_nameless_errors == 3
    wire._lost = {MPI.ERR_OTHER}
    with pytest.raises(PeerLost, match="rank 0 is lost"):
        wire.probe(0)
    job.leave(ok=True)
    say("looked past")


def say(text: str) -> None:
    # One write, so that lines of several ranks do not mix.
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "all")
