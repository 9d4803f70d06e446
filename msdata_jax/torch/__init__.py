"""The torch edge: meshes, tensors, `torch.distributed` and datasets. Importing it loads torch."""

from msdata_jax.torch.dataset import MSIterableDataset as MSIterableDataset
from msdata_jax.torch.distributed import initialize as initialize
from msdata_jax.torch.mesh import TorchMesh as TorchMesh
from msdata_jax.torch.mesh import layout_of as layout_of
from msdata_jax.torch.titan import titan_batch as titan_batch

__all__ = ["MSIterableDataset", "TorchMesh", "initialize", "layout_of", "titan_batch"]
