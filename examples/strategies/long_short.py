"""Long and short contexts in one job: manuals of up to 16384 places beside the entries of a dictionary.

For continued training on long contexts, where most samples are still short.

What goes wrong without care: attention grows with the square of a document's length, so a row that is one
long document costs more than twice a row of short ones, and a rank has too few rows to even that out. Along
the context axis the parts of a row differ too, because attention ends where a document ends.

What this strategy does: `regroup` deals the rows of four consecutive steps by cost, so that the rows of a
step are alike; `balance` pairs dear rows with cheap ones inside the step; `zigzag_document` cuts each
document, not the row, so that all context-parallel parts work alike.

What to look at: the dearest data-parallel rank over the mean one. On the demo's data, 32 steps on 4 ranks, it
is 1.282 without balancing, 1.150 with `balance`, and 1.025 with `regroup` too. Of 4 context parts the dearest
has 1.61 times the mean attention when contiguous, 1.40 with `zigzag`, and 1.00 with `zigzag_document`.

What it costs: steps are no longer alike. Their costs vary by 31 % (standard deviation) instead of 8 %, and
the shares of the mixture hold over each four steps, not in each step.
"""

import os

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS = 16_384, 8

text = [msd.Tokenize(f"{DATA}/tokenizer.json"), msd.Split(SEQ_LEN)]

recipe = msd.Recipe(
    sources={
        "manuals": msd.Source(f"{DATA}/man_de.arrayrecord", text, block_size=4),
        "guides": msd.Source(f"{DATA}/docs_rst.parquet", text, block_size=4),
        "entries": msd.Source(f"{DATA}/dict_en.jsonl", text, block_size=512),
    },
    strategy=msd.DGraph()
    .mix({"manuals": 0.3, "guides": 0.2, "entries": 0.5}, unit="tokens")
    .pack(seq_len=SEQ_LEN, rows=ROWS)
    .regroup(steps=4)
    .cost(backbone=msd.costs.transformer(num_layers=24, d_model=1024, num_heads=16, vocab_size=8192))
    .distribute("dp", context_axis="cp", context_layout="zigzag_document")
    .balance("lpt"),
    seed=17,
)
