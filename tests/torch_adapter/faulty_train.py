"""Reads a dataset on a mesh that does not fit, as `MSDATA_TEST_FAULT` says."""

import os

import torch.distributed as dist
from recipe import recipe
from torch.distributed.device_mesh import init_device_mesh

import msdata_jax as msd
from msdata_jax.torch import MSIterableDataset, initialize

if os.environ["MSDATA_TEST_FAULT"] == "own world":
    msd.initialize(use_jax=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    next(MSIterableDataset(recipe, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))))
else:
    initialize()
    next(MSIterableDataset(recipe))
