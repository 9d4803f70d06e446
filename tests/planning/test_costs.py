import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import decoders, make_infos, measurements

from msdata_jax import costs
from msdata_jax.errors import RecipeError
from msdata_jax.planning.costs import MAX, check_columns, cost_parts, needs, sample_costs

MODEL_SIZE = {"num_layers": 2, "d_model": 4}
MODEL = {**MODEL_SIZE, "d_ff": 8}


def infos_with(tokens, **columns):
    infos = make_infos(0, tokens, patches=columns.pop("patches", None), columns=tuple(columns))
    for name, values in columns.items():
        infos[name] = values
    return infos


def exact_mflop(length, per_place, per_pair):
    """3 * (operations), in Python's integers."""
    return 3 * (length * per_place + length**2 * per_pair) // 10**6 + (length > 0)


def test_transformer_by_hand():
    # 2 layers, width 4, hidden 8, 10 words: P = 2 * (4 * 16 + 3 * 4 * 8) + 40 = 360; pairs 2 * n * d = 16.
    cost = costs.transformer(num_layers=2, d_model=4, d_ff=8, vocab_size=10)
    lengths = [0, 1, 1000, 100_000]
    expected = [3 * (720 * n + 16 * n * n) // 10**6 + (n > 0) for n in lengths]
    assert cost(make_infos(0, lengths)).tolist() == expected == [0, 1, 51, 480_217]
    full = costs.transformer(num_layers=2, d_model=4, d_ff=8, vocab_size=10, causal=False)
    assert full(make_infos(0, [1000])).tolist() == [3 * (720 * 1000 + 32 * 10**6) // 10**6 + 1]
    assert costs.transformer(num_layers=1, d_model=3).d_ff == 8


def test_vit_by_hand():
    # P = 2 * (4 * 16 + 2 * 4 * 16) + 768 * 4 = 3456; pairs 4 * n * d = 32.
    cost = costs.vit(num_layers=2, d_model=4, patch_values=768)
    assert cost(make_infos(0, [7], patches=[100])).tolist() == [3 * (6912 * 100 + 32 * 10**4) // 10**6 + 1]
    assert cost(make_infos(0, [7])).tolist() == [0]


@pytest.mark.parametrize("length", [1, 4096, 131_072, 1_000_000])
def test_no_overflow_for_a_400b_model_at_a_million_tokens(length):
    cost = costs.transformer(num_layers=126, d_model=16384, d_ff=53248, vocab_size=128_256)
    weights = 126 * (4 * 16384**2 + 3 * 16384 * 53248) + 16384 * 128_256
    assert cost(make_infos(0, [length])).tolist() == [exact_mflop(length, 2 * weights, 2 * 126 * 16384)]


def test_costs_grow_with_length():
    lengths = np.arange(1, 5000)
    for cost in (costs.transformer(num_layers=1, d_model=1), costs.transformer(num_layers=45, d_model=4608)):
        assert (np.diff(cost(make_infos(0, lengths))) >= 0).all()
        assert cost(make_infos(0, lengths)).min() >= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: costs.transformer(num_layers=0, d_model=4),
        lambda: costs.transformer(num_layers=1, d_model=-4),
        lambda: costs.transformer(num_layers=1, d_model=4, d_ff=-1),
        lambda: costs.transformer(num_layers=1, d_model=4, vocab_size=-1),
        lambda: costs.vit(num_layers=1, d_model=0),
        lambda: costs.vit(num_layers=1, d_model=4, patch_values=0),
    ],
)
def test_refuses_sizes_that_mean_nothing(make):
    with pytest.raises(RecipeError, match="at least"):
        make()


def test_two_short_samples_are_cheaper_than_a_long_and_a_short_one():
    """Rows of 100 places both, with a purely quadratic cost."""
    square = sample_costs(make_infos(0, [30, 70, 50, 50]), lambda infos: infos["tokens"] ** 2, None)
    uneven, even = square.reshape(2, 2).sum(axis=1).tolist()
    assert (uneven, even) == (5800, 5000)
    assert Fraction(uneven, even) == Fraction("1.16")


# --- grouped queries, windows, experts


def test_published_models():
    llama = costs.transformer(
        num_layers=32, d_model=4096, d_ff=14336, vocab_size=128_256, num_heads=32, num_kv_heads=8
    )
    embeddings, norms = 128_256 * 4096, 65 * 4096  # what a token does not multiply with
    assert llama.weights + embeddings + norms == 8_030_261_248
    mixtral = costs.moe(
        num_layers=32,
        d_model=4096,
        num_experts=8,
        experts_per_token=2,
        d_ff=14336,
        vocab_size=32_000,
        num_heads=32,
        num_kv_heads=8,
    )
    assert abs(mixtral.weights + 32_000 * 4096 - 12.9e9) < 0.02 * 12.9e9
    stored = mixtral.weights + 32 * 6 * 3 * 4096 * 14336 + (32_000 + 65) * 4096  # all eight experts
    assert stored == 46_702_792_704


def test_grouped_queries_by_hand():
    # 6 heads of 5: queries and output 2 * 4 * 30, keys and values of 2 heads 2 * 4 * 10; MLP 3 * 4 * 8 = 96.
    cost = costs.transformer(**MODEL, num_heads=6, num_kv_heads=2, head_dim=5)
    assert cost.weights == 2 * (240 + 80 + 96)
    # Scores of all query heads: 2 layers * 2 * 30.
    assert cost(make_infos(0, [1000])).tolist() == [3 * (2 * 832 * 1000 + 120 * 10**6) // 10**6 + 1]
    whole = costs.transformer(**MODEL, num_heads=4)
    assert whole.weights == costs.transformer(**MODEL).weights == 2 * (64 + 96)


def test_experts_by_hand():
    # 2 of 5 experts of 8, shared 16, router 4 * 5: 3 * 4 * (2 * 8 + 16) + 20 = 404; attention 64.
    cost = costs.moe(**MODEL, num_experts=5, experts_per_token=2, shared_d_ff=16, vocab_size=10)
    assert cost.weights == 2 * (64 + 404) + 40


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
def test_a_window_counts_the_pairs_of_a_loop(length):
    """Twice the pairs of a causal window, less the diagonal that the formula for `L^2 / 2` leaves out."""
    seen = sum(min(place + 1, 8) for place in range(length))
    pairs = 2 * seen - min(length, 8)
    wide = {"num_layers": 3, "d_model": 500_000, "d_ff": 1}
    cost = costs.transformer(**wide, window=8)
    expected = 3 * (2 * cost.weights * length + 2 * 3 * 500_000 * pairs) // 10**6 + 1
    assert cost(make_infos(0, [length])).tolist() == [expected]


@given(decoders(), st.lists(st.integers(0, 10**6), max_size=5))
def test_decoders_cost_what_exact_integers_say(sizes, lengths):
    layers, width, heads = sizes["num_layers"], sizes["d_model"], sizes["num_heads"]
    head = sizes["head_dim"] or width // heads
    weights = 2 * width * head * (heads + (sizes["num_kv_heads"] or heads)) + width * sizes["num_experts"]
    weights += 3 * width * (sizes["experts_per_token"] * sizes["d_ff"] + sizes["shared_d_ff"])
    weights = layers * weights + width * sizes["vocab_size"]
    expected = []
    for length in lengths:
        near = min(length, sizes["window"] or length)
        pairs = (layers - sizes["full_layers"]) * near * (2 * length - near if sizes["causal"] else length)
        pairs += sizes["full_layers"] * length**2
        operations = 2 * weights * length + (2 if sizes["causal"] else 4) * heads * head * pairs
        expected.append(3 * operations // 10**6 + (length > 0))
    assert costs.moe(**sizes)(make_infos(0, lengths)).tolist() == expected


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: costs.transformer(**MODEL, num_heads=3),
            "d_model=4 does not divide by num_heads=3; give the",
        ),
        (
            lambda: costs.transformer(**MODEL, num_heads=4, num_kv_heads=3),
            "does not divide by num_kv_heads=3",
        ),
        (lambda: costs.transformer(**MODEL, num_kv_heads=2), "num_heads=1 does not divide by num_kv_heads=2"),
        (lambda: costs.transformer(**MODEL, num_heads=0), "num_heads is an int, at least 1, got 0"),
        (lambda: costs.transformer(**MODEL, window=0), "window is an int, at least 1, got 0"),
        (lambda: costs.transformer(**MODEL, full_layers=1), "without the window=None"),
        (lambda: costs.transformer(**MODEL, window=9, full_layers=3), "num_layers=2 .* got 3"),
        (lambda: costs.transformer(num_layers=2, d_model=4.0), r"d_model is an int, at least 1, got 4\.0"),
        (lambda: costs.moe(**MODEL, num_experts=0, experts_per_token=1), "num_experts is at least 1, got 0"),
        (lambda: costs.moe(**MODEL, num_experts=2, experts_per_token=3), "=3 is more than num_experts=2"),
        (lambda: costs.moe(**MODEL, num_experts=2, experts_per_token=0), "experts_per_token is an int"),
        (lambda: costs.vit(**MODEL, images_column="images", pairs_column="pairs"), "not both"),
        (lambda: costs.memory(**MODEL_SIZE, recompute="some"), "one of .*'selective'.* got 'some'"),
        (lambda: costs.memory(**MODEL_SIZE, recompute="none"), "give num_heads"),
        (lambda: costs.memory(**MODEL_SIZE, bytes_per_width=0), "bytes_per_width is an int"),
        (lambda: costs.column("frames", scale=0), "scale is an int, at least 1, got 0"),
    ],
)
def test_refuses_what_does_not_fit_together(make, says):
    with pytest.raises(RecipeError, match=says):
        make()


# --- images, memory, columns


def test_images_share_a_sample():
    wide = {"num_layers": 1, "d_model": 250_000, "d_ff": 1, "patch_values": 1}
    per_place = 2 * (4 * 250_000**2 + 2 * 250_000 + 250_000)
    infos = infos_with([1] * 4, patches=[0, 10, 10, 11], images=[0, 0, 2, 3], squares=[0, 100, 52, 41])

    def expected(*pairs):
        patches = infos["patches"].tolist()
        sums = [p * per_place + 10**6 * s for p, s in zip(patches, pairs, strict=True)]
        return [3 * each // 10**6 + (each > 0) for each in sums]

    assert costs.vit(**wide)(infos).tolist() == expected(0, 100, 100, 121)
    by_images = costs.vit(**wide, images_column="images")
    assert by_images(infos).tolist() == expected(0, 100, 50, 40)
    measured = costs.vit(**wide, pairs_column="squares")
    assert measured(infos).tolist() == expected(0, 100, 52, 41)
    assert (by_images.columns, measured.columns) == (("patches", "images"), ("patches", "squares"))
    assert infos["squares"].tolist() == [0, 100, 52, 41]


@pytest.mark.parametrize(
    ("width", "patches", "pairs", "says"),
    [
        (250_000, 1, 2**62, f"{(3 * 10**6 * 2**62 + 6 * (4 * 250_000**2 + 250_000 * 3)) // 10**6 + 1} MFLOP"),
        (1, 10**13, 0, "operations for a remainder"),
    ],
)
def test_measured_pairs_stay_in_int64(width, patches, pairs, says):
    cost = costs.vit(num_layers=1, d_model=width, d_ff=1, patch_values=1, pairs_column="pairs")
    with pytest.raises(RecipeError, match=says):
        cost(infos_with([1], patches=[patches], pairs=[pairs]))


def test_memory_by_hand():
    infos = make_infos(0, [0, 1, 1000])
    assert costs.memory(**MODEL_SIZE)(infos).tolist() == [0, 34 * 8, 34 * 8 * 1000]
    assert costs.memory(**MODEL_SIZE, recompute="full")(infos).tolist() == [0, 16, 16_000]
    stored = costs.memory(**MODEL_SIZE, recompute="none", num_heads=3)(infos)
    assert stored.tolist() == [0, 272 + 30, 272_000 + 30 * 10**6]
    assert costs.memory(**MODEL_SIZE, bytes_per_width=20)(infos).tolist() == [0, 160, 160_000]


def test_a_column_is_a_cost():
    cost = costs.column("frames", scale=3)
    assert sample_costs(infos_with([9, 9], frames=[0, 5]), cost, None).tolist() == [0, 15]
    assert needs(cost) == ("frames",)


# --- what a strategy asks


def test_unknown_columns_are_told_before_any_sample():
    cost = costs.vit(**MODEL, images_column="images")
    check_columns(cost, ("images", "frames"))
    check_columns(costs.transformer(**MODEL), ())
    check_columns(lambda infos: infos["anything"], ())
    check_columns(None, ())
    with pytest.raises(RecipeError, match=r"\['images'\], .* \('tokens', 'patches', 'num_bytes', 'frames'\)"):
        check_columns(cost, ("frames",))


def test_a_function_may_say_its_columns():
    def audio(infos):
        return infos["audio_frames"]

    assert needs(audio) == ()
    audio.columns = ("audio_frames",)
    with pytest.raises(RecipeError, match=r"audio .* reads the columns \['audio_frames'\]"):
        check_columns(audio, ("frames",))


def test_an_unknown_column_of_a_function_is_told_with_those_there_are():
    infos = infos_with([3], frames=[1])
    with pytest.raises(RecipeError, match=r"no field of name image.*'num_bytes', 'frames'"):
        sample_costs(infos, lambda each: each["image"], None)
    with pytest.raises(ValueError, match="their own"):
        sample_costs(infos, own_mistake, None)


def own_mistake(infos):
    raise ValueError("their own")


def test_parts_stay_apart():
    infos = make_infos(0, [3, 5], patches=[1, 2])
    tokens, patches = (lambda i: i["tokens"]), (lambda i: i["patches"].astype(np.uint8))

    def parts(*given):
        found = cost_parts(infos, *given)
        assert {part.dtype for part in found} == {np.dtype(np.int64)}
        return [part.tolist() for part in found]

    assert parts(None, None) == [[3, 5], [0, 0], [0, 0]]
    assert parts(None, None, patches) == [[3, 5], [0, 0], [1, 2]]
    assert parts(None, patches) == [[0, 0], [1, 2], [0, 0]]
    assert parts(patches, tokens, tokens) == [[1, 2], [3, 5], [3, 5]]
    assert infos["tokens"].tolist() == [3, 5]


def test_sums_stay_in_int64():
    infos = make_infos(0, [1, 1])

    def gives(*values):
        return lambda infos: np.array(values)

    assert sample_costs(infos, gives(MAX - 1, 1), None).tolist() == [MAX - 1, 1]
    assert sample_costs(infos, gives(MAX - 2, 1), gives(1, 0)).tolist() == [MAX - 1, 1]
    for functions in ((gives(MAX, 1), None), (gives(MAX - 1, 1), gives(0, 1)), (None, gives(2**62, 2**62))):
        with pytest.raises(
            RecipeError, match=rf"gives.* comes to {MAX + 1} for 2 samples; divide your units"
        ):
            sample_costs(infos, *functions)
    with pytest.raises(RecipeError, match=rf"comes to {2**64 - 2} for 2"):
        sample_costs(infos, lambda infos: np.full(2, MAX, dtype=np.uint64), None)
    with pytest.raises(RecipeError, match=rf"gives.* comes to {2 * MAX} for 2"):
        cost_parts(infos, None, None, gives(MAX, MAX))


@pytest.mark.parametrize(
    ("cost", "longest"),
    [
        (costs.transformer(num_layers=126, d_model=16384, d_ff=53248), 27_000_000),
        (costs.transformer(num_layers=126, d_model=16384, d_ff=53248, window=8192), 27_000_000),
        (costs.transformer(num_layers=1, d_model=1), 3_000_000_000),
        (costs.vit(num_layers=48, d_model=1664), 3_000_000_000),
        (costs.memory(num_layers=126, d_model=16384), 100_000_000_000),
        (costs.memory(num_layers=126, d_model=16384, recompute="none", num_heads=128), 10_000_000),
        (costs.column("tokens", scale=2**30), 2**32),
        (costs.fitted([(1, 0.0), (2, 1.0)]), 9_000_000_000),
    ],
)
def test_a_formula_tells_of_lengths_it_cannot_count(cost, longest):
    """Exact up to a length, an error beyond it, never a number that wrapped around."""
    name = "patches" if needs(cost) == ("patches",) else "tokens"
    before = 0
    for length in (longest // 1000, longest // 10, longest):
        after = cost(infos_with([1], **{name: [length]}) if name == "patches" else make_infos(0, [length]))
        assert after[0] > before
        before = int(after[0])
    for length in (10**13, 2**62):
        infos = make_infos(0, [1 if name == "patches" else length], patches=[length])
        with pytest.raises(RecipeError, match=rf"{type(cost).__name__}.* comes to \d+ .*divide your units"):
            cost(infos)


def test_a_sample_costs_the_sum_of_its_parts_or_its_places():
    infos = make_infos(0, [3, 5], patches=[1, 2])
    assert sample_costs(infos, None, None).tolist() == [3, 5]
    both = sample_costs(infos, lambda i: i["tokens"] * 10, lambda i: i["patches"].astype(np.uint8))
    assert both.tolist() == [31, 52]
    assert both.dtype == np.int64
    assert sample_costs(infos, None, lambda i: i["patches"]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda infos: infos["tokens"] * 1.5, "float64"),
        (lambda infos: infos["tokens"] > 3, "bool"),
        (lambda infos: infos["tokens"][:1], r"one integer for each of the 2 samples; .* shape \(1,\)"),
        (lambda infos: 7, r"shape \(\)"),
        (lambda infos: -infos["tokens"], "at least 0"),
    ],
)
def test_bad_cost_functions_are_told_so(bad, says):
    with pytest.raises(RecipeError, match=says):
        sample_costs(make_infos(0, [3, 5]), bad, None)


def test_no_samples_cost_nothing_whatever_the_function_makes_of_them():
    empty = make_infos(0, [])
    assert sample_costs(empty, lambda infos: np.array([float(i) for i in infos]), None).tolist() == []


# --- measured costs


def by_loop(table, length):
    """Nanoseconds from the knots on both sides, exactly, then rounded down."""
    if length == 0:
        return 0
    knots = list(zip(table.lengths, table.nanoseconds, strict=True))
    (x0, y0), (x1, y1) = knots[-2:]
    for (low, low_cost), (high, high_cost) in pairwise(knots):
        if low <= length < high:
            x0, y0, x1, y1 = low, low_cost, high, high_cost
    return int(y0 + Fraction((length - x0) * (y1 - y0), x1 - x0))


def closest_rising(values):
    """Isotonic least squares by its min-max formula."""

    def mean(low, high):
        return Fraction(sum(values[low : high + 1]), high + 1 - low)

    places = range(len(values))
    return [max(min(mean(low, high) for high in places[i:]) for low in places[: i + 1]) for i in places]


def test_a_fit_by_hand():
    # The median of three; 4 and 2 fall and become 3; the first line meets length 0 at 1.
    pairs = [(10, 2e-9), (10, 9e-9), (10, 1e-9), (20, 4e-9), (30, 2e-9), (50, 9e-9)]
    table = costs.fitted(pairs)
    assert table == costs.FittedCost(lengths=(0, 10, 20, 30, 50), nanoseconds=(1, 2, 3, 3, 9))
    lengths = [0, 1, 5, 10, 15, 20, 29, 30, 40, 50, 60, 150]
    assert table(make_infos(0, lengths)).tolist() == [0, 1, 1, 2, 2, 3, 3, 3, 6, 9, 12, 39]
    assert repr(table) == (
        "FittedCost(lengths=(0, 10, 20, 30, 50), nanoseconds=(1, 2, 3, 3, 9), column='tokens')"
    )


def test_a_fit_finds_the_constant_of_a_line_and_never_less_than_nothing():
    line = costs.fitted([(100, 3e-6), (200, 4e-6)], column="patches")
    assert line.nanoseconds == (2000, 3000, 4000)
    assert line(make_infos(0, [7] * 3, patches=[0, 1, 150])).tolist() == [0, 2010, 3500]
    assert costs.fitted([(100, 1e-6), (200, 4e-6)]).nanoseconds[0] == 0


@given(measurements())
def test_a_fit_is_the_closest_table_that_never_falls(pairs):
    table = costs.fitted(pairs)
    times = {length: sorted(round(s * 1e9) for each, s in pairs if each == length) for length, _ in pairs}
    medians = [each[(len(each) - 1) // 2] for each in times.values()]
    assert table.lengths == (0, *times)
    assert list(table.nanoseconds[1:]) == [int(value) for value in closest_rising(medians)]
    assert 0 <= table.nanoseconds[0] <= table.nanoseconds[1]
    assert costs.fitted((np.int64(length), np.float64(seconds)) for length, seconds in pairs) == table


@given(measurements(), st.lists(st.integers(0, 2 * 10**6), min_size=1, max_size=20))
def test_a_table_is_read_as_by_hand_and_never_falls(pairs, lengths):
    table = costs.fitted(pairs)
    lengths = sorted([*lengths, *table.lengths])
    found = table(make_infos(0, lengths))
    assert found.dtype == np.int64
    assert found.tolist() == [by_loop(table, length) for length in lengths]
    assert (np.diff(found) >= 0).all()


@given(pairs=measurements(), column=st.text())
def test_a_saved_table_comes_back(tmp_path_factory, pairs, column):
    path = tmp_path_factory.getbasetemp() / "table.json"
    table = costs.fitted(pairs, column=column)
    table.save(path)
    assert costs.FittedCost.load(path) == table
    assert repr(costs.FittedCost.load(str(path))) == repr(table)


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ([], "2 to 256 different lengths, got 0; measure at powers of two"),
        ([(5, 1.0), (5, 2.0)], "got 1;"),
        ([(n, 1.0) for n in range(1, 258)], "got 257;"),
        ([(1, 1.0), (2, float("nan"))], r"finite and at least 0; pairs\[1\] has nan; leave"),
        ([(1, float("inf")), (2, 1.0)], r"pairs\[0\] has inf"),
        ([(1, 1.0), (2, -1e-3)], r"pairs\[1\] has -0.001"),
        ([(2, 1.0), (1, 1.0)], r"got 1 behind 2; use sorted\(pairs\)"),
        ([(0, 1.0), (1, 1.0)], r"at least 1; pairs\[0\] has 0"),
        ([(1, 1.0), (2.5, 1.0)], r"an int, at least 1; pairs\[1\] has 2.5"),
        ([(1, 1.0), (10**9, 10.0)], "nanoseconds x length at its end; divide your units"),
    ],
)
def test_refuses_measurements_that_mean_nothing(pairs, says):
    with pytest.raises(RecipeError, match=says):
        costs.fitted(pairs)


GOOD = {
    "format": "msdata_jax.costs.fitted",
    "version": 1,
    "lengths": [0, 1, 2],
    "nanoseconds": [0, 1, 2],
    "column": "tokens",
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "reads .*'version': 1.*got .*2"),
        ({"format": "other"}, "got .*other"),
        ({"more": 1}, "its fields are"),
        ({"lengths": "012"}, "are lists"),
        ({"lengths": [0, 1]}, "3 to 257 lengths and as many nanoseconds, got 2 and 3"),
        ({"lengths": list(range(258)), "nanoseconds": [0] * 258}, "got 258 and 258"),
        ({"lengths": [0, 1.0, 2]}, "lengths of a fitted cost are ints"),
        ({"lengths": [0, True, 2]}, "are ints"),
        ({"lengths": [1, 2, 3]}, "rise from 0"),
        ({"lengths": [0, 2, 2]}, "rise from 0"),
        ({"nanoseconds": [0, 2, 1]}, "never fall"),
        ({"nanoseconds": [-1, 2, 3]}, "at least 0"),
        ({"nanoseconds": [0, float("nan"), 3]}, "nanoseconds of a fitted cost are ints"),
        ({"nanoseconds": [0, 1, 2**63]}, "divide your units"),
        ({"column": 7}, "name of a metadata column, got 7"),
    ],
)
def test_refuses_files_that_hold_no_table(tmp_path, change, says):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(GOOD))
    assert costs.FittedCost.load(path).lengths == (0, 1, 2)
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(RecipeError, match=rf"written by FittedCost\.save; .*table\.json.*{says}"):
        costs.FittedCost.load(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"", "Expecting value"),
        (b"[1, 2]", "its fields are"),
        (b"\xff\xfe\x00", "codec"),
        (b"[" * 100_000, "recursion"),
        (b"1" * 5000, "digits"),
        (b" " * (1 << 20) + b"{}", "larger than 1048576 bytes"),
    ],
)
def test_refuses_files_that_are_no_json(tmp_path, content, says):
    if content is not None:
        (tmp_path / "table.json").write_bytes(content)
    with pytest.raises(RecipeError, match=rf"(?s)table\.json.*{says}"):
        costs.FittedCost.load(tmp_path / "table.json")


# --- the page


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "costs.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 3
    names = {}
    for block in blocks:
        exec(block, names)
