"""Rows to samples and samples to rows, against plain loops and against the data themselves."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe

import msdata_jax as msd
from msdata_jax.dry_run import DryRun
from msdata_jax.errors import PlanError
from msdata_jax.lineage import PlanLog, PlanLogWriter, Trace, origins, row_segments, segment_origin, trace
from msdata_jax.planning.place_tree import MeshLayout
from msdata_jax.sources.reader import SourceReader

LAYOUT = MeshLayout(axis_names=("dp",), axis_sizes=(4,), process_of_device=(0, 0, 1, 1))
NUM_STEPS = 10


@pytest.fixture(scope="module")
def log(job_data: Path, tmp_path_factory: pytest.TempPathFactory) -> PlanLog:
    """A dry run, logged as if loaders 1 and 2 had sent it and all but the last two steps were delivered."""
    path = tmp_path_factory.mktemp("lineage") / "log"
    recipe = make_recipe(job_data)
    writer = PlanLogWriter(path, recipe)
    with DryRun(recipe, LAYOUT) as run:
        writer.start(LAYOUT, run.num_records, (1, 2))
        for planned in run.steps(NUM_STEPS):
            owner = 1 + np.arange(len(planned.plan.samples), dtype=np.int32) % 2
            writer.step(planned.plan, owner, planned.in_flight)
    writer.delivered(NUM_STEPS - 3)
    writer.close()
    return PlanLog(path)


def test_rows_of_the_global_batch(log: PlanLog) -> None:
    """A loop over the plan's own arrays finds the same segments in each row."""
    for logged in log:
        plan = logged.plan
        for row in range(plan.num_rows):
            mine = [s for s in range(len(plan.samples)) if plan.row[s] == plan.order[row]]
            assert list(row_segments(plan, row)) == mine
            for segment in mine:
                info, origin = plan.samples[segment], segment_origin(log, logged, segment)
                assert origin.source == log.header.source_names[info["source"]]
                assert (origin.position, origin.part) == (info["position"], info["part"])
                assert (origin.offset, origin.length) == (plan.offset[segment], plan.length[segment])
                assert (origin.start, origin.tokens) == (plan.start[segment], info["tokens"])
                assert origin.epoch == info["position"] // log.header.sources[info["source"]].num_records
                assert origin.loader == 1 + segment % 2


def test_a_row_that_is_not_there(log: PlanLog) -> None:
    with pytest.raises(PlanError, match=r"step 2 has the rows 0 to 7, got 8"):
        row_segments(log.read(2).plan, 8)


def test_every_sample_is_where_a_plain_loop_finds_it(log: PlanLog) -> None:
    found: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for logged in log:
        for row in range(logged.plan.num_rows):
            for segment in row_segments(logged.plan, row):
                origin = segment_origin(log, logged, segment)
                found[origin.source, origin.position].append((logged.plan.step, row, origin.offset))
    for (source, position), places in found.items():
        traced = trace(log, source, position)
        assert sorted((p.step, p.row, p.origin.offset) for p in traced.places) == sorted(places)
        states = {"delivered" if step <= NUM_STEPS - 3 else "planned" for step, _, _ in places}
        assert states <= set(traced.states) <= states | {"carried", "buffered"}


def test_samples_that_are_in_no_step(log: PlanLog) -> None:
    flight = log.read(log.steps[-1]).in_flight
    names = log.header.source_names
    for key in flight.carried:
        assert "carried" in trace(log, names[key["source"]], int(key["position"])).states
    for source, name in enumerate(names):
        ahead = int(flight.last_drawn[source]) + 1
        for position in range(ahead, int(flight.known_to[source])):
            assert trace(log, name, position).states == ["buffered"]
        assert trace(log, name, int(flight.leased_to[source])).states == ["unleased"]


def test_a_bad_record_is_absent(log: PlanLog, job_data: Path) -> None:
    recipe = make_recipe(job_data)
    reader = SourceReader("images", 3, recipe.sources["images"], seed=recipe.seed)
    bad = [p for p in range(40) if reader.read_block(p, p + 1).bad]
    reader.close()
    assert len(bad) == 1
    traced = trace(log, "images", bad[0])
    last = log.read(log.steps[-1]).in_flight
    assert bad[0] <= last.last_drawn[3]
    assert (traced.states, traced.places) == (["absent"], [])
    assert "bad" in traced.text


def test_parts_of_one_position_have_states_of_their_own(log: PlanLog) -> None:
    """A long file is split; its first parts are delivered while the last ones wait."""
    traced: Trace = trace(log, "files", 0)
    assert {"delivered", "planned", "buffered"} <= set(traced.states)
    steps = [place.step for place in traced.places]
    assert steps == sorted(steps)
    assert len({place.origin.part for place in traced.places}) == len(traced.places)


def test_questions_that_make_no_sense(log: PlanLog) -> None:
    with pytest.raises(PlanError, match=r"no source 'web'; it has lines, blocks, files, images"):
        trace(log, "web", 0)
    with pytest.raises(PlanError, match=r"count from 0, got -1"):
        trace(log, "lines", -1)


def test_origins_of_delivered_rows_are_the_data_in_them(job_data: Path) -> None:
    """What `origins` says of each row of a batch is read again from its source, and is in the batch."""
    recipe = make_recipe(job_data)
    readers = {
        name: SourceReader(name, i, source, seed=recipe.seed)
        for i, (name, source) in enumerate(recipe.sources.items())
    }
    with msd.DataLoader(recipe, num_steps=4) as loader:
        for batch in loader:
            expect = loader.last_step
            for row in range(len(expect.rows)):
                places = 0
                for origin in origins(expect, recipe.source_names, row):
                    assert origin.offset == places
                    places += origin.length
                    block = readers[origin.source].read_block(origin.position, origin.position + 1)
                    tokens = block.samples[origin.part]["tokens"]
                    assert len(tokens) == origin.tokens
                    shown = batch["tokens"][row, origin.offset : origin.offset + origin.length]
                    text = tokens[origin.start : origin.start + origin.length] >= 0  # the others are patches
                    expected = tokens[origin.start : origin.start + origin.length][text]
                    assert np.array_equal(shown[text], expected)
                assert np.all(batch["segment_ids"][row, places:] == 0)
            with pytest.raises(PlanError, match=f"local rows 0 to {len(expect.rows) - 1}, got -1"):
                origins(expect, recipe.source_names, -1)
    for reader in readers.values():
        reader.close()


def test_samples_of_steps_that_are_regrouped_are_pending(tmp_path: Path) -> None:
    """After the first step of four, the rows of the other three are decided and in no plan yet."""
    documents = [{"tokens": np.full(8, i, dtype=np.int32)} for i in range(64)]
    recipe = msd.Recipe(
        sources={"s": msd.Source(documents, shuffle=False)},
        strategy=msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=2).regroup(steps=4),
    )
    writer = PlanLogWriter(tmp_path / "log", recipe)
    with DryRun(recipe, LAYOUT) as run:
        writer.start(LAYOUT, run.num_records, (1,))
        first = next(iter(run.steps(4)))
        writer.step(first.plan, np.ones(len(first.plan.samples), dtype=np.int32), first.in_flight)
    writer.close()
    log = PlanLog(tmp_path / "log")
    planned = set(first.plan.samples["position"].tolist())
    carried = set(first.in_flight.carried["position"].tolist())
    drawn = set(range(int(first.in_flight.last_drawn[0]) + 1))
    assert first.in_flight.pending.tolist() == [6]
    assert len(drawn - planned - carried) == 6
    for position in drawn - planned - carried:
        assert trace(log, "s", position).states == ["pending"]
