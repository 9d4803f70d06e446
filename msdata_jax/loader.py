"""`DataLoader`: what a training loop iterates over."""

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from msdata_jax.changes import resume
from msdata_jax.checkpoint.journal import JournalWriter, read_journal
from msdata_jax.data_state import DataState, change_leaves, leaves_digest, pack_leaves
from msdata_jax.errors import CheckpointError, JobFailed, LaunchError, MSDataError, RecipeError
from msdata_jax.lineage.plan_log import PlanLogWriter
from msdata_jax.meshes import MeshEdge, edge_of
from msdata_jax.planning.graph import DGraph
from msdata_jax.planning.place_tree import MeshLayout, axes_tuple
from msdata_jax.recipe import Recipe
from msdata_jax.roles import messages as m
from msdata_jax.roles.data_constructor import DataConstructor
from msdata_jax.runtime.fields import field_specs, global_shapes, row_formats
from msdata_jax.runtime.figures import process_figures
from msdata_jax.runtime.job import (
    LocalJob,
    TrainingJob,
    current_job,
    is_launched,
    lost_ranks,
    start_in_process,
)  # fmt: skip
from msdata_jax.runtime.loop import WORKER_SECONDS, describe_failure
from msdata_jax.runtime.report import StepFigures
from msdata_jax.runtime.trainer import TrainerSide

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from torch.distributed.device_mesh import DeviceMesh

CLOSE_SECONDS = 60.0


class DataLoader:
    """Iterates over the steps of a recipe.

    Each step is a dict of arrays (fields: `batching.rows`): global `jax.Array`s in the sharding of
    `specs` when a mesh is given, else the numpy rows of the whole batch. Started alone it runs planner and
    loaders on threads of this process; under `msdata launch` they are ranks of their own.

    Args:
        recipe: what to deliver.
        mesh: a `jax.sharding.Mesh` over all training processes' devices, axes Auto or Explicit; or a torch
            `DeviceMesh` over their ranks, alone or in a `msdata_jax.torch.TorchMesh`.
        specs: PartitionSpecs by field; on a torch mesh tuples of axis names, or placements. Fields that are
            not named follow `tokens`, whose default is the strategy's `distribute` axis over rows and its
            context axis over places.
        num_steps: end after so many steps, counted from step 0 also where the job goes on from a saved state;
            None for as long as there is data.
        num_loaders: source loaders, when they run on threads of this process.
        threads_per_loader: their worker threads.
        steps_ahead: steps that are made ready ahead of the trainer, arrays included.
        buffer_bytes_per_loader: transformed samples that a loader may hold ahead.
        step_seconds: time to wait for a step, or for the other training processes to close, before giving up.
        journal: a folder in which the first training process writes the state behind every step that it
            takes, for `restore_journal`. One folder a run.
        plan_log: a new file that the planner's decisions are written to, for `msdata inspect`; in a job of
            several ranks `msdata launch --plan-log` or `msdata serve --plan-log` names it.
        record: a new folder that figures and spans of what happens are written to, for `msdata trace`; in a
            job of several ranks `msdata launch --record` or `msdata serve --record` names it.

    Raises:
        RecipeError: mesh, specs and strategy do not fit together.
        PlanError: there is a plan log already, or it cannot be written.
        LaunchError: the mesh is not over all training processes; a plan log or a record is given here in a
            job of several ranks; the record's folder is not new; or under `msdata launch` without a call of
            `msd.initialize()` first, or for a second time.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, each with a default
        self,
        recipe: Recipe,
        *,
        mesh: "Mesh | DeviceMesh | MeshEdge | None" = None,
        specs: Mapping[str, Any] | None = None,
        num_steps: int | None = None,
        num_loaders: int = 2,
        threads_per_loader: int = 1,
        steps_ahead: int = 3,
        buffer_bytes_per_loader: int = 256 << 20,
        step_seconds: float = 600.0,
        plan_log: Path | None = None,
        journal: Path | None = None,
        record: Path | None = None,
    ) -> None:
        _check_options(
            num_steps=num_steps, num_loaders=num_loaders, threads_per_loader=threads_per_loader,
            steps_ahead=steps_ahead, step_seconds=step_seconds,
        )  # fmt: skip
        job = _free_job()
        for option, path in (("--plan-log", plan_log), ("--record", record)):
            if job is not None and path is not None:
                raise LaunchError(
                    f"the planner of this job is another rank: msdata launch (or serve) {option} {path}"
                )
        graph = _graph_of(recipe)
        edge = edge_of(mesh)
        layout, given = edge.layout(graph), edge.plain_specs(specs or {})
        _check_processes(layout, job, edge)
        tree = graph.place_tree(layout)
        forms = row_formats(graph, tree)
        plain = field_specs(given, graph, tree, global_shapes(graph, tree, forms))
        emit, self._complete = edge.emitter(plain, tree, graph)
        self._join = m.Join(
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
        self._recipe, self._job = recipe, job
        self._leaves = dict[str, bytes]()  # changes with each step
        self._said: set[str] = set()
        self._journal = JournalWriter(Path(journal)) if journal and self._is_first else None
        self._local: LocalJob | None = None
        self._step_seconds = step_seconds
        self._figures = StepFigures(recipe.source_names)
        self._last: m.Expect | None = None  # not its batch, which the trainer may have let go
        self._has_left = False
        if job is None:
            local = start_in_process(
                recipe,
                num_loaders=num_loaders,
                threads_per_loader=threads_per_loader,
                plan_log=PlanLogWriter(Path(plan_log), recipe) if plan_log else None,
                record=Path(record) if record else None,
            )
            role = DataConstructor(local.placement, forms, process_figures, loss_factors, recipe.source_names)
            self._side = TrainerSide(role, local.endpoint, emit, session=None, observer=local.observer)
            self._local = local
            # Whoever drops a DataLoader, or ends the program, leaves no thread behind.
            weakref.finalize(self, _abandon, self._side, local, self._join)
        else:
            role = DataConstructor(job.placement, forms, process_figures, loss_factors, recipe.source_names)
            self._side = TrainerSide(
                role, job.mpi.endpoint, emit, session=job.sessions, observer=job.observer
            )
            job.on_failure = self._side.fail
            job.sessions, job.left = job.sessions + 1, False

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
        batch = self.take(None)
        assert batch is not None
        return batch

    def take(self, stop: Callable[[], bool] | None) -> dict[str, Any] | None:
        """As `next`, for a thread that others may call back: None where `stop` became true while it waited.

        Nothing is lost then; the step is there for the next call. `stop` is asked several times a second.
        """
        self.start_prefetch()
        begin = time.perf_counter()
        try:
            step = self._side.next_step(self._step_seconds, stop)
        except StopIteration:
            self.close()  # the others may end too, also where this one is never closed by hand
            raise
        except JobFailed:
            if self._job is not None:
                self._job.failed = True
            raise
        if step is None:
            return None
        self._figures.add(step.expect, time.perf_counter() - begin)
        if self._last is None:
            self._leaves = {}  # the planner tells all of it once more
        self._last = step.expect
        for state in step.states:
            self._say(state.step + 1, state.notes)
            change_leaves(self._leaves, state.changed, state.removed)
        self._write_journal(step.expect.step + 1)
        return self._complete(step.batch)

    def _write_journal(self, step: int) -> None:
        """A journal that cannot be written costs itself, not the step."""
        if self._journal is None:
            return
        try:
            self._journal.append(self._leaves, step)
        except CheckpointError as error:
            print(f"msdata: step {step - 1} is missing in it: {error}", file=sys.stderr)  # noqa: T201

    def start_prefetch(self) -> None:
        """Make steps ready from now on; the first `next` does it otherwise. Behind it nothing is restored."""
        self._side.begin(self._join)

    def request_stop(self) -> None:
        """Let the data end early and in order: within a few steps, at the same one on every training process.

        It is enough that one process calls it. Any thread may, and so may the handler of a signal. The job's
        `msdata launch` does the same when it gets SIGUSR1.
        """
        self._side.ask_to_stop()

    @property
    def stopped(self) -> bool:
        """Whether the data ended because somebody asked: there is more to go on with from the state."""
        return self._side.stopped

    # --- where it stands --------------------------------------------------------------------------------

    @property
    def next_step(self) -> int:
        """The number of the step that `next` gives, as far as this process knows before it begins."""
        if self._last is not None:
            return self._last.step + 1
        restored = DataState.from_leaves(self._leaves).step if self._leaves else 0
        return max(restored, self._join.skip_to)

    def leaves(self) -> Mapping[str, bytes] | None:
        """The state to go on with behind the step delivered last, as `DataState` leaves; they never change.

        None on every training process but the first, which alone has them.

        Raises:
            CheckpointError: no step was delivered yet, and nothing was restored, or `skip_to` goes beyond it.
        """
        restored = DataState.from_leaves(self._leaves).step if self._last is None and self._leaves else -1
        if self._last is None and restored < max(self._join.skip_to, 0):
            raise CheckpointError("there is nothing to save before the first step; save after a step")
        return dict(self._leaves) if self._is_first else None

    def state(self) -> DataState:
        """The state to go on with behind the step delivered last. For the first training process.

        Raises:
            CheckpointError: no step was delivered yet; or this process has no state.
        """
        leaves = self.leaves()
        if leaves is None:
            raise CheckpointError(
                "the first training process alone holds the state: save it there by DataSave; on all of them "
                "go on by skip_to(next_step), or keep a journal"
            )
        return DataState.from_leaves(leaves)

    def pin_blocks(self) -> None:
        """Let the loaders hold the samples in flight of sources with `snapshot`, for `save_blocks`."""
        if self._keeps_blocks:
            self._side.pin_blocks(self.next_step)

    def save_blocks(self, folder: Path, step: int, timeout_seconds: float = 60.0) -> Mapping[str, Any] | None:
        """Let the loaders write what they hold; with a checkpoint, on a thread of its own.

        Args:
            folder: made where it is not there.
            step: `next_step` when `pin_blocks` was called.
            timeout_seconds: for the loaders to answer.

        Returns:
            `num_blocks`, `num_bytes` and `error`, which is not raised; None where no source asks for it.
        """
        if not self._keeps_blocks:
            return None
        return asdict(self._side.save_blocks(step, str(folder.absolute()), timeout_seconds))

    @property
    def _keeps_blocks(self) -> bool:
        return any(source.snapshot for source in self._recipe.sources.values())

    def restore(
        self, state: DataState, *, accept_changes: bool = False, blocks: Path | None = None
    ) -> list[str]:
        """Go on from a saved state, on every training process alike, before the first step.

        The mesh, the number of processes and loaders may be others than those of the job that saved it.

        Args:
            state: what `state` gave.
            accept_changes: go on although the seed, transforms, rows or data are not what they were.
            blocks: folder of `save_blocks`, whose blocks are read instead of made again where they fit.

        Returns:
            sentences on what changed in the recipe; the first process shows them. What changed in the data is
            found when they are opened: it is shown with the first step, or refused there.

        Raises:
            CheckpointError: the state does not fit the recipe; or steps are under way already.
            RecipeError: the sources changed where they may not.
        """
        self._check_not_begun("restore")
        resumed = resume(state, self._recipe)
        resumed.check(accept_changes=accept_changes)
        leaves = state.to_leaves()
        packed = np.frombuffer(pack_leaves(leaves), np.uint8) if self._is_first else np.empty(0, np.uint8)
        self._leaves = leaves
        self._join = replace(
            self._join,
            state=packed,
            state_digest=leaves_digest(leaves),
            accept_changes=accept_changes,
            blocks="" if blocks is None else f"{blocks.absolute()}@{state.step}",
        )
        sentences = [*resumed.changes, *resumed.silent]
        if self._is_first:
            self._say(state.step, sentences)
        return sentences

    def _say(self, step: int, sentences: Sequence[str]) -> None:
        """Show what changed, each sentence once: the planner knows the data besides, and says the rest."""
        for sentence in sentences:
            if sentence not in self._said:
                self._said.add(sentence)
                print(f"msdata: going on at step {step}: {sentence}", file=sys.stderr)  # noqa: T201

    def restore_journal(
        self, folder: Path, step: int | None = None, *, accept_changes: bool = False
    ) -> list[str]:
        """Go on from a journal: a job whose planner or trainer died goes on where the model stands.

        Args:
            folder: what `DataLoader(journal=...)` named.
            step: the step to begin with, which the model has not seen yet; None for the newest that is there.
            accept_changes: as in `restore`, whose rules hold.

        Raises:
            CheckpointError: there is no such journal or step; or as `restore`.
        """
        return self.restore(read_journal(Path(folder), step), accept_changes=accept_changes)

    def skip_to(self, step: int) -> None:
        """Begin with this step, on every training process alike, before the first step.

        At once, in the time of one step, where steps follow from their number alone: `pad`, samples as the
        unit, `repeat`, and sources that say `one_per_record` and have no `max_bad_samples`. Otherwise planner
        and loaders go through the steps before: every record until there is read, transformed and measured
        once, and nothing is sent. Of `restore` and `skip_to`, the later step counts.

        Raises:
            CheckpointError: steps are under way already, or the step is behind where the loader stands.
        """
        self._check_not_begun("skip")
        if step < self.next_step:
            raise CheckpointError(
                f"skip_to({step}) goes forward only; the loader stands before step {self.next_step}"
            )
        self._join = replace(self._join, skip_to=step)

    def _check_not_begun(self, what: str) -> None:
        if self._side.has_begun:
            raise CheckpointError(
                f"{what} before the first step: steps are under way already; close this DataLoader on every "
                "training process and build another"
            )

    @property
    def _is_first(self) -> bool:
        return self._join.process == 0

    @property
    def last_step(self) -> m.Expect:
        """What the planner decided for the batch that was delivered last, cut to this process.

        Raises:
            ValueError: before the first step.
        """
        if self._last is None:
            raise ValueError("no step was delivered yet")
        return self._last

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
        if self._has_left:
            return  # in a job another one may be open already
        self.start_prefetch()  # the planner hears of everybody before it hears that they leave
        self._side.close(max(self._step_seconds, CLOSE_SECONDS))
        self._wait_for_threads()
        if self._journal is not None:
            self._journal.close()
        if self._job is not None and self._job.on_failure == self._side.fail:  # no other one is open
            self._job.on_failure = None
            self._job.left = True
            self._job.lost = lost_ranks(self._side.figures)
        self._has_left = True

    def _wait_for_threads(self) -> None:
        if self._local is not None:
            self._local.wait()


def _abandon(side: TrainerSide, local: LocalJob, join: m.Join) -> None:
    """At exit, or wherever the garbage is collected; only the main thread may wait there."""
    side.begin(join)
    if threading.current_thread() is not threading.main_thread():
        side.leave()
        return
    with contextlib.suppress(MSDataError):
        side.close(WORKER_SECONDS)
    local.wait()


def _is_good_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


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
    """The MPI job, if there is one. It feeds one DataLoader after another, all of one recipe."""
    job = current_job()
    if job is None and is_launched():
        raise LaunchError("call msd.initialize() at the top of the training script, before the DataLoader")
    if job is not None and job.on_failure is not None:
        raise LaunchError(
            "a job of several ranks feeds one DataLoader at a time, and the one before is still open: close "
            "it on every training process first"
        )
    return job


def _check_processes(layout: MeshLayout, job: TrainingJob | None, edge: MeshEdge) -> None:
    """Refuse a mesh that is not over all training processes and no other."""
    num_processes = job.num_processes if job else 1
    if layout.num_processes != num_processes:
        raise LaunchError(
            f"{edge.is_for} {layout.num_processes} processes; the job has {num_processes} training "
            f"processes: {edge.way_out(in_job=job is not None)}"
        )
