"""Whatever the order of messages, whoever dies, wherever it goes on: the same steps, and nothing is left."""

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import oracle_steps
from roles.played import make_placement
from roles.whole_job import WholeJob

import msdata_jax as msd
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.roles import messages as m
from msdata_jax.scaling import Shuffled

NUM_STEPS = 10


def several(record: dict) -> list[dict]:
    """None, one or two samples of a record, some of them images; some records are bad."""
    number = record["number"]
    if number % 11 == 4:
        raise ValueError("this one cannot be read")
    if number % 7 == 6:
        return []
    first = {"tokens": np.full(1 + number % 6, number, np.int32)}
    if number % 5 == 0:
        first["tokens"][:1] = IMAGE_TOKEN
        first["patches"] = np.full((1, 2), number % 256, np.uint8)
    return [first, {"tokens": np.full(2, 1000 + number, np.int32)}] if number % 7 == 3 else [first]


def text_only(record: dict) -> list[dict]:
    return [{"tokens": sample["tokens"] % 5000} for sample in several(record)]


WEIGHTS = {"a": 2, "b": 1, "c": 1}
IMAGES = {"patches_per_row": 4, "patch_values": 2}
TP = {"axis_names": ["dp", "tp"], "axis_sizes": [1, 2], "row_axes": ["dp"]}
GRAPHS = {
    "pack": msd.DGraph().mix(WEIGHTS).pack(seq_len=8, rows=2, **IMAGES),
    "split": msd.DGraph().mix(WEIGHTS, unit="tokens").pack(seq_len=3, rows=4, oversize="split"),
    "drop": msd.DGraph().mix(WEIGHTS, unit="tokens").pack(seq_len=4, rows=4, oversize="drop", **IMAGES),
    "bucket": msd.DGraph().mix(WEIGHTS).bucket({2: 8, 6: 4}, **IMAGES),
    "stop": msd.DGraph().mix(WEIGHTS, on_exhausted="stop").pack(seq_len=8, rows=2, **IMAGES),
    "regroup": msd.DGraph().mix(WEIGHTS).pack(seq_len=8, rows=2, **IMAGES).regroup(steps=3),
    "ramp": msd.DGraph()
    .mix([(0, WEIGHTS), (4, {"a": 0, "b": 1, "c": 0})], interpolation="linear")
    .pack(seq_len=8, rows=2, **IMAGES),
    "slots": msd.DGraph().mix(WEIGHTS).pad(seq_len=6, rows=4, **IMAGES),
    "relays": msd.DGraph().mix(WEIGHTS).pack(seq_len=8, rows=2, **IMAGES).broadcast_at("tp"),
}


def recipe(kind: str) -> msd.Recipe:
    transform = text_only if kind == "split" else several
    graph = GRAPHS[kind].distribute("dp", encoder_axis="dp" if kind == "slots" else None)
    sources = {
        name: msd.Source(
            [{"number": 100 * i + k} for k in range(30 + 11 * i)],
            [transform],
            block_size=(4, 7, 3)[i],
            on_bad_sample="skip",
        )
        for i, name in enumerate(WEIGHTS)
    }
    return msd.Recipe(sources=sources, strategy=graph, seed=3)


def start(kind: str, seed: int, *, loaders: int, trainers: int, shadows: int = 0, **joining) -> WholeJob:
    mesh = TP | {"axis_sizes": [1, trainers]} if kind == "relays" else {}
    placement = make_placement(loaders, trainers, shadows)
    return WholeJob(
        recipe(kind), placement, random.Random(seed), **{"num_steps": NUM_STEPS, **mesh, **joining}
    )


def leaves_after(job: WholeJob) -> dict:
    """By step, as the first training process puts them together."""
    return job.trainers[job.placement.constructors[0]].leaves_after


@cache
def undisturbed(kind: str, trainers: int) -> tuple[list[list[tuple]], dict]:
    """What every trainer gets, and the leaves behind every step, where nothing happens."""
    job = start(kind, 0, loaders=1, trainers=trainers)
    job.run()
    job.leave()
    assert set(job.finished) == set(job.roles)
    return [job.steps(rank) for rank in job.placement.constructors], leaves_after(job)


@pytest.mark.parametrize("kind", [kind for kind in GRAPHS if kind not in ("regroup", "relays")])
def test_equals_the_plain_loop(kind: str) -> None:
    ((steps,), _) = undisturbed(kind, 1)
    expected = oracle_steps(recipe(kind), 1, limit=NUM_STEPS, num_slots=int(kind == "slots"))
    assert len(steps) == len(expected) > 5
    for (step, _, fields), wanted in zip(steps, expected, strict=True):
        assert fields == {name: field.tobytes() for name, field in wanted.items()}, step


def draw_kills(data: st.DataObject, ranks: tuple[int, ...], num_survivors: int) -> dict[int, int]:
    """Some of the ranks, by the turns before which they die; at least `num_survivors` live."""
    victims = data.draw(st.lists(st.sampled_from(ranks), unique=True, max_size=len(ranks) - num_survivors))
    latest = data.draw(st.sampled_from([20, 100, 500]))
    turns = data.draw(
        st.lists(st.integers(0, latest), unique=True, min_size=len(victims), max_size=len(victims))
    )
    return dict(zip(turns, victims, strict=True))


@given(st.data())
def test_the_same_steps_whoever_reads_or_dies_and_wherever_it_goes_on(data: st.DataObject) -> None:
    kind, trainers = data.draw(st.sampled_from(sorted(GRAPHS))), data.draw(st.integers(1, 2))
    wanted, wanted_leaves = undisturbed(kind, trainers)
    num_steps = len(wanted[0])
    first, options = 0, {}
    if data.draw(st.booleans()):
        first = data.draw(st.integers(1, num_steps - 1))
        options["state"] = wanted_leaves[first - 1]
    if data.draw(st.booleans()):
        options["policy"] = Shuffled(
            seed=data.draw(st.integers(0, 1000)), changes=data.draw(st.integers(1, 6))
        )
    if data.draw(st.sampled_from([False, False, True])):
        first = options["skip_to"] = data.draw(st.integers(first, num_steps - 1))
    job = start(
        kind,
        data.draw(st.integers(0, 2**32 - 1)),
        loaders=data.draw(st.integers(1, 4)),
        trainers=trainers,
        shadows=data.draw(st.integers(0, 2)),
        steps_ahead=data.draw(st.integers(1, 4)),
        buffer_bytes_per_loader=data.draw(st.sampled_from([1, 100, 1 << 20])),
        **options,
    )
    kills = draw_kills(data, job.placement.readers, num_survivors=1)
    job.run(kills)
    for rank, steps in zip(job.placement.constructors, wanted, strict=True):
        end = job.trainers[rank].end
        assert end is not None, "it is stuck"
        assert end.error is None
        assert job.steps(rank) == steps[first:]
    # The state behind each step, whoever asks for it and however it came about.
    assert leaves_after(job) == {step: wanted_leaves[step] for step in range(first, num_steps)}
    # The planner's account of the loaders is right, and they keep nothing that nobody will ask for.
    for rank, (held, accounted) in job.held().items():
        assert held == accounted, rank
    assert job.unneeded() == set()
    assert job.open_in_vain() == set()
    assert not any(each.note for each in job.rounds), "a policy was switched off"
    job.leave()
    assert set(job.finished) == set(job.roles)
    assert {each["rank"] for each in job.finished[0].figures["lost"]} == job.dead


@given(st.data())
def test_the_data_end_at_one_step_everywhere_where_nobody_can_read_any_more(data: st.DataObject) -> None:
    kind, trainers = data.draw(st.sampled_from(sorted(GRAPHS))), data.draw(st.integers(1, 2))
    wanted, _ = undisturbed(kind, trainers)
    job = start(
        kind,
        data.draw(st.integers(0, 2**32 - 1)),
        loaders=data.draw(st.integers(1, 2)),
        trainers=trainers,
        shadows=data.draw(st.integers(0, 1)),
        steps_ahead=data.draw(st.integers(1, 4)),
    )
    ranks = job.placement.readers
    latest = data.draw(st.sampled_from([60, 200, 500]))
    turns = data.draw(st.lists(st.integers(0, latest), unique=True, min_size=len(ranks), max_size=len(ranks)))
    try:
        job.run(dict(zip(turns, ranks, strict=True)))
    except msd.LaunchError:  # it had not begun
        assert not any(job.steps(rank) for rank in job.placement.constructors)
        return
    ends = {
        str(job.trainers[rank].end and job.trainers[rank].end.error) for rank in job.placement.constructors
    }
    counts = {len(job.steps(rank)) for rank in job.placement.constructors}
    ((end,), (count,)) = ends, counts
    if end == "None":
        assert count == len(wanted[0])
    else:
        assert all(f"rank {rank}: it was killed" in end for rank in ranks)
    for rank, steps in zip(job.placement.constructors, wanted, strict=True):
        assert job.steps(rank) == steps[:count]
    job.leave()
    assert set(job.finished) == set(job.roles)


@given(st.data())
def test_a_request_to_stop_ends_all_at_one_step_that_can_be_gone_on_from(data: st.DataObject) -> None:
    kind, trainers = data.draw(st.sampled_from(sorted(GRAPHS))), data.draw(st.integers(1, 2))
    wanted, wanted_leaves = undisturbed(kind, trainers)
    job = start(kind, data.draw(st.integers(0, 2**32 - 1)), loaders=2, trainers=trainers)
    for _ in range(data.draw(st.integers(0, 400))):
        job.turn()
    asking = data.draw(st.sampled_from([job.placement.planner, *job.placement.constructors]))
    job.tell(asking, m.AskToStop())
    job.run()
    ends = [job.trainers[rank].end for rank in job.placement.constructors]
    assert len({end.stopped for end in ends}) == 1
    taken = [job.steps(rank) for rank in job.placement.constructors]
    (count,) = {len(steps) for steps in taken}
    assert [steps[:count] for steps in wanted] == taken
    assert leaves_after(job) == {step: wanted_leaves[step] for step in range(count)}
    if count < len(wanted[0]):
        assert ends[0].stopped
    job.leave()
    assert set(job.finished) == set(job.roles)
