"""One dataset at a time: positions in, samples out. No JAX, no MPI; file libraries load where used."""

from msdata_jax.sources.audio import DecodeAudio as DecodeAudio
from msdata_jax.sources.audio import PatchifyAudio as PatchifyAudio
from msdata_jax.sources.feistel import order_key as order_key
from msdata_jax.sources.feistel import permute as permute
from msdata_jax.sources.grain_pipeline import GrainSource as GrainSource
from msdata_jax.sources.images import DecodeImage as DecodeImage
from msdata_jax.sources.images import Patchify as Patchify
from msdata_jax.sources.isolation import IsolatedReader as IsolatedReader
from msdata_jax.sources.isolation import open_reader as open_reader
from msdata_jax.sources.lengths import Split as Split
from msdata_jax.sources.lengths import Truncate as Truncate
from msdata_jax.sources.order import Order as Order
from msdata_jax.sources.protocol import BadRecord as BadRecord
from msdata_jax.sources.protocol import Records as Records
from msdata_jax.sources.reader import SourceReader as SourceReader
from msdata_jax.sources.tokenize import Tokenize as Tokenize
from msdata_jax.sources.video import DecodeVideo as DecodeVideo
from msdata_jax.sources.without_jax import block_jax as block_jax
from msdata_jax.sources.without_jax import import_grain_without_jax as import_grain_without_jax
