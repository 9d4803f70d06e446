"""The steps of a recipe as a torch `IterableDataset` that says where it stands."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from msdata_jax.errors import CheckpointError, LaunchError
from msdata_jax.loader import DataLoader
from msdata_jax.recipe import Recipe
from msdata_jax.torch.mesh import TorchMesh

STATE_VERSION = 1


class MSIterableDataset(IterableDataset[Any]):
    """Yields the batch of each step; goes on exactly from `state_dict`, on any number of processes.

    Give it to `torch.utils.data.DataLoader(dataset, batch_size=None)`, to torchdata's
    `StatefulDataLoader(dataset, batch_size=None)`, or iterate over it: it is its own iterator. Iterating goes
    on behind the step that was delivered last, however often `iter` is called. Once the sources are exhausted
    (`mix(on_exhausted="stop")`), the next `iter` begins again with step 0 and the same rows; behind
    `num_steps`, which counts all steps, and behind a stop that somebody asked for nothing comes any more.

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
        LaunchError: as `DataLoader`; or it is used in a worker process of a torch DataLoader.
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
        self._digest, self._ended = "", False
        self._loader = self._build()

    @property
    def loader(self) -> DataLoader:
        """The DataLoader that is read now: figures, plans. Another one after `load_state_dict` or the end."""
        return self._loader

    def __iter__(self) -> Iterator[Any]:
        """The dataset itself, behind the step delivered last, or before step 0 once the data have ended."""
        _check_no_worker()
        if self._ended:
            self._go_to(0)
            self._digest, self._ended = "", False
        return self

    def __next__(self) -> Any:
        """What is made of the next step's batch. Raises as `DataLoader`."""
        self._placed = True
        try:
            batch = next(self._loader)
        except StopIteration:
            self._ended = not self._loader.stopped and self._loader.next_step != self._num_steps
            raise
        self._digest = self._loader.last_step.content_digest
        return batch if self._transform is None else self._transform(batch)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, behind the step delivered last; equal on every process, and small at every step.

        Returns:
            `version`; `step`, the one that comes next; `content_digest`, of what the step before delivered,
            empty before the first; `ended`, whether the sources are exhausted; `recipe`, its fingerprint.
        """
        return {
            "version": STATE_VERSION,
            "step": self._loader.next_step,
            "content_digest": self._digest,
            "ended": self._ended,
            "recipe": self._fingerprint,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on behind a saved step, on every process alike; an empty state changes nothing.

        Where steps were read already, their DataLoader is closed and another one built.

        Raises:
            CheckpointError: it is no state of `state_dict`, or one of another recipe; with a journal, as
                `DataLoader.restore_journal`.
        """
        if not state_dict:
            return
        self._check(state_dict)
        if state_dict != self.state_dict():
            self._go_to(state_dict["step"])
            self._digest, self._ended = state_dict["content_digest"], state_dict["ended"]

    def close(self) -> None:
        """Leave the job; on every process after the same step."""
        self._loader.close()

    def __enter__(self) -> "MSIterableDataset":
        """The dataset itself."""
        return self

    def __exit__(self, *error: Any) -> None:
        """As `DataLoader`: close, or tell the other ranks what the block raised."""
        self._loader.__exit__(*error)

    def __reduce__(self) -> Any:
        raise LaunchError(_NO_WORKERS)

    def _build(self) -> DataLoader:
        self._placed = False
        return DataLoader(self._recipe, journal=self._journal, num_steps=self._num_steps, **self._options)

    def _go_to(self, step: int) -> None:
        """Let the next batch be that of `step`, from the DataLoader that is there where nothing was read."""
        if self._placed:
            self._loader.close()
            self._loader = self._build()
        self._placed = True
        if self._journal is not None and step > 0:
            self._loader.restore_journal(Path(self._journal), step)
        else:
            self._loader.skip_to(step)

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


def _check_no_worker() -> None:
    if get_worker_info() is not None:
        raise LaunchError(_NO_WORKERS)
