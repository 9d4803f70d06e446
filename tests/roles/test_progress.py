"""How far the trainers are: a plain recount of what each said."""

from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.roles.progress import Progress

RANKS = (3, 4, 5)


@given(
    st.integers(0, 5), st.lists(st.tuples(st.sampled_from(["have", "take", "leave"]), st.sampled_from(RANKS)))
)
def test_what_all_have_is_shown_and_what_all_took_is_released(
    first: int, said: list[tuple[str, int]]
) -> None:
    progress = Progress(RANKS)
    progress.begin(first)
    has, took = dict.fromkeys(RANKS, first - 1), dict.fromkeys(RANKS, first - 1)
    left: set[int] = set()
    visible = released = first - 1
    for what, rank in said:
        if what == "have":
            has[rank] += 1
            progress.complete(rank, has[rank])
        elif what == "take" and took[rank] < min(visible, has[rank]) and rank not in left:
            took[rank] += 1
            progress.deliver(rank, took[rank])
        elif what == "leave":
            left.add(rank)
            progress.left[rank] = {}
        there = [has[each] for each in RANKS if each not in left]
        now = max(visible, min(there, default=visible))
        assert progress.show() == (now if now > visible else None)
        assert progress.release() == (min(took.values()) if min(took.values()) > released else None)
        visible, released = now, min(took.values())
        assert (progress.visible, progress.released, progress.slowest) == (visible, released, released)
        assert progress.having(visible) == [each for each in RANKS if has[each] >= visible]
        assert progress.all_left == (left == set(RANKS))


def test_waits_are_summed_up_but_for_those_for_the_first_step() -> None:
    progress = Progress(RANKS)
    progress.begin(7)
    for step, wait in ((7, 90.0), (8, 0.5), (9, 0.25)):
        progress.deliver(3, step, wait)
    progress.deliver(4, 7, 80.0)
    assert progress.waited_seconds == {3: 0.75, 4: 0.0, 5: 0.0}
    assert list(progress.waits) == [0.5, 0.25]
