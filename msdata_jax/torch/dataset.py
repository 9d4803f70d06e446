"""The steps of a recipe as a torch `IterableDataset` that says where it stands."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from msdata_jax.errors import CheckpointError, JobFailed, LaunchError
from msdata_jax.loader import DataLoader
from msdata_jax.recipe import Recipe
from msdata_jax.runtime.ending import run_first_at_exit
from msdata_jax.torch.mesh import TorchMesh

STATE_VERSION = 1


class MSIterableDataset(IterableDataset[Any]):
    """Yields the batch of each step; goes on exactly from `state_dict`, on any number of processes.

    Give it to `torch.utils.data.DataLoader(dataset, batch_size=None)`, to torchdata's
    `StatefulDataLoader(dataset, batch_size=None)`, or iterate over it: it is its own iterator. Iterating goes
    on behind the step that was delivered last, however often `iter` is called. Once the sources are exhausted
    (`mix(on_exhausted="stop")`), the next `iter` begins again with step 0 and the same rows; behind
    `num_steps`, which counts all steps, and behind a stop that somebody asked for nothing comes any more.

    The first read opens a DataLoader, and so does the first one behind `close` or a move to another step. A
    job of several ranks feeds one at a time: close that of training before you read one for evaluation, and
    read on afterwards.

    Args:
        recipe: what to deliver.
        transform: what to yield for a batch, such as `titan_batch`; None for the batch itself.
        journal: as in `DataLoader`; the state of a step is then taken from it. Without one, steps are counted
            (`DataLoader.skip_to`), which takes the time of reading all samples before wherever steps do not
            follow from their number alone.
        num_steps: as in `DataLoader`.
        options: more of `DataLoader`: `mesh`, `specs` and so on. Without a mesh, tensors of the whole batch.

    Raises:
        RecipeError: as `DataLoader`.
        LaunchError: as `DataLoader`; or it is used in a worker process of a torch DataLoader. Both come from
            the first read.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        journal: Path | None = None,
        num_steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("mesh") is None:
            options["mesh"] = TorchMesh()
        self._recipe, self._transform = recipe, transform
        self._journal, self._num_steps, self._options = journal, num_steps, options
        self._fingerprint = recipe.fingerprint()
        self._step, self._digest, self._ended = 0, "", False
        self._loader: DataLoader | None = None
        self._is_open = False

    @property
    def loader(self) -> DataLoader:
        """The DataLoader that is read or was read last, for figures and plans; opened where there is none."""
        return self._loader or self._open()

    def __iter__(self) -> Iterator[Any]:
        """The dataset itself, behind the step delivered last, or before step 0 once the data have ended."""
        _check_no_worker()
        if self._ended:
            self._move(step=0, digest="", ended=False)
        return self

    def __next__(self) -> Any:
        """What is made of the next step's batch.

        Raises:
            CheckpointError: without a journal, the step before is not what the loaded state says.
            StopIteration, BadSampleError, JobFailed, MSDataError: as `DataLoader.__next__`.
        """
        loader = self._loader if self._loader is not None and self._is_open else self._open()
        try:
            while loader.next_step < self._step:
                self._pass_step_before(loader)
            batch = next(loader)
        except StopIteration:
            limit = self._num_steps
            self._ended = not loader.stopped and (limit is None or loader.next_step < limit)
            raise
        self._step, self._digest = loader.next_step, loader.last_step.content_digest
        return batch if self._transform is None else self._transform(batch)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, behind the step delivered last; equal on every process, and small at every step.

        Returns:
            `version`; `step`, the one that comes next; `content_digest`, of what the step before delivered,
            empty before the first; `ended`, whether the sources are exhausted; `recipe`, its fingerprint.
        """
        return {
            "version": STATE_VERSION,
            "step": self._step,
            "content_digest": self._digest,
            "ended": self._ended,
            "recipe": self._fingerprint,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on behind a saved step, on every process alike; an empty state changes nothing.

        Raises:
            CheckpointError: it is no state of `state_dict`; or one of another recipe, without a journal.
        """
        if not state_dict:
            return
        self._check(state_dict)
        if state_dict != self.state_dict():
            self._move(
                step=state_dict["step"], digest=state_dict["content_digest"], ended=state_dict["ended"]
            )

    def close(self) -> None:
        """Leave the job, on every process after the same step. Reading goes on with another DataLoader."""
        if self._loader is not None and self._is_open:
            self._loader.close()
            self._is_open = False

    def __enter__(self) -> "MSIterableDataset":
        """The dataset itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """As `DataLoader`: close, or tell the other ranks what the block raised."""
        if self._loader is not None and self._is_open:
            self._loader.__exit__(*error)

    def __reduce__(self) -> Any:
        raise LaunchError(_NO_WORKERS)

    def _move(self, *, step: int, digest: str, ended: bool) -> None:
        self.close()
        self._loader = None
        self._step, self._digest, self._ended = step, digest, ended

    def _open(self) -> DataLoader:
        """A DataLoader that is about to deliver the next step, or the one before, to check that."""
        self._loader = loader = DataLoader(
            self._recipe, journal=self._journal, num_steps=self._num_steps, **self._options
        )
        self._is_open = True
        _close_at_exit(self)
        try:
            if self._journal is not None and self._step > 0:
                loader.restore_journal(Path(self._journal), self._step)
            else:
                loader.skip_to(self._step - bool(self._digest))
        except CheckpointError:
            self.close()  # it does not stand where the next read must begin
            raise
        return loader

    def _pass_step_before(self, loader: DataLoader) -> None:
        """Let a step go by; the one before the next must be what was delivered when the state was saved."""
        next(loader)
        found = loader.last_step
        if found.step == self._step - 1 and found.content_digest != self._digest:
            raise CheckpointError(
                f"step {found.step} delivered {self._digest} when the state was saved, and delivers "
                f"{found.content_digest} now: the data changed. Bring back the data that were, or give "
                "MSIterableDataset(journal=...) of that run, from which changed sources go on"
            )

    def _check(self, state: Mapping[str, Any]) -> None:
        kinds = {name: type(value) for name, value in self.state_dict().items()}
        sound = kinds == {name: type(value) for name, value in state.items()} and state["step"] >= 0
        if not sound or state["version"] != STATE_VERSION:
            wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
            raise CheckpointError(
                f"a state of MSIterableDataset has {wanted}, of version {STATE_VERSION}; this is none: "
                f"{dict(state)!r:.300}"
            )
        if state["recipe"] != self._fingerprint and self._journal is None:
            raise CheckpointError(
                f"the state at step {state['step']} is of another recipe ({state['recipe']!r:.40}, this one "
                f"is {self._fingerprint}), whose steps before are others: take the recipe of that run, or "
                "give MSIterableDataset(journal=...) of it, from which a changed recipe goes on"
            )


_NO_WORKERS = (
    "loaders are threads or ranks of their own, which MSIterableDataset reads from; worker processes would "
    "each read all of it again: DataLoader(dataset, batch_size=None, num_workers=0)"
)


_open_datasets: "weakref.WeakSet[MSIterableDataset]" = weakref.WeakSet()


def _close_at_exit(dataset: MSIterableDataset) -> None:
    """Loops that take so many steps and never close their dataset leave the job in order all the same."""
    if not _open_datasets:  # behind `initialize`, whose own part at exit then comes later
        run_first_at_exit(_close_all)
    _open_datasets.add(dataset)


def _close_all() -> None:
    with contextlib.suppress(JobFailed):  # whoever read has heard of it
        for dataset in list(_open_datasets):
            dataset.close()


def _check_no_worker() -> None:
    if get_worker_info() is not None:
        raise LaunchError(_NO_WORKERS)
