"""Laws of counters and histograms."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.observing.metrics import BOUNDS, Histogram, Metrics, merge_plain
from msdata_jax.observing.prometheus import cumulative

DURATIONS = st.lists(st.floats(0, 5000, allow_nan=False), min_size=1, max_size=80)
FACTOR = math.sqrt(2) * (1 + 1e-9)


def filled(durations: list[float]) -> Histogram:
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)
    return histogram


def as_values(histogram: Histogram) -> dict:
    return {**histogram.plain(), "sum": pytest.approx(histogram.sum, abs=1e-6)}


@given(DURATIONS, st.floats(0, 1))
def test_a_quantile_is_right_to_a_bucket(durations: list[float], share: float) -> None:
    found = filled(durations).quantile(share)
    wanted = float(np.quantile(durations, share, method="inverted_cdf"))
    assert min(durations) <= found <= max(durations)
    if BOUNDS[0] < wanted <= BOUNDS[-1]:
        assert wanted / FACTOR <= found <= wanted * FACTOR
    elif wanted <= BOUNDS[0]:
        assert found <= BOUNDS[0]
    else:
        assert found > BOUNDS[-1]


@given(DURATIONS, DURATIONS, DURATIONS)
def test_merging_is_adding_the_data(a: list[float], b: list[float], c: list[float]) -> None:
    together = as_values(filled([*a, *b, *c]))
    one, two, three = filled(a), filled(b), filled(c)
    assert one.merged(two).merged(three).plain() == together
    assert one.merged(two.merged(three)).plain() == together
    assert three.merged(one).merged(two).plain() == together
    assert one.merged(Histogram()).plain() == as_values(one)
    assert merge_plain([{"x": each.plain()} for each in (one, two, three)])["x"].plain() == together


@given(DURATIONS)
def test_plain_values_survive_json(durations: list[float]) -> None:
    histogram = filled(durations)
    again = Histogram.from_plain(json.loads(json.dumps(histogram.plain())))
    assert again.plain() == histogram.plain()
    assert sum(again.buckets) == again.count == len(durations)
    assert again.mean == pytest.approx(np.mean(durations), abs=1e-6)


@given(DURATIONS)
def test_the_buckets_of_prometheus_count_what_is_below_them(durations: list[float]) -> None:
    *bounded, (last, count) = cumulative(filled(durations))
    assert (last, count) == ("+Inf", len(durations))
    for bound, below in bounded:
        assert below == sum(seconds <= float(bound) for seconds in durations)


def test_an_empty_histogram_says_nothing() -> None:
    assert Histogram().quantile(0.5) == Histogram().mean == 0.0
    assert Histogram().plain() == {"count": 0, "sum": 0.0, "least": 0.0, "most": 0.0, "buckets": []}


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"count": 1, "sum": 1, "least": 1, "most": 1, "buckets": [[62, 1]]},
        {"count": 1, "sum": 1, "least": 1, "most": 1, "buckets": 7},
        {"count": "x", "sum": 1, "least": 1, "most": 1, "buckets": []},
    ],
)
def test_what_is_no_histogram_is_refused(plain: dict) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram.from_plain(plain)


def test_metrics_count_and_time() -> None:
    metrics = Metrics()
    metrics.count("blocks")
    metrics.count("bytes", 0.5)
    metrics.count("bytes", 2)
    metrics.time("read", 1.0)
    metrics.time("read", -1e-9)  # clocks of two threads
    plain = metrics.plain()
    assert plain["counters"] == {"blocks": 1, "bytes": 2.5}
    assert plain["histograms"]["read"]["count"] == 2
    assert plain["histograms"]["read"]["least"] == 0.0
