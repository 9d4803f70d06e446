"""`DataLoader`: what a training loop iterates over."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from msdata_jax.errors import JobFailed, LaunchError, MSDataError, RecipeError
from msdata_jax.lineage.plan_log import PlanLogWriter
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import ClientPlaceTree, MeshLayout, Spec, axes_tuple
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.runtime.fields import field_specs, global_shapes, layout_without_mesh, row_formats
from msdata_jax.runtime.figures import process_figures
from msdata_jax.runtime.job import LocalJob, TrainingJob, current_job, is_launched, start_in_process
from msdata_jax.runtime.loop import WORKER_SECONDS, describe_failure
from msdata_jax.runtime.report import StepFigures
from msdata_jax.runtime.trainer import Step, TrainerSide

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec

CLOSE_SECONDS = 60.0


class DataLoader:
    """Iterates over the steps of a recipe.

    Each step is a dict of arrays (fields: `batching.rows`): global `jax.Array`s in the sharding of
    `specs` when a mesh is given, else the numpy rows of the whole batch. Started alone it runs planner and
    loaders on threads of this process; under `msdata launch` they are ranks of their own.

    Args:
        recipe: what to deliver.
        mesh: a `jax.sharding.Mesh` over all training processes' devices; axes Auto or Explicit.
        specs: PartitionSpecs by field. Fields that are not named follow `tokens`, whose default is the
            strategy's `distribute` axis over rows and its context axis over places.
        num_steps: end after so many steps; None for as long as there is data.
        num_loaders: source loaders, when they run on threads of this process.
        threads_per_loader: their worker threads.
        steps_ahead: steps that are made ready ahead of the trainer, arrays included.
        buffer_bytes_per_loader: transformed samples that a loader may hold ahead.
        step_seconds: time to wait for a step, or for the other training processes to close, before giving up.
        plan_log: a new file that the planner's decisions are written to, for `msdata inspect`; in a job of
            several ranks `msdata launch --plan-log` or `msdata serve --plan-log` names it.

    Raises:
        RecipeError: mesh, specs and strategy do not fit together.
        PlanError: there is a plan log already, or it cannot be written.
        LaunchError: the mesh is not over all training processes; a plan log is given here in a job of several
            ranks; or under `msdata launch` without a call of `msd.initialize()` first, or for a second time.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, each with a default
        self,
        recipe: Recipe,
        *,
        mesh: "Mesh | None" = None,
        specs: "Mapping[str, PartitionSpec] | None" = None,
        num_steps: int | None = None,
        num_loaders: int = 2,
        threads_per_loader: int = 1,
        steps_ahead: int = 3,
        buffer_bytes_per_loader: int = 256 << 20,
        step_seconds: float = 600.0,
        plan_log: Path | None = None,
    ) -> None:
        _check_options(
            num_steps=num_steps, num_loaders=num_loaders, threads_per_loader=threads_per_loader,
            steps_ahead=steps_ahead, step_seconds=step_seconds,
        )  # fmt: skip
        job = _free_job()
        if job is not None and plan_log is not None:
            raise LaunchError(
                f"the planner of this job is another rank: msdata launch (or serve) --plan-log {plan_log}"
            )
        graph = _graph_of(recipe)
        layout, given = _plain(mesh, specs, graph)
        _check_processes(layout, job, has_mesh=mesh is not None)
        tree = graph.place_tree(layout)
        forms = row_formats(graph, tree)
        plain = field_specs(given, graph, tree, global_shapes(graph, tree, forms))
        emit, self._complete = _emitter(mesh, plain, tree, graph)
        join = m.Join(
            process=job.process_index if job else 0,
            axis_names=list(layout.axis_names),
            axis_sizes=list(layout.axis_sizes),
            process_of_device=list(layout.process_of_device),
            row_axes=list(axes_tuple(plain["tokens"][0])),
            recipe=recipe.fingerprint(),
            num_steps=-1 if num_steps is None else num_steps,
            steps_ahead=steps_ahead,
            buffer_bytes_per_loader=buffer_bytes_per_loader,
        )
        factors = graph.losses.sources
        names = recipe.source_names
        loss_factors = [factors.get(name, 1.0) for name in names] if factors else None
        self._job = job
        self._local: LocalJob | None = None
        self._step_seconds = step_seconds
        self._figures = StepFigures(recipe.source_names)
        self._last: Step | None = None
        if job is None:
            local = start_in_process(
                recipe,
                num_loaders=num_loaders,
                threads_per_loader=threads_per_loader,
                plan_log=PlanLogWriter(Path(plan_log), recipe) if plan_log else None,
            )
            role = DataConstructor(
                local.placement, forms, join, process_figures, loss_factors, recipe.source_names
            )
            self._side = TrainerSide(role, local.endpoint, emit, exit_on_failure=False)
            self._local = local
            # Whoever drops a DataLoader, or ends the program, leaves no thread behind.
            weakref.finalize(self, _abandon, self._side, local)
        else:
            role = DataConstructor(
                job.placement, forms, join, process_figures, loss_factors, recipe.source_names
            )
            self._side = TrainerSide(role, job.mpi.endpoint, emit, exit_on_failure=True)
            job.on_failure = self._side.fail

    def __enter__(self) -> "DataLoader":
        """The loader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; where the block raised, tell the other ranks."""
        if error is None or isinstance(error, GeneratorExit) or _is_good_exit(error):
            self.close()
        elif self._job is None or isinstance(error, JobFailed):
            self._side.fail(describe_failure(error))
            self._wait_for_threads()
        elif isinstance(error, SystemExit):
            self._job.failed = True
            self._side.fail(f"the training script ended with sys.exit({error.code!r})")
        # Else the exception hook shows the error first, then tells the others.

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The loader itself: one pass over the steps."""
        return self

    def __next__(self) -> dict[str, Any]:
        """The next step's batch.

        Raises:
            StopIteration: the data ended, at the same step on every training process.
            BadSampleError: the data failed at this step.
            JobFailed: a rank failed; the message is that rank's.
            MSDataError: no step came within `step_seconds`, or the loader is closed.
        """
        begin = time.perf_counter()
        try:
            step = self._side.next_step(self._step_seconds)
        except StopIteration:
            self.close()  # the others may end too, also where this one is never closed by hand
            raise
        except JobFailed:
            if self._job is not None:
                self._job.failed = True
            raise
        self._figures.add(step.expect, time.perf_counter() - begin)
        self._last = step
        return self._complete(step.batch)

    @property
    def last_step(self) -> m.Expect:
        """What the planner decided for the batch that was delivered last, cut to this process.

        Raises:
            ValueError: before the first step.
        """
        if self._last is None:
            raise ValueError("no step was delivered yet")
        return self._last.expect

    @property
    def figures(self) -> StepFigures:
        """Costs, shares, fill and waits of the steps so far."""
        return self._figures

    @property
    def job_figures(self) -> Mapping[str, Any]:
        """After the last step or `close`: figures of all ranks: memory, CPU time, open files, bad samples."""
        return self._side.figures

    def close(self) -> None:
        """Leave the job. The other training processes' data end with the steps that are already planned.

        Raises:
            JobFailed: a rank failed after the last step was taken.
            MSDataError: another training process did not close its DataLoader within `step_seconds`.
        """
        self._side.close(max(self._step_seconds, CLOSE_SECONDS))
        self._wait_for_threads()
        if self._job is not None:
            self._job.on_failure = None
            self._job.left = True

    def _wait_for_threads(self) -> None:
        if self._local is not None:
            self._local.wait()


def _abandon(side: TrainerSide, local: LocalJob) -> None:
    """At exit, or wherever the garbage is collected; only the main thread may wait there."""
    if threading.current_thread() is not threading.main_thread():
        side.leave()
        return
    with contextlib.suppress(MSDataError):
        side.close(WORKER_SECONDS)
    local.wait()


def _is_good_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _as_is(fields: Mapping[str, Any]) -> dict[str, Any]:
    return dict(fields)


def _emitter(
    mesh: "Mesh | None", specs: Mapping[str, Spec], tree: ClientPlaceTree, graph: DGraph
) -> tuple[
    Callable[[Mapping[str, np.ndarray]], Mapping[str, Any]], Callable[[Mapping[str, Any]], dict[str, Any]]
]:
    """What makes arrays of a step's rows ahead of its use, and what completes them on the training thread."""
    if mesh is None:
        return _as_is, _as_is
    if graph.broadcast.axes and graph.broadcast.via == "device":
        from msdata_jax.spmd.broadcast import BroadcastEmitter

        broadcast = BroadcastEmitter(mesh, specs, tree)
        return broadcast.emit_local, broadcast.complete
    from msdata_jax.spmd.arrays import ArrayEmitter

    return ArrayEmitter(mesh, specs).emit, _as_is


def _graph_of(recipe: Recipe) -> DGraph:
    if not isinstance(recipe, Recipe) or not isinstance(recipe.strategy, DGraph):
        raise RecipeError(f"a DataLoader reads a Recipe whose strategy is a DGraph, got {recipe!r:.200}")
    return recipe.strategy


def _check_options(*, num_steps: int | None, step_seconds: float, **counts: int) -> None:
    small = {name: count for name, count in counts.items() if count < 1}
    if small:
        raise RecipeError(f"{', '.join(counts)} are at least 1, got {small}")
    if num_steps is not None and num_steps < 0:
        raise RecipeError(f"num_steps is at least 0, got {num_steps}")
    if not step_seconds > 0:
        raise RecipeError(f"step_seconds is more than 0, got {step_seconds}")


def _free_job() -> TrainingJob | None:
    """The MPI job, if there is one. It feeds one DataLoader, for its data ranks serve one recipe, once."""
    job = current_job()
    if job is None and is_launched():
        raise LaunchError("call msd.initialize() at the top of the training script, before the DataLoader")
    if job is not None and (job.left or job.on_failure is not None):
        raise LaunchError(
            "a job of several ranks feeds one DataLoader, and the one before is "
            f"{'closed' if job.left else 'still open'}; go on with that one, and run what needs another "
            "(an evaluation) as a job of its own"
        )
    return job


def _plain(
    mesh: "Mesh | None", specs: "Mapping[str, PartitionSpec] | None", graph: DGraph
) -> tuple[MeshLayout, dict[str, Spec]]:
    """Mesh and specs as the planner understands them; JAX is imported only where there is a mesh."""
    if mesh is None:
        if specs:
            raise RecipeError(f"specs {sorted(specs)} need a mesh: DataLoader(recipe, mesh=..., specs=...)")
        return layout_without_mesh(graph), {}
    from msdata_jax.spmd.mesh import layout_of, plain_specs

    return layout_of(mesh), plain_specs(specs or {})


def _check_processes(layout: MeshLayout, job: TrainingJob | None, *, has_mesh: bool) -> None:
    """Refuse a mesh that is not over all training processes and no other."""
    num_processes = job.num_processes if job else 1
    if layout.num_processes == num_processes:
        return
    if not has_mesh:
        raise LaunchError(
            f"the job has {num_processes} training processes: give DataLoader(mesh=...) over them"
        )
    way_out = (
        "build the mesh from jax.devices() of all of them"
        if job
        else "start them with `msdata launch` or `msdata serve`, and call msd.initialize() first"
    )
    raise LaunchError(
        f"the mesh has devices of {layout.num_processes} processes; the job has {num_processes} training "
        f"processes: {way_out}"
    )
