import pytest

from msdata_jax.errors import RecipeError
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import MeshLayout, single_process_layout
from msdata_jax.runtime.fields import field_specs, global_shapes, layout_without_mesh, row_formats

LAYOUT = MeshLayout(
    axis_names=("pp", "dp", "cp", "tp"),
    axis_sizes=(2, 2, 2, 2),
    process_of_device=tuple(device // 2 for device in range(16)),
)
BUCKETS = (
    DGraph()
    .mix({"a": 1})
    .bucket(rows={32: 4, 16: 8}, patches_per_row=2, patch_values=12)
    .distribute("dp", context_axis="cp", context_layout="zigzag_document", pipeline_axis="pp")
    .broadcast_at("tp")
    .loss(per="segments")
)
WORLD = DGraph().mix({"a": 1}).pack(seq_len=16, rows=16).distribute("world")


def specs_of(graph, given):
    tree = graph.place_tree(LAYOUT)
    return field_specs(given, graph, tree, global_shapes(graph, tree, row_formats(graph, tree)))


def test_every_bucket_has_a_format_and_shapes():
    forms = row_formats(BUCKETS, BUCKETS.place_tree(LAYOUT))
    assert sorted(forms) == [16, 32]
    for seq_len, form in forms.items():
        assert (form.seq_len, form.context_parts, form.context_layout) == (seq_len, 2, "zigzag_document")
        assert (form.patches_per_row, form.patch_values, form.loss) == (2, 12, "segments")
    short, long = global_shapes(BUCKETS, BUCKETS.place_tree(LAYOUT), forms)
    assert (short["tokens"], long["tokens"]) == ((8, 16), (4, 32))
    assert (short["patches"], long["patches"]) == ((8, 2, 12), (4, 2, 12))


def test_specs_follow_the_strategy():
    specs = specs_of(BUCKETS, {})
    assert specs["tokens"] == specs["patch_index"] == ("dp", "cp")
    assert specs["patches"] == ("dp", None, None)
    assert specs_of(BUCKETS, {"patches": ("dp", "tp")})["patches"] == ("dp", "tp", None)
    assert specs_of(WORLD, {})["tokens"] == (("pp", "dp", "cp", "tp"), None)


def test_the_encoder_has_axes_of_its_own():
    graph = DGraph().mix({"a": 1}).pack(seq_len=16, rows=8, patches_per_row=2)
    graph = graph.distribute("dp", encoder_axis=("dp", "tp"))
    specs = specs_of(graph, {})
    assert specs["tokens"] == specs["patch_index"] == ("dp", None)
    assert specs["patches"] == (("dp", "tp"), None, None)
    assert specs["patch_segment_ids"] == (("dp", "tp"), None)
    with pytest.raises(RecipeError, match=r"spreads images along \('dp', 'tp'\); specs\['patches'\] cuts"):
        specs_of(graph, {"patches": ("dp",)})


def test_without_a_mesh_each_axis_has_one_device():
    assert layout_without_mesh(BUCKETS) == single_process_layout(["dp", "cp", "pp", "tp"])
    assert layout_without_mesh(WORLD) == single_process_layout(["dp"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": ("dp", ("cp", "pp"))}, "stages along 'pp' work on the same batch"),
        ({"tokens": ("dp", None)}, r"context_layout='zigzag_document'\) orders the places for that axis"),
        ({"tokens": (("dp", "tp"), "cp")}, r"repeats rows along axes that cut them: \['tp'\]"),
        ({"tokens": ("tp", "cp")}, r"distribute\('dp'\) balances the parts along that axis"),
        ({"patches": ("tp",)}, "every field cuts its rows alike"),
        ({"patches": ("dp", None, "ep")}, "it has no axis 'ep'"),
        ({"patches": ("dp", ("cp", "tp"))}, "dim 1 of size 2 along"),
        ({"labels": ("dp",)}, r"specs name the fields \['labels'\]"),
    ],
)
def test_specs_that_contradict_the_strategy_are_refused(given, says):
    with pytest.raises(RecipeError, match=says):
        specs_of(BUCKETS, given)
