"""Megatron-Energon: indexed tar files as crude datasets, blended by a metadataset.

As its documentation advises: `energon prepare` makes the index, a cooker decodes in the workers, the task
encoder batches, and samples are taken in sequences of up to 100 (`max_samples_per_sequence`).
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import Job

TAR, MEMBER = "records.tar", "record"
DATASET = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
METADATASET = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"


def imports() -> None:
    import megatron.energon  # noqa: F401
    import torch

    torch.set_num_threads(1)


def write(records: Sequence[bytes], path: Path) -> None:
    from megatron.energon.flavors import BaseWebdatasetFactory

    path.mkdir()
    with tarfile.open(path / TAR, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, record in enumerate(records):
            member = tarfile.TarInfo(f"{number:08d}.{MEMBER}")
            member.size = len(record)
            archive.addfile(member, io.BytesIO(record))
    parts: list[tuple[str, float]] = [("train", 1), ("val", 0), ("test", 0)]
    BaseWebdatasetFactory.prepare_dataset(path, [TAR], split_parts_ratio=parts, shuffle_seed=None, workers=1)
    (path / ".nv-meta" / "dataset.yaml").write_text(DATASET)


def batches(job: Job, rank: int) -> Iterator[Any]:
    from megatron import energon

    @energon.edataclass
    class Decoded(energon.Sample):
        sample: dict

    @energon.stateless
    def cook(sample: dict) -> Decoded:
        return Decoded(**energon.basic_sample_keys(sample), sample=work.decode(sample[MEMBER]))

    class Encoder(energon.DefaultTaskEncoder):
        cookers = (energon.Cooker(cook),)

        @energon.stateless
        def batch(self, samples: list[Decoded]) -> Any:
            return work.collate_tensors([each.sample for each in samples])

        @energon.stateless
        def encode_batch(self, batch: Any) -> Any:
            return batch

    weighted = zip(job.sources, job.weights.tolist(), strict=True)
    lines = [f"      - weight: {weight}\n        path: {job.path(source)}\n" for source, weight in weighted]
    metadataset = job.scratch / f"metadataset{rank}.yaml"
    metadataset.write_text(METADATASET + "".join(lines))
    workers = energon.WorkerConfig(rank=rank, world_size=job.trainers, num_workers=job.workers)
    dataset = energon.get_train_dataset(
        str(metadataset),
        worker_config=workers,
        batch_size=job.batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    return iter(energon.get_loader(dataset))
