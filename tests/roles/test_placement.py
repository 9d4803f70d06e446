import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.errors import LaunchError
from msdata_jax.roles.placement import Placement, parse_roles, placement_from_groups, role_of_rank


@given(st.integers(1, 8), st.integers(1, 12))
def test_affinity_keeps_sources_on_few_loaders(num_loaders, num_sources):
    placement = Placement(planner=0, loaders=tuple(range(1, 1 + num_loaders)), constructors=(99,))
    affinity = placement.affinity(num_sources)
    assert len(affinity) == num_sources
    assert {loader for loaders in affinity for loader in loaders} == set(
        placement.loaders[: max(num_loaders, num_sources)] if num_sources < num_loaders else placement.loaders
    )
    counts = [sum(loader in loaders for loaders in affinity) for loader in placement.loaders]
    assert max(counts) - min(counts) <= 1
    if num_sources >= num_loaders:
        assert all(len(loaders) == 1 for loaders in affinity)
    else:
        sizes = [len(loaders) for loaders in affinity]
        assert max(sizes) - min(sizes) <= 1


def test_role_of():
    placement = Placement(planner=0, loaders=(1, 2), constructors=(3,), shadows=(4,))
    roles = ["planner", "loader", "loader", "constructor", "shadow"]
    assert [placement.role_of(rank) for rank in range(5)] == roles
    with pytest.raises(LaunchError, match="rank 5 has no role"):
        placement.role_of(5)


def test_shadows_read_but_no_source_is_theirs_at_first():
    placement = Placement(planner=0, loaders=(1, 2), constructors=(3,), shadows=(4, 5))
    assert placement.readers == (1, 2, 4, 5)
    assert placement.affinity(3) == [(1,), (2,), (1,)]


def test_from_groups():
    groups = {"planner": (2,), "loader": (0, 1), "constructor": (4, 3)}
    assert placement_from_groups(groups) == Placement(planner=2, loaders=(0, 1), constructors=(4, 3))
    with_shadows = Placement(planner=2, loaders=(0, 1), constructors=(4, 3), shadows=(6, 5))
    assert placement_from_groups({**groups, "shadow": (6, 5)}) == with_shadows


@pytest.mark.parametrize(
    "groups",
    [
        {"loader": (0,), "constructor": (1,)},
        {"planner": (0, 1), "loader": (2,), "constructor": (3,)},
        {"planner": (0,), "constructor": (1,)},
        {"planner": (0,), "loader": (1,)},
        {"planner": (0,), "loader": (1,), "constructor": (2,), "gossip": (3,)},
        {"planner": (0,), "shadow": (1,), "constructor": (2,)},
    ],
)
def test_groups_that_are_no_job(groups):
    says = "one planner, at least one loader, shadows if any, and at least one constructor"
    with pytest.raises(LaunchError, match=says):
        placement_from_groups(groups)


def test_roles_from_a_spec():
    runs = [("planner", 1), ("loader", 3), ("constructor", 2)]
    assert parse_roles("planner=1, loaders=3,trainers=2") == runs
    roles = [role_of_rank("planner=1,loaders=3,trainers=2", rank) for rank in range(6)]
    assert roles == ["planner", *["loader"] * 3, *["constructor"] * 2]
    assert role_of_rank("planner=1,loaders=3,shadows=1,trainers=2", 4) == "shadow"
    assert role_of_rank("trainers=2,planner=1,loaders=1", 0) == "constructor"
    with pytest.raises(LaunchError, match="name 6 ranks; rank 6 has no role: start 6 ranks"):
        role_of_rank("planner=1,loaders=3,trainers=2", 6)


def test_a_role_may_come_again():
    spec = "trainers=1,loaders=1,planner=1,trainers=1,loaders=1,shadows=1"
    expect = ["constructor", "loader", "planner", "constructor", "loader", "shadow"]
    assert [role_of_rank(spec, rank) for rank in range(6)] == expect


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "planner=1",
        "planner=1,loaders=1",
        "planner=2,loaders=1,trainers=1",
        "planner=1,loaders=0,trainers=1",
        "planner=1,loaders=-1,trainers=1",
        "planner=1,loaders=²,trainers=1",
        "planner=1,loaders=1,planner=1,trainers=1",
        "planner=1,loaders=1,trainers=1,shadows=0",
        "planner=1,shadows=1,trainers=1",
        "planner=1;loaders=1;trainers=1",
    ],
)
def test_specs_that_are_none(spec):
    with pytest.raises(LaunchError, match="planner"):
        parse_roles(spec)
