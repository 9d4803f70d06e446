"""The usual policy in a closed loop: it acts in time, and noise moves nothing to and fro."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling.plant import Plant

from msdata_jax.errors import PlanError, RecipeError
from msdata_jax.scaling import Decision, Hysteresis, Limits, LoaderView, Observation, Shuffled, SourceView
from msdata_jax.scaling.decision_log import Round, replay
from msdata_jax.scaling.observation import broken_rule

SWING, BACK, END = 60, 120, 180


def swing(second: float) -> list[float]:
    """A dear source and seven cheap ones; from `SWING` to `BACK` the dear one has 40 % of 32 samples."""
    share = 0.4 if SWING <= second < BACK else 0.04
    return [32 * share, *([32 * (1 - share) / 7] * 7)]


def swinging(**changes) -> Plant:
    """A hundredfold difference of costs; four loaders of a thread, two sources each."""
    plain = {
        "costs": [0.02, *[0.0002] * 7],
        "samples": swing,
        "rate": 10.0,
        "loaders": [[1 + i % 4] for i in range(8)],
        "threads": dict.fromkeys(range(1, 5), 1),
        "limits": Limits(max_threads=1, total_threads=4),
    }
    return Plant(**{**plain, **changes})


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_scales_out_before_the_swing_and_back_behind_it(noise: float) -> None:
    plant = swinging(noise=noise)
    decided = plant.run(Hysteresis(lookahead_seconds=30), END)
    widened = [when for when, each in decided if each.kind == "widen" and each.source == 0]
    narrowed = [when for when, each in decided if each.kind == "narrow" and each.source == 0]
    assert len(widened) == len(narrowed) == 3
    assert SWING - 30 <= min(widened) <= max(widened) < SWING
    assert BACK < min(narrowed) <= max(narrowed) < END
    assert len(plant.loaders[0]) == 1
    assert max(plant.levels) < 1.0, "no trainer ever waits"
    assert {each.source for _, each in decided} == {0}


def test_left_alone_it_waits_three_times_as_long() -> None:
    alone = swinging()
    assert [alone.observe().waited_seconds for alone.now in range(END)][SWING] > 0.6


def test_a_swing_that_nobody_announced_is_followed_within_seconds() -> None:
    plant = swinging(lookahead=0.0)
    plant.run(Hysteresis(), BACK)
    late = [when for when, level in enumerate(plant.levels) if level >= 1.0]
    assert min(late) == SWING
    assert max(late) <= SWING + 5


@given(
    st.integers(0, 1000),
    st.lists(st.floats(0.001, 0.05), min_size=2, max_size=6),
    st.integers(2, 5),
    st.floats(0.05, 0.4),
)
def test_noise_moves_nothing_to_and_fro(
    seed: int, costs: list[float], num_loaders: int, noise: float
) -> None:
    ranks = list(range(1, num_loaders + 1))
    plant = Plant(
        costs=costs,
        samples=lambda second: [8.0] * len(costs),
        rate=10.0,
        loaders=[[ranks[i % num_loaders]] for i in range(len(costs))],
        threads=dict.fromkeys(ranks, 1),
        limits=Limits(max_threads=2, total_threads=2 * num_loaders),
        noise=noise,
        seed=seed,
    )
    decided = plant.run(Hysteresis(), 300)
    turns = Counter()
    last: dict[tuple, str] = {}
    for _, each in decided:
        what = (each.source, each.loader)
        way = each.kind if each.kind != "threads" else f"threads {each.threads}"
        turns[what] += last.get(what, way) != way and each.kind != "threads"
        last[what] = way
    assert not turns or max(turns.values()) <= 1
    assert len([when for when, _ in decided if when > 100]) <= 2, "it has settled"


def test_threads_grow_before_sources_spread_and_shrink_again() -> None:
    plant = swinging(limits=Limits(max_threads=4, total_threads=8))
    decided = plant.run(Hysteresis(lookahead_seconds=30), 260)
    kinds = [each.kind for when, each in decided if when < SWING]
    assert kinds
    assert set(kinds) == {"threads"}
    assert max(plant.levels) < 1.0
    assert plant.threads == dict.fromkeys(range(1, 5), 1)


def test_spare_loaders_are_put_to_work_and_let_go() -> None:
    """Rank 9 has nothing to read until the swing, and nothing behind it."""
    plant = swinging(threads={**dict.fromkeys(range(1, 3), 1), 9: 1}, loaders=[[1 + i % 2] for i in range(8)])
    plant.limits = Limits(max_threads=1, total_threads=3)
    decided = plant.run(Hysteresis(lookahead_seconds=30), END)
    put = [when for when, each in decided if each.loader == 9 and each.kind == "widen"]
    assert put
    assert min(put) < SWING
    assert not any(9 in each for each in plant.loaders)


def test_a_loader_short_of_memory_gives_sources_away() -> None:
    plant = swinging(
        samples=lambda second: [1.0] * 8,
        loaders=[[1]] * 5 + [[2], [3], [4]],
        memory=lambda open_sources: 100 * open_sources,
        limits=Limits(max_threads=1, total_threads=4, memory_bytes=320),
    )
    plant.loaders = [list(each) for each in plant.loaders]
    plant.run(Hysteresis(cooldown=3), 120)
    counts = Counter(rank for each in plant.loaders for rank in each)
    assert max(counts.values()) <= 3
    assert all(plant.loaders)


def test_more_work_than_all_loaders_can_do_is_spread_and_then_left_alone() -> None:
    plant = swinging(rate=60.0)
    decided = plant.run(Hysteresis(), SWING + 40)
    assert decided
    assert not [when for when, _ in decided if when > SWING + 20]


@pytest.mark.parametrize("num_sources", [80, 100, 306])
def test_many_small_sources_are_moved_too(num_sources: int) -> None:
    """None of them is more than a twentieth of a thread; together they are more than their loader can do."""
    plant = Plant(
        costs=[0.001] * num_sources,
        samples=lambda second: [150 / num_sources] * num_sources,
        rate=10.0,
        loaders=[[1] for _ in range(num_sources)],
        threads=dict.fromkeys(range(1, 4), 1),
        limits=Limits(max_threads=1, total_threads=3),
    )
    plant.run(Hysteresis(), 120)
    assert plant.levels[0] == pytest.approx(1.5)
    assert max(plant.levels[100:]) < 0.8


def test_a_log_replays_to_the_same_decisions() -> None:
    plant = swinging(noise=0.3)
    policy = Hysteresis(lookahead_seconds=30)
    plant.run(policy, END)
    read = [Round.from_plain(json.loads(json.dumps(each.to_plain()))) for each in plant.rounds]
    for each, again in replay(read, policy):
        assert tuple(again) == each.decisions
    other = [again for _, again in replay(read, Hysteresis(high=1.0, low=0.9))]
    assert [tuple(each) for each in other] != [each.decisions for each in read]
    with pytest.raises(PlanError, match="no decisions of a scaling policy"):
        Round.from_plain({"observation": {}})


@pytest.mark.parametrize(
    "wrong", [{"low": 0.8}, {"high": 1.5}, {"smoothing": 0}, {"patience": 0}, {"cooldown": -1}]
)
def test_numbers_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(RecipeError, match="Hysteresis needs"):
        Hysteresis(**wrong)


# --- rules --------------------------------------------------------------------------------------------------

SEEN = Observation(
    seconds=1.0,
    interval=1.0,
    step=1,
    steps=1,
    waited_seconds=0.0,
    sources=(
        SourceView(name="a", loaders=(1,), opening=(2,), refused=(3,)),
        SourceView(name="b", loaders=(1, 2)),
    ),
    loaders=tuple(LoaderView(rank=rank, threads=1) for rank in (1, 2, 3)),
    limits=Limits(max_threads=2, total_threads=4),
)


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Decision(kind="widen", source=0, loader=1), "is leased to rank 1"),
        (Decision(kind="widen", source=0, loader=2), "being opened"),
        (Decision(kind="widen", source=0, loader=3), "refused there"),
        (Decision(kind="widen", source=2, loader=1), "no source number 2"),
        (Decision(kind="widen", source=1, loader=7), "rank 7 is no loader"),
        (Decision(kind="narrow", source=0, loader=1), "cannot leave it"),
        (Decision(kind="narrow", source=1, loader=3), "cannot leave it"),
        (Decision(kind="threads", loader=1, threads=0), "1 to 2 worker threads"),
        (Decision(kind="threads", loader=1, threads=3), "1 to 2 worker threads"),
        (Decision(kind="threads", loader=1, threads=1.5), "of whole numbers"),  # pyright: ignore[reportArgumentType]
        (Decision(kind="close", loader=1), "is of kind"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_decisions_that_break_a_rule(decision: Decision, why: str) -> None:
    assert why in broken_rule(decision, SEEN)


def test_decisions_of_one_round_count_together() -> None:
    narrow = Decision(kind="narrow", source=1, loader=2)
    assert broken_rule(narrow, SEEN) == ""
    assert "cannot leave it" in broken_rule(replace(narrow, loader=1), SEEN, [narrow])
    grow = [Decision(kind="threads", loader=rank, threads=2) for rank in (1, 2)]
    assert broken_rule(grow[1], SEEN, []) == ""
    assert "all together at most 4" in broken_rule(grow[1], SEEN, grow[:1])


@given(st.integers(0, 1000), st.integers(0, 50))
def test_shuffled_decisions_break_no_rule(seed: int, number: int) -> None:
    decisions, memory = Shuffled(seed=seed).decide(SEEN, {"round": number})
    assert memory == {"round": number + 1}
    done: list[Decision] = []
    for each in decisions:
        assert broken_rule(each, SEEN, done) == ""
        done.append(each)
    assert (decisions, memory) == Shuffled(seed=seed).decide(SEEN, {"round": number})


# --- what a real job saw ------------------------------------------------------------------------------------


def test_a_recorded_swing_is_followed_once_each_way() -> None:
    """Every observation of the job of `benchmarks/scaling.py`: four loaders, one costly source.

    Its mixture swings at step 150 and back at step 300.
    """
    with gzip.open(Path(__file__).parent / "data" / "swing.jsonl.gz", "rt") as lines:
        rounds = [Round.from_plain(json.loads(line)) for line in lines]
    assert len(rounds) == 49
    for each, again in replay(rounds, Hysteresis(lookahead_seconds=4)):
        assert tuple(again) == each.decisions
    decided = [(each.observation.step, decision) for each in rounds for decision in each.decisions]
    assert [(each.kind, each.source, step < 150, step > 300) for step, each in decided] == [
        *[("widen", 0, True, False)] * 3,
        *[("narrow", 0, False, True)] * 3,
    ]
