"""What was planned, kept in a file, and where a sample came from or went."""

from msdata_jax.lineage.plan_log import LoggedStep as LoggedStep
from msdata_jax.lineage.plan_log import PlanLog as PlanLog
from msdata_jax.lineage.plan_log import PlanLogWriter as PlanLogWriter
from msdata_jax.lineage.tracing import Origin as Origin
from msdata_jax.lineage.tracing import Trace as Trace
from msdata_jax.lineage.tracing import origins as origins
from msdata_jax.lineage.tracing import row_segments as row_segments
from msdata_jax.lineage.tracing import segment_origin as segment_origin
from msdata_jax.lineage.tracing import trace as trace
