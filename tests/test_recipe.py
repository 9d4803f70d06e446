import functools
from dataclasses import replace

import numpy as np
import pytest

from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.recipe import Recipe, Source
from msdata_jax.records import IMAGE_TOKEN, default_measure, info_dtype


def graph(**weights):
    return DGraph().mix(weights or {"a": 1, "b": 2}).pack(seq_len=8, rows=2)


def make_recipe(**changes):
    sources = {"a": Source("a.jsonl"), "b": Source("b.parquet", measure=len, columns=("frames",))}
    return Recipe(**{"sources": sources, "strategy": graph(), "seed": 3, **changes})


def test_names_and_columns():
    recipe = make_recipe()
    assert recipe.source_names == ("a", "b")
    assert recipe.columns == ("frames",)
    make_recipe(strategy=graph().mix({"a": 1, "b": 1}, unit="frames"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": {}}, "at least one source"),
        ({"sources": {"a": "a.jsonl", "b": Source("b")}}, r"sources\['a'\] is a str; wrap it"),
        ({"seed": -1}, "got -1"),
        ({"seed": 2**63}, "seed is between"),
        ({"strategy": graph(a=1)}, "without a weight"),
        ({"strategy": graph(a=1, b=1, c=1)}, r"unknown: \['c'\]"),
        ({"strategy": DGraph()}, "missing"),
        ({"strategy": graph().mix({"a": 1, "b": 1}, unit="words")}, "'frames'.*got 'words'"),
    ],
)
def test_refuses_recipes_that_do_not_fit(changes, says):
    with pytest.raises(RecipeError, match=says):
        make_recipe(**changes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_bad_sample": "ignore"}, "got 'ignore'"),
        ({"max_bad_samples": -1}, "at least 0, got -1"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 65537}, "between 1 and 65536"),
        ({"columns": ("frames",)}, "measure is None"),
    ],
)
def test_refuses_sources_that_mean_nothing(options, says):
    with pytest.raises(RecipeError, match=says):
        Source("a.jsonl", **options)


def test_fingerprint_is_equal_for_equal_recipes_only():
    assert make_recipe().fingerprint() == make_recipe().fingerprint()
    recipe = make_recipe()
    source = recipe.sources["a"]
    others = [
        make_recipe(seed=4),
        make_recipe(strategy=graph(a=1, b=3)),
        make_recipe(strategy=graph().balance()),
        make_recipe(sources={"b": recipe.sources["b"], "a": source}),
        *(
            make_recipe(sources={**recipe.sources, "a": replace(source, **options)})
            for options in (
                {"data": "c.jsonl"},
                {"data": [{"text": "x"}]},
                {"transforms": (len,)},
                {"on_bad_sample": "skip"},
                {"max_bad_samples": 1},
                {"shuffle": False},
                {"block_size": 32},
            )
        ),
    ]
    assert len({each.fingerprint() for each in (recipe, *others)}) == 1 + len(others)


def test_fingerprint_does_not_depend_on_where_functions_lie_in_memory():
    def with_cost():
        return make_recipe(strategy=graph().cost(backbone=functools.partial(lambda infos: infos["tokens"])))

    assert with_cost().fingerprint() == with_cost().fingerprint()


def test_info_dtype():
    assert info_dtype(("frames", "tokens", "area", "area")).names == (
        *("source", "part", "position", "tokens", "patches", "num_bytes"),
        *("area", "frames"),
    )
    assert info_dtype().itemsize == 40


def test_default_measure():
    tokens = np.array([1, IMAGE_TOKEN, 2], np.int32)
    assert default_measure({"tokens": tokens}) == {"tokens": 3, "patches": 0, "num_bytes": 12}
    patches = np.zeros((1, 12), np.uint8)
    measured = default_measure({"tokens": tokens, "patches": patches})
    assert measured == {"tokens": 3, "patches": 1, "num_bytes": 24}
