"""What a changed recipe, or changed data, make of a saved state: sentences, refusals, and what goes on."""

from dataclasses import replace

import numpy as np
import pytest
from strategies import make_infos

from msdata_jax.changes import data_changes, resume
from msdata_jax.data_state import BadRecords, DataState, SourceFacts
from msdata_jax.errors import CheckpointError, RecipeError
from msdata_jax.planning.graph import DGraph, initial_state
from msdata_jax.recipe import Recipe, Source
from msdata_jax.records import info_dtype


def lower(record):
    return record


def upper(record):
    return record


def count_frames(sample):
    return {"frames": 1}


def make_recipe(weights=None, *, seed=0, seq_len=8, rows=2, regroup=1, options=(), **of_all):
    """`options` are fields of some sources by name, `of_all` of every source."""
    weights = weights or {"a": 1, "b": 1, "c": 2}
    graph = DGraph().mix(weights).pack(seq_len=seq_len, rows=rows).regroup(steps=regroup)
    sources = {name: Source([], [lower], **{**of_all, **dict(options).get(name, {})}) for name in weights}
    return Recipe(sources=sources, strategy=graph, seed=seed)


def make_facts(recipe, **changes):
    """Of the sources of a recipe; `changes` are fields by source."""
    return tuple(
        SourceFacts(
            block_size=recipe.sources[name].block_size,
            **{
                "name": name,
                "data": f"/data/{name}",
                "content": recipe.content_of(name),
                "num_records": 100,
                "fingerprint": f"print of {name}",
                "files": {f"{name}-0": "00", f"{name}-1": "11"},
                **changes.get(name, {}),
            },
        )
        for name in recipe.source_names
    )


def save(recipe, stream=None, bad=None):
    """The state of a recipe's run: one sample of each source waits for a row."""
    count = len(recipe.sources)
    if stream is None:
        infos = np.concatenate([make_infos(s, [4 + s], positions=[5]) for s in range(count)])
        infos = infos.astype(info_dtype(recipe.columns)) if not recipe.columns else as_columns(infos, recipe)
        tokens = infos["tokens"].astype(np.int64)
        stream = initial_state(count, recipe.columns)
        carry = replace(stream.carry, infos=infos, start=0 * tokens, length=tokens, unit=0 * tokens - 1)
        stream = replace(
            stream,
            step=7,
            last_position=np.arange(10, 10 + count),
            last_part=np.zeros(count, dtype=np.int64),
            carry=carry,
        )
    return DataState(
        stream=stream,
        sources=make_facts(recipe),
        bad=bad or (BadRecords(),) * count,
        mixture=recipe.strategy.mixture,
        packing=recipe.strategy.describe_content(),
        columns=recipe.columns,
        seed=recipe.seed,
        recipe=recipe.fingerprint(),
        plan_digest="",
        mesh="dp=1",
    )


def as_columns(infos, recipe):
    whole = np.zeros(len(infos), info_dtype(recipe.columns))
    for name in infos.dtype.names:
        whole[name] = infos[name]
    return whole


def waiting(resumed):
    """(source, position) of what waits for a row."""
    return resumed.stream.carry.infos[["source", "position"]].tolist()


# --- what the user says -------------------------------------------------------------------------------------


def test_where_nothing_changed_nothing_is_said():
    recipe = make_recipe()
    resumed = resume(save(recipe), recipe, make_facts(recipe))
    assert (resumed.changes, resumed.silent, resumed.stale) == ([], [], [])
    resumed.check(accept_changes=False)
    assert waiting(resumed) == [(0, 5), (1, 5), (2, 5)]
    assert resumed.stream.last_position.tolist() == [10, 11, 12]


def test_what_does_not_decide_the_content_may_change():
    recipe = make_recipe()
    other = make_recipe(block_size=3, isolate=True, read_retries=9, snapshot=True, max_bad_samples=2)
    other = replace(
        other, strategy=other.strategy.distribute("dp", microbatches=2).balance().loss(per="segments")
    )
    resumed = resume(save(recipe), other, make_facts(other))
    assert (resumed.changes, resumed.silent) == ([], [])


def test_sources_that_are_added_removed_or_weighed_anew_are_told_and_go_on():
    recipe, other = make_recipe(), make_recipe({"c": 1, "d": 2, "a": 1})
    bad = tuple(BadRecords(num_bad=n) for n in (1, 2, 3))
    resumed = resume(save(recipe, bad=bad), other, make_facts(other))
    order = (
        "the order of the sources, which decides who is first at ties, changes from ['a', 'c'] to ['c', 'a']"
    )
    assert resumed.changes == [
        "source 'd' is added with a share of 0.5",
        "source 'b' is removed; its share was 0.25",
        "source 'c': its share at step 7 changes from 0.5 to 0.25",
        order,
        "1 sample of source 'b' that waited for a row is left out",
    ]
    resumed.check(accept_changes=False)  # nothing of it is silent
    assert resumed.stream.last_position.tolist() == [12, -1, 10]
    assert waiting(resumed) == [(2, 5), (0, 5)]
    assert [each.num_bad for each in resumed.bad] == [3, 0, 1]


def test_names_that_do_not_fit_the_weights_are_an_error():
    recipe = make_recipe()
    other = replace(save(recipe), mixture=DGraph().mix({"a": 1, "b": 1}).mixture)
    with pytest.raises(RecipeError, match="mix"):
        resume(other, recipe)


# --- what would change without anybody saying so ------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says", "left"),
    [
        ({"seed": 4}, "the seed was 0 and is 4: every source would go on in another order", []),
        ({"rows": 3}, "rows and costs decide which samples share a step; they were ", [0, 1, 2]),
        ({"seq_len": 5}, "rows and costs decide which samples share a step; they were ", [0, 1]),
        (
            {"options": {"b": {"on_bad_sample": "skip"}}},
            "source 'b' was made with on_bad_sample='raise' and is made with on_bad_sample='skip'",
            [0, 2],
        ),
        (
            {"options": {"b": {"shuffle": False}}},
            "source 'b' was made with shuffle=True and is made with shuffle=False",
            [0, 2],
        ),
        (
            {"options": {"b": {"measure": count_frames, "columns": ("frames",)}}},
            "the metadata columns were [] and are ['frames']; source 'b' was made with",
            [0, 2],
        ),
    ],
)
def test_is_refused_unless_it_is_accepted(changes, says, left):
    """What waits for a row stays, but for what is no more or fits no row."""
    recipe, other = make_recipe(), make_recipe(**changes)
    resumed = resume(save(recipe), other, make_facts(other))
    assert says in "; ".join(resumed.silent)
    with pytest.raises(CheckpointError) as refused:
        resumed.check(accept_changes=False)
    assert says in str(refused.value)
    assert str(refused.value).endswith(
        ". Go on with what was, or say accept_changes=True to go on all the same"
    )
    resumed.check(accept_changes=True)
    assert waiting(resumed) == [(source, 5) for source in left]
    assert resumed.stream.carry.infos.dtype == info_dtype(other.columns)
    texts = [
        f"1 sample of source {'abc'[s]!r} that waited for a row is left out"
        for s in range(3)
        if s not in left
    ]
    assert resumed.changes == texts
    assert resumed.stream.last_position.tolist() == [10, 11, 12]


def test_transforms_are_told_apart_by_their_names():
    recipe = make_recipe()
    sources = {**recipe.sources, "a": replace(recipe.sources["a"], transforms=(upper,))}
    resumed = resume(save(recipe), replace(recipe, sources=sources))
    (text,) = resumed.silent
    assert text == "source 'a' was made with transforms=['lower'] and is made with transforms=['upper']"
    assert resumed.stale == ["a"]


def test_columns_that_are_gone_leave_what_waits():
    options = {"b": {"measure": count_frames, "columns": ("frames",)}}
    recipe, other = make_recipe(options=options), make_recipe()
    resumed = resume(save(recipe), other)
    assert resumed.silent[0] == "the metadata columns were ['frames'] and are []"
    assert waiting(resumed) == [(0, 5), (2, 5)]
    assert resumed.stream.carry.infos["tokens"].tolist() == [4, 6]
    assert resumed.stream.carry.infos.dtype == info_dtype()


def test_verdicts_on_records_that_are_others_now_are_forgotten():
    recipe = make_recipe()
    bad = tuple(BadRecords(num_bad=2, verdicts=((0, 3, "crashed"),)) for _ in range(3))
    other = make_recipe(options={"b": {"shuffle": False}})
    resumed = resume(save(recipe, bad=bad), other)
    assert resumed.bad == (bad[0], BadRecords(num_bad=2), bad[2])


def test_verdicts_are_of_no_certain_block_where_blocks_are_of_another_size_now():
    recipe = make_recipe()
    bad = tuple(BadRecords(num_bad=2, verdicts=((0, 3, "crashed"),)) for _ in range(3))
    other = make_recipe(options={"b": {"block_size": 7}})
    resumed = resume(save(recipe, bad=bad), other)
    starts = [start for each in resumed.bad for start, _, _ in each.verdicts]
    assert starts == [0, -1, 0]


def test_inside_a_window_nothing_of_it_may_change():
    recipe = make_recipe(regroup=3)
    ahead = [make_infos(s, [5, 3, 7, 6, 1] * 20) for s in range(3)]
    stream = initial_state(3)
    while not stream.pending:
        composed = recipe.strategy.compose(stream, recipe.source_names, ahead, [False] * 3)
        stream = composed.state
        ahead = [infos[n:] for infos, n in zip(ahead, composed.drawn.tolist(), strict=True)]
    saved = save(recipe, stream)
    resume(saved, recipe).check(accept_changes=False)
    resumed = resume(saved, replace(recipe, seed=3))
    with pytest.raises(CheckpointError, match="the seed was 0 and is 3"):
        resumed.check(accept_changes=False)
    says = r"steps up to 2 are composed already, of what the sources .* were; change that at step 3, where"
    with pytest.raises(RecipeError, match=says):
        resumed.check(accept_changes=True)
    with pytest.raises(
        RecipeError, match=r"steps up to 2 are composed already, of the sources \['a', 'b', 'c'\]"
    ):
        resume(saved, make_recipe({"a": 1}, regroup=3))


# --- data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"files": {"b-0": "00", "b-1": "12"}}, "other bytes in b-1; 100 records were there and 100 are"),
        ({"files": {"b-0": "00"}, "num_records": 60}, "no more b-1; 100 records were there and 60 are"),
        ({"files": {"b-0": "01", "b-2": "22"}}, "other bytes in b-0; no more b-1; new b-2; 100 records"),
        ({"files": {"b-0": "00", "b-1": "11", **{f"b-{n}": "" for n in range(2, 9)}}},
         "new b-2, b-3, b-4, b-5, b-6 and more; 100 records"),
        ({"files": {}}, "changed: 100 records were there and 100 are"),
    ],
)  # fmt: skip
def test_data_that_changed_are_refused_file_by_file(change, says):
    recipe = make_recipe()
    facts = make_facts(recipe, b={"fingerprint": "other", **change})
    resumed = resume(save(recipe), recipe, facts)
    (text,) = resumed.silent
    assert text.startswith("the data of source 'b' changed: ")
    assert says in text
    assert text.endswith("(/data/b)")
    with pytest.raises(CheckpointError, match="the data of source 'b' changed"):
        resumed.check(accept_changes=False)
    resumed.check(accept_changes=True)
    assert (resumed.stale, waiting(resumed)) == (["b"], [(0, 5), (2, 5)])


def test_data_of_other_names_or_places_are_the_same_data():
    recipe = make_recipe()
    assert (
        data_changes(make_facts(recipe), make_facts(recipe, b={"data": "/elsewhere", "files": {"x": "1"}}))
        == []
    )


def test_a_source_that_was_only_renamed_is_refused():
    """It would begin anew at its first sample."""
    recipe, other = make_recipe(), make_recipe({"a": 1, "web": 1, "c": 2})
    facts = make_facts(other, web={"fingerprint": "print of b"})
    resumed = resume(save(recipe), other, facts)
    assert resumed.silent == [
        "source 'web' has the data of 'b', which is gone, and would begin at its first sample; keep the name "
        "to go on behind the last one"
    ]
    with pytest.raises(CheckpointError, match="source 'web' has the data of 'b'"):
        resumed.check(accept_changes=False)
    resumed.check(accept_changes=True)


@pytest.mark.parametrize("web", [{"fingerprint": "print of a"}, {"fingerprint": "print of b", "files": {}}])
def test_sources_that_share_data_or_live_in_memory_are_not_taken_for_renamed(web):
    recipe, other = make_recipe(), make_recipe({"a": 1, "web": 1, "c": 2})
    assert resume(save(recipe), other, make_facts(other, web=web)).silent == []
