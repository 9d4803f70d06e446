"""What a MaxText run trains on: two kinds of text, mixed by tokens and packed into rows.

Every rank imports this, and it loads no JAX. `rows` and `seq_len` are the run's global batch and its
`max_target_length`.
"""

import os
from pathlib import Path

import msdata_jax as msd

DATA = Path(os.environ.get("MSDATA_DATA", "data"))
SEQ_LEN = int(os.environ.get("MSDATA_SEQ_LEN", "2048"))
ROWS = int(os.environ.get("MSDATA_ROWS", "8"))

# The mesh axes that cut rows and places of the model's inputs: in MaxText's base.yml, those that
# logical_axis_rules gives the two names of input_data_sharding_logical_axes.
ROW_AXES = ("data", "stage", "fsdp", "fsdp_transpose", "expert")
PLACE_AXES = ("tensor_sequence", "context", "context_usp_ulysses")

text = [msd.Tokenize(str(DATA / "tokenizer.json")), msd.Split(SEQ_LEN)]
recipe = msd.Recipe(
    sources={
        "books": msd.Source(str(DATA / "books.parquet"), text),
        "code": msd.Source(str(DATA / "code.jsonl"), text),
    },
    strategy=msd.DGraph()
    .mix({"books": 0.7, "code": 0.3}, unit="tokens")
    .pack(seq_len=SEQ_LEN, rows=ROWS)
    .cost(backbone=msd.costs.transformer(num_layers=16, d_model=2048))
    .distribute(ROW_AXES, context_axis=PLACE_AXES)
    .balance("lpt"),
    seed=0,
)
