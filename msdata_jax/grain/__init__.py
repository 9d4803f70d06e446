"""The grain edge: a recipe as a `grain.IterDataset`, and as the iterator of a MaxText-style loop.

Nothing else in msdata_jax imports this package, and importing it imports grain, and JAX with it.
"""

from msdata_jax.grain.dataset import MSDataset as MSDataset
from msdata_jax.grain.global_batches import GlobalBatchIterator as GlobalBatchIterator
from msdata_jax.grain.iterator import MSDatasetIterator as MSDatasetIterator
from msdata_jax.grain.position import Position as Position
