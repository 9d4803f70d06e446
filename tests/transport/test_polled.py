"""The logic of the MPI twin over a wire of deques: order, credits, and what becomes of errors."""

from collections import defaultdict, deque

import numpy as np
import pytest
from msdata_transport import BadFrame, EndpointClosed, Message, PeerLost, TooLate
from msdata_transport.credits import WINDOW
from msdata_transport.framing import encode_head
from msdata_transport.polled import PolledEndpoint
from msdata_transport.wire import ANYBODY, Buffer


class Net:
    """Runs of bytes under way; a send is finished once received, like a large message of MPI."""

    def __init__(self) -> None:
        self.runs: defaultdict[tuple[int, int], deque[tuple[bytes, list[bool]]]] = defaultdict(deque)

    def put(self, sender: int, receiver: int, data: bytes) -> None:
        self.runs[sender, receiver].append((data, [False]))


class FakeWire:
    def __init__(self, net: Net, rank: int) -> None:
        self.net = net
        self.rank = rank
        self.lost: set[int] = set()
        self.num_refusals = 0  # how many calls find MPI unwilling

    def arrived(self) -> int | None:
        senders = (sender for (sender, to), runs in self.net.runs.items() if to == self.rank and runs)
        return ANYBODY if self.lost else next(senders, None)

    def probe(self, rank: int) -> int | None:
        runs = self.net.runs[rank, self.rank]
        if not runs and rank in self.lost:
            raise PeerLost(rank, "said the wire")
        return len(runs[0][0]) if runs and not self.refuses() else None

    def start_send(self, rank: int, data: Buffer) -> list[bool] | None:
        if self.refuses():
            return None
        done = [False]
        self.net.runs[self.rank, rank].append((bytes(data), done))
        return done

    def start_receive(self, rank: int, buffer: Buffer) -> list[bool] | None:
        if self.refuses():
            return None
        data, done = self.net.runs[rank, self.rank].popleft()
        memoryview(buffer)[:] = data
        done[0] = True
        return done

    def finished(self, rank: int, pending: list[bool]) -> bool:
        return pending[0] and not self.refuses()

    def refuses(self) -> bool:
        self.num_refusals -= 1
        return self.num_refusals >= 0


class SlowWire(FakeWire):
    """Arrays come when the test says so, like a large message between hosts."""

    def __init__(self, net: Net, rank: int) -> None:
        super().__init__(net, rank)
        self.under_way: list[tuple[Buffer, bytes, list[bool]]] = []
        self.failed = False  # all that is under way

    def start_receive(self, rank: int, buffer: Buffer) -> list[bool] | None:
        if not isinstance(buffer, np.ndarray):  # a head or a control
            return super().start_receive(rank, buffer)
        data, done = self.net.runs[rank, self.rank].popleft()
        self.under_way.append((buffer, data, done))
        return done

    def finished(self, rank: int, pending: list[bool]) -> bool:
        if self.failed and not pending[0]:
            raise PeerLost(rank, "said a receive")
        return super().finished(rank, pending)

    def finish(self, index: int) -> None:
        buffer, data, done = self.under_way[index]
        memoryview(buffer)[:] = data
        done[0] = True


def slow_pair() -> tuple[Net, PolledEndpoint, PolledEndpoint, SlowWire]:
    """The net, who sends, who receives, and the receiver's wire."""
    net = Net()
    wire = SlowWire(net, 1)
    return net, PolledEndpoint(0, 2, FakeWire(net, 0)), PolledEndpoint(1, 2, wire), wire


def numbered(number: int) -> Message:
    return Message(kind="x", header={"number": number}, arrays=[np.full(3, number)])


def assert_a_bad_frame_is_the_end(receiver: PolledEndpoint) -> None:
    with pytest.raises(BadFrame, match="from rank 0"):
        receiver.receive(1)
    with pytest.raises(PeerLost, match="no message"):
        receiver.receive(1)
    receiver.close()


def look(endpoint: PolledEndpoint) -> None:
    with pytest.raises(TooLate):
        endpoint.receive(0)


def pair() -> tuple[Net, list[PolledEndpoint], list[FakeWire]]:
    net = Net()
    wires = [FakeWire(net, rank) for rank in range(2)]
    return net, [PolledEndpoint(rank, 2, wires[rank]) for rank in range(2)], wires


def sender_and_number(got: tuple[int, Message] | None) -> tuple[int, int]:
    assert got is not None
    sender, message = got
    return sender, message.header["number"]


def number_of(got: tuple[int, Message] | None) -> int:
    return sender_and_number(got)[1]


def test_at_most_a_window_is_under_way() -> None:
    net, (sender, receiver), _ = pair()
    for number in range(3 * WINDOW):
        sender.send(1, Message(kind="x", header={"number": number}))
    assert len(net.runs[0, 1]) == WINDOW
    for number in range(3 * WINDOW):
        assert number_of(receiver.receive(1)) == number
        with pytest.raises(TooLate):
            sender.receive(0)
        assert len(net.runs[0, 1]) <= WINDOW


def test_calls_that_fail_for_now_are_tried_again() -> None:
    _, (sender, receiver), wires = pair()
    arrays = [np.arange(3), np.zeros((0, 2)), np.ones(4, bool)]
    for number in range(20):
        wires[0].num_refusals = wires[1].num_refusals = number
        sender.send(1, Message(kind="x", header={"number": number}, arrays=arrays))
        while True:
            try:
                got = receiver.receive(0)
                break
            except TooLate:
                with pytest.raises(TooLate):
                    sender.receive(0)
        assert number_of(got) == number
        for have, sent in zip(got[1].arrays, arrays, strict=True):
            np.testing.assert_array_equal(have, sent)


def test_the_lost_are_told_once_after_their_messages() -> None:
    _, (sender, receiver), wires = pair()
    sender.send(1, Message(kind="last words"))
    sender.send(1, Message(kind="cut off", arrays=[np.zeros(3)]))
    wires[1].net.runs[0, 1].pop()  # the array never left
    wires[1].lost.add(0)
    assert receiver.receive(1) == (0, Message(kind="last words", header={}))
    with pytest.raises(PeerLost, match="rank 0 is lost: said the wire"):
        receiver.receive(1)
    with pytest.raises(TooLate):
        receiver.receive(0)
    with pytest.raises(PeerLost):
        receiver.send(0, Message(kind="x"))
    receiver.close()


def test_arrays_that_come_in_another_order_are_given_out_in_order() -> None:
    _, sender, receiver, wire = slow_pair()
    for number in range(WINDOW):
        sender.send(1, numbered(number))
    for _ in range(WINDOW):
        look(receiver)
    assert len(wire.under_way) == WINDOW
    for index in (2, 1, 5, 0):
        look(receiver)
        wire.finish(index)
    for number in range(3):
        got = receiver.receive(1)
        assert number_of(got) == number
        np.testing.assert_array_equal(got[1].arrays[0], np.full(3, number))
    look(receiver)
    for index in (3, 4, 6, 7):
        wire.finish(index)
    assert [number_of(receiver.receive(1)) for _ in range(5)] == [3, 4, 5, 6, 7]


def test_a_message_without_arrays_waits_for_those_before_it() -> None:
    _, sender, receiver, wire = slow_pair()
    sender.send(1, Message(kind="x", header={"number": 0}, arrays=[np.ones(3), np.zeros(0), np.ones(2)]))
    sender.send(1, Message(kind="x", header={"number": 1}))
    look(receiver)
    wire.finish(1)
    look(receiver)
    wire.finish(0)
    assert [number_of(receiver.receive(1)) for _ in range(2)] == [0, 1]


def test_a_close_comes_behind_the_messages_under_way() -> None:
    _, sender, receiver, wire = slow_pair()
    for number in range(2):
        sender.send(1, numbered(number))
    with pytest.raises(TooLate, match="did not take"):
        sender.close(timeout_seconds=0.0)
    look(receiver)
    receiver.send(0, Message(kind="not known to vanish"))
    for index in (1, 0):
        wire.finish(index)
    assert [number_of(receiver.receive(1)) for _ in range(2)] == [0, 1]
    look(receiver)
    receiver.send(0, Message(kind="vanishes"))
    receiver.close(timeout_seconds=0.0)


@pytest.mark.parametrize("how", ["by a look", "by a receive"])
def test_the_lost_leave_what_was_complete(how: str) -> None:
    _, sender, receiver, wire = slow_pair()
    for number in range(3):
        sender.send(1, numbered(number))
    look(receiver)
    for index in (0, 2):
        wire.finish(index)
    wire.lost.add(0)
    wire.failed = how == "by a receive"
    assert number_of(receiver.receive(1)) == 0
    with pytest.raises(PeerLost, match="said"):
        receiver.receive(1)
    look(receiver)
    with pytest.raises(PeerLost):
        receiver.send(0, Message(kind="x"))
    receiver.close()


@pytest.mark.parametrize(
    "runs",
    [[b"garbage"], [encode_head(Message(kind="x", arrays=[np.ones(3), np.ones(2)])), bytes(24), bytes(15)]],
)
def test_a_bad_frame_comes_behind_the_messages_under_way(runs: list[bytes]) -> None:
    net, sender, receiver, wire = slow_pair()
    for number in range(2):
        sender.send(1, numbered(number))
    for run in runs:
        net.put(0, 1, run)
    for index in (1, 0):
        look(receiver)
        wire.finish(index)
    assert [number_of(receiver.receive(1)) for _ in range(2)] == [0, 1]
    assert_a_bad_frame_is_the_end(receiver)


def test_no_next_message_is_begun_while_enough_bytes_are_under_way() -> None:
    _, sender, receiver, wire = slow_pair()
    for _ in range(4):
        sender.send(1, Message(kind="x", arrays=[np.zeros(3 << 20, np.uint8)]))
    for num_under_way in (2, 3, 4):
        for _ in range(WINDOW):
            look(receiver)
        assert len(wire.under_way) == num_under_way
        wire.finish(num_under_way - 2)
        assert receiver.receive(1) is not None


def test_more_than_a_window_is_a_bad_frame_and_not_received() -> None:
    net, _, receiver, wire = slow_pair()
    for number in range(WINDOW + 1):
        net.put(0, 1, encode_head(numbered(number)))
        net.put(0, 1, bytes(24))
    for _ in range(WINDOW + 1):
        look(receiver)
    assert len(wire.under_way) == WINDOW
    for index in range(WINDOW):
        wire.finish(index)
    assert [number_of(receiver.receive(1)) for _ in range(WINDOW)] == list(range(WINDOW))
    with pytest.raises(BadFrame, match="while 8 before it were not acknowledged"):
        receiver.receive(1)


def test_half_a_window_is_read_and_acknowledged_at_once() -> None:
    net, (sender, receiver), _ = pair()
    for number in range(WINDOW):
        sender.send(1, Message(kind="x", header={"number": number}))
    for number in range(WINDOW // 2):
        assert not net.runs[1, 0]
        assert number_of(receiver.receive(1)) == number
        assert len(net.runs[0, 1]) == WINDOW // 2
    assert [run for run, _ in net.runs[1, 0]] == [(WINDOW // 2).to_bytes(8, "little")]
    assert number_of(receiver.receive(1)) == WINDOW // 2
    assert len(net.runs[1, 0]) == 1
    for _ in range(WINDOW // 2 - 1):
        receiver.receive(1)
    assert len(net.runs[1, 0]) == 2


def test_who_waits_acknowledges_all() -> None:
    net, (sender, receiver), _ = pair()
    sender.send(1, Message(kind="x"))
    assert receiver.receive(1) is not None
    assert not net.runs[1, 0]
    look(receiver)
    assert len(net.runs[1, 0]) == 1


def test_large_messages_are_received_one_at_a_time() -> None:
    net, (sender, receiver), _ = pair()
    for _ in range(3):
        sender.send(1, Message(kind="x", arrays=[np.zeros(1 << 20, np.uint8)]))
    for num_left in (2, 1, 0):
        assert receiver.receive(1) is not None
        assert len(net.runs[0, 1]) == 2 * num_left


@pytest.mark.parametrize(
    "runs",
    [
        [b""],
        [b"garbage"],
        [b"no head of ours at all"],
        [(99).to_bytes(8, "little")],  # acknowledges 99 messages
        [encode_head(Message(kind="x", arrays=[np.zeros(3)])), b"too short"],
        [encode_head(Message(kind="x", arrays=[np.zeros(3)])), bytes(25)],
    ],
)
def test_garbage_is_a_bad_frame_of_its_sender(runs: list[bytes]) -> None:
    net, (_, receiver), _ = pair()
    for run in runs:
        net.put(0, 1, run)
    assert_a_bad_frame_is_the_end(receiver)


def test_close_says_who_was_late() -> None:
    _, (sender, _), _ = pair()
    sender.send(1, Message(kind="x"))
    with pytest.raises(TooLate, match=r"ranks \[1\] did not take"):
        sender.close(timeout_seconds=0.0)
    sender.close()
    with pytest.raises(EndpointClosed):
        sender.receive(0)


def test_a_peer_that_closed_is_not_waited_for() -> None:
    _, (sender, receiver), _ = pair()
    receiver.send(0, Message(kind="x"))
    assert sender.receive(1) is not None
    with pytest.raises(TooLate):
        sender.receive(0)  # acknowledges
    sender.send(1, Message(kind="under way"))
    receiver.close(timeout_seconds=0.0)
    sender.send(1, Message(kind="under way or vanishes"))
    sender.send(1, Message(kind="vanishes"))
    sender.close(timeout_seconds=0.0)


def test_who_writes_first_to_the_closed_is_told() -> None:
    _, (sender, receiver), _ = pair()
    receiver.close()
    sender.send(1, Message(kind="x"))
    for _ in range(2):
        receiver.discard()
    sender.close(timeout_seconds=0.0)


def test_all_are_told_of_a_close_without_a_barrier() -> None:
    _, (sender, receiver), _ = pair()
    receiver.close(timeout_seconds=0.0, tell_all=True)
    with pytest.raises(TooLate):
        sender.receive(0)
    sender.send(1, Message(kind="vanishes"))
    sender.close(timeout_seconds=0.0)


def test_the_forgotten_are_looked_at_no_more() -> None:
    net, (sender, receiver), wires = pair()
    sender.send(1, Message(kind="cut off", arrays=[np.zeros(3)]))
    under_way = net.runs[0, 1].pop()  # the array comes later
    with pytest.raises(TooLate):
        receiver.receive(0)
    for _ in range(3 * WINDOW):
        receiver.send(0, Message(kind="waits", arrays=[np.zeros(3)]))
    num_sent = len(net.runs[1, 0])
    receiver.forget(0, "a test")
    receiver.forget(0, "again")
    net.runs[0, 1].append(under_way)
    net.put(0, 1, b"garbage")
    wires[1].lost.add(0)
    receiver.send(0, Message(kind="vanishes"))
    with pytest.raises(TooLate):
        receiver.receive(0.02)
    receiver.close(timeout_seconds=60.0)
    assert len(net.runs[1, 0]) == num_sent


def test_forgetting_drops_what_was_not_given_out() -> None:
    _, (sender, receiver), _ = pair()
    for _ in range(2):
        sender.send(1, Message(kind="x"))
    receiver.send(1, Message(kind="self"))
    assert receiver.receive(1) is not None
    receiver._advance_all()  # as a rank that writes to itself does: the inbox has a message of rank 0
    receiver.forget(0)
    with pytest.raises(TooLate):
        receiver.receive(0)


@pytest.mark.parametrize("how", ["lost", "garbage", "closed"])
def test_the_lost_and_the_closed_may_be_forgotten(how: str) -> None:
    net, (sender, receiver), wires = pair()
    if how == "lost":
        wires[1].lost.add(0)
    elif how == "garbage":
        net.put(0, 1, b"garbage")
    else:
        sender.send(1, Message(kind="x"))
        assert receiver.receive(1) is not None
        with pytest.raises(TooLate):
            receiver.receive(0)  # acknowledges
        sender.close(timeout_seconds=0.1)
    receiver._advance_all()
    receiver.forget(0)
    with pytest.raises(TooLate):  # neither PeerLost nor BadFrame
        receiver.receive(0.01)
    receiver.send(0, Message(kind="vanishes"))
    receiver.close(timeout_seconds=60.0)


def test_writing_to_oneself_does_not_starve_others() -> None:
    _, (talker, other), _ = pair()
    other.send(0, Message(kind="other"))
    talker.send(0, Message(kind="self"))
    for _ in range(100):
        got = talker.receive(1)
        assert got is not None
        if got[1].kind == "other":
            return
        talker.send(0, Message(kind="self"))
    pytest.fail("the peer was never heard")


class CountingWire(FakeWire):
    """Counts which ranks are asked."""

    def __init__(self, net: Net, rank: int) -> None:
        super().__init__(net, rank)
        self.asked: list[int] = []

    def probe(self, rank: int) -> int | None:
        self.asked.append(rank)
        return super().probe(rank)


def test_a_look_asks_the_rank_that_something_came_from() -> None:
    net, size = Net(), 50
    wire = CountingWire(net, 0)
    receiver = PolledEndpoint(0, size, wire)
    senders = [PolledEndpoint(rank, size, FakeWire(net, rank)) for rank in (7, 31)]
    for number in range(3):
        for sender in senders:
            sender.send(0, numbered(number))
    assert [sender_and_number(receiver.receive(0)) for _ in range(6)] == [
        (7, 0), (7, 1), (7, 2), (31, 0), (31, 1), (31, 2)
    ]  # fmt: skip
    assert set(wire.asked) == {7, 31}
    look(receiver)
    assert set(wire.asked) == {7, 31}


def test_what_cannot_be_read_now_hides_nobody() -> None:
    """A lost rank's runs are never received, and come first."""
    net = Net()
    receiver = PolledEndpoint(0, 3, FakeWire(net, 0))
    lost, other = (PolledEndpoint(rank, 3, FakeWire(net, rank)) for rank in (1, 2))
    receiver.forget(1)
    lost.send(0, numbered(1))
    for number in range(5):
        other.send(0, numbered(number))
        assert sender_and_number(receiver.receive(0)) == (2, number)


def test_ranks_that_are_silent_are_asked_at_times() -> None:
    net = Net()
    wire = CountingWire(net, 0)
    receiver, sender = PolledEndpoint(0, 3, wire), PolledEndpoint(1, 3, FakeWire(net, 1))
    for number in range(32):
        sender.send(0, numbered(number))
        receiver.receive(0)
        look(receiver)
        look(sender)
    assert 2 in wire.asked


class TalliedBell:
    """Never sleeps; says who was rung and for how long its owner would have slept."""

    reaches_all = True

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.sleeps: list[float] = []
        self.rung_before_sleeps: list[int] = []

    def ring(self, rank: int) -> None:
        self.rung.append(rank)

    def wait(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.rung_before_sleeps.append(len(self.rung))


def pair_with_bells() -> tuple[list[PolledEndpoint], list[FakeWire], list[TalliedBell]]:
    net = Net()
    wires, bells = [FakeWire(net, rank) for rank in range(2)], [TalliedBell(), TalliedBell()]
    return [PolledEndpoint(rank, 2, wires[rank], bell=bells[rank]) for rank in range(2)], wires, bells


def test_a_message_rings_when_all_of_it_is_posted_and_once_more_when_it_is_gone() -> None:
    (sender, receiver), wires, (bell, _) = pair_with_bells()
    wires[0].num_refusals = 1
    sender.send(1, numbered(0))
    assert bell.rung == []  # the wire was not willing
    look(sender)
    assert bell.rung == [1]
    look(sender)
    assert bell.rung == [1]
    assert number_of(receiver.receive(1)) == 0
    for _ in range(3):
        look(sender)
    assert bell.rung == [1, 1]


def test_an_acknowledgement_rings_nobody() -> None:
    (sender, receiver), _, (_, bell) = pair_with_bells()
    for number in range(WINDOW):
        sender.send(1, numbered(number))
        assert number_of(receiver.receive(1)) == number
    look(receiver)
    look(sender)
    assert bell.rung == []
    sender.send(1, numbered(WINDOW))
    assert number_of(receiver.receive(1)) == WINDOW


def test_who_closes_rings_those_it_talked_to() -> None:
    (first, second), _, (bell, _) = pair_with_bells()
    first.send(1, numbered(0))
    assert number_of(second.receive(1)) == 0
    look(second)
    for _ in range(2):
        look(first)
    before = len(bell.rung)
    first.close(1)
    assert bell.rung[before:] == [1]


class EagerWire(FakeWire):
    """Sends are over at once, like small messages of MPI."""

    def start_send(self, rank: int, data: Buffer) -> list[bool] | None:
        super().start_send(rank, data)
        return [True]


def test_what_credit_lets_go_while_a_rank_waits_rings_before_it_sleeps() -> None:
    net, bell = Net(), TalliedBell()
    sender = PolledEndpoint(0, 2, EagerWire(net, 0), bell=bell)
    receiver = PolledEndpoint(1, 2, EagerWire(net, 1))
    for number in range(WINDOW + 1):
        sender.send(1, numbered(number))
    look(sender)
    for number in range(WINDOW):
        assert number_of(receiver.receive(1)) == number
    look(receiver)
    num_rung, num_sleeps = len(bell.rung), len(bell.sleeps)
    with pytest.raises(TooLate):
        sender.receive(0.05)
    assert bell.rung_before_sleeps[num_sleeps] == num_rung + 1


def test_a_wake_rings_its_own_rank() -> None:
    (endpoint, _), _, (bell, _) = pair_with_bells()
    endpoint.wake()
    assert bell.rung == [0]
    assert endpoint.receive(1) is None


def longest_sleep(endpoint: PolledEndpoint, bell: TalliedBell, seconds: float) -> float:
    bell.sleeps.clear()
    with pytest.raises(TooLate):
        endpoint.receive(seconds)
    return max(bell.sleeps)


def test_only_what_nobody_rings_for_is_looked_for_often() -> None:
    (sender, receiver), _, (bell, other_bell) = pair_with_bells()
    assert longest_sleep(sender, bell, 0.2) == 50e-3
    for number in range(2 * WINDOW):
        sender.send(1, numbered(number))  # half of them wait for credit
    assert longest_sleep(sender, bell, 0.2) <= 5e-3
    for number in range(2 * WINDOW):
        assert number_of(receiver.receive(1)) == number
        look(sender)
    look(receiver)
    assert longest_sleep(sender, bell, 0.2) == 50e-3
    other_bell.reaches_all = False
    assert longest_sleep(receiver, other_bell, 0.2) <= 5e-3
