"""A grain pipeline as a source: what its positions yield, what is refused, and its fingerprint."""

import functools

import grain
import numpy as np
import pytest

import msdata_jax as msd
from msdata_jax.sources import GrainSource, SourceReader, open_reader

LENGTH = 60


def make(length: int = LENGTH, seed: int = 3, last: int = 0) -> grain.MapDataset:
    """Every fifth element is left out; a random transform marks the others."""
    numbers = [*range(length - 1), length - 1 + last]
    return (
        grain.MapDataset.source(numbers)
        .seed(seed)
        .shuffle()
        .map(lambda n: {"tokens": np.full(1 + n % 7, n, np.int32)})
        .filter(lambda element: element["tokens"][0] % 5 != 0)
        .random_map(lambda element, rng: {"tokens": element["tokens"] + 1000 * rng.integers(1, 9)})
    )


def fingerprint(source: GrainSource) -> str:
    return source.open().fingerprint()


def first_tokens(reader: SourceReader, start: int, stop: int) -> list[int]:
    return [int(sample["tokens"][0]) for sample in reader.read_block(start, stop).samples]


def test_yields_the_elements_of_the_pipeline_in_its_order() -> None:
    reader = SourceReader("s", 0, msd.Source(GrainSource(make), shuffle=False), seed=1)
    assert reader.num_records == LENGTH
    pipeline = make()
    for epoch in range(2):
        elements = [pipeline[epoch * LENGTH + i] for i in range(LENGTH)]
        wanted = [int(element["tokens"][0]) for element in elements if element is not None]
        assert len(wanted) == LENGTH * 4 // 5
        assert first_tokens(reader, epoch * LENGTH, (epoch + 1) * LENGTH) == wanted
    assert first_tokens(reader, 0, LENGTH) != first_tokens(reader, LENGTH, 2 * LENGTH)
    reader.close()


def test_a_shuffle_on_top_visits_every_element_once() -> None:
    reader = SourceReader("s", 0, msd.Source(GrainSource(make)), seed=1)
    plain = SourceReader("s", 0, msd.Source(GrainSource(make), shuffle=False), seed=1)
    shuffled, ordered = first_tokens(reader, 0, LENGTH), first_tokens(plain, 0, LENGTH)
    assert shuffled != ordered
    assert sorted(shuffled) == sorted(ordered)


@pytest.mark.parametrize("options", [{}, {"isolate": True}])
def test_loaders_and_threads_change_nothing(options: dict) -> None:
    sources = {"g": msd.Source(GrainSource(make), block_size=4, **options)}
    strategy = msd.DGraph().mix({"g": 1}).pack(seq_len=16, rows=4)
    recipe = msd.Recipe(sources=sources, strategy=strategy, seed=2)
    steps = []
    for loaders, threads in ((1, 1), (3, 2)):
        with msd.DataLoader(
            recipe, num_steps=9, num_loaders=loaders, threads_per_loader=threads
        ) as loader:  # two epochs
            steps.append([batch["tokens"].tolist() for batch in loader])
    assert steps[0] == steps[1]


def test_a_record_that_a_stage_refuses_is_a_bad_sample() -> None:
    def refuse(n: int) -> dict:
        if n == 7:
            raise ValueError("seven")
        return {"tokens": np.full(3, n, np.int32)}

    source = GrainSource(lambda: grain.MapDataset.range(10).map(refuse))
    reader = SourceReader("s", 0, msd.Source(source, shuffle=False, on_bad_sample="skip"), seed=1)
    block = reader.read_block(0, 10)
    assert [(bad.position, "ValueError: seven" in bad.reason) for bad in block.bad] == [(7, True)]
    assert len(block.samples) == 9


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda: make().to_iter_dataset(), "needs random access: return the grain.MapDataset that it begins"),
        (lambda: [1, 2], "returned a list"),
        (lambda: grain.MapDataset.range(3).repeat(), r"leave \.repeat\(\) out"),
        (lambda: grain.MapDataset.range(0), "no records"),
        (lambda: 1 // 0, "raised ZeroDivisionError"),
        (lambda: grain.MapDataset.range(3).random_map(lambda n, rng: n), "raised ValueError: .*seed"),
    ],
)
def test_refuses_what_is_no_source(returns, message: str) -> None:
    with pytest.raises(msd.SourceError, match=rf"source 'g': .*{message}"):
        open_reader("g", 0, msd.Source(GrainSource(returns)), seed=1)


def test_the_fingerprint_is_that_of_the_data() -> None:
    same = fingerprint(GrainSource(make))
    assert fingerprint(GrainSource(functools.partial(make, LENGTH))) == same
    others = [
        GrainSource(lambda: make(seed=4)),
        GrainSource(lambda: make(length=61)),
        GrainSource(lambda: make().map(lambda element: element)),
        GrainSource(make, version="2"),
    ]
    found = {fingerprint(other) for other in others}
    assert len(found) == len(others)
    assert same not in found


def test_a_recipe_is_equal_where_what_makes_its_pipeline_has_the_name() -> None:
    strategy = msd.DGraph().mix({"g": 1}).pack(seq_len=16, rows=4)

    def digest(source: GrainSource) -> str:
        return msd.Recipe(sources={"g": msd.Source(source)}, strategy=strategy).fingerprint()

    assert digest(GrainSource(make)) == digest(GrainSource(make))
    assert digest(GrainSource(make)) != digest(GrainSource(make, version="2"))
    assert digest(GrainSource(make)) != digest(GrainSource(first_tokens))
