"""A run that stops and goes on, anywhere and with anything, is the run that never stopped, byte for byte."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from jobs.recipe import make_recipe

import msdata_jax as msd
from msdata_jax.data_state import DataState

NUM_STEPS = 30


def regrouped(recipe: msd.Recipe) -> msd.Recipe:
    return replace(recipe, strategy=recipe.strategy.regroup(steps=3))


RECIPES: dict[str, Callable[[Path], msd.Recipe]] = {
    "plain": make_recipe,
    "buckets": lambda folder: make_recipe(folder, buckets=True),  # samples are split besides
    "stop": lambda folder: make_recipe(folder, stop=True),
    "document": lambda folder: make_recipe(folder, cp="zigzag_document"),
    "regroup": lambda folder: regrouped(make_recipe(folder)),
}


@dataclass(frozen=True)
class Step:
    """What a trainer has behind a step."""

    step: int
    digest: str
    batch: Mapping[str, bytes]
    leaves: Mapping[str, bytes]


def take(loader: msd.DataLoader, count: int | None = None) -> list[Step]:
    """The next steps, by default all."""
    taken: list[Step] = []
    while len(taken) != count:
        batch = next(loader, None)
        if batch is None:
            break
        fields = {name: np.asarray(value).tobytes() for name, value in batch.items()}
        last = loader.last_step
        taken.append(Step(last.step, last.digest, fields, loader.leaves()))
    return taken


def assert_same(got: list[Step], wanted: list[Step]) -> None:
    assert [each.step for each in got] == [each.step for each in wanted]
    for mine, other in zip(got, wanted, strict=True):
        assert mine.digest == other.digest, mine.step
        assert mine.batch == other.batch, mine.step
        differing = {n for n in {*mine.leaves, *other.leaves} if mine.leaves.get(n) != other.leaves.get(n)}
        assert not differing, mine.step


@pytest.fixture(scope="module", params=RECIPES)
def run(request: pytest.FixtureRequest, job_data: Path) -> tuple[msd.Recipe, list[Step]]:
    """A recipe and its run that never stops."""
    recipe = RECIPES[request.param](job_data)
    with msd.DataLoader(recipe, num_steps=NUM_STEPS) as loader:
        return recipe, take(loader)


def going_on(recipe: msd.Recipe, leaves: Mapping[str, bytes], **options) -> msd.DataLoader:
    loader = msd.DataLoader(recipe, **{"num_steps": NUM_STEPS, **options})
    assert loader.restore(DataState.from_leaves(leaves)) == []
    return loader


def test_stopping_behind_every_step(run: tuple[msd.Recipe, list[Step]]) -> None:
    """Each step by a job of its own, with other loaders and threads, from what the one before left."""
    recipe, whole = run
    assert len(whole) > 3
    leaves = whole[0].leaves
    for wanted in whole[1:]:
        options = {"num_loaders": 1 + wanted.step % 3, "threads_per_loader": 1 + wanted.step % 2}
        with going_on(recipe, leaves, steps_ahead=1, **options) as loader:
            assert loader.next_step == wanted.step
            got = take(loader, 1)
        assert_same(got, [wanted])
        leaves = got[0].leaves
    with going_on(recipe, leaves) as loader:
        assert take(loader) == []


@pytest.mark.parametrize(("stop", "loaders", "threads"), [(0.0, 4, 1), (0.5, 1, 3)])
def test_going_on_to_the_end(
    run: tuple[msd.Recipe, list[Step]], stop: float, loaders: int, threads: int
) -> None:
    recipe, whole = run
    step = int(stop * len(whole))
    with going_on(recipe, whole[step].leaves, num_loaders=loaders, threads_per_loader=threads) as loader:
        assert_same(take(loader), whole[step + 1 :])


def test_skipping_to_any_step(run: tuple[msd.Recipe, list[Step]]) -> None:
    recipe, whole = run
    for step in range(2, len(whole), 9):
        with msd.DataLoader(recipe, num_steps=NUM_STEPS, num_loaders=3) as loader:
            loader.skip_to(step)
            assert loader.next_step == step
            assert_same(take(loader, 2), whole[step : step + 2])


def test_skipping_on_from_a_saved_state(run: tuple[msd.Recipe, list[Step]]) -> None:
    recipe, whole = run
    with going_on(recipe, whole[1].leaves) as loader:
        with pytest.raises(msd.CheckpointError, match=r"skip_to\(1\) goes forward only; .* before step 2"):
            loader.skip_to(1)
        loader.skip_to(3)
        with pytest.raises(msd.CheckpointError, match="nothing to save before the first step"):
            loader.leaves()  # what was restored is not where it goes on
        assert_same(take(loader, 1), whole[3:4])


# --- with a recipe or data that changed ---------------------------------------------------------------------


def number(value: int) -> dict:
    """A record of one to six places that show its number."""
    return {"tokens": np.full(1 + value % 6, value, np.int32)}


def small_recipe(weights: Mapping[str, float], **options) -> msd.Recipe:
    """Sources in memory: of `a` the records count from 1000, of `b` from 2000, and so on."""
    strategy = msd.DGraph().mix(weights).pack(seq_len=8, rows=3)
    sources = {
        name: msd.Source([number(1000 * ("abc".index(name) + 1) + i) for i in range(40)], block_size=8)
        for name in weights
    }
    return msd.Recipe(sources=sources, strategy=strategy, **options)


def shown(recipe: msd.Recipe, expect) -> dict[str, list[int]]:
    """Positions of each source in a step, increasing."""
    names = recipe.source_names
    return {
        name: sorted(expect.infos["position"][expect.infos["source"] == index].tolist())
        for index, name in enumerate(names)
    }


def positions_of(recipe: msd.Recipe, loader: msd.DataLoader) -> dict[str, list[int]]:
    """Positions of each source in all further steps."""
    found: dict[str, list[int]] = {name: [] for name in recipe.source_names}
    for _ in loader:
        for name, positions in shown(recipe, loader.last_step).items():
            found[name] += positions
    return {name: sorted(positions) for name, positions in found.items()}


@pytest.fixture(scope="module")
def stopped() -> tuple[dict[str, set[int]], DataState]:
    """Positions of a and b that were shown in 5 steps, and the state behind them; some samples wait."""
    recipe = small_recipe({"a": 1, "b": 1})
    drawn: dict[str, set[int]] = {"a": set(), "b": set()}
    with msd.DataLoader(recipe, num_steps=9) as loader:
        for _ in range(5):
            next(loader)
            for name, positions in shown(recipe, loader.last_step).items():
                drawn[name] |= set(positions)
        state = loader.state()
    assert 0 in state.stream.carry.infos["source"]
    return drawn, state


def test_sources_may_come_and_go(stopped: tuple[dict[str, set[int]], DataState], capsys) -> None:
    drawn, state = stopped
    recipe = small_recipe({"c": 1, "a": 3})
    runs = []
    for loaders in (1, 3):
        with msd.DataLoader(recipe, num_steps=12, num_loaders=loaders) as loader:
            sentences = loader.restore(state)
            runs.append(positions_of(recipe, loader))
            last = loader.state().stream
    assert runs[0] == runs[1]
    for index, (name, before) in enumerate({"c": set(), "a": drawn["a"]}.items()):
        # A new one begins at its first sample; of the other nothing is lost, and nothing comes twice.
        waits = last.carry.infos["position"][last.carry.infos["source"] == index].tolist()
        assert sorted([*before, *runs[0][name], *waits]) == list(range(last.last_position[index] + 1))
        assert runs[0][name]
    assert "source 'c' is added with a share of 0.25" in sentences
    assert "source 'b' is removed; its share was 0.5" in sentences
    told = capsys.readouterr().err
    assert all(f"msdata: going on at step 5: {sentence}\n" in told for sentence in sentences)


def test_another_seed_is_refused_and_may_be_accepted(stopped: tuple[dict[str, set[int]], DataState]) -> None:
    _, state = stopped
    recipe = small_recipe({"a": 1, "b": 1}, seed=9)
    with msd.DataLoader(recipe, num_steps=9) as loader:
        with pytest.raises(msd.CheckpointError, match="the seed was 0 and is 9"):
            loader.restore(state)
        sentences = loader.restore(state, accept_changes=True)
        assert "the seed was 0 and is 9" in " ".join(sentences)
        assert [each.step for each in take(loader)] == [5, 6, 7, 8]


def test_data_that_changed_on_disk_are_refused_by_name(tmp_path: Path) -> None:
    lines = [f'{{"tokens": [{", ".join(["7"] * (1 + i % 5))}]}}\n' for i in range(50)]

    def to_tokens(record: dict) -> dict:
        return {"tokens": np.array(record["tokens"], np.int32)}

    for name in ("x", "y"):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    strategy = msd.DGraph().mix({"only": 1}).pack(seq_len=8, rows=3)
    source = msd.Source(str(tmp_path / "*.jsonl"), [to_tokens])
    recipe = msd.Recipe(sources={"only": source}, strategy=strategy)
    with msd.DataLoader(recipe, num_steps=9) as loader:
        next(loader)
        state = loader.state()
    (tmp_path / "y.jsonl").write_text("".join(reversed(lines)) + lines[0])
    with msd.DataLoader(recipe, num_steps=9) as loader:
        loader.restore(state)  # nobody has looked at the data yet
        says = (
            r"CheckpointError: .*the data of source 'only' changed: other bytes in y\.jsonl; 100 records were"
        )
        with pytest.raises(msd.JobFailed, match=says):
            next(loader)
    with msd.DataLoader(recipe, num_steps=4) as loader:
        loader.restore(state, accept_changes=True)
        assert [each.step for each in take(loader)] == [1, 2, 3]


# --- when it may be asked -----------------------------------------------------------------------------------


def test_restored_is_before_the_first_step_only(stopped: tuple[dict[str, set[int]], DataState]) -> None:
    _, state = stopped
    recipe = small_recipe({"a": 1, "b": 1})
    with msd.DataLoader(recipe, num_steps=9) as loader:
        with pytest.raises(msd.CheckpointError, match="nothing to save before the first step"):
            loader.state()
        loader.restore(state)
        assert (loader.next_step, loader.state().step) == (5, 5)
        assert loader.state().to_leaves() == state.to_leaves()  # what it was given, until there is more
        next(loader)
        assert (loader.next_step, loader.state().step) == (6, 6)
        for late in (lambda: loader.restore(state), lambda: loader.skip_to(7)):
            with pytest.raises(
                msd.CheckpointError, match="before the first step: steps are under way already"
            ):
                late()
    with msd.DataLoader(recipe, num_steps=9) as loader:
        loader.start_prefetch()
        with pytest.raises(msd.CheckpointError, match="steps are under way already"):
            loader.restore(state)


def test_a_run_that_had_all_its_steps_has_none(stopped: tuple[dict[str, set[int]], DataState]) -> None:
    _, state = stopped
    for num_steps in (5, 3):
        with msd.DataLoader(small_recipe({"a": 1, "b": 1}), num_steps=num_steps) as loader:
            loader.restore(state)
            assert list(loader) == []
