"""What the training benchmark trains on: bytes of real Python text, and pictures with captions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import msdata_jax as msd
from benchmarks import text_data
from benchmarks.training_job.sizes import ENCODER_FLOPS, FLOPS, PATCH, PATCH_VALUES, PATCHES_PER_ROW
from msdata_jax.simulate.distributions import draw

Mode = Literal["packed", "unpacked", "hybrid"]
Balanced = Literal["none", "step", "microbatch", "pipeline"]
"""`none`: rows as they come; else the objective that the rows are balanced for."""

WEIGHTS = {"docstrings": 0.40, "blocks": 0.55, "modules": 0.05}
DOCUMENTS = {"docstrings": 4000, "blocks": 4000, "modules": 400}
PICTURES = 2000
HYBRID_WEIGHTS = {"docstrings": 0.15, "blocks": 0.35, "pictures": 0.5}
SHRINK = 8
"""Patches of a published picture for one of ours."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job's strategy.

    Attributes:
        mode: `packed`: samples to rows, shares by tokens; `unpacked`: a sample a row, shares by samples;
            `hybrid`: packed text and pictures, with an encoder.
        context: places in a row.
        ranks: data-parallel ranks.
        microbatches: of a rank in a step.
        rows: of a microbatch.
        stages: of the pipeline that each rank is; 1 for none.
        balanced: see `Balanced`.
    """

    mode: Mode
    context: int
    ranks: int
    microbatches: int
    rows: int
    stages: int = 1
    balanced: Balanced = "none"


def write_texts(folder: Path) -> None:
    """The three text sources."""
    for name, count in DOCUMENTS.items():
        text_data.write_jsonl(getattr(text_data, name)()[:count], folder / f"{name}.jsonl")


def to_bytes(record: Mapping[str, Any]) -> dict[str, Any]:
    """The text's bytes as tokens, behind the places of patches where there are any."""
    tokens = np.frombuffer(record["text"].encode(errors="replace"), np.uint8).astype(np.int32)
    places = record.get("tokens", np.empty(0, np.int32))
    kept = {"patches": record["patches"]} if "patches" in record else {}
    return {**kept, "tokens": np.concatenate([places, tokens])}


class Pictures:
    """Drawn pictures of published sizes, each with a real docstring: patches fill a row by the hundred.

    Sizes are those of `simulate.distributions.navit`, with an eighth of the patches. What a picture shows
    decides nothing: it is a shade that follows from its number.
    """

    def __init__(self, captions: Sequence[str]) -> None:
        self._captions = captions
        patches = draw("navit", 16_384, PICTURES, np.random.default_rng(0)).patches // SHRINK
        self._sides = np.clip(np.sqrt(patches).astype(int), 2, int(PATCHES_PER_ROW**0.5))

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> dict[str, Any]:
        side = int(self._sides[index]) * PATCH
        shade = np.full((side, side, 3), index % 256, np.uint8)
        return {"image": shade, "text": self._captions[index % len(self._captions)][:400]}


def make_recipe(folder: Path, job: Job) -> msd.Recipe:
    """The recipe of a job on the texts of `folder`.

    Costs are those that `measure.calibrate` saved there, where it did: without balancing they only tell how
    uneven the ranks are.
    """
    weights = HYBRID_WEIGHTS if job.mode == "hybrid" else WEIGHTS
    transforms = [to_bytes, msd.Split(job.context)]
    sources: dict[str, msd.Source] = {
        name: msd.Source(str(folder / f"{name}.jsonl"), transforms, block_size=64)
        for name in weights
        if name != "pictures"
    }
    if job.mode == "hybrid":
        captions = text_data.docstrings()
        sources["pictures"] = msd.Source(Pictures(captions), [msd.Patchify(PATCH), to_bytes], block_size=64)
    return msd.Recipe(sources=sources, strategy=_strategy(folder, job, weights), seed=3)


def _strategy(folder: Path, job: Job, weights: Mapping[str, float]) -> msd.DGraph:
    graph = msd.DGraph().mix(weights, unit="samples" if job.mode == "unpacked" else "tokens")
    shape: dict[str, Any] = {"seq_len": job.context, "rows": job.ranks * job.microbatches * job.rows}
    if job.mode == "hybrid":
        shape |= {"patches_per_row": PATCHES_PER_ROW, "patch_values": PATCH_VALUES}
    graph = graph.pad(**shape) if job.mode == "unpacked" else graph.pack(**shape)
    graph = graph.cost(backbone=backbone_cost(folder, job.mode), encoder=encoder_cost(folder, job.mode))
    pipeline = "pp" if job.stages > 1 else None
    graph = graph.distribute("dp", microbatches=job.microbatches, pipeline_axis=pipeline)
    return graph if job.balanced == "none" else graph.balance("lpt", objective=job.balanced)


def backbone_cost(folder: Path, mode: Mode) -> msd.costs.Cost:
    """The measured cost of a sample; by the formula where nothing was measured."""
    path = folder / ("unpacked.json" if mode == "unpacked" else "packed.json")
    return msd.costs.FittedCost.load(path) if path.exists() else FLOPS


def encoder_cost(folder: Path, mode: Mode) -> msd.costs.Cost | None:
    """The same of its patches, None without an encoder."""
    if mode != "hybrid":
        return None
    path = folder / "patches.json"
    return msd.costs.FittedCost.load(path) if path.exists() else ENCODER_FLOPS
