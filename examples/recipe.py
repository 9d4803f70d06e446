"""What the demo trains on: eight text sources in several languages and code, and two image sources.

Every rank imports this file; it loads no JAX. `MSDATA_DEMO_DATA` names the folder of prepare_data.py.
"""

import os

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS, PATCHES_PER_ROW, PATCH = 2048, 8, 512, 16

tokenize = msd.Tokenize(f"{DATA}/tokenizer.json")
text = [tokenize, msd.Split(SEQ_LEN)]
picture = [
    msd.DecodeImage(longest_side=160),
    msd.Patchify(PATCH, max_patches=100),
    tokenize,
    msd.Truncate(SEQ_LEN),
]

recipe = msd.Recipe(
    sources={
        "code_py": msd.Source(f"{DATA}/code_py.jsonl", text),
        "docs_rst": msd.Source(f"{DATA}/docs_rst.parquet", text),
        "man_de": msd.Source(f"{DATA}/man_de.arrayrecord", text),
        "man_fr": msd.Source(f"{DATA}/man_fr.parquet", text),
        "man_ja": msd.Source(f"{DATA}/man_ja.parquet", text),
        "man_ru": msd.Source(f"{DATA}/man_ru.jsonl", text),
        "help_de": msd.Source(f"{DATA}/help_de.tar", text),
        "dict_en": msd.Source(f"{DATA}/dict_en.jsonl", text),
        "photos": msd.Source(f"{DATA}/photos.tar", picture, on_bad_sample="skip", block_size=16),
        "stamps": msd.Source(f"{DATA}/stamps.parquet", picture, on_bad_sample="skip", block_size=16),
    },
    strategy=msd.DGraph()
    .mix(
        {
            "code_py": 0.20, "docs_rst": 0.20, "man_de": 0.10, "man_fr": 0.08, "man_ja": 0.08,
            "man_ru": 0.06, "help_de": 0.08, "dict_en": 0.08, "photos": 0.07, "stamps": 0.05,
        },
        unit="tokens",
    )
    .pack(seq_len=SEQ_LEN, rows=ROWS, patches_per_row=PATCHES_PER_ROW, patch_values=PATCH * PATCH * 3)
    .cost(
        backbone=msd.costs.transformer(num_layers=2, d_model=128, d_ff=256, vocab_size=8192),
        encoder=msd.costs.vit(num_layers=1, d_model=128),
    )
    .distribute("dp", context_axis="cp", context_layout="zigzag")
    .balance("lpt")
    .broadcast_at("tp"),
    seed=17,
)  # fmt: skip
