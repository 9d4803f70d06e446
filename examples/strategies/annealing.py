"""Code-heavy annealing: in the last tenth of training the mixture moves from text to code.

For the end of pre-training, when the learning rate falls and the last tokens count most.

What this strategy does: the weights are a function of the step. Groups keep the sources of a kind in
proportion whatever the kind's share is. `loss` lets the targets of the dictionary, whose entries repeat
themselves, count half.

What to look at: the shares of text and code by step, and the weights in `loss_mask`. On the demo's data code
has 20 % of the tokens of the first 90 steps and 69 % of those of the last one.

What to mind: the function enters the recipe's fingerprint by its name alone, so give it another name when its
weights change. Compute weights from whole numbers: every rank and every run must find the same.
"""

import os

import msdata_jax as msd

DATA = os.environ.get("MSDATA_DEMO_DATA", "out/demo/data")
SEQ_LEN, ROWS = 1024, 16
NUM_STEPS = 100
ANNEALING_STEPS = NUM_STEPS // 10


def code_in_the_last_tenth(step: int) -> dict[str, int]:
    """Percent of text and code: 20 % code at first, then up in a straight line to 70 % in the last step."""
    late = min(max(step - (NUM_STEPS - 1 - ANNEALING_STEPS), 0), ANNEALING_STEPS)
    code = 20 + 50 * late // ANNEALING_STEPS
    return {"text": 100 - code, "code": code}


text = [msd.Tokenize(f"{DATA}/tokenizer.json"), msd.Split(SEQ_LEN)]

recipe = msd.Recipe(
    sources={
        "guides": msd.Source(f"{DATA}/docs_rst.parquet", text, block_size=16),
        "manuals": msd.Source(f"{DATA}/man_de.arrayrecord", text, block_size=16),
        "entries": msd.Source(f"{DATA}/dict_en.jsonl", text),
        "python": msd.Source(f"{DATA}/code_py.jsonl", text, block_size=16),
    },
    strategy=msd.DGraph()
    .mix(
        code_in_the_last_tenth,
        groups={"text": {"guides": 2, "manuals": 1, "entries": 1}, "code": {"python": 1}},
        unit="tokens",
    )
    .pack(seq_len=SEQ_LEN, rows=ROWS)
    .loss(sources={"entries": 0.5})
    .distribute("dp")
    .balance("lpt"),
    seed=17,
)
