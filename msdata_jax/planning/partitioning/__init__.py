"""Items with costs into parts, so that the dearest part costs as little as can be."""

from msdata_jax.planning.partitioning.partition import METHODS as METHODS
from msdata_jax.planning.partitioning.partition import Method as Method
from msdata_jax.planning.partitioning.partition import loads as loads
from msdata_jax.planning.partitioning.partition import lower_bound as lower_bound
from msdata_jax.planning.partitioning.partition import partition as partition
