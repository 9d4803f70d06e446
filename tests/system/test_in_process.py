"""All roles on threads of one process, against the plain loop."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.recipe import make_recipe
from oracle import oracle_steps
from strategies import packs

import msdata_jax as msd
from msdata_jax.lineage.plan_log import PlanLog
from msdata_jax.planning.packing import OVERSIZE, Pack


def tokens(*lengths: int, first: int = 1) -> list[dict]:
    """Records of given lengths, each filled with its own number."""
    return [{"tokens": np.full(length, first + i, np.int32)} for i, length in enumerate(lengths)]


def strategy(**mix: float) -> msd.DGraph:
    return msd.DGraph().mix(mix).pack(seq_len=8, rows=2)


def assert_equal_steps(loader: msd.DataLoader, expected: list[dict[str, np.ndarray]]) -> int:
    count = 0
    for step, (batch, wanted) in enumerate(itertools.zip_longest(loader, expected)):
        assert batch is not None, f"the data ended before step {step}"
        assert wanted is not None, f"step {step} came after the end"
        assert set(batch) == set(wanted)
        for name, field in wanted.items():
            assert np.array_equal(batch[name], field), f"step {step}, {name}"
            assert batch[name].dtype == field.dtype
        count += 1
    return count


@pytest.mark.parametrize(("loaders", "threads", "ahead"), [(1, 1, 1), (2, 3, 3), (7, 1, 2)])
def test_equals_the_plain_loop(job_data: Path, loaders: int, threads: int, ahead: int) -> None:
    recipe = make_recipe(job_data)
    options = {"num_loaders": loaders, "threads_per_loader": threads, "steps_ahead": ahead}
    with msd.DataLoader(recipe, num_steps=12, **options) as loader:
        assert assert_equal_steps(loader, oracle_steps(recipe, 1, limit=12)) == 12


def test_a_tiny_buffer_slows_but_changes_nothing(job_data: Path) -> None:
    recipe = make_recipe(job_data)
    with msd.DataLoader(recipe, num_steps=6, buffer_bytes_per_loader=1) as loader:
        assert assert_equal_steps(loader, oracle_steps(recipe, 1, limit=6)) == 6


def test_stop_delivers_every_sample_up_to_the_end_once(job_data: Path) -> None:
    recipe = make_recipe(job_data, stop=True)
    with msd.DataLoader(recipe) as loader:
        steps = assert_equal_steps(loader, oracle_steps(recipe, 1))
    assert steps == loader.figures.summary()["steps"] > 3


@settings(max_examples=40)
@given(
    lengths=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=12), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    pack=packs(max_seq_len=8, max_rows=4, oversize=OVERSIZE[1:], images=False, shapes=3),
    seed=st.integers(0, 2**63 - 1),
    data=st.data(),
)
def test_equals_the_plain_loop_for_any_small_recipe(
    lengths: list[list[int]], weights: list[int], pack: Pack, seed: int, data: st.DataObject
) -> None:
    block = data.draw(st.integers(1, 5))
    sources = {
        f"s{i}": msd.Source(tokens(*each, first=100 * i + 1), block_size=block)
        for i, each in enumerate(lengths)
    }
    if pack.oversize == "drop":  # something must be left
        sources["short"] = msd.Source(tokens(1, 1))
    graph = (
        msd.DGraph(packing=pack)
        .mix(
            dict(zip(sources, [*weights, 1], strict=False)),
            unit=data.draw(st.sampled_from(["samples", "tokens"])),
            on_exhausted=data.draw(st.sampled_from(["stop", "repeat"])),
        )
        .loss(per=data.draw(st.sampled_from(["tokens", "segments"])), sources={"s0": 0.3})
        .distribute("dp")
        .balance("lpt")
    )
    recipe = msd.Recipe(sources=sources, strategy=graph, seed=seed)
    with msd.DataLoader(recipe, num_steps=10, num_loaders=data.draw(st.integers(1, 3))) as loader:
        assert_equal_steps(loader, oracle_steps(recipe, 1, limit=10))


def test_a_bad_sample_ends_the_data_at_the_step_that_needs_it() -> None:
    def refuse(record: dict) -> dict:
        if record["tokens"][0] == 6:
            raise ValueError("six is no token")
        return record

    source = msd.Source(tokens(*[8] * 9), [refuse], shuffle=False, block_size=2)
    recipe = msd.Recipe(sources={"only": source}, strategy=strategy(only=1))
    with msd.DataLoader(recipe) as loader:
        assert [sorted(next(loader)["tokens"][:, 0].tolist()) for _ in range(2)] == [[1, 2], [3, 4]]
        with pytest.raises(
            msd.BadSampleError, match=r"step 2: source 'only', position 5: refuse: ValueError: six is"
        ):
            next(loader)
        with pytest.raises(msd.BadSampleError):  # and stays so
            next(loader)


def test_skipped_samples_have_a_budget() -> None:
    def refuse_even(record: dict) -> dict:
        if record["tokens"][0] % 2 == 0:
            raise ValueError("even")
        return record

    source = msd.Source(
        tokens(*[8] * 20), [refuse_even], shuffle=False, on_bad_sample="skip", max_bad_samples=3
    )
    recipe = msd.Recipe(sources={"only": source}, strategy=strategy(only=1))
    with msd.DataLoader(recipe) as loader:
        assert next(loader)["tokens"][:, 0].tolist() == [1, 3]
        message = r"position 7: .*even \(record 7\) \(max_bad_samples=3 bad records came before it"
        with pytest.raises(msd.BadSampleError, match=message):
            next(loader)


def test_a_source_without_any_sample_is_an_error() -> None:
    source = msd.Source(tokens(1, 2, 3), [lambda _: None])
    recipe = msd.Recipe(
        sources={"empty": source, "good": msd.Source(tokens(4))}, strategy=strategy(empty=1, good=1)
    )
    with (
        msd.DataLoader(recipe) as loader,
        pytest.raises(
            msd.BadSampleError, match="source 'empty' yielded no sample in a whole epoch of 3 records"
        ),
    ):
        next(loader)


def test_a_sample_longer_than_a_row_says_what_to_do() -> None:
    recipe = msd.Recipe(sources={"long": msd.Source(tokens(9))}, strategy=strategy(long=1))
    with (
        msd.DataLoader(recipe) as loader,
        pytest.raises(
            msd.BadSampleError,
            match=r"source 'long', position 0, part 0 has 9 tokens, more than pack\(seq_len=8\)",
        ),
    ):
        next(loader)


@pytest.mark.parametrize(
    ("oversize", "rows"), [("drop", [[2] * 3, [2] * 3]), ("truncate", [[1] * 8, [2] * 3])]
)
def test_oversize_policies(oversize: str, rows: list[list[int]]) -> None:
    graph = msd.DGraph().mix({"s": 1}, on_exhausted="stop").pack(seq_len=8, rows=2, oversize=oversize)
    recipe = msd.Recipe(sources={"s": msd.Source(tokens(9, 3), shuffle=False)}, strategy=graph)
    with msd.DataLoader(recipe) as loader:
        batch = next(loader)
    got = [row[ids > 0].tolist() for row, ids in zip(batch["tokens"], batch["segment_ids"], strict=True)]
    assert [row for row in got if row] == [row for row in rows if row][: 1 if oversize == "drop" else 2]
    assert loader.figures.num_dropped == (1 if oversize == "drop" else 0)


def test_a_missing_file_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    recipe = msd.Recipe(
        sources={"gone": msd.Source(str(tmp_path / "gone.parquet"))}, strategy=strategy(gone=1)
    )
    with (
        msd.DataLoader(recipe) as loader,
        pytest.raises(msd.JobFailed, match=r"source 'gone': .*gone\.parquet"),
    ):
        next(loader)


def test_no_step_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    never = threading.Event()

    def block(record: dict) -> dict:
        never.wait(30)
        return record

    recipe = msd.Recipe(sources={"slow": msd.Source(tokens(3), [block])}, strategy=strategy(slow=1))
    loader = msd.DataLoader(recipe, step_seconds=0.3)
    with pytest.raises(msd.MSDataError, match=r"no step came within 0\.3 s"):
        next(loader)
    never.set()
    loader.close()


def test_the_end_is_the_end_and_a_closed_loader_says_so() -> None:
    recipe = msd.Recipe(sources={"s": msd.Source(tokens(5, 5, 5))}, strategy=strategy(s=1))
    with msd.DataLoader(recipe, num_steps=2) as loader:
        assert len(list(loader)) == 2
        assert list(loader) == []
    assert list(loader) == []  # closing does not make more of it
    with msd.DataLoader(recipe) as early:
        next(early)
    with pytest.raises(msd.MSDataError, match="closed"):
        next(early)
    assert set(loader.job_figures) >= {"planner", "loaders", "constructors", "sources"}


def test_leaving_early_ends_all_threads() -> None:
    import threading

    recipe = msd.Recipe(sources={"s": msd.Source(tokens(5, 5, 5))}, strategy=strategy(s=1))
    before = set(threading.enumerate())
    with msd.DataLoader(recipe) as loader:
        next(loader)
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("msdata")]
    for thread in left:
        thread.join(5)
    assert not [t for t in left if t.is_alive()]


def test_what_a_step_holds_can_be_looked_up() -> None:
    recipe = msd.Recipe(sources={"s": msd.Source(tokens(5, 3), shuffle=False)}, strategy=strategy(s=1))
    with msd.DataLoader(recipe, num_steps=1) as loader:
        with pytest.raises(ValueError, match="no step was delivered"):
            _ = loader.last_step
        batch = next(loader)
        expect = loader.last_step
    for info, row, offset, length in zip(expect.infos, expect.row, expect.offset, expect.length, strict=True):
        assert (
            batch["tokens"][row, offset : offset + length].tolist()
            == [1 + info["position"] % 2] * info["tokens"]
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_loaders": 0}, "at least 1"),
        ({"steps_ahead": 0}, "at least 1"),
        ({"num_steps": -1}, "at least 0"),
    ],
)
def test_refuses_options_that_mean_nothing(change: dict, message: str) -> None:
    recipe = msd.Recipe(sources={"s": msd.Source(tokens(5))}, strategy=strategy(s=1))
    with pytest.raises(msd.RecipeError, match=message):
        msd.DataLoader(recipe, **change)


def test_a_recipe_with_another_seed_is_another_recipe() -> None:
    recipe = msd.Recipe(sources={"s": msd.Source(tokens(5))}, strategy=strategy(s=1))
    assert recipe.fingerprint() != replace(recipe, seed=1).fingerprint()
    assert recipe.fingerprint() == replace(recipe).fingerprint()


def test_the_plan_log_holds_what_was_delivered(job_data: Path, tmp_path: Path) -> None:
    recipe, path = make_recipe(job_data), tmp_path / "plans.log"
    with msd.DataLoader(recipe, num_steps=4, plan_log=path) as loader:
        digests = [loader.last_step.digest for _ in loader]
    log = PlanLog(path)
    assert [log.read(step).plan.digest for step in log.steps] == digests
    assert log.delivered == 3
    with pytest.raises(msd.MSDataError, match=r"plans\.log"):
        msd.DataLoader(recipe, plan_log=path)
