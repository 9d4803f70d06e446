"""Sizes of the model that the training benchmark trains, and its work by formula; no JAX is needed here."""

import msdata_jax as msd

VOCABULARY, D_MODEL, D_FF, LAYERS, ENCODER_LAYERS = 256, 64, 192, 1, 1
PATCH = 8
PATCH_VALUES = PATCH * PATCH * 3
PATCHES_PER_ROW = 1024
BLOCK = 128
"""Places that are computed together."""

FLOPS = msd.costs.transformer(num_layers=LAYERS, d_model=D_MODEL, d_ff=D_FF, vocab_size=VOCABULARY)
ENCODER_FLOPS = msd.costs.vit(
    num_layers=ENCODER_LAYERS,
    d_model=D_MODEL,
    d_ff=3 * D_FF // 2,  # the formula counts two matrices, the gated layer has three
    patch_values=PATCH_VALUES,
)
