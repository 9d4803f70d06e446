"""`msdata plan`: figures against plain loops, advice that fits, pictures, and a process free of JAX."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from jobs.recipe import make_recipe
from jobs_runner import JOBS, environment

import msdata_jax as msd
from msdata_jax.cli.advice import advise
from msdata_jax.cli.plan import command, parse_mesh
from msdata_jax.cli.plan_figures import DryRunFigures, gather
from msdata_jax.dry_run import DryRun
from msdata_jax.errors import BadSampleError, PlanError, RecipeError
from msdata_jax.lineage import PlanLog


def documents(lengths: Sequence[int]) -> list[dict[str, np.ndarray]]:
    return [{"tokens": np.full(length, 7, dtype=np.int32)} for length in lengths]


def figures_of(
    strategy: msd.DGraph, lengths: Sequence[int], mesh: str = "dp=2", steps: int = 5
) -> DryRunFigures:
    recipe = msd.Recipe(sources={"s": msd.Source(documents(lengths))}, strategy=strategy.mix({"s": 1}))
    with DryRun(recipe, parse_mesh(mesh)) as run:
        return gather(run, steps)


def advice_of(strategy: msd.DGraph, lengths: Sequence[int], mesh: str = "dp=2", steps: int = 5) -> str:
    return "\n".join(advise(figures_of(strategy, lengths, mesh, steps)))


# --- the mesh


def test_a_mesh_from_its_text() -> None:
    layout = parse_mesh("dp=2, tp=3", num_processes=3)
    assert layout.axis_names == ("dp", "tp")
    assert layout.axis_sizes == (2, 3)
    assert layout.process_of_device == (0, 0, 1, 1, 2, 2)


@pytest.mark.parametrize(
    ("text", "processes", "message"),
    [
        ("dp", 1, r"such as dp=8,tp=4; 'dp' in 'dp' does not"),
        ("dp=0", 1, r"at least 1.*'dp=0'"),
        ("dp=2,tp=-1", 1, r"'tp=-1' in 'dp=2,tp=-1'"),
        ("dp=2,=3", 1, r"'=3'"),
        ("", 1, r"'' in ''"),
        ("dp=2,dp=2", 1, r"distinct axes"),
        ("dp=1025,tp=1024", 1, r"at most 1048576 devices"),
        ("dp=" + 9999 * "9", 1, r"at most 1048576 devices"),
        ("dp=4", 3, r"4 devices of 'dp=4' do not divide by --processes 3"),
    ],
)
def test_meshes_that_are_none(text: str, processes: int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_mesh(text, processes)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [("tp=2", r"it has no axis 'dp'"), ("dp=3", r"pack\(rows=8\) does not divide by 3 groups")],
)
def test_meshes_that_do_not_fit_the_strategy(mesh: str, message: str) -> None:
    strategy = msd.DGraph().pack(seq_len=8, rows=8).distribute("dp")
    with pytest.raises(RecipeError, match=message):
        figures_of(strategy, [3], mesh)


# --- figures


def test_figures_are_those_of_plain_loops(job_data: Path) -> None:
    recipe = make_recipe(job_data)
    plans, drawn = [], []

    with DryRun(recipe, parse_mesh("dp=2")) as run:

        def see(planned) -> None:
            plans.append(planned.plan)
            drawn.append(planned.drawn)

        figures = gather(run, 8, see)
    for plan, step in zip(plans, figures.steps, strict=True):
        cost = [int(a + b) for a, b in zip(plan.row_cost, plan.row_encoder_cost, strict=True)]
        ranks = [sum(cost[plan.order[g]] for g in range(4 * r, 4 * r + 4)) for r in range(2)]
        parts = [sum(cost[plan.order[g]] for g in range(2 * m, 2 * m + 2)) for m in range(4)]
        assert step["imbalance"] == pytest.approx(2 * max(ranks) / sum(ranks))
        assert step["imbalance_unbalanced"] == pytest.approx(
            2 * max(sum(cost[:4]), sum(cost[4:])) / sum(cost)
        )
        assert step["microbatch_spread"] == pytest.approx(4 * max(parts) / sum(parts))
        assert step["fill"] == sum(plan.length.tolist()) / (8 * 256)
        assert step["giants"] == sum(2 * each > sum(cost) for each in cost)
        phases = [
            max(sum(int(c[plan.order[g]]) for g in range(4 * r, 4 * r + 4)) for r in range(2))
            for c in (plan.row_cost, plan.row_encoder_cost)
        ]
        assert step["objective"] == pytest.approx(2 * sum(phases) / sum(cost))
        assert 1 <= step["dominance"] <= step["imbalance"] + 1e-9
    delivered = Counter()
    for plan in plans:
        for source, length in zip(plan.samples["source"].tolist(), plan.length.tolist(), strict=True):
            delivered[source] += length
    tokens = [sum(int(d["tokens"][d["source"] == s].sum()) for d in drawn) for s in range(4)]
    for index, source in enumerate(figures.sources):
        assert source["percent_of_tokens"] == pytest.approx(100 * delivered[index] / sum(delivered.values()))
        assert source["realised_percent"] == pytest.approx(100 * tokens[index] / sum(tokens))
        assert source["samples"] == sum(int((d["source"] == index).sum()) for d in drawn)
        assert np.array_equal(
            figures.lengths[index], np.concatenate([d["tokens"][d["source"] == index] for d in drawn])
        )


def test_what_is_drawn_is_within_a_sample_of_what_was_asked(job_data: Path) -> None:
    with DryRun(make_recipe(job_data), parse_mesh("dp=1")) as run:
        figures = gather(run, 30)
    tokens = sum(int(lengths.sum()) for lengths in figures.lengths)
    for source in figures.sources:
        missing = abs(source["asked_percent"] - source["realised_percent"]) / 100 * tokens
        assert missing <= 2 * max(each["longest"] for each in figures.sources), source


def test_waits_count_the_steps_between_drawing_and_delivery() -> None:
    """One long sample fills a row alone; long ones come in pairs, so every second waits."""
    recipe = msd.Recipe(
        sources={"s": msd.Source(documents([5, 5, 5, 5, 1, 1]), shuffle=False, block_size=1)},
        strategy=msd.DGraph().mix({"s": 1}).pack(seq_len=8, rows=1),
    )
    seen: dict[tuple[int, int], int] = {}
    waits = Counter()

    with DryRun(recipe, parse_mesh("dp=1")) as run:

        def see(planned) -> None:
            for position in planned.drawn["position"].tolist():
                seen[position] = planned.plan.step
            for position in planned.plan.samples["position"].tolist():
                waits[planned.plan.step - seen[position]] += 1

        source = gather(run, 20, see).sources[0]
    assert max(waits) > 0
    assert source["longest_wait_steps"] == max(waits)
    assert source["waited_percent"] == pytest.approx(100 * (1 - waits[0] / waits.total()))


# --- advice


def pack(seq_len: int = 64, rows: int = 8, **options) -> msd.DGraph:
    return msd.DGraph().pack(seq_len=seq_len, rows=rows, **options).distribute("dp")


MIXED = [1 + (13 * i) % 30 for i in range(60)]


def test_nothing_to_say_about_even_rows() -> None:
    assert advice_of(pack().balance("lpt"), [8] * 400) == ""


def test_advice_on_giants() -> None:
    """About one row a step holds one long sample, and costs 64 times as much as a row of short ones."""
    cubes = pack(rows=8).cost(backbone=lambda infos: infos["tokens"] ** 3).balance("lpt")
    text = advice_of(cubes, [64] + [8] * 60, mesh="dp=4")
    assert "rows cost more than a mean rank, so no placement helps" in text
    assert ".regroup(steps=2)" in text
    assert "context parallelism of degree 4" in text


def test_advice_to_balance_says_what_it_would_bring() -> None:
    squares = pack(rows=16, max_segments_per_row=8).cost(backbone=lambda infos: infos["tokens"] ** 2)
    plain = figures_of(squares, MIXED, mesh="dp=2")
    balanced = figures_of(squares.balance("lpt"), MIXED, mesh="dp=2")
    text = "\n".join(advise(plain))
    assert f".balance('lpt') would bring that to {balanced.mean('imbalance'):.2f}" in text
    assert "would bring" not in "\n".join(advise(balanced))


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (msd.DGraph().pad(seq_len=64, rows=8).distribute("dp"), "padding leaves 75 % of the places empty"),
        (msd.DGraph().pad(seq_len=64, rows=8).distribute("dp"), "buckets of [64, 64]"),
        (pack(max_segments_per_row=2), "max_segments_per_row=2 is the limit"),
        (pack(seq_len=20), "samples longer than half a row"),
        (pack(oversize="truncate", seq_len=12), "exceed seq_len=12; their ends are left out"),
        (pack().balance("lpt", objective="microbatch"), "objective='microbatch' with one microbatch"),
        (msd.DGraph().bucket({16: 8, 64: 2, 128: 2}).distribute("dp"), "Bucket of 16 places: 5 of 5 steps"),
        (msd.DGraph().bucket({16: 8, 64: 2, 128: 2}).distribute("dp"), "Bucket of 128 places: no step"),
    ],
)
def test_advice_on_options(strategy: msd.DGraph, sentence: str) -> None:
    if sentence == "buckets of [64, 64]":
        assert "buckets" not in advice_of(strategy, [16] * 40)
        return
    lengths = (
        [16] * 40 if "exceed" in sentence or "Bucket" in sentence or "padding" in sentence else [13] * 40
    )
    assert sentence in advice_of(strategy, lengths)


def test_advice_on_a_pipeline() -> None:
    strategy = msd.DGraph().pack(seq_len=64, rows=8).distribute("dp", microbatches=2, pipeline_axis="pp")
    assert "There are pipeline stages along 'pp'" in advice_of(strategy.balance("lpt"), MIXED, "dp=2,pp=2")


def test_advice_on_patches(job_data: Path) -> None:
    """The images of this recipe take a third of the tokens later on, and rows hold few patches."""
    with DryRun(make_recipe(job_data), parse_mesh("dp=2")) as run:
        text = "\n".join(advise(gather(run, 20)))
    assert "patches are the limit" in text
    assert "Source 'images': " in text
    assert "records could not be read or transformed; the first at position" in text


def test_data_that_the_recipe_does_not_let_pass_end_the_dry_run() -> None:
    with pytest.raises(BadSampleError, match=r"step 0: source 's'.*has 65 tokens"):
        figures_of(pack(), [65])


# --- the command


def msdata_plan(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "error", "-m", "msdata_jax", "plan", str(JOBS / "recipe.py"), *arguments]
    return subprocess.run(
        line, env=environment(data), capture_output=True, text=True, timeout=60, check=False
    )


def test_one_object_and_a_log(job_data: Path, tmp_path: Path) -> None:
    done = msdata_plan(
        *("--mesh", "dp=4,tp=2", "--steps", "3", "--json", "--log", str(tmp_path / "log")), data=job_data
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["mesh"] == "dp=4,tp=2"
    assert result["strategy"].startswith("mix          by tokens")
    assert [source["name"] for source in result["sources"]] == ["lines", "blocks", "files", "images"]
    assert isinstance(result["advice"], list)
    log = PlanLog(tmp_path / "log")
    assert [logged.plan.digest for logged in log] == [step["digest"] for step in result["steps"]]
    assert log.header.loaders == []
    assert log.delivered == -1
    assert f"wrote {tmp_path / 'log'}\n" in done.stderr
    again = msdata_plan("--log", str(tmp_path / "log"), data=job_data)
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_tables_and_pictures(job_data: Path, tmp_path: Path) -> None:
    plan, draw, text = (str(tmp_path / name) for name in ("plan.png", "draw.png", "draw.mmd"))
    done = msdata_plan(*("--mesh", "dp=2", "--steps", "3", "--plot", plan, "--draw", draw), data=job_data)
    assert done.returncode == 0, done.stderr
    for words in ("places filled", "dearest rank", "Sources", "Advice", "images"):
        assert words in done.stdout
    for path in (plan, draw):
        assert Path(path).read_bytes().startswith(b"\x89PNG")
        assert f"wrote {path}\n" in done.stderr
    done = msdata_plan("--draw", text, data=job_data)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert Path(text).read_text() == make_recipe(job_data).strategy.to_mermaid() + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draw", "strategy.gif"), "--draw writes .png, .pdf, .svg or .mmd, by the file's suffix"),
        (("--plot", "plan.mmd"), "--plot writes .png, .pdf or .svg"),
        (("--plot", "/nowhere/plan.png"), "--plot /nowhere/plan.png cannot be written: No such file"),
        (("--draw", "/proc/draw.mmd"), "--draw /proc/draw.mmd cannot be written"),
        (("--mesh", "dp=1000000000"), "at most 1048576 devices, got 'dp=1000000000'"),
        (("--processes", "2"), "give --mesh"),
        (("--mesh", "dp=5"), "does not divide by 5 groups"),
    ],
)
def test_wrong_calls(arguments: tuple[str, ...], message: str, job_data: Path) -> None:
    done = msdata_plan(*arguments, data=job_data)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_pictures_of_large_jobs_are_drawn_too(tmp_path: Path) -> None:
    from msdata_jax.cli.plots import draw_strategy, plot_dry_run

    many = {f"source{i}": msd.Source(documents([1 + (i * j) % 60 for j in range(40)])) for i in range(30)}
    strategy = msd.DGraph().mix(dict.fromkeys(many, 1)).pack(seq_len=64, rows=512).distribute("dp").balance()
    recipe = msd.Recipe(sources=many, strategy=strategy)
    layout = parse_mesh("dp=64")
    with DryRun(recipe, layout) as run:
        figures = gather(run, 3)
    plot_dry_run(figures, tmp_path / "plan.png", title="many")
    draw_strategy(strategy, recipe.source_names, layout, tmp_path / "draw.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    for suffix, begin in ((".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")):
        plot_dry_run(figures, tmp_path / f"plan{suffix}", title="many")
        assert (tmp_path / f"plan{suffix}").read_bytes().startswith(begin)
    with pytest.raises(RecipeError, match="cannot write the picture"):
        plot_dry_run(figures, tmp_path / "no folder" / "plan.png", title="many")


def test_a_source_has_one_colour_in_all_panels(job_data: Path) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    from msdata_jax.cli.plots import _draw_lengths, _draw_mixture

    with DryRun(make_recipe(job_data), parse_mesh("dp=2")) as run:
        figures = gather(run, 5)
    mixture, lengths = Figure().subplots(1, 2)
    _draw_mixture(mixture, figures)
    _draw_lengths(lengths, figures)
    names = [label.get_text() for label in mixture.get_yticklabels()]
    bars = dict(zip(names, (to_hex(bar.get_facecolor()) for bar in mixture.patches), strict=True))
    handles, labels = lengths.get_legend_handles_labels()
    areas = {name: to_hex(each.get_facecolor()) for name, each in zip(labels, handles, strict=True)}
    assert bars == areas
    assert len(set(bars.values())) == 4


@pytest.mark.parametrize(
    ("strategy", "title"),
    [
        (pack(), "Work of each data-parallel rank"),
        (
            pack().cost(backbone=lambda infos: infos["tokens"], encoder=lambda infos: infos["tokens"]),
            "Work of each data-parallel rank (backbone and encoder)",
        ),
    ],
)
def test_the_picture_says_whether_the_encoder_is_in_it(strategy: msd.DGraph, title: str) -> None:
    from matplotlib.figure import Figure

    from msdata_jax.cli.plots import _draw_rank_costs

    plan = figures_of(strategy, MIXED).worst
    assert plan is not None
    axes = Figure().subplots()
    _draw_rank_costs(axes, plan)
    assert axes.get_title() == f"{title}, step {plan.step}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_where_the_disk_is_full_the_tables_are_shown_first(job_data: Path, tmp_path: Path) -> None:
    for option, name in (("--plot", "plan.png"), ("--draw", "draw.mmd")):
        (tmp_path / name).symlink_to("/dev/full")
        done = msdata_plan("--mesh", "dp=2", "--steps", "2", option, str(tmp_path / name), data=job_data)
        assert done.returncode == 1
        assert "Advice" in done.stdout
        assert f"{name} was not written: " in done.stderr
        assert "Traceback" not in done.stderr


def test_a_dry_run_loads_no_framework(job_data: Path) -> None:
    program = (
        "import sys; from click.testing import CliRunner; from msdata_jax.cli.plan import command\n"
        f"done = CliRunner().invoke(command, [{str(JOBS / 'recipe.py')!r}, '--steps', '2'])\n"
        "assert done.exit_code == 0, done.output\n"
        "loaded = {name.partition('.')[0] for name, module in sys.modules.items() if module}\n"
        "print(sorted(loaded & "
        "{'jax', 'jaxlib', 'torch', 'mpi4py', 'grain', 'matplotlib'}))"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(
        line, env=environment(job_data), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_log_in_no_folder_is_told_before_anything_is_planned(
    tmp_path: Path, monkeypatch, job_data: Path
) -> None:
    monkeypatch.setenv("MSDATA_TEST_DATA", str(job_data))
    arguments = [str(JOBS / "recipe.py"), "--log", str(tmp_path / "nowhere" / "log")]
    with pytest.raises(PlanError, match="cannot be written"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
