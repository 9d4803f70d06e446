"""A cluster that trains a multimodal model, in numbers: what is assumed of it, and the models.

Every assumption stands in `Assumptions`; a simulation prints them with its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from msdata_jax.costs import Cost, moe, transformer, vit
from msdata_jax.errors import RecipeError
from msdata_jax.planning.costs import MEGA
from msdata_jax.records import info_dtype
from msdata_jax.simulate.distributions import Samples
from msdata_jax.simulate.pipeline import one_forward_one_backward

Sync = Literal["step", "pipeline", "microbatch"]
"""Where data-parallel ranks wait for each other.

`step`: once a step, and a rank is one stage, without a pipeline: the step takes as long as the rank with most
work, `max_r sum_m t[r, m]`.
`pipeline`: once a step, each rank being a 1F1B pipeline, about `sum_m t + (stages - 1) max_m t` on each.
`microbatch`: in every microbatch (all-to-all of experts, gathered weights of ZeRO-3), in a 1F1B pipeline,
about `sum_m max_r t[r, m]`.
"""

Placement = Literal["pipe", "phase", "stage0"]
"""Where the encoder runs.

`pipe`: its layers come first in the pipeline, which is cut into stages of equal mean time.
`phase`: before the pipeline, each image on one of the GPUs of its data-parallel rank.
`stage0`: in stage 0, beside that stage's share of the backbone.
"""

SYNCS: tuple[Sync, ...] = ("step", "pipeline", "microbatch")
PLACEMENTS: tuple[Placement, ...] = ("pipe", "phase", "stage0")


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What is taken for granted of cluster and training job.

    Attributes:
        tensor_parallel: GPUs that share each layer.
        pipeline_stages: stages of the pipeline; a data-parallel rank has tensor_parallel x pipeline_stages
            GPUs.
        microbatches: of a rank in a step.
        samples_per_microbatch: samples in a microbatch of the baseline `count`.
        peak_flops_per_second: of a GPU.
        backbone_mfu: share of the peak that the backbone reaches.
        encoder_mfu: share of the peak that the encoder reaches.
        nic_bytes_per_second: of a GPU's network link.
        exchange_bytes_per_parameter: sent by each GPU for each parameter it holds (bfloat16 gradient out,
            bfloat16 parameter back).
        exchange_overlap: share of that exchange which computation hides.
    """

    tensor_parallel: int = 4
    pipeline_stages: int = 8
    microbatches: int = 16
    samples_per_microbatch: int = 16
    peak_flops_per_second: float = 1e15
    backbone_mfu: float = 0.40
    encoder_mfu: float = 0.35
    nic_bytes_per_second: float = 45e9
    exchange_bytes_per_parameter: float = 4.0
    exchange_overlap: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise RecipeError(f"{each.name} is greater than 0, got {getattr(self, each.name)}")
        for name in ("backbone_mfu", "encoder_mfu", "exchange_overlap"):
            if getattr(self, name) > 1:
                raise RecipeError(f"{name} is a share, at most 1, got {getattr(self, name)}")

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of a data-parallel rank."""
        return self.tensor_parallel * self.pipeline_stages

    def ranks(self, gpus: int) -> int:
        """Data-parallel ranks on so many GPUs.

        Raises:
            RecipeError: the GPUs do not divide into ranks.
        """
        if gpus < 1 or gpus % self.gpus_per_rank:
            raise RecipeError(
                f"gpus is a multiple of tensor_parallel x pipeline_stages = {self.tensor_parallel} x "
                f"{self.pipeline_stages} = {self.gpus_per_rank}, got {gpus}"
            )
        return gpus // self.gpus_per_rank


# --- models -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Model:
    """A backbone or an encoder: what a sample costs, and the parameters that are exchanged after a step."""

    cost: Cost
    num_parameters: float


@dataclass(frozen=True, kw_only=True)
class Models:
    """What is trained together."""

    backbone: Model
    encoder: Model

    def sample_flops(self, samples: Samples) -> np.ndarray:
        """int64 `[2, samples]`: MFLOP of each sample in the backbone (row 0) and in the encoder (row 1)."""
        infos = np.zeros(len(samples), dtype=info_dtype(("images",)))
        for column in ("tokens", "patches", "images"):
            infos[column] = getattr(samples, column)
        return np.stack([self.backbone.cost(infos), self.encoder.cost(infos)])


LLAMA_12B = Model(cost=transformer(num_layers=45, d_model=4608), num_parameters=11.5e9)
MOE_25B = Model(
    cost=moe(num_layers=42, d_model=2048, num_experts=64, experts_per_token=8, d_ff=1472, shared_d_ff=1024),
    num_parameters=25.3e9,
)
VIT_1B = Model(cost=vit(num_layers=40, d_model=1408, d_ff=6144, images_column="images"), num_parameters=1.0e9)
VIT_2B = Model(cost=vit(num_layers=48, d_model=1664, d_ff=8192, images_column="images"), num_parameters=1.8e9)

MODELS: Mapping[str, Models] = {
    "llama-12b+vit-1b": Models(backbone=LLAMA_12B, encoder=VIT_1B),
    "llama-12b+vit-2b": Models(backbone=LLAMA_12B, encoder=VIT_2B),
    "moe-25b+vit-1b": Models(backbone=MOE_25B, encoder=VIT_1B),
    "moe-25b+vit-2b": Models(backbone=MOE_25B, encoder=VIT_2B),
}
"""Llama-12B of 45 layers x 4608; MoE-25B of 42 x 2048, of whose parameters a token meets 4G; ViT-1B of 40 x
1408 (ViT-g/14); ViT-2B of 48 x 1664 (ViT-bigG/14). The shapes of the backbones are assumed."""


# --- the time of a step -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a plan gives the ranks to do in a step, in MFLOP.

    Attributes:
        microbatches: int64 `[2, ranks, microbatches]`, in the backbone (0) and in the encoder (1).
        dearest_gpu: int64 `[ranks]`, encoder work of the busiest GPU of a rank; used by placement `phase`.
    """

    microbatches: np.ndarray
    dearest_gpu: np.ndarray


def evened(work: Work, gpus_per_rank: int) -> Work:
    """The same work in equal microbatches on equal ranks, as if samples could be split.

    No plan beats that where each rank is one stage. In a pipeline, unequal microbatches can, with the cheap
    ones at both ends.
    """
    mean = work.microbatches.mean(axis=(1, 2), keepdims=True)
    encoder_per_gpu = work.microbatches[1].sum() / len(work.dearest_gpu) / gpus_per_rank
    return Work(
        microbatches=np.broadcast_to(mean, work.microbatches.shape),
        dearest_gpu=np.full(len(work.dearest_gpu), encoder_per_gpu),
    )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a step takes, and how even its work was.

    Attributes:
        seconds: of the step.
        imbalance: what the ranks wait for over the mean rank, 1 is perfect: the rank with most work
            for `step` and `pipeline`, the sum of each microbatch's largest work for `microbatch`.
    """

    seconds: float
    imbalance: float


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A job on `gpus` GPUs."""

    gpus: int
    models: Models
    sync: Sync
    placement: Placement
    assumptions: Assumptions

    @property
    def num_ranks(self) -> int:
        """Data-parallel ranks."""
        return self.assumptions.ranks(self.gpus)

    @property
    def num_stages(self) -> int:
        """Stages of a rank's pipeline; 1 for `step`, which has none."""
        return 1 if self.sync == "step" else self.assumptions.pipeline_stages

    def time_step(self, work: Work) -> Timing:
        """Time of a step in which the ranks do `work`."""
        a = self.assumptions
        backbone, encoder = work.microbatches * (
            MEGA / np.array([a.backbone_mfu, a.encoder_mfu]).reshape(2, 1, 1) / a.peak_flops_per_second
        )  # GPU seconds [ranks, microbatches]
        before = np.zeros(len(work.dearest_gpu))
        if self.placement == "phase":
            before = work.dearest_gpu * (MEGA / a.encoder_mfu / a.peak_flops_per_second)
        stages = self._stages(backbone, encoder)  # [stages, microbatches, ranks]
        total = backbone + encoder
        waited_for = total.sum(axis=1).max()
        if self.sync == "microbatch":
            stages = stages.max(axis=2, keepdims=True)
            waited_for = total.max(axis=0).sum()
        pipeline = one_forward_one_backward(stages / 3, stages * (2 / 3))
        return Timing(
            seconds=float((before + pipeline).max() + self._exchange_seconds()),
            imbalance=float(waited_for / total.sum(axis=1).mean()),
        )

    def _stages(self, backbone: np.ndarray, encoder: np.ndarray) -> np.ndarray:
        """Seconds `[stages, microbatches, ranks]`, from GPU seconds `[ranks, microbatches]`."""
        a = self.assumptions
        num_stages = self.num_stages
        edges = np.linspace(0, 1, num_stages + 1)
        backbone_share, encoder_share = np.diff(edges), np.zeros(num_stages)
        if self.placement == "stage0":
            encoder_share[0] = 1
        if self.placement == "pipe" and encoder.any():
            end = encoder.sum() / (encoder.sum() + backbone.sum())  # of the encoder's layers, in time
            encoder_share = np.diff(np.minimum(edges / end, 1))
            backbone_share = np.diff(np.maximum((edges - end) / (1 - end), 0))
        shape = (num_stages, 1, 1)
        work = backbone_share.reshape(shape) * backbone.T + encoder_share.reshape(shape) * encoder.T
        return work / (a.gpus_per_rank / num_stages)

    def _exchange_seconds(self) -> float:
        """Gradients and parameters among the ranks, as far as computation does not hide it."""
        a, m = self.assumptions, self.models
        ranks = self.num_ranks
        parameters = (m.backbone.num_parameters + m.encoder.num_parameters) / a.gpus_per_rank
        seconds = parameters * a.exchange_bytes_per_parameter * (ranks - 1) / ranks / a.nic_bytes_per_second
        return seconds * (1 - a.exchange_overlap)
