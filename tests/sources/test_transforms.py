from dataclasses import dataclass, field

import numpy as np
import pytest

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.transforms import Chain


def make_chain(*transforms, seed=1, name="a"):
    return Chain(transforms, seed=seed, source_name=name)


def run(chain, record, epoch=0, index=0):
    return chain(record, epoch, index)


class Jitter:
    def random_map(self, element, rng):
        return {**element, "x": [*element.get("x", []), int(rng.integers(2**60))]}


def test_callables_map_split_and_leave_out():
    chain = make_chain(
        lambda record: [{"n": record["n"]}, {"n": record["n"] + 1}],
        lambda record: None if record["n"] % 2 else record,
        lambda record: ({**record, "twice": False}, {**record, "twice": True}),
    )
    assert run(chain, {"n": 3}) == [{"n": 4, "twice": False}, {"n": 4, "twice": True}]
    assert run(make_chain(lambda record: []), {"n": 3}) == []
    assert run(make_chain(), {"n": 3}) == [{"n": 3}]


def test_grain_transforms_are_told_by_their_method():
    import grain

    class Double(grain.transforms.Map):
        def map(self, element):
            return {"n": element["n"] * 2}

    class Small(grain.transforms.Filter):
        def filter(self, element):
            return np.bool_(element["n"] < 10)

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return {**element, "noise": rng.random()}

    chain = make_chain(Double(), Small(), Noise())
    found = run(chain, {"n": 3})
    assert found[0]["n"] == 6
    assert 0 <= found[0]["noise"] < 1
    assert run(chain, {"n": 5}) == []


def test_randomness_is_keyed_by_seed_name_epoch_record_and_place():
    draws = {
        run(make_chain(*transforms, seed=seed, name=name), {}, epoch, index)[0]["x"][-1]
        for transforms in ([Jitter()], [Jitter(), Jitter()])
        for seed in (0, 2**63 - 1)
        for name in ("a", "b")
        for epoch in (0, 1)
        for index in (0, 1, 2**62)
    }
    assert len(draws) == 2 * 2 * 2 * 2 * 3
    again = make_chain(Jitter())
    assert run(again, {}, 3, 4) == run(again, {}, 3, 4) == run(make_chain(Jitter()), {}, 3, 4)


def test_parts_of_a_record_draw_on():
    chain = make_chain(lambda record: [{}, {}], Jitter())
    first, second = run(chain, {})
    assert first != second
    assert run(chain, {}) == [first, second]


def test_pinned_randomness():
    assert run(make_chain(Jitter(), seed=17, name="books"), {}, 1, 5) == [{"x": [GOLDEN]}]


GOLDEN = 598476395743505487


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (lambda record: 1 / 0, "<lambda>: ZeroDivisionError: division by zero"),
        (lambda record: record["text"], "<lambda>: KeyError: 'text'"),
        (lambda record: np.zeros(3), "<lambda>: returned ndarray; a transform returns"),
        (lambda record: [{}, "a"], "<lambda>: returned str; a transform returns"),
        (lambda record: len(5), r"<lambda>: TypeError: object of type 'int' has no len\(\)"),
    ],
)
def test_what_a_transform_raises_is_a_bad_sample(transform, reason):
    with pytest.raises(BadSampleError, match=reason):
        run(make_chain(transform), {})


def test_reasons_are_short_single_lines_without_addresses():
    def fail(record):
        raise OSError(f"cannot read\n{object()} " + "x" * 9999)

    with pytest.raises(BadSampleError, match=r"^fail: OSError: cannot read <object object> x+$") as caught:
        run(make_chain(fail), {})
    assert len(str(caught.value)) < 400


def test_memory_errors_are_no_bad_samples():
    def exhaust(record):
        raise MemoryError

    with pytest.raises(MemoryError):
        run(make_chain(exhaust), {})


@dataclass(frozen=True)
class Opened:
    calls: list = field(default_factory=list)

    def open(self):
        self.calls.append("open")

    def __call__(self, record):
        return record


def test_open_is_called_once():
    transform = Opened()
    chain = make_chain(transform, lambda record: record)
    assert transform.calls == []
    chain.open()
    run(chain, {})
    assert transform.calls == ["open"]


@pytest.mark.parametrize("transform", [3, "tokenize", None, Opened, object()])
def test_refuses_what_is_no_transform(transform):
    with pytest.raises(RecipeError, match="is no transform"):
        make_chain(transform)
