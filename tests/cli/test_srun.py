"""Jobs in a Slurm allocation, from its environment alone; real ones are in tests/slurm."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msdata_transport.mpich import PROVIDER, PROVIDER_VARIABLE
from msdata_transport.shared_folder import VARIABLE as SHARED_VARIABLE

from msdata_jax.cli.mpiexec import spread_line
from msdata_jax.cli.srun import (
    Part,
    Wanted,
    check_plugin,
    find_plugin,
    plan_layout,
    read_allocation,
    serve_line,
    spans_hosts,
    srun_environment,
    srun_line,
)
from msdata_jax.errors import LaunchError
from msdata_jax.roles.placement import role_of_rank

# As Slurm 22.05 sets them for `-N2 --gpus-per-node=2 --ntasks-per-node=5 --cpus-per-task=2`.
JOB = {
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "10",
    "SLURM_NTASKS_PER_NODE": "5",
    "SLURM_TASKS_PER_NODE": "5(x2)",
    "SLURM_GPUS_PER_NODE": "2",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_CPUS_PER_TASK": "2",
}
HET_JOB = {
    "SLURM_JOB_ID": "3",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_NTASKS_PER_NODE": "9",  # of nobody knows which part
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_NTASKS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_GPUS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "3(x2)",
}
TRAINING = Part(num_nodes=2, tasks_per_node=2, gpus_per_node=2)
LOADING = Part(num_nodes=2, tasks_per_node=3)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({}, Part(num_nodes=2, tasks_per_node=5, gpus_per_node=2, cpus_per_task=2)),
        (
            {"SLURM_GPUS_PER_NODE": "a100:4"},
            Part(num_nodes=2, tasks_per_node=5, gpus_per_node=4, cpus_per_task=2),
        ),
        (
            {"SLURM_GPUS_PER_NODE": "a:1,b:2"},
            Part(num_nodes=2, tasks_per_node=5, gpus_per_node=3, cpus_per_task=2),
        ),
        (
            {"SLURM_GPUS_PER_NODE": None},
            Part(num_nodes=2, tasks_per_node=5, gpus_per_node=2, cpus_per_task=2),
        ),
        (
            {"SLURM_GPUS_PER_NODE": None, "SLURM_GPUS_ON_NODE": None, "SLURM_CPUS_PER_TASK": None},
            Part(num_nodes=2, tasks_per_node=5),
        ),
        (
            {"SLURM_NTASKS_PER_NODE": None, "SLURM_TASKS_PER_NODE": "4(x2)"},
            Part(num_nodes=2, tasks_per_node=4, gpus_per_node=2, cpus_per_task=2),
        ),
        (
            {"SLURM_NTASKS_PER_NODE": None, "SLURM_TASKS_PER_NODE": "4,3"},
            Part(num_nodes=2, gpus_per_node=2, cpus_per_task=2),
        ),
    ],
)
def test_reads_what_slurm_gave(change: dict[str, str | None], part: Part) -> None:
    environ = {name: value for name, value in {**JOB, **change}.items() if value is not None}
    assert read_allocation(environ) == [part]


def test_reads_the_parts_of_a_heterogeneous_job() -> None:
    assert read_allocation(HET_JOB) == [
        Part(num_nodes=1, tasks_per_node=2, gpus_per_node=2, cpus_per_task=2),
        Part(num_nodes=2, tasks_per_node=3),
    ]
    with pytest.raises(LaunchError, match="no Slurm job here"):
        read_allocation({})


@pytest.mark.parametrize(
    ("parts", "wanted", "roles"),
    [
        ([Part(num_nodes=1, tasks_per_node=3)], Wanted(), "trainers=1,loaders=1,planner=1"),
        (
            [Part(num_nodes=2, tasks_per_node=4, gpus_per_node=2)],
            Wanted(),
            "trainers=2,loaders=1,planner=1,trainers=2,loaders=2",
        ),
        (
            [Part(num_nodes=2, tasks_per_node=2)],
            Wanted(trainers_per_node=1, loaders_per_node=3, shadows=1),
            "trainers=1,loaders=2,planner=1,trainers=1,loaders=2,shadows=1",
        ),
        (
            [Part(num_nodes=3, tasks_per_node=3, gpus_per_node=2)],
            Wanted(trainers=2),
            "trainers=2,planner=1,loaders=6",
        ),
        (
            [Part(num_nodes=2, tasks_per_node=3)],
            Wanted(trainers=1, shadows=2),
            "trainers=1,loaders=1,planner=1,loaders=1,shadows=2",
        ),
        ([TRAINING, LOADING], Wanted(), "trainers=4,loaders=2,planner=1,loaders=3"),
        (
            [TRAINING, LOADING],
            Wanted(trainers=2, trainers_per_node=1),
            "trainers=2,loaders=2,planner=1,loaders=3",
        ),
        ([TRAINING, LOADING], Wanted(loaders_per_node=1, shadows=0), "trainers=4,planner=1,loaders=1"),
    ],
)
def test_layouts(parts: list[Part], wanted: Wanted, roles: str) -> None:
    layout = plan_layout(parts, wanted)
    assert layout.roles == roles
    assert layout.num_ranks == sum(int(run.split("=")[1]) for run in roles.split(","))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 3))
def test_every_rank_has_its_place(num_nodes: int, trainers: int, loaders: int, shadows: int) -> None:
    assume(num_nodes * loaders >= 2 + shadows)
    tasks = trainers + loaders
    part = Part(num_nodes=num_nodes, tasks_per_node=tasks)
    layout = plan_layout([part], Wanted(trainers_per_node=trainers, shadows=shadows))
    roles = [role_of_rank(layout.roles, rank) for rank in range(layout.num_ranks)]
    counts = [roles.count(role) for role in ("constructor", "planner", "shadow", "loader")]
    expect = [num_nodes * trainers, 1, shadows, num_nodes * loaders - 1 - shadows]
    assert counts == expect
    for first in range(0, layout.num_ranks, tasks):
        assert roles[first : first + trainers] == ["constructor"] * trainers
    assert roles[tasks - 1] == "planner"


@pytest.mark.parametrize(
    ("parts", "wanted", "message"),
    [
        (
            [Part(num_nodes=2, tasks_per_node=4, gpus_per_node=4)],
            Wanted(),
            r"per-node=4, of which 4 to train \(one for each GPU\).*per-node=6",
        ),
        (
            [Part(num_nodes=1, tasks_per_node=1)],
            Wanted(),
            "per-node=1, of which 1 to train, .*per-node=3 or more",
        ),
        (
            [Part(num_nodes=1, tasks_per_node=2)],
            Wanted(),
            r"tasks: 2 \(1 x 2\) for trainers=1, planner=1, .* --ntasks-per-node=3",
        ),
        ([Part(num_nodes=2, tasks_per_node=3)], Wanted(shadows=3), r"6 \(2 x 3\) .* shadows=3"),
        ([Part(num_nodes=2)], Wanted(), "nodes of this job differ in tasks: use sbatch --ntasks-per-node=N"),
        (
            [Part(num_nodes=2, tasks_per_node=3)],
            Wanted(trainers=3),
            "3 trainers do not fit on 2 nodes with 1 a node",
        ),
        ([LOADING, TRAINING], Wanted(), "second part .* has GPUs and the first has none"),
        ([TRAINING, LOADING, LOADING], Wanted(), "has two parts, .* this one has 3"),
        (
            [TRAINING, Part(num_nodes=1, tasks_per_node=1)],
            Wanted(),
            "--ntasks-per-node=2 or more in the second part",
        ),
        ([TRAINING, Part(num_nodes=2)], Wanted(), "second part's nodes differ in tasks"),
        (
            [TRAINING, LOADING],
            Wanted(trainers=3),
            "first part has 4 tasks and all of them train, got --trainers 3",
        ),
    ],
)
def test_allocations_that_are_no_job(parts: list[Part], wanted: Wanted, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        plan_layout(parts, wanted)


def test_the_command_of_one_job() -> None:
    layout = plan_layout(read_allocation(JOB), Wanted())
    rank = serve_line("python", layout, ["--threads", "2"], Path("recipe.py"), ["train.py", "--fast"])
    assert rank == [
        *("python", "-m", "msdata_jax", "serve", "--threads", "2"),
        *(
            "--roles",
            "trainers=2,loaders=2,planner=1,trainers=2,loaders=3",
            "recipe.py",
            "--",
            "train.py",
            "--fast",
        ),
    ]
    assert srun_line(layout, "pmi2", ["rank"], ["--exclusive"]) == [
        *(
            "srun",
            "--mpi=pmi2",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--no-kill",
            "--cpu-bind=none",
            "--nodes=2",
        ),
        *(
            "--ntasks=10",
            "--ntasks-per-node=5",
            "--distribution=block",
            "--cpus-per-task=2",
            "--exclusive",
            "rank",
        ),
    ]


def test_the_command_of_a_heterogeneous_job() -> None:
    line = srun_line(plan_layout(read_allocation(HET_JOB), Wanted()), "pmi2", ["rank"])
    first, second = line[: line.index(":")], line[line.index(":") :]
    assert first[:2] == ["srun", "--het-group=0"]
    assert second[:2] == [":", "--het-group=1"]
    assert {"--ntasks=2", "--nodes=1", "--cpus-per-task=2", "--mpi=pmi2"} <= {*first}
    assert {"--ntasks=6", "--nodes=2", "--mpi=pmi2", "--kill-on-bad-exit=0"} <= {*second}
    assert first[-1] == second[-1] == "rank"


def test_what_sbatch_says_of_its_tasks_is_not_for_the_step() -> None:
    environ = {**JOB, "PATH": "/bin", "SLURM_GPUS_PER_TASK": "1"}
    kept = srun_environment(environ, "pmi2", is_wheel=True)
    assert not {"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_GPUS_PER_TASK"} & {
        *kept
    }
    assert kept["PATH"] == "/bin"
    assert kept["SLURM_JOB_ID"] == "2"
    assert kept[SHARED_VARIABLE] == "1"
    assert (kept["MPIR_CVAR_CH4_NETMOD"], kept[PROVIDER_VARIABLE]) == ("ofi", PROVIDER)
    chosen = srun_environment({**JOB, "MPIR_CVAR_CH4_NETMOD": "ucx"}, "pmi2", is_wheel=True)
    assert chosen["MPIR_CVAR_CH4_NETMOD"] == "ucx"


def test_the_network_of_the_sites_mpi_is_the_sites() -> None:
    kept = srun_environment(JOB, "pmi2", is_wheel=False)
    assert not {"MPIR_CVAR_CH4_NETMOD", PROVIDER_VARIABLE} & {*kept}
    assert SHARED_VARIABLE not in srun_environment(
        JOB, "pmix", is_wheel=False
    )  # it ends the job at any death


LISTED = """MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""


def test_a_plugin_that_srun_does_not_have() -> None:
    for plugin in ("pmi2", "pmix", "pmix_v4"):
        check_plugin(plugin, LISTED)
    check_plugin("pmi2", "srun: MPI types are...\nsrun: none\nsrun: pmi2\n")
    with pytest.raises(LaunchError, match="no MPI plugin pmi2, only none, pmix: say --mpi"):
        check_plugin("pmi2", "MPI plugin types are...\n\tnone\n\tpmix\n")
    with pytest.raises(LaunchError, match="only none:"):
        check_plugin("pmi2", "srun: error: no cluster here")


def test_the_sites_choice_of_plugin_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    mpiexec.chmod(0o755)
    assert find_plugin({"SLURM_MPI_TYPE": "pmix_v4"}) == "pmix_v4"
    assert find_plugin({"SLURM_MPI_TYPE": "none"}) == "pmix"
    mpiexec.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    assert find_plugin({}) == "pmi2"


def test_mpiexec_over_the_nodes_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert spans_hosts(JOB)
    assert spans_hosts(HET_JOB)
    assert not spans_hosts({**JOB, "SLURM_JOB_NUM_NODES": "1"})
    assert not spans_hosts({**JOB, "SLURM_STEP_ID": "0"})
    assert not spans_hosts({})
    layout = plan_layout(read_allocation(JOB), Wanted())
    line = spread_line(layout.num_ranks, layout.ranks_per_node, ["rank"])
    assert line[1:] == ["-ppn", "5", "-n", "10", "rank"]
    with pytest.raises(LaunchError, match="use --launcher srun"):
        _ = plan_layout(read_allocation(HET_JOB), Wanted()).ranks_per_node
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    mpiexec.chmod(0o755)
    with pytest.raises(LaunchError, match="is not MPICH's"):
        spread_line(10, 5, ["rank"])
