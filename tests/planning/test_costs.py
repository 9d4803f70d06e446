import numpy as np
import pytest
from strategies import make_infos

from msdata_jax import costs
from msdata_jax.errors import RecipeError
from msdata_jax.planning.costs import sample_costs


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
