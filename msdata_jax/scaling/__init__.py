"""Which loaders read which sources, on how many threads: planned ahead, changed while a job runs. Pure."""

from msdata_jax.scaling.observation import Decision as Decision
from msdata_jax.scaling.observation import Limits as Limits
from msdata_jax.scaling.observation import LoaderView as LoaderView
from msdata_jax.scaling.observation import Observation as Observation
from msdata_jax.scaling.observation import SourceView as SourceView
from msdata_jax.scaling.policy import Hysteresis as Hysteresis
from msdata_jax.scaling.policy import ScalingPolicy as ScalingPolicy
from msdata_jax.scaling.policy import Shuffled as Shuffled
from msdata_jax.scaling.policy import Steady as Steady
