"""Applies the transforms of a source to one record: the only place where a transform is called.

A transform is a callable, or has grain's method `map`, `random_map` or `filter` (told by the method, so that
grain is not imported). It may have `open()`, called once when the source opens.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.feistel import derive_key
from msdata_jax.sources.protocol import one_line

_Step: TypeAlias = Callable[[Any, Callable[[], np.random.Generator]], Any]


class Chain:
    """The transforms of one source.

    Args:
        transforms: in the order in which they are applied.
        seed: the recipe's seed.
        source_name: the source's name; with the seed, the epoch and the record it keys random transforms.

    Raises:
        RecipeError: something is no transform.
    """

    def __init__(self, transforms: Sequence[Any], *, seed: int, source_name: str) -> None:
        self._transforms = transforms
        self._seed = seed
        self._source_name = source_name
        self._steps = [(_name(transform), _step(transform)) for transform in transforms]

    def open(self) -> None:
        """Let each transform load what it needs."""
        for transform in self._transforms:
            hook = getattr(transform, "open", None)
            if callable(hook):
                hook()

    def __call__(self, record: dict[str, Any], epoch: int, index: int) -> list[dict[str, Any]]:
        """What a record becomes: any number of records.

        Raises:
            BadSampleError: a transform raised or returned something else; names the transform.
        """
        records = [record]
        for number, (name, step) in enumerate(self._steps):
            make_rng = self._rng_maker(epoch, index, number)
            records = [result for record in records for result in _apply(name, step, record, make_rng)]
        return records

    def _rng_maker(self, epoch: int, index: int, number: int) -> Callable[[], np.random.Generator]:
        """One generator for all parts of (record, transform), made when it is first asked for."""
        made: list[np.random.Generator] = []

        def make() -> np.random.Generator:
            if not made:
                key = derive_key("random", self._seed, self._source_name, epoch)
                philox = np.random.Philox(key=np.array([key, index], np.uint64), counter=[0, 0, 0, number])
                made.append(np.random.Generator(philox))
            return made[0]

        return make


def _apply(name: str, step: _Step, record: Any, make_rng: Callable[[], np.random.Generator]) -> list[Any]:
    try:
        result = step(record, make_rng)
    except BadSampleError as error:
        raise BadSampleError(f"{name}: {error}") from error
    except MemoryError:
        raise  # luck, not a property of the record
    except Exception as error:
        raise BadSampleError(f"{name}: {one_line(error)}") from error
    if result is None:
        return []
    results = list(result) if isinstance(result, list | tuple) else [result]
    for item in results:
        if not isinstance(item, dict):
            raise BadSampleError(
                f"{name}: returned {type(item).__name__}; a transform returns a dict, a list of dicts or None"
            )
    return results


def _step(transform: Any) -> _Step:
    if callable(getattr(transform, "random_map", None)):
        return lambda record, make_rng: transform.random_map(record, make_rng())
    if callable(getattr(transform, "map", None)):
        return lambda record, _: transform.map(record)
    if callable(getattr(transform, "filter", None)):
        return lambda record, _: record if transform.filter(record) else None
    if callable(transform) and not isinstance(transform, type):
        return lambda record, _: transform(record)
    raise RecipeError(
        f"{transform!r} is no transform; give a callable of a record, or an object with grain's method map, "
        "random_map or filter (an instance, not the class)"
    )


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", None) or type(transform).__name__
