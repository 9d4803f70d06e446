"""The recipe of the jobs that tests start: data in `MSDATA_TEST_DATA`, a variant in `MSDATA_TEST_VARIANT`."""

import os
from pathlib import Path
from typing import Literal

import msdata_jax as msd

SEQ_LEN, ROWS, PATCHES_PER_ROW, PATCH = 256, 8, 32, 8
MESHES = {
    "dp4": {"dp": 4},
    "dp2cp2": {"dp": 2, "cp": 2},
    "dp2tp2": {"dp": 2, "tp": 2},
    "dp2cp2tp2": {"dp": 2, "cp": 2, "tp": 2},
    "tp2dp2": {"tp": 2, "dp": 2},
    "pp3dp2": {"pp": 3, "dp": 2},
}


def make_recipe(
    folder: Path,
    *,
    cp: Literal["zigzag", "zigzag_document"] | None = None,
    broadcast: tuple[str, ...] = (),
    via: Literal["host", "device"] = "host",
    stop: bool = False,
    buckets: bool = False,
    stages: str | None = None,
    spread: bool = False,
) -> msd.Recipe:
    """Three text sources and one of images; one image is bad and skipped."""
    tokenize = msd.Tokenize(str(folder / "tokenizer.json"))
    text = [tokenize] if buckets else [tokenize, msd.Split(SEQ_LEN)]
    rows = {SEQ_LEN // 4: 4 * ROWS, SEQ_LEN: ROWS} if buckets else {SEQ_LEN: ROWS}
    image = [msd.DecodeImage(), msd.Patchify(PATCH, max_patches=PATCHES_PER_ROW), tokenize]
    strategy = (
        msd.DGraph()
        .mix(
            [
                (0, {"lines": 0.5, "blocks": 0.3, "files": 0.1, "images": 0.1}),
                (6, {"lines": 0.2, "blocks": 0.2, "files": 0.4, "images": 0.2}),
            ],
            unit="tokens",
            interpolation="linear",
            on_exhausted="stop" if stop else "repeat",
        )
        .bucket(
            rows,
            patches_per_row=PATCHES_PER_ROW,
            patch_values=PATCH * PATCH * 3,
            oversize="split" if buckets else "raise",
        )
        .cost(
            backbone=msd.costs.transformer(num_layers=2, d_model=64),
            encoder=msd.costs.vit(num_layers=2, d_model=64, patch_values=PATCH * PATCH * 3),
        )
        .distribute(
            "dp",
            microbatches=2,
            context_axis="cp" if cp else None,
            context_layout=cp or "contiguous",
            pipeline_axis=stages,
            encoder_axis="world" if spread else None,
        )
        .balance("lpt", objective="pipeline" if stages else "step")
        .broadcast_at(*broadcast, via=via)
    )
    sources = {
        "lines": msd.Source(str(folder / "text.jsonl"), text, block_size=32),
        "blocks": msd.Source(str(folder / "text.parquet"), text, block_size=16),
        "files": msd.Source(str(folder / "text.arrayrecord"), text, block_size=4),
        "images": msd.Source(str(folder / "images.tar"), image, on_bad_sample="skip", block_size=8),
    }
    return msd.Recipe(sources=sources, strategy=strategy, seed=11)


VARIANTS = {
    "plain": {},
    "cp": {"cp": "zigzag"},
    "document": {"cp": "zigzag_document"},
    "broadcast": {"broadcast": ("tp",)},
    "device": {"broadcast": ("tp",), "via": "device"},
    "buckets": {"buckets": True},
    "spread": {"cp": "zigzag", "spread": True, "broadcast": ("tp",)},
    "stages": {"stages": "pp"},
    "stop": {"stop": True},
}

if "MSDATA_TEST_DATA" in os.environ:
    variant = VARIANTS[os.environ.get("MSDATA_TEST_VARIANT", "plain")]
    recipe = make_recipe(Path(os.environ["MSDATA_TEST_DATA"]), **variant)
