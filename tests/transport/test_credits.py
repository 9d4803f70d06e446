import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msdata_transport import BadFrame
from msdata_transport.credits import WINDOW, Credits


def test_a_window_of_messages_may_go_out() -> None:
    account = Credits()
    for _ in range(WINDOW):
        assert account.may_send
        account.sent()
    assert not account.may_send
    with pytest.raises(ValueError, match="window is 8"):
        account.sent()
    account.acknowledged(3)
    assert account.may_send
    assert account.num_unacknowledged == 5


@pytest.mark.parametrize("num_messages", [0, -1, 3, 2**63])
def test_a_peer_cannot_acknowledge_what_it_was_not_sent(num_messages: int) -> None:
    account = Credits()
    account.sent()
    account.sent()
    with pytest.raises(BadFrame, match="of 2 under way"):
        account.acknowledged(num_messages)


def test_acknowledgements_are_collected_in_batches() -> None:
    account = Credits(8)
    for _ in range(3):
        account.taken()
        assert account.collect_owed() == 0
    account.taken()
    assert account.collect_owed() == 4
    assert account.collect_owed(at_least=1) == 0
    account.taken()
    assert account.collect_owed(at_least=1) == 1


def test_a_window_holds_a_message() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Credits(0)


@settings(deadline=None)
@given(st.integers(1, 10), st.lists(st.sampled_from(["send", "take"]), max_size=60))
def test_a_sender_is_never_stuck(window: int, moves: list[str]) -> None:
    """Whatever the order, a receiver that takes all lets the sender go on without idle acknowledgements."""
    sender, receiver = Credits(window), Credits(window)
    num_under_way = 0
    for move in [*moves, *["take"] * window]:
        if move == "send" and sender.may_send:
            sender.sent()
            num_under_way += 1
        elif move == "take" and num_under_way:
            receiver.taken()
            num_under_way -= 1
            if num_owed := receiver.collect_owed():
                sender.acknowledged(num_owed)
        assert 0 <= sender.num_unacknowledged <= window
    assert sender.may_send
