"""`GlobalBatchIterator`: what a MaxText-style loop calls its data iterator."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msdata_jax.grain.dataset import MSDataset
from msdata_jax.grain.iterator import MSDatasetIterator
from msdata_jax.grain.views import InputsAndTargets
from msdata_jax.recipe import Recipe

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec


class GlobalBatchIterator:
    """Gives the steps of a recipe as MaxText names their fields, already in the sharding of the model.

    Each batch is a dict of int32 global arrays `[rows, seq_len]`: `inputs`, `targets`, and for both
    `_position` and `_segmentation`. Segments count from 1 in each row, and 0 is padding.
    `targets_segmentation` is 0 besides where a target does not count: at the end of each segment, before
    image places, and in sources with the loss factor 0. A recipe with images has `patches` and `patch_index`
    as well, under these names.

    The arrays come in the sharding that the loop would put them into, so its own `jax.device_put` moves
    nothing. `local_iterator` is what it saves and restores.

    Args:
        recipe: what to deliver.
        mesh: the model's `jax.sharding.Mesh`, over all training processes' devices.
        spec: how the model cuts `[rows, seq_len]`; by default along the strategy's axes.
        options: further arguments of `MSDataset`.

    Raises:
        RecipeError: recipe, mesh and spec do not fit together; or the strategy weighs targets.
    """

    def __init__(
        self, recipe: Recipe, *, mesh: "Mesh", spec: "PartitionSpec | None" = None, **options: Any
    ) -> None:
        specs: Mapping[str, Any] | None = None if spec is None else {"tokens": spec}
        self.dataset = MSDataset(recipe, mesh=InputsAndTargets(mesh, spec), specs=specs, **options)
        self._iterator = iter(self.dataset)

    @property
    def local_iterator(self) -> MSDatasetIterator:
        """The iterator below, a `grain.DatasetIterator`, which a checkpoint holds."""
        return self._iterator

    def __iter__(self) -> "GlobalBatchIterator":
        """The iterator itself, where it stands; `reset` begins anew."""
        return self

    def __next__(self) -> dict[str, Any]:
        """The next batch; raises as `MSDatasetIterator.__next__`."""
        return next(self._iterator)

    def reset(self) -> None:
        """Begin with step 0 again, as before each evaluation."""
        self._iterator = iter(self.dataset)

    def close(self) -> None:
        """As `MSDatasetIterator.close`."""
        self._iterator.close()
