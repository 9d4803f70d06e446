"""From options to what the planner is given."""

from roles.played import make_placement, make_recipe

from msdata_jax.runtime.scaling import ScaleOptions, make_scaling
from msdata_jax.scaling.partition import Partition

PARTITION = Partition(
    sources=("a", "b"),
    loaders=2,
    threads=(3, 1),
    affinity=((1,), (0, 1)),
    tiers=("shared", "ranks"),
    steps_per_second=1.0,
    needs=(0.5, 2.0),
    worst_needs=(0.5, 2.0),
    seconds_per_sample=(None, 0.25),
    cpus=2.5,
    utilisation=(0.5, 0.5),
    memory_bytes=(0, 0),
)


def scaling_of(options: ScaleOptions):
    return make_scaling(options, make_recipe(), make_placement(2, num_shadows=1), lambda round_: None)


def test_a_partition_says_who_reads_what_on_how_many_threads_and_what_samples_cost() -> None:
    made = scaling_of(ScaleOptions(partition=PARTITION, max_threads=2))
    assert made.affinity == [[2], [1, 2]]
    assert made.costs == (None, 0.25)
    assert (made.threads, made.tell_threads) == ({1: 3, 2: 1, 4: 1}, True)
    assert (made.limits.max_threads, made.limits.total_threads) == (3, 9)


def test_without_a_partition_nothing_is_known_before() -> None:
    made = scaling_of(ScaleOptions(threads=2, max_threads=4))
    assert (made.affinity, made.costs) == (None, None)
    assert (made.threads, made.tell_threads) == ({1: 2, 2: 2, 4: 2}, False)
    assert (made.limits.max_threads, made.limits.total_threads) == (4, 12)
