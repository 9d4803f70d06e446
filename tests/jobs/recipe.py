"""The recipe of the jobs that tests start: data in `MSDATA_TEST_DATA`, a variant in `MSDATA_TEST_VARIANT`."""

import os
from pathlib import Path

import msdata_jax as msd

SEQ_LEN, ROWS, PATCHES_PER_ROW, PATCH = 256, 8, 32, 8
MESHES = {
    "dp4": {"dp": 4},
    "dp2cp2": {"dp": 2, "cp": 2},
    "dp2cp2tp2": {"dp": 2, "cp": 2, "tp": 2},
    "tp2dp2": {"tp": 2, "dp": 2},
}


def make_recipe(
    folder: Path, *, cp: bool = False, broadcast: tuple[str, ...] = (), stop: bool = False
) -> msd.Recipe:
    """Three text sources and one of images; one image is bad and skipped."""
    tokenize = msd.Tokenize(str(folder / "tokenizer.json"))
    text = [tokenize, msd.Split(SEQ_LEN)]
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
        .pack(seq_len=SEQ_LEN, rows=ROWS, patches_per_row=PATCHES_PER_ROW, patch_values=PATCH * PATCH * 3)
        .cost(
            backbone=msd.costs.transformer(num_layers=2, d_model=64),
            encoder=msd.costs.vit(num_layers=2, d_model=64, patch_values=PATCH * PATCH * 3),
        )
        .distribute(
            "dp",
            microbatches=2,
            context_axis="cp" if cp else None,
            context_layout="zigzag" if cp else "contiguous",
        )
        .balance("lpt")
        .broadcast_at(*broadcast)
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
    "cp": {"cp": True},
    "broadcast": {"broadcast": ("tp",)},
    "stop": {"stop": True},
}

if "MSDATA_TEST_DATA" in os.environ:
    variant = VARIANTS[os.environ.get("MSDATA_TEST_VARIANT", "plain")]
    recipe = make_recipe(Path(os.environ["MSDATA_TEST_DATA"]), **variant)
