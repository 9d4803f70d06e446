"""What train_plain.py, train_flax.py and train_pjit.py read: the demo's eight text sources, in short rows.

Every rank imports this file; it loads no JAX. `MSDATA_DEMO_DATA` names the folder of prepare_data.py.
"""

import os

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS = 256, 16

tokenize = msd.Tokenize(f"{DATA}/tokenizer.json")
text = [tokenize, msd.Split(SEQ_LEN)]

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
    },
    strategy=msd.DGraph()
    .mix(
        {
            "code_py": 0.25, "docs_rst": 0.25, "man_de": 0.1, "man_fr": 0.08, "man_ja": 0.08,
            "man_ru": 0.08, "help_de": 0.08, "dict_en": 0.08,
        },
        unit="tokens",
    )
    .pack(seq_len=SEQ_LEN, rows=ROWS)
    .cost(backbone=msd.costs.transformer(num_layers=2, d_model=128, d_ff=512, vocab_size=8192))
    .distribute(("dp", "fsdp"))
    .balance("lpt"),
    seed=17,
)  # fmt: skip
