"""What coming steps draw, by what steps drew and what the mixture's schedule says."""

import numpy as np
import pytest
from strategies import make_infos

from msdata_jax.planning.mixing import Mixture
from msdata_jax.roles.demand import Demand

NAMES = ("a", "b")
SWING = ((0, {"a": 3, "b": 1}), (10, {"a": 1, "b": 3}))


def demand(knots=SWING, unit="samples", tokens=(4, 4)):
    found = Demand(Mixture(knots=knots, unit=unit), NAMES)
    for source, count in enumerate(tokens):
        found.read(source, make_infos(source, [count] * 3))
    return found


def test_under_one_mixture_steps_draw_what_steps_drew():
    found = demand([(0, {"a": 3, "b": 1})])
    found.composed(0, np.array([6, 2]))
    has_weight, draws = found.ahead(1, 3)
    assert has_weight.tolist() == [True, True]
    assert draws == pytest.approx(np.array([[6, 2], [12, 4], [18, 6]]))


def test_demand_falls_slowly_and_rises_at_once():
    found = demand([(0, {"a": 3, "b": 1})])
    for drawn in ([8, 8], [4, 16]):
        found.composed(0, np.array(drawn))
    assert found.per_step.tolist() == [6, 16]
    found.at_least(0, 5)
    found.at_least(1, 20)
    assert found.per_step.tolist() == [6, 20]


def test_a_step_behind_a_swing_draws_by_its_own_weights():
    found = demand()
    found.composed(8, np.array([6, 2]))
    assert np.diff(found.ahead(8, 4)[1], axis=0, prepend=0) == pytest.approx(
        np.array([[6, 2], [6, 2], [2, 6], [2, 6]])
    )
    assert found.most([8, 9]) == pytest.approx(np.array([6, 2]))
    assert found.most([8, 12]) == pytest.approx(np.array([6, 6]))


def test_a_source_that_begins_is_known_before_it_has_drawn():
    found = demand([(0, {"a": 1, "b": 0}), (5, {"a": 1, "b": 1})])
    found.composed(3, np.array([8, 0]))
    assert found.ahead(4, 1)[0].tolist() == [True, False]
    has_weight, draws = found.ahead(4, 2)
    assert has_weight.tolist() == [True, True]
    assert draws[-1, 1] == pytest.approx(1.25 * 4), "half of eight samples, and a margin"
    assert found.most([5]) == pytest.approx(np.array([8 / 2, 4]))


def test_shares_of_tokens_are_turned_into_samples():
    """b has half of the tokens in samples of ten times the length; a step's tokens are as many as before."""
    found = demand([(0, {"a": 1, "b": 0}), (5, {"a": 1, "b": 1})], unit="tokens", tokens=(10, 100))
    found.composed(3, np.array([40, 0]))
    assert found.most([5]) == pytest.approx(np.array([20, 2]))


def test_shares_of_samples_are_fewer_where_samples_are_longer():
    found = demand([(0, {"a": 1, "b": 0}), (5, {"a": 1, "b": 1})], tokens=(10, 30))
    found.composed(3, np.array([40, 0]))
    assert found.most([5]) == pytest.approx(np.array([10, 10])), "400 tokens a step"


def test_steps_whose_weights_are_wrong_are_not_looked_at():
    found = Demand(Mixture(knots=lambda step: {"a": 1, "b": 1} if step < 3 else {"a": 1}), NAMES)
    found.composed(1, np.array([2, 2]))
    assert len(found.ahead(2, 4)[1]) == 1
    assert len(found.ahead(3, 4)[1]) == 0
    assert found.ahead(3, 4)[0].tolist() == [False, False]
    assert found.most([2, 3]).tolist() == [2, 2]
