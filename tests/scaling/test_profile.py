"""Measuring sources, and the file that keeps what was measured. Ratios, never times."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.errors import RecipeError
from msdata_jax.profiling import Effort, profile_recipe
from msdata_jax.scaling.profile import Profile, SourceProfile, profile_from_json

EFFORT = Effort(seconds=0.4)


def burn(record: Mapping[str, Any]) -> dict[str, Any]:
    """Some milliseconds of pure Python."""
    total = 0
    for number in range(60_000):
        total += number
    return {**record, "total": total}


def light(record: Mapping[str, Any]) -> dict[str, Any]:
    return dict(record)


def thrice(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(record)] * 3


def crash(_record: Mapping[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def refuse(_record: Mapping[str, Any]) -> dict[str, Any]:
    raise ValueError("no such thing")


def recipe_of(seed: int = 0, **sources: msd.Source) -> msd.Recipe:
    strategy = msd.DGraph().mix(dict.fromkeys(sources, 1)).pack(seq_len=128, rows=4)
    return msd.Recipe(sources=sources, strategy=strategy, seed=seed)


def source(*transforms: Callable[[Any], Any], count: int = 600, length: int = 20, **more: Any) -> msd.Source:
    return msd.Source([{"tokens": np.arange(length)}] * count, transforms, **more)


@pytest.fixture(scope="module")
def measured() -> Profile:
    slow = msd.Source([{"tokens": np.arange(n)} for n in range(1, 101)], [light, burn])
    return profile_recipe(
        recipe_of(
            light=source(light),
            slow=slow,
            split=source(thrice),
            crashes=source(crash),
            isolated=source(light, isolate=True, block_size=16),
            bad=source(refuse, on_bad_sample="skip"),
            missing=msd.Source("nowhere.jsonl"),
        ),
        EFFORT,
    )


def figures(profile: Profile, name: str) -> SourceProfile:
    found = profile.of(name)
    assert found is not None
    return found


def test_what_costs_more_is_seen_to_and_where(measured: Profile) -> None:
    light, slow = figures(measured, "light"), figures(measured, "slow")
    assert slow.cpu_seconds > 20 * light.cpu_seconds
    assert [stage.name for stage in slow.stages] == ["read", "light", "burn"]
    in_burn = slow.stages[2]
    assert in_burn.cpu_seconds > 0.8 * slow.cpu_seconds
    assert sum(stage.wall_seconds for stage in slow.stages) == pytest.approx(slow.wall_seconds, rel=0.05)
    assert slow.wall_seconds == pytest.approx(slow.cpu_seconds, rel=0.5)


def test_samples_bytes_and_lengths_are_those_of_the_source(measured: Profile) -> None:
    light, slow, split = (figures(measured, name) for name in ("light", "slow", "split"))
    assert (light.sample_bytes, light.block_bytes) == (4 * 20, 64 * 4 * 20)
    assert light.means == {"tokens": 20, "patches": 0, "num_bytes": 80}
    assert split.samples_per_record == 3
    assert split.block_bytes == 3 * light.block_bytes
    if slow.records == slow.num_records:
        assert (slow.lengths.mean, slow.lengths.longest) == (50.5, 100)
        assert (slow.lengths.p50, slow.lengths.p90) == (50.5, pytest.approx(90.1))
    assert 0 < light.send_seconds < 1e-3


def test_a_source_that_fails_leaves_the_others_measured(measured: Profile) -> None:
    errors = {each.name: each.error for each in measured.sources if each.error}
    assert set(errors) == {"crashes", "bad", "missing"}
    assert "crashed: signal 11 (SIGSEGV) when it transformed position" in errors["crashes"]
    assert "no sample came of them; " in errors["bad"]
    assert "no such thing" in errors["bad"]
    assert "nowhere.jsonl" in errors["missing"]
    assert measured.of("crashes") is None


def test_an_isolated_source_is_measured_in_its_children(measured: Profile) -> None:
    isolated = figures(measured, "isolated")
    assert isolated.isolate
    assert [stage.name for stage in isolated.stages] == ["read", "light"]
    assert isolated.wall_seconds > 0
    assert isolated.reader_bytes > 0


def test_threads_that_hold_the_lock_hinder_one_another(measured: Profile) -> None:
    """Where other processes leave too little of the CPUs, there is no figure."""
    slow = figures(measured, "slow")
    if slow.lock_share is None:
        assert slow.thread_speedup is None
    else:
        assert slow.lock_share > 0.6
        assert slow.thread_speedup == pytest.approx(2 / (1 + slow.lock_share))


def test_memory_is_of_the_open_reader(tmp_path: Path) -> None:
    class Heavy:
        """A transform that holds 64 MB from when it is opened."""

        def open(self) -> None:
            self.held = np.ones(8 << 20)

        def map(self, record: dict[str, Any]) -> dict[str, Any]:
            return record

    profile = profile_recipe(recipe_of(heavy=source(Heavy()), light=source(light)), EFFORT)
    heavy, other = figures(profile, "heavy"), figures(profile, "light")
    assert heavy.index_bytes > 60 << 20
    assert heavy.reader_bytes >= heavy.index_bytes
    assert other.reader_bytes < 16 << 20
    assert profile.process_bytes > 1 << 20


def test_time_and_samples_bound_what_is_read() -> None:
    few = profile_recipe(recipe_of(s=source(light, count=100_000)), Effort(seconds=4, samples=100))
    assert 100 <= figures(few, "s").samples < 1000
    slow = profile_recipe(recipe_of(s=source(*[burn] * 20, count=100_000)), Effort(seconds=0.2))
    assert 1 <= figures(slow, "s").samples < 1000


# --- the file


def test_json_keeps_a_profile(measured: Profile) -> None:
    assert profile_from_json(json.loads(json.dumps(measured.to_json()))) == measured


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("wall_seconds", -1.0, "wall_seconds is a number from 0"),
        ("wall_seconds", float("nan"), "wall_seconds is a number from 0"),
        ("wall_seconds", "1", "wall_seconds is a number from 0"),
        ("bad_share", 1.5, "bad_share is a number from 0 to 1"),
        ("lock_share", 2, "lock_share is a number from 0 to 1"),
        ("samples", 1.5, "samples is a whole number"),
        ("reader_bytes", 2**63, "reader_bytes is a whole number"),
        ("error", "x" * 5000, "error is text of at most 4000"),
        ("stages", 7, "stages are a list"),
        ("lengths", [], "lengths is a table"),
        ("means", {"tokens": None}, "tokens is a number"),
    ],
)
def test_a_damaged_profile_names_the_field(field: str, value: object, message: str) -> None:
    good = Profile(recipe="r", sources=(SourceProfile(name="s"),)).to_json()
    assert profile_from_json(good).sources[0].name == "s"
    damaged = {**good, "sources": [{**good["sources"][0], field: value}]}
    with pytest.raises(RecipeError, match=rf"source 's': {message}"):
        profile_from_json(damaged)


@pytest.mark.parametrize(
    "change",
    [{"version": 9}, {"sources": []}, {"sources": [{"name": "s"}]}, {"sources": 3}, {"num_cpus": -1}],
)
def test_what_is_no_profile(change: dict[str, object]) -> None:
    good = Profile(recipe="r", sources=(SourceProfile(name="s"),)).to_json()
    with pytest.raises(RecipeError):
        profile_from_json({**good, **change})


def test_a_profile_says_which_sources_it_is_not_about() -> None:
    before = recipe_of(a=source(light), b=source(light), c=msd.Source("x.jsonl"))
    sources = tuple(
        SourceProfile(name=name, data=before.data_of(name), content=before.content_of(name))
        for name in before.source_names
    )
    profile = Profile(recipe=before.fingerprint(), sources=sources)
    assert profile.differences(before) == {}
    now = recipe_of(1, a=source(light), b=source(burn), c=msd.Source("y.jsonl"), d=source(light))
    found = profile.differences(now)
    assert set(found) == {"b", "c", "d"}
    assert "light" in found["b"]
    assert "burn" in found["b"]
    assert found["c"] == "its data were 'x.jsonl'"
    assert found["d"] == "it was not there"
    assert profile.differences(replace(before, seed=5)) == {}
    assert [each.name for each in profile.only(["c", "a"]).sources] == ["a", "c"]
