"""Cost formulas for `DGraph.cost`."""

from msdata_jax.planning.costs import Cost as Cost
from msdata_jax.planning.costs import transformer as transformer
from msdata_jax.planning.costs import vit as vit
