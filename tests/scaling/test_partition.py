"""Partitions: laws that Hypothesis searches, a brute force beside it, and what sentences say."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.errors import RecipeError
from msdata_jax.scaling.needs import SourceNeed, needs_of, samples_per_step
from msdata_jax.scaling.partition import Budget, Partition, partition, partition_from_json
from msdata_jax.scaling.profile import Profile, SourceProfile

MEGA = 1 << 20


def need(name: str, *threads: float, lock: float = 0.0, cpu: float = 1.0, reader: int = 0) -> SourceNeed:
    """A source that takes so many thread-seconds a step at each moment."""
    return SourceNeed(
        name=name,
        threads=threads,
        cpus=tuple(cpu * each for each in threads),
        sends=(0.0,) * len(threads),
        lock_share=lock,
        reader_bytes=reader,
    )


def capacity(needs: list[SourceNeed], made: Partition, headroom: float) -> float:
    """Steps a second that the slowest loader keeps up with, by plain loops; parts of a source are equal."""
    slowest = math.inf
    for loader, threads in enumerate(made.threads):
        for moment in range(len(needs[0].threads)):
            busy = sum(
                each.threads[moment] * (1 + each.lock_share * (threads - 1)) / len(mine)
                for each, mine in zip(needs, made.affinity, strict=True)
                if loader in mine
            )
            slowest = min(slowest, threads / max(headroom * busy, 1e-12))
    return slowest


amounts = st.one_of(st.just(0.0), st.floats(1e-4, 50.0))


@st.composite
def needs_lists(draw: st.DrawFn, most: int = 6) -> list[SourceNeed]:
    moments = draw(st.integers(1, 3))
    count = draw(st.integers(1, most))
    needs = [
        need(
            f"s{i}",
            *draw(st.lists(amounts, min_size=moments, max_size=moments)),
            lock=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
            cpu=draw(st.sampled_from([0.1, 1.0])),
            reader=draw(st.integers(0, 500)) * MEGA,
        )
        for i in range(count)
    ]
    return (
        needs
        if any(map(any, (each.threads for each in needs)))
        else [*needs[1:], need("s0", *[1.0] * moments)]
    )


budgets = st.builds(
    Budget,
    steps_per_second=st.one_of(st.none(), st.floats(0.01, 10.0)),
    cpus=st.floats(0.5, 64.0),
    memory_bytes=st.one_of(st.none(), st.integers(400, 6000).map(lambda megas: megas * MEGA)),
    loaders=st.one_of(st.none(), st.integers(1, 6)),
    max_loaders=st.integers(1, 12),
    threads=st.one_of(st.none(), st.integers(1, 4)),
    max_threads=st.sampled_from([1, 4, 8]),
    shadows=st.one_of(st.none(), st.integers(0, 2)),
    headroom=st.sampled_from([1.0, 1.25]),
)


@given(needs_lists(), budgets)
def test_budgets_hold_or_limits_say_why_not(needs: list[SourceNeed], budget: Budget) -> None:
    made = partition(needs, budget)
    assert all(made.affinity)
    assert all(made.readers_of(loader) for loader in range(made.loaders))
    assert budget.loaders in (None, made.loaders)
    assert made.loaders <= (budget.loaders or budget.max_loaders)
    assert all(threads == (budget.threads or threads) for threads in made.threads)
    assert max(made.threads) <= (budget.threads or budget.max_threads)
    assert made.cpus * budget.headroom <= budget.cpus * (1 + 1e-6)
    assert capacity(needs, made, budget.headroom) >= made.steps_per_second * (1 - 1e-4)
    assert max(made.utilisation) <= 1 / budget.headroom + 1e-4
    wanted = budget.steps_per_second
    if wanted is not None and not made.limits:
        assert made.steps_per_second == wanted
    else:
        assert made.limits
    if budget.memory_bytes is not None and sum(made.memory_bytes) + made.shadow_bytes > budget.memory_bytes:
        assert any("no way to share out the sources has room" in each for each in made.limits)


@given(needs_lists(), budgets, st.sampled_from([1.0, 1.1, 2.0, 8.0]))
def test_more_never_gives_less(needs: list[SourceNeed], budget: Budget, factor: float) -> None:
    def rate(**more: object) -> float:
        return partition(needs, Budget(**{**vars(budget), **more})).steps_per_second

    before = rate()
    assert rate(cpus=budget.cpus * factor) >= before * (1 - 1e-9)
    assert rate(max_loaders=budget.max_loaders + int(factor)) >= before * (1 - 1e-9)
    if budget.memory_bytes is not None:
        assert rate(memory_bytes=int(budget.memory_bytes * factor)) >= before * (1 - 1e-9)
        assert rate(memory_bytes=None) >= before * (1 - 1e-9)


@given(needs_lists(), budgets)
def test_equal_calls_give_equal_partitions_and_json_keeps_them(
    needs: list[SourceNeed], budget: Budget
) -> None:
    made = partition(needs, budget, recipe="abc")
    assert partition(list(needs), budget, recipe="abc") == made
    assert partition_from_json(json.loads(json.dumps(made.to_json()))) == made


def shares_of(sources: int, loaders: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to give each source some of the loaders, so that none is idle."""
    subsets = [
        mine for size in range(1, loaders + 1) for mine in itertools.combinations(range(loaders), size)
    ]
    for affinity in itertools.product(subsets, repeat=sources):
        if {loader for mine in affinity for loader in mine} == {*range(loaders)}:
            yield affinity


@given(needs_lists(most=3), st.integers(1, 3), st.sampled_from([1, 2, 4]))
def test_near_the_best_that_trying_everything_finds(
    needs: list[SourceNeed], loaders: int, threads: int
) -> None:
    budget = Budget(cpus=1e9, loaders=loaders, threads=threads, headroom=1.0)
    made = partition(needs, budget)

    def rate(affinity: tuple[tuple[int, ...], ...]) -> float:
        blank = {"tiers": ("shared",) * len(needs), "needs": (0.0,) * len(needs)}
        other = Partition(
            sources=made.sources,
            loaders=loaders,
            threads=(threads,) * loaders,
            affinity=affinity,
            worst_needs=blank["needs"],
            steps_per_second=1.0,
            cpus=0.0,
            utilisation=(0.0,) * loaders,
            memory_bytes=(0,) * loaders,
            **blank,
        )
        return capacity(needs, other, 1.0)

    best = max(map(rate, shares_of(len(needs), loaders)))
    assert made.steps_per_second <= best * (1 + 1e-6)
    assert made.steps_per_second >= 0.9 * best


def test_a_cheap_source_shares_one_that_releases_the_lock_takes_threads_one_that_holds_it_ranks() -> None:
    needs = [need("text", 0.1), need("video", 3.0), need("slow", 3.0, lock=1.0)]
    made = partition(needs, Budget(cpus=32, steps_per_second=1.0))
    assert made.tiers == ("shared", "threads", "ranks")
    assert len(made.affinity[1]) == 1
    assert made.threads[made.affinity[1][0]] >= 3
    assert len(made.affinity[2]) >= 4  # with headroom 3.75 seconds a second, of which a loader gives one
    assert not made.limits


def test_sources_that_swing_against_each_other_share_loaders() -> None:
    against = [need("a", 4.0, 0.0), need("b", 0.0, 4.0)]
    together = [need("a", 4.0, 0.0), need("b", 4.0, 0.0)]
    budget = Budget(cpus=64, steps_per_second=1.0, threads=1)
    assert partition(against, budget).loaders == 5
    assert partition(together, budget).loaders == 10


def test_what_is_cheaper_wins_where_the_rate_is_reached() -> None:
    needs = [need(f"s{i}", 0.1, reader=100 * MEGA) for i in range(20)]
    made = partition(needs, Budget(cpus=16, steps_per_second=2.0))
    assert [len(mine) for mine in made.affinity] == [1] * 20
    assert sum(made.threads) == 5  # 4 threads are busy, and a quarter of that is headroom
    assert made.loaders == 1


def test_sentences_say_what_limits_the_rate() -> None:
    needs = [need("text", 0.02), need("video", 3.4)]
    (cpus,) = partition(needs, Budget(cpus=2, steps_per_second=1.0, headroom=1.0)).limits
    assert cpus == (
        "3.42 CPUs are needed for 1 steps/s, with 0 % headroom, and the CPU budget is 2: at most "
        "0.585 steps/s; source 'video' takes 99 % of them"
    )
    (memory,) = partition(needs, Budget(cpus=64, memory_bytes=700 * MEGA, max_threads=1)).limits
    assert "the memory budget is 734 MB: at most" in memory
    (loaders,) = partition([need("slow", 2.0, lock=1.0)], Budget(cpus=64, loaders=2, headroom=1.0)).limits
    assert loaders.startswith(
        "2 loaders of up to 8 threads give at most 1 steps/s; source 'slow' takes 2 thread-"
    )
    assert loaders.endswith("its threads hinder one another (two do 1 times as much as one): add loaders")


def test_many_sources_are_shared_out_with_few_readers() -> None:
    rng = np.random.default_rng(0)
    needs = [need(f"s{i}", *rng.exponential(0.05, 8), reader=8 * MEGA) for i in range(306)]
    made = partition(needs, Budget(cpus=64, loaders=4, steps_per_second=0.5))
    assert sum(map(len, made.affinity)) <= 306 + 8
    assert max(made.utilisation) - min(made.utilisation) < 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"affinity": [[0], []]}, r"source 'b' has loaders out of 0 to 0, got \[\]"),
        ({"affinity": [[0], [1]]}, r"source 'b' has loaders out of 0 to 0, got \[1\]"),
        ({"affinity": [[0]]}, "one entry for each"),
        ({"loaders": 2}, "one entry for each"),
        ({"threads": [0]}, "at least one thread"),
        ({"threads": [True]}, "whole numbers"),
        ({"threads": "1"}, "lists of at most"),
        ({"tiers": ["shared", "other"]}, "known tiers"),
        ({"needs": [1.0, float("nan")]}, "finite numbers"),
        ({"seconds_per_sample": [1.0]}, "one entry for each"),
        ({"seconds_per_sample": None}, "lists of at most"),
        ({"seconds_per_sample": [None, -1.0]}, "finite numbers"),
        ({"seconds_per_sample": [None, "1"]}, "finite numbers"),
        ({"seconds_per_sample": [None, 2e9]}, r"are 0 to 1e\+09 or null, got 2e\+09"),
        ({"version": 2}, "version 1"),
        ({"more": 1}, "version 1"),
    ],
)
def test_files_that_are_no_partition(change: dict[str, object], message: str) -> None:
    made = partition([need("a", 1.0), need("b", 1.0)], Budget(loaders=1))
    with pytest.raises(RecipeError, match=message):
        partition_from_json({**made.to_json(), **change})
    with pytest.raises(RecipeError):
        partition_from_json([made.to_json()])


def test_seconds_of_a_sample_are_kept_and_older_files_lack_them() -> None:
    needs = [replace(need("a", 1.0), seconds_per_sample=0.25), need("b", 1.0)]
    made = partition(needs, Budget(loaders=1))
    assert made.seconds_per_sample == (0.25, None)
    plain = json.loads(json.dumps(made.to_json()))
    assert partition_from_json(plain) == made
    del plain["seconds_per_sample"]
    assert partition_from_json(plain) == replace(made, seconds_per_sample=())


def test_a_partition_is_for_its_sources_and_loaders() -> None:
    made = partition([need("a", 1.0), need("b", 1.0)], Budget(loaders=2))
    assert made.why_not(("a", "b"), 2) == ""
    assert made.why_not(("a", "c"), 2) == "it is for the sources a, b"
    assert made.why_not(("a", "b"), 3) == "it is for 2 loaders, and the job has 3"


def test_budgets_that_are_none() -> None:
    for wrong in ({"cpus": 0.0}, {"headroom": 0.5}, {"max_loaders": 0}, {"memory_bytes": -1}):
        with pytest.raises(RecipeError):
            Budget(**wrong)


# --- needs


def test_samples_of_a_step_follow_unit_and_lengths() -> None:
    by_samples = samples_per_step(np.array([[1, 1]]), [1, 1], [10.0, 30.0], places=400, most_samples=math.inf)
    assert by_samples.tolist() == [[10, 10]]
    by_tokens = samples_per_step(
        np.array([[1, 1]]), [10.0, 30.0], [10.0, 30.0], places=400, most_samples=math.inf
    )
    assert np.allclose(by_tokens, [[20, 20 / 3]])
    padded = samples_per_step(np.array([[1, 3]]), [1, 1], [10.0, 30.0], places=400, most_samples=8)
    assert padded.tolist() == [[2, 6]]


def test_a_source_without_figures_is_taken_for_the_mean_of_the_others() -> None:
    known = [
        SourceProfile(
            name=name, samples=1, records=1, wall_seconds=wall, cpu_seconds=wall, means={"tokens": 1.0}
        )
        for name, wall in (("a", 1.0), ("b", 3.0))
    ]
    profile = Profile(recipe="", sources=(*known, SourceProfile(name="c", error="broken")))
    needs, notes = needs_of(profile, ("a", "b", "c"), np.ones((1, 3)))
    assert [each.threads for each in needs] == [(1.0,), (3.0,), (2.0,)]
    assert [each.seconds_per_sample for each in needs] == [1.0, 3.0, None]
    assert notes == ["not measured, taken for the mean of the others: c"]
    with pytest.raises(RecipeError, match="none of the recipe's sources is in the profile"):
        needs_of(profile, ("x",), np.ones((1, 1)))
