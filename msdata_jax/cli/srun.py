"""A job inside a Slurm allocation: which task plays what, and the srun command of them all.

What Slurm gave is read from its environment. Tasks are laid out in blocks, node by node; on each the training
processes come first, and the planner is the last task of the first node that loads:

    one job           n0: trainer trainer loader planner | n1: trainer trainer loader loader
    two parts (het)   n0: trainer trainer | n1: loader loader planner | n2: loader loader loader
"""

import importlib.metadata
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path

from msdata_transport import find_mpiexec
from msdata_transport.launch import is_in_step, is_open_mpi
from msdata_transport.mpich import PROVIDER, PROVIDER_VARIABLE
from msdata_transport.shared_folder import VARIABLE as SHARED_VARIABLE

from msdata_jax.errors import LaunchError
from msdata_jax.roles.placement import role_of_rank

PLUGINS = ("pmi2", "pmix")
_OWN_TASKS = (
    *("NTASKS", "NPROCS", "NTASKS_PER_NODE", "TASKS_PER_NODE", "NTASKS_PER_CORE", "NTASKS_PER_GPU"),
    *("NTASKS_PER_SOCKET", "CPUS_PER_TASK", "GPUS_PER_TASK", "DISTRIBUTION", "NNODES", "JOB_NUM_NODES"),
)
"""What sbatch says of its own tasks, and srun would take for those of the step."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The nodes of an allocation, or of one component of a heterogeneous job.

    Attributes:
        num_nodes: nodes.
        tasks_per_node: as asked for; None where that is not the same on all.
        gpus_per_node: 0 for none.
        cpus_per_task: None where nothing was asked for.
    """

    num_nodes: int
    tasks_per_node: int | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asks for; None leaves it to what Slurm gave.

    Attributes:
        trainers: training processes of the whole job.
        trainers_per_node: at most so many on each node.
        loaders_per_node: beside the trainers; the planner counts as one.
        shadows: spare loaders of the whole job, which take the places of the last ones.
    """

    trainers: int | None = None
    trainers_per_node: int | None = None
    loaders_per_node: int | None = None
    shadows: int = 0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Who is where.

    Attributes:
        parts: the parts of the allocation, with the tasks that are started on each of their nodes.
        roles: of all ranks in order, as `msdata serve --roles` takes them.
    """

    parts: tuple[Part, ...]
    roles: str

    @property
    def num_ranks(self) -> int:
        """Tasks of the step."""
        return sum(part.num_nodes * (part.tasks_per_node or 0) for part in self.parts)

    @property
    def ranks_of_nodes(self) -> list[int]:
        """Tasks of each node."""
        return [part.tasks_per_node or 0 for part in self.parts for _ in range(part.num_nodes)]

    @property
    def ranks_per_node(self) -> int:
        """Tasks of each node, where all have as many.

        Raises:
            LaunchError: it is a heterogeneous job.
        """
        first, *others = self.parts
        if others:
            raise LaunchError("mpiexec sees only the first part of a heterogeneous job: use --launcher srun")
        return first.tasks_per_node or 1


def read_allocation(environ: Mapping[str, str]) -> list[Part]:
    """The parts of the allocation that this process runs in.

    Raises:
        LaunchError: it runs in none.
    """
    if "SLURM_JOB_ID" not in environ:
        raise LaunchError("no Slurm job here (SLURM_JOB_ID is not set): start it by sbatch or salloc")
    size = environ.get("SLURM_HET_SIZE", "")
    suffixes = [f"_HET_GROUP_{group}" for group in range(int(size))] if size.isdecimal() else [""]
    return [_read_part(environ, suffix) for suffix in suffixes]


def _read_part(environ: Mapping[str, str], suffix: str) -> Part:
    def read(*names: str) -> str:
        return next((environ[name + suffix] for name in names if name + suffix in environ), "")

    uniform = re.fullmatch(r"(\d+)(?:\(x\d+\))?", read("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    gpus = read("SLURM_GPUS_PER_NODE")  # such as 4, or a100:4
    if not gpus and suffix in ("", "_HET_GROUP_0"):
        gpus = environ.get("SLURM_GPUS_ON_NODE", "")  # of the first node, with --gres=gpu:4
    cpus = read("SLURM_CPUS_PER_TASK")
    return Part(
        num_nodes=int(read("SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1),
        tasks_per_node=int(uniform[1]) if uniform else None,
        gpus_per_node=sum(int(number) for number in re.findall(r"(?:^|[:,])(\d+)(?=,|$)", gpus)),
        cpus_per_task=int(cpus) if cpus.isdecimal() else None,
    )


def plan_layout(parts: Sequence[Part], wanted: Wanted) -> Layout:
    """Give each task its role.

    Raises:
        LaunchError: there are too few tasks, or the parts are none that such a job can have.
    """
    if len(parts) == 1:
        placed, nodes = _share_nodes(parts[0], wanted)
    elif len(parts) == 2:
        placed, nodes = _split_nodes(parts[0], parts[1], wanted)
    else:
        raise LaunchError(
            f"a heterogeneous job has two parts, the first trains and the second loads; this one has "
            f"{len(parts)}: write one `#SBATCH hetjob` line"
        )
    roles = [role for node in _place_planner(nodes) for role in node]
    for _ in range(wanted.shadows):
        if roles.count("loaders") > 1:
            roles[len(roles) - 1 - roles[::-1].index("loaders")] = "shadows"
    _check_roles(roles, placed, wanted)
    spec = ",".join(f"{role}={len(list(run))}" for role, run in groupby(roles))
    return Layout(parts=placed, roles=spec)


def _share_nodes(part: Part, wanted: Wanted) -> tuple[tuple[Part, ...], list[list[str]]]:
    """Trainers and loaders on the same nodes."""
    trainers = wanted.trainers_per_node or part.gpus_per_node or 1
    tasks = _tasks(part, trainers, wanted)
    left = wanted.trainers or trainers * part.num_nodes
    if left > trainers * part.num_nodes:
        raise LaunchError(
            f"{left} trainers do not fit on {part.num_nodes} nodes with {trainers} a node: ask for more "
            f"nodes, or say --trainers-per-node"
        )
    nodes: list[list[str]] = []
    for _ in range(part.num_nodes):
        here = min(trainers, left)
        left -= here
        nodes.append(["trainers"] * here + ["loaders"] * (tasks - here))
    return (replace(part, tasks_per_node=tasks),), nodes


def _split_nodes(training: Part, loading: Part, wanted: Wanted) -> tuple[tuple[Part, ...], list[list[str]]]:
    """Trainers on the nodes of the first part, loaders on those of the second."""
    if loading.gpus_per_node and not training.gpus_per_node:
        raise LaunchError(
            "the second part of this heterogeneous job has GPUs and the first has none: the first one trains "
            "and the second loads, so write the part with GPUs before the `#SBATCH hetjob` line"
        )
    trainers = wanted.trainers_per_node or training.tasks_per_node or training.gpus_per_node or 1
    total = trainers * training.num_nodes
    if wanted.trainers not in (None, total):
        raise LaunchError(
            f"the first part has {total} tasks and all of them train, got --trainers {wanted.trainers}: "
            f"leave it out, or say --trainers-per-node"
        )
    loaders = wanted.loaders_per_node or loading.tasks_per_node
    if loaders is None:
        raise LaunchError("the second part's nodes differ in tasks: give it --ntasks-per-node")
    nodes = [["trainers"] * trainers] * training.num_nodes + [["loaders"] * loaders] * loading.num_nodes
    return (replace(training, tasks_per_node=trainers), replace(loading, tasks_per_node=loaders)), nodes


def _tasks(part: Part, trainers: int, wanted: Wanted) -> int:
    """Tasks on each node that trainers share with loaders."""
    if wanted.loaders_per_node is not None:
        return trainers + wanted.loaders_per_node
    if part.tasks_per_node is None:
        raise LaunchError(
            "the nodes of this job differ in tasks: use sbatch --ntasks-per-node=N, or say "
            "--trainers-per-node and --loaders-per-node"
        )
    if part.tasks_per_node < trainers + 1:
        each = " (one for each GPU)" if wanted.trainers_per_node is None and part.gpus_per_node else ""
        raise LaunchError(
            f"too few tasks: --ntasks-per-node={part.tasks_per_node}, of which {trainers} to train{each}, "
            f"and others load and plan. Use sbatch --ntasks-per-node={trainers + 2} or more, or say "
            f"--loaders-per-node"
        )
    return part.tasks_per_node


def _place_planner(nodes: Sequence[Sequence[str]]) -> list[list[str]]:
    """The planner takes the place of the last loader of the first node that has any."""
    placed = [list(node) for node in nodes]
    for node in placed:
        if "loaders" in node:
            node[-1] = "planner"
            break
    return placed


def _check_roles(roles: Sequence[str], parts: Sequence[Part], wanted: Wanted) -> None:
    counts = {role: roles.count(role) for role in ("trainers", "planner", "loaders", "shadows")}
    if (
        min(counts["trainers"], counts["planner"], counts["loaders"]) < 1
        or counts["shadows"] < wanted.shadows
    ):
        per_node = [f"{part.num_nodes} x {part.tasks_per_node}" for part in parts]
        least = (parts[-1].tasks_per_node or 0) + 1 + -(-wanted.shadows // parts[-1].num_nodes)
        raise LaunchError(
            f"too few tasks: {len(roles)} ({' and '.join(per_node)}) for trainers={counts['trainers']}, "
            f"planner=1, shadows={wanted.shadows} and at least one loader. Use sbatch "
            f"--ntasks-per-node={least} or more{' in the second part' if len(parts) > 1 else ''}, or say "
            f"--loaders-per-node"
        )


def srun_line(layout: Layout, plugin: str, rank: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The srun command: one step, hence one MPI world, whose tasks go on when others are lost.

    Args:
        layout: who is where.
        plugin: Slurm's MPI plugin.
        rank: the command of every task.
        options: further ones for srun, for each part.
    """
    line: list[str] = ["srun"]
    for group, part in enumerate(layout.parts):
        tasks = part.tasks_per_node or 1
        line += [":"] if group else []
        line += [f"--het-group={group}"] if len(layout.parts) > 1 else []
        line += [f"--mpi={plugin}", "--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--cpu-bind=none"]
        line += [f"--nodes={part.num_nodes}", f"--ntasks={part.num_nodes * tasks}"]
        line += [f"--ntasks-per-node={tasks}", "--distribution=block"]
        line += [f"--cpus-per-task={part.cpus_per_task}"] if part.cpus_per_task else []
        line += [*options, *rank]
    return line


def srun_environment(environ: Mapping[str, str], plugin: str, *, is_wheel: bool) -> dict[str, str]:
    """The environment for `srun_line`: Slurm's words about sbatch's tasks are left out.

    Args:
        environ: of this process.
        plugin: Slurm's MPI plugin.
        is_wheel: whether MPI is the `mpich` wheel; its network is then one that survivors of a lost rank
            survive (`msdata_transport.mpich`), unless somebody chose MPIR_CVAR_CH4_NETMOD or FI_PROVIDER.
    """
    dropped = {f"SLURM_{name}" for name in _OWN_TASKS}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    if plugin == "pmi2":
        kept[SHARED_VARIABLE] = "1"
    if plugin == "pmi2" and is_wheel:
        kept.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
        kept.setdefault(PROVIDER_VARIABLE, PROVIDER)
    return kept


def is_mpich_wheel() -> bool:
    """Whether this Python's MPI is the `mpich` wheel."""
    try:
        return bool(importlib.metadata.version("mpich"))
    except importlib.metadata.PackageNotFoundError:
        return False


def spans_hosts(environ: Mapping[str, str]) -> bool:
    """Whether the allocation around this process has several nodes."""
    inside = "SLURM_JOB_ID" in environ and not is_in_step(environ)
    return inside and sum(part.num_nodes for part in read_allocation(environ)) > 1


def find_plugin(environ: Mapping[str, str]) -> str:
    """The MPI plugin that goes with this Python's MPI: the site's choice, else by its mpiexec."""
    chosen = environ.get("SLURM_MPI_TYPE", "")
    if chosen.startswith(PLUGINS):
        return chosen
    mpiexec = find_mpiexec()
    return "pmix" if mpiexec is not None and is_open_mpi(mpiexec) else "pmi2"


def list_plugins() -> str:
    """What `srun --mpi=list` prints.

    Raises:
        LaunchError: there is no srun, or it does not answer.
    """
    try:
        asked = subprocess.run(
            ["srun", "--mpi=list"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"srun does not answer: {error}; use --launcher mpiexec") from error
    return asked.stdout + asked.stderr


def vital_nodes(layout: Layout, environ: Mapping[str, str]) -> list[str]:
    """The names of the nodes whose ranks the job needs; none where the nodes cannot be named.

    A heterogeneous job has none: Slurm ends it whole when it loses a node.
    """
    names = _slurm("scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", ""))
    if len(layout.parts) > 1 or len(names) != len(layout.ranks_of_nodes):
        return []
    last_ranks = accumulate(layout.ranks_of_nodes)
    blocks = [
        range(last - count, last) for last, count in zip(last_ranks, layout.ranks_of_nodes, strict=True)
    ]
    needed = {"planner", "constructor"}
    return [
        name
        for name, block in zip(names, blocks, strict=True)
        if needed & {role_of_rank(layout.roles, rank) for rank in block}
    ]


def lost_nodes(job: str, vital: Sequence[str]) -> list[str]:
    """Those of the nodes that the job does not have any more; none where Slurm does not answer."""
    nodes = _slurm("squeue", "--noheader", f"--job={job}", "--states=running", "--format=%N")
    left = _slurm("scontrol", "show", "hostnames", nodes[0]) if len(nodes) == 1 else []
    return [name for name in vital if name not in left] if left else []


def _slurm(*command: str) -> list[str]:
    """The words that a command of Slurm's printed; none where it failed."""
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return asked.stdout.split() if asked.returncode == 0 else []


def check_plugin(plugin: str, listed: str) -> None:
    """Refuse a plugin that srun does not have.

    Args:
        plugin: its name.
        listed: what `srun --mpi=list` printed.

    Raises:
        LaunchError: srun has no such plugin; tasks would be alone, each a world of its own.
    """
    found = {word.strip(",") for line in listed.splitlines() for word in line.split(":")[-1].split()}
    found = {word for word in found if re.fullmatch(r"none|pm[a-z0-9_]+|cray[a-z0-9_]*", word)}
    if plugin not in found:
        raise LaunchError(
            f"srun has no MPI plugin {plugin}, only {', '.join(sorted(found)) or 'none'}: say --mpi with the "
            f"one that this MPI speaks (MPICH: pmi2, Open MPI: pmix), or use --launcher mpiexec"
        )


def serve_line(
    python: str, layout: Layout, data_options: Sequence[str], recipe: Path, train: Sequence[str]
) -> list[str]:
    """The command of every rank."""
    serve = [python, "-m", "msdata_jax", "serve", *data_options, "--roles", layout.roles]
    return [*serve, str(recipe), "--", *train]
