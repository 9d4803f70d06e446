"""A vision-language hybrid: image encoder and language backbone balanced together.

For models in which the encoder runs over a rank's patches first and the backbone over its rows afterwards,
with all ranks waiting for one another after each. A step then takes as long as the dearest rank of the
encoder and the dearest rank of the backbone together.

What goes wrong without care: balanced by the backbone alone, images pile up on some ranks, and all others
wait for their encoders.

What this strategy does: `cost` has a formula for either, so `balance` deals rows by both at once.

What to look at: the dearest encoder and the dearest backbone together, over the sum of both means. On the
demo's data, 20 steps on 4 ranks, it is 1.117 without balancing, 1.055 balanced by the backbone alone, and
1.029 by both. With `distribute("dp", encoder_axis="world")` it is 1.001: images then go to whichever rank has
least, and the model fetches their embeddings by `patch_index`.

What it costs: nothing but the formulas. Both have to be in one unit.
"""

import os

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS, PATCHES_PER_ROW, PATCH = 2048, 32, 512, 16

tokenize = msd.Tokenize(f"{DATA}/tokenizer.json")
text = [tokenize, msd.Split(SEQ_LEN)]
picture = [msd.DecodeImage(longest_side=160), msd.Patchify(PATCH, max_patches=100), tokenize]

recipe = msd.Recipe(
    sources={
        "guides": msd.Source(f"{DATA}/docs_rst.parquet", text, block_size=16),
        "entries": msd.Source(f"{DATA}/dict_en.jsonl", text),
        "photos": msd.Source(f"{DATA}/photos.tar", picture, on_bad_sample="skip", block_size=16),
    },
    strategy=msd.DGraph()
    .mix({"guides": 0.5, "entries": 0.3, "photos": 0.2}, unit="tokens")
    .pack(seq_len=SEQ_LEN, rows=ROWS, patches_per_row=PATCHES_PER_ROW, patch_values=PATCH * PATCH * 3)
    .cost(
        backbone=msd.costs.transformer(num_layers=12, d_model=768, num_heads=12, vocab_size=8192),
        encoder=msd.costs.vit(num_layers=24, d_model=1024, patch_values=PATCH * PATCH * 3),
    )
    .distribute("dp")
    .balance("lpt", objective="step"),
    seed=17,
)
