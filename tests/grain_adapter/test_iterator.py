"""One iterator: its state, where it goes, what it refuses, and how it ends."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import absl.flags
import grain
import numpy as np
import pytest
from grain_adapter.pipelines import thread
from grain_adapter.recipe import NUM_STEPS, ROWS, SEQ_LEN, make_recipe
from oracle import oracle_steps

import msdata_jax as msd
from msdata_jax.grain import MSDataset, MSDatasetIterator
from msdata_jax.grain.turns import Turns

RECIPE = make_recipe()
FIELDS = ("tokens", "targets", "segment_ids", "positions", "loss_mask")
get_next_index, set_next_index = grain.experimental.get_next_index, grain.experimental.set_next_index


def dataset(**options) -> MSDataset:
    return MSDataset(RECIPE, num_steps=NUM_STEPS, **options)


def tokens(steps: Iterator[dict]) -> list[list[int]]:
    return [batch["tokens"].ravel().tolist() for batch in steps]


@pytest.fixture(scope="module")
def whole() -> list[list[int]]:
    """The tokens of every step, by the plain loop."""
    return [batch["tokens"].ravel().tolist() for batch in oracle_steps(RECIPE, 1, limit=NUM_STEPS)]


def wait_until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


# --- what it gives ------------------------------------------------------------------------------------------


def test_gives_the_steps_of_the_plain_loop(whole: list) -> None:
    assert tokens(iter(dataset())) == whole


def test_the_element_spec_is_that_of_the_elements() -> None:
    data = dataset()
    spec = grain.experimental.get_element_spec(data)
    batch = next(iter(data))
    assert {name: (each.shape, each.dtype) for name, each in spec.items()} == {
        name: (array.shape, array.dtype) for name, array in batch.items()
    }
    assert tuple(spec) == FIELDS


def test_an_element_spec_of_several_shapes_is_refused() -> None:
    strategy = msd.DGraph().mix({"long": 1, "short": 1}).bucket({8: 8, 16: 4}, oversize="split")
    data = MSDataset(replace(RECIPE, strategy=strategy))
    with pytest.raises(msd.RecipeError, match=r"rows of \[8, 16\] tokens"):
        grain.experimental.get_element_spec(data)


# --- its state ----------------------------------------------------------------------------------------------


def shape_of(state: dict) -> dict:
    return {key: (type(value), len(value) if isinstance(value, str) else 0) for key, value in state.items()}


def test_the_state_is_json_and_of_one_shape_at_every_step() -> None:
    iterator = iter(dataset())
    states = [iterator.get_state()]
    states += [iterator.get_state() for _ in iterator]
    assert [json.loads(json.dumps(state)) for state in states] == states
    assert {str(shape_of(state)) for state in states} == {str(shape_of(states[0]))}
    assert [state["step"] for state in states] == list(range(NUM_STEPS + 1))
    assert len({state["plan_digest"] for state in states}) == NUM_STEPS + 1


def test_the_state_is_at_hand_before_anything_is_read() -> None:
    before = set(threading.enumerate())
    iterator = iter(dataset())
    iterator.set_state({**iterator.get_state(), "step": 5})
    assert iterator.get_state()["step"] == 5
    assert set(threading.enumerate()) == before


def test_goes_back_and_forth_and_on_after_a_second_resume(whole: list) -> None:
    data = dataset()
    iterator = iter(data)
    states = [iterator.get_state() for _ in range(1)] + [iterator.get_state() for _ in iterator]
    for step in (6, 2, 2, 7, 0):
        iterator.set_state(states[step])
        assert tokens([next(iterator)]) == whole[step : step + 1]
    first = iter(data)
    first.set_state(states[3])
    next(first)
    second = iter(data)
    second.set_state(first.get_state())
    assert tokens(second) == whole[4:]
    second.set_state(states[NUM_STEPS])
    assert tokens(second) == []


def test_the_index_is_the_step(whole: list) -> None:
    iterator = iter(dataset())
    assert get_next_index(iterator) == 0
    set_next_index(iterator, 5)
    assert get_next_index(iterator) == 5
    assert tokens(iterator) == whole[5:]
    assert get_next_index(iterator) == NUM_STEPS
    with pytest.raises(ValueError, match="from 0, got -1"):
        set_next_index(iterator, -1)


def test_goes_on_from_a_journal_without_reading_what_was(whole: list, tmp_path: Path) -> None:
    data = dataset(journal=tmp_path)
    iterator = iter(data)
    for _ in range(6):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    again = iter(data)
    again.set_state(state)
    assert tokens([next(again)]) == whole[6:7]
    assert again.loader.figures.summary()["steps"] == 1  # without one, the step before comes as well


def test_start_prefetch_makes_steps_ready(whole: list) -> None:
    iterator = iter(dataset())
    set_next_index(iterator, 2)
    iterator.start_prefetch()
    assert get_next_index(iterator) == 2
    assert tokens(iterator) == whole[2:]


# --- what it refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": make_recipe(seed=4).fingerprint()}, "sources, strategy or seed are not what they were"),
        ({"version": 2}, "version 1, got"),
        ({"step": -1}, "whole number from 0, got -1"),
        ({"step": "3"}, "whole number from 0, got '3'"),
        ({"plan_digest": "0" * 31}, "32 hex digits"),
        ({"more": 1}, r"got \['more', "),
    ],
)
def test_refuses_a_state_that_is_not_its_own(change: dict, message: str) -> None:
    iterator = iter(dataset())
    state = iterator.get_state()
    with pytest.raises(msd.CheckpointError, match=message):
        iterator.set_state({**state, **change})
    with pytest.raises(msd.CheckpointError, match="version"):
        iterator.set_state([state])
    assert iterator.get_state() == state


def test_refuses_to_go_on_in_data_that_changed() -> None:
    iterator = iter(dataset())
    for _ in range(4):
        next(iterator)
    state = iterator.get_state()
    other = make_recipe()
    del other.sources["long"].data[:7]  # the recipe cannot know
    assert other.fingerprint() == RECIPE.fingerprint()
    changed = iter(MSDataset(other, num_steps=NUM_STEPS))
    changed.set_state(state)
    with pytest.raises(msd.CheckpointError, match=r"the plan .* the data are not what they were"):
        next(changed)


def test_refuses_a_position_behind_the_end() -> None:
    iterator = iter(dataset())
    list(iterator)
    short = iter(MSDataset(RECIPE, num_steps=3))
    short.set_state(iterator.get_state())
    with pytest.raises(msd.CheckpointError, match="before step 8; the data end at step"):
        next(short)


def test_a_stop_while_it_goes_to_its_position_is_no_failure(whole: list) -> None:
    iterator = iter(dataset())
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()
    again = iter(dataset())
    again.set_state(state)
    again.loader.request_stop()
    assert tokens(again) == []
    assert again.loader.stopped
    assert again.get_state() == state
    third = iter(dataset())
    third.set_state(again.get_state())
    assert tokens(third) == whole[5:]


def test_refuses_slices_and_workers() -> None:
    data = dataset()
    with pytest.raises(msd.RecipeError, match="gives all of a step or nothing"):
        data.set_slice(slice(0, None, 2))
    absl.flags.FLAGS.mark_as_parsed()  # grain looks at flags first
    for num_workers in (1, 2):
        workers = grain.MultiprocessingOptions(num_workers=num_workers)
        with pytest.raises(msd.RecipeError, match="Leave mp_prefetch out"):
            next(iter(data.map(lambda batch: batch).mp_prefetch(workers)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_step": 3}, r"no option \['num_step'\]"),
        ({"plan_log": Path("plans.log")}, "several times"),
        ({"specs": {"tokens": ("dp",)}}, "need a mesh"),
        ({"mesh": "dp"}, "mesh= takes"),
    ],
)
def test_refuses_options_that_mean_nothing(options: dict, message: str) -> None:
    with pytest.raises(msd.RecipeError, match=message):
        MSDataset(RECIPE, **options)
    with pytest.raises(msd.RecipeError, match="whose strategy is a DGraph"):
        MSDataset({"sources": 1})


def test_a_failing_source_fails_the_read() -> None:
    def refuse(record: dict) -> dict:
        if record["tokens"][0] == 103:
            raise ValueError("no such token")
        return record

    source = msd.Source(RECIPE.sources["long"].data, [refuse])
    strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=SEQ_LEN, rows=ROWS)
    iterator = iter(MSDataset(msd.Recipe(sources={"s": source}, strategy=strategy)).map(lambda batch: batch))
    with pytest.raises(msd.BadSampleError, match="no such token"):
        list(iterator)


# --- how it ends --------------------------------------------------------------------------------------------


class Gate:
    """A transform that lets the first records through, and the others when it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, record: dict) -> dict:
        if record["tokens"][0] > 8:
            self.opened.wait(60)
        return record


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def gated(gate: Gate) -> MSDataset:
    data = [{"tokens": np.full(5, 1 + i, np.int32)} for i in range(40)]
    source = msd.Source(data, [gate], shuffle=False, block_size=4)
    strategy = msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=2)
    return MSDataset(msd.Recipe(sources={"s": source}, strategy=strategy))


class Reader(threading.Thread):
    """Reads on a thread; keeps what came and what was raised."""

    def __init__(self, iterator: Iterator[dict]) -> None:
        super().__init__(daemon=True)
        self._iterator, self.steps, self.error = iterator, [], None

    def run(self) -> None:
        try:
            for batch in self._iterator:
                self.steps.append(batch)
        except (ValueError, msd.MSDataError) as error:
            self.error = error


PENDING = {
    "raw": lambda data: data,
    "map": lambda data: data.map(lambda batch: batch),
    "thread prefetch": thread,
    "thread prefetch over map": lambda data: thread(data.map(lambda batch: batch)),
}


@pytest.mark.parametrize("name", PENDING)
def test_closes_within_a_second_while_a_read_waits_for_a_source(gate: Gate, name: str) -> None:
    iterator = iter(PENDING[name](gated(gate)))
    reader = Reader(iterator)
    reader.start()
    wait_until(lambda: len(reader.steps) == 2)  # no more can come
    begin = time.monotonic()
    iterator.close()
    seconds = time.monotonic() - begin
    assert seconds < 1.0
    if "thread" not in name:  # grain's own stage leaves whoever waits for its thread waiting
        reader.join(10)
        assert isinstance(reader.error, ValueError)
    iterator.close()


def test_a_read_goes_on_where_the_thread_that_prefetched_was_called_back(gate: Gate) -> None:
    data = thread(gated(gate))
    iterator = iter(data)
    first = next(iterator)
    state = iterator.get_state()
    next(iterator)
    iterator.set_state(state)  # grain waits for its thread, which waits for a source
    gate.opened.set()
    assert tokens([next(iterator)]) != tokens([first])
    iterator.close()


def test_a_closed_iterator_says_so() -> None:
    iterator = iter(dataset())
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)


def test_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    iterator = iter(dataset())
    next(iterator)
    del iterator
    gc.collect()
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_iterators_that_share_data_ranks_take_turns(whole: list) -> None:
    """As in a job of several ranks: the one that reads has the only open DataLoader."""
    data, turns = dataset(), Turns()
    before = set(threading.enumerate())
    one, other = (MSDatasetIterator(data.open, iter(data)._position, turns) for _ in range(2))
    assert tokens([next(one), next(one)]) == whole[:2]
    assert tokens([next(other)]) == whole[:1]
    num_threads = len(set(threading.enumerate()) - before)
    assert one.leaves()  # to be saved while the other one is read
    assert tokens([next(one)]) == whole[2:3]
    wait_until(lambda: len(set(threading.enumerate()) - before) == num_threads)
    assert tokens([next(other)]) == whole[1:2]
    assert tokens(one) == whole[3:]
    assert tokens(other) == whole[2:]
    other.close()


def test_one_may_be_closed_from_another_thread_while_the_next_takes_its_turn(whole: list) -> None:
    data, turns = dataset(), Turns()
    for _ in range(40):
        one, other = (MSDatasetIterator(data.open, iter(data)._position, turns) for _ in range(2))
        next(one)
        closing = threading.Thread(target=one.close)
        closing.start()
        assert tokens([next(other)]) == whole[:1]
        closing.join()
        other.close()


PROGRAM = """
import sys, grain
from grain_adapter.recipe import make_recipe
from msdata_jax.grain import MSDataset
data = MSDataset(make_recipe())
kept = [iter(data), iter(data.map(lambda batch: batch).batch(2)), iter(data)]
for iterator in kept[:2]:
    next(iterator)
if len(sys.argv) > 1:
    sys.exit(3)
print("done")
"""


@pytest.mark.parametrize(("arguments", "result"), [((), (0, "done\n", "")), (("exit",), (3, "", ""))])
def test_a_program_that_closes_nothing_ends_quietly(arguments: tuple, result: tuple) -> None:
    line = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == result
