"""msdata_jax: planner and loaders are ranks of their own, training processes open no source.

Tuned as docs/guides/tuning.md advises: samples are packed, rows are dealt by what they cost, and a source is
read by few loaders. Training processes get numpy rows, so that no framework's memory is in the figures.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.peers.job import Job
from benchmarks.peers.work import NUM_PATCHES, PATCH_VALUES, SEQ_LEN, decode

PATCHES_PER_ROW = 2 * NUM_PATCHES
STEPS_AHEAD = 2  # as many batches as torch's worker processes make ahead by default


def imports() -> None:
    import msdata_jax.loader  # noqa: F401


def make_recipe(job: Job) -> Any:
    """The recipe of a job: rows of a step hold as many samples as the others' batches, on average."""
    import msdata_jax as msd

    has_images = any(source.name.startswith("image") for source in job.sources)
    return msd.Recipe(
        sources={
            source.name: msd.Source(job.path(source), [_decode], block_size=32) for source in job.sources
        },
        strategy=msd.DGraph()
        .mix({source.name: source.weight for source in job.sources}, unit="samples")
        .pack(
            seq_len=SEQ_LEN,
            rows=job.trainers * max(1, round(job.batch_size * job.mean_tokens / SEQ_LEN)),
            patches_per_row=PATCHES_PER_ROW if has_images else 0,
            patch_values=PATCH_VALUES,
        )
        .cost(backbone=squared_length)
        .distribute("dp")
        .balance("lpt"),
        seed=job.seed,
    )


def batches(job: Job, rank: int | None) -> Iterator[dict[str, Any]]:
    """Rows of this process; under mpiexec it knows itself which one it is."""
    import msdata_jax as msd

    processes = msd.initialize(use_jax=False)
    mesh = NumpyMesh(processes.num_processes)
    with msd.DataLoader(make_recipe(job), mesh=mesh, steps_ahead=STEPS_AHEAD) as loader:
        yield from loader


def samples_of(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Source, number and length of each segment of the rows, which lie one behind the other."""
    segment_ids, tokens = batch["segment_ids"], batch["tokens"]
    rows, places = np.nonzero((batch["positions"] == 0) & (segment_ids > 0))
    ends = np.append(places[1:], 0)
    last = np.flatnonzero(np.diff(rows, append=-1))  # of each row
    ends[last] = np.count_nonzero(segment_ids[rows[last]], axis=1)  # padding is behind all
    return np.stack([tokens[rows, places], tokens[rows, places + 1]], axis=1), ends - places


class NumpyMesh:
    """Training processes in a row, which get the numpy rows as they are (`msdata_jax.meshes.MeshEdge`)."""

    is_for = "the mesh is over"

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes

    def way_out(self, *, in_job: bool) -> str:
        return "count the processes of msd.initialize()"

    def layout(self, graph: Any) -> Any:
        from msdata_jax.planning.place_tree import MeshLayout

        return MeshLayout(
            axis_names=("dp",),
            axis_sizes=(self._num_processes,),
            process_of_device=tuple(range(self._num_processes)),
        )

    def plain_specs(self, specs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(specs)

    def emitter(self, specs: Any, tree: Any, graph: Any) -> tuple[Any, Any]:
        return dict, dict


def _decode(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The record's sample: its only field is the bytes, whatever the format calls it."""
    (content,) = (value for value in record.values() if isinstance(value, bytes))
    return decode(content)


def squared_length(infos: np.ndarray) -> np.ndarray:
    """What attention costs, up to a factor."""
    return infos["tokens"] ** 2
