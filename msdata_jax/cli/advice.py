"""What a dry run suggests: each function is a rule that yields sentences, with the numbers behind them."""

from collections.abc import Iterator

import numpy as np

from msdata_jax.cli.plan_figures import DryRunFigures

LOW_FILL = 0.9
WORTH_SAYING = 1.05
"""Ratios below it (5 % over the mean) are not worth a word."""


def advise(figures: DryRunFigures) -> list[str]:
    """All that the rules have to say, in the order of the strategy's primitives."""
    if not figures.steps:
        return ["No step could be planned: the sources have too few samples, or the mixture ends at once."]
    rules = (_sources, _mixture, _too_long, _fill, _buckets, _waits, _giants, _balance, _microbatches, _notes)
    return [sentence for rule in rules for sentence in rule(figures)]


def _sources(figures: DryRunFigures) -> Iterator[str]:
    for source, stream in zip(figures.sources, figures.run.streams, strict=True):
        if source["bad"]:
            first = stream.bad[0]
            yield (
                f"Source {source['name']!r}: {source['bad']} records could not be read or transformed; the "
                f"first at position {first.position}: {first.reason}."
            )


def _mixture(figures: DryRunFigures) -> Iterator[str]:
    for source in figures.sources:
        asked, realised = source["asked_percent"], source["realised_percent"]
        name = source["name"]
        if asked and not source["samples"]:
            yield f"Source {name!r} has a share of {asked:.3g} % and gave no sample in these steps."
        elif abs(asked - realised) > 1:
            yield (
                f"Source {name!r}: {asked:.1f} % asked, {realised:.1f} % drawn. The mixture is exact in the "
                "long run; more steps, or smaller samples, bring the two together."
            )
        if source["epochs"] > 2:
            yield f"Source {name!r} is repeated: {source['epochs']:.1f} epochs in {len(figures.steps)} steps."


def _too_long(figures: DryRunFigures) -> Iterator[str]:
    pack = figures.run.graph.packing
    assert pack is not None
    what = {
        "truncate": "their ends are left out: Split among the transforms, or oversize='split', keeps them",
        "split": "they are split into pieces, which do not attend to each other",
        "drop": "they are dropped: oversize='truncate' or 'split' keeps them, and so does a longer row",
    }
    for source in figures.sources:
        if source["too_long"] and pack.oversize in what:
            share = 100 * source["too_long"] / max(source["samples"], 1)
            yield (
                f"Source {source['name']!r}: {source['too_long']} of {source['samples']} samples "
                f"({share:.2g} %, up to {source['longest']} tokens) exceed seq_len={pack.seq_len}; "
                f"{what[pack.oversize]}."
            )


def _fill(figures: DryRunFigures) -> Iterator[str]:
    pack, fill = figures.run.graph.packing, figures.mean("fill")
    assert pack is not None
    if fill >= LOW_FILL:
        return
    begin = f"Rows are {100 * fill:.0f} % full:"
    if pack.method == "pad":
        yield f"{begin} padding leaves {100 - 100 * fill:.0f} % of the places empty; .pack(...) fills them."
    elif figures.lost_to_patches > 0.5:
        yield (
            f"{begin} patches are the limit. {100 * figures.lost_to_patches:.0f} % of the empty places are "
            f"in rows that have used more than half of patches_per_row={pack.patches_per_row}. Raise it, "
            "shrink the images, or lower the share of the image sources."
        )
    elif figures.lost_to_segments > 0.5:
        yield (
            f"{begin} max_segments_per_row={pack.max_segments_per_row} is the limit; "
            f"{100 * figures.lost_to_segments:.0f} % of the empty places are in rows that hold so many: "
            "raise it."
        )
    elif pack.method in ("first_fit", "balanced"):
        yield f"{begin} method={pack.method!r} trades fill for something else; 'best_fit' fills most."
    else:
        yield from _half_rows(figures, begin, pack.seq_len)


def _half_rows(figures: DryRunFigures, begin: str, seq_len: int) -> Iterator[str]:
    lengths = np.concatenate(figures.lengths)
    tokens = max(int(lengths.sum()), 1)
    share = 100 * int(lengths[lengths > seq_len // 2].sum()) / tokens
    if share > 20:
        yield (
            f"{begin} {share:.0f} % of the tokens come in samples longer than half a row, which leave gaps. "
            f"A longer row than seq_len={seq_len}, or Split to a divisor of it, fills better."
        )
    else:
        yield f"{begin} a step has few samples to choose from; more rows fill better."


def _buckets(figures: DryRunFigures) -> Iterator[str]:
    pack = figures.run.graph.packing
    assert pack is not None
    if len(pack.shapes) > 1:
        for shape in pack.shapes:
            mine = [step["fill"] for step in figures.steps if step["seq_len"] == shape.seq_len]
            if mine:
                yield (
                    f"Bucket of {shape.seq_len} places: {len(mine)} of {len(figures.steps)} steps, "
                    f"{100 * float(np.mean(mine)):.0f} % full."
                )
            else:
                yield f"Bucket of {shape.seq_len} places: no step in {len(figures.steps)}; it can go."
    elif pack.method == "pad" and figures.mean("fill") < LOW_FILL:
        lengths = np.minimum(np.concatenate(figures.lengths), pack.seq_len)
        bounds = sorted({*(int(-(-np.quantile(lengths, q) // 64) * 64) for q in (0.5, 0.9)), pack.seq_len})
        if len(bounds) > 1 and bounds[-1] == pack.seq_len:
            bucket = np.array(bounds)[np.searchsorted(bounds, lengths)]
            yield (
                f"Half of the samples have up to {bounds[0]} tokens: buckets of {bounds} places, padded, "
                f"would be {100 * float(lengths.sum() / bucket.sum()):.0f} % full."
            )


def _waits(figures: DryRunFigures) -> Iterator[str]:
    for source in figures.sources:
        if source["longest_wait_steps"] > 9 + 2 * figures.run.graph.regrouped_steps:
            yield (
                f"Source {source['name']!r}: a sample waited {source['longest_wait_steps']} steps for a row "
                f"that suits it ({source['waiting_at_end']} wait at the end)."
            )


def _giants(figures: DryRunFigures) -> Iterator[str]:
    graph, affected = figures.run.graph, sum(step["giants"] > 0 for step in figures.steps)
    least = figures.mean("dominance")
    if affected:
        worst = figures.most("dominance")
        degree = 2
        while degree < worst:
            degree *= 2
        yield (
            f"In {affected} of {len(figures.steps)} steps up to {figures.most('giants'):.0f} rows cost more "
            f"than a mean rank, so no placement helps: the dearest rank has {worst:.2f} times the mean or "
            f"more. Use more rows in a step; .regroup(steps={2 * graph.regrouped_steps}), which brings dear "
            "rows together and changes the order of samples; or context parallelism of degree "
            f"{degree}, which cuts a row over ranks."
        )
    elif least >= WORTH_SAYING:
        yield (
            f"With {_rows_to_deal(figures)} no placement brings the dearest rank below "
            f"{least:.2f} times the mean (mean over steps): more rows in a step leave more to choose from, "
            "and pack(method='balanced') makes rows of even cost."
        )


def _rows_to_deal(figures: DryRunFigures) -> str:
    plan = figures.worst
    assert plan is not None
    rows, of = plan.num_rows // plan.num_groups, "rank"
    if figures.run.graph.balancing.objective != "step":
        rows, of = rows // plan.num_microbatches, "microbatch"
    return f"{rows} row{'s' if rows > 1 else ''} a {of}"


def _balance(figures: DryRunFigures) -> Iterator[str]:
    before, least = figures.mean("imbalance_unbalanced"), figures.mean("dominance")
    after, objective = figures.mean("objective"), figures.run.graph.balancing.objective
    if figures.would_balance and before >= WORTH_SAYING:
        then = float(np.mean(figures.would_balance))
        if before - then > 0.02:
            yield (
                f"The dearest rank has {before:.2f} times the mean cost; .balance('lpt') would bring that "
                f"to {then:.2f}, {100 * (1 - then / before):.0f} % less to wait for."
            )
    elif after >= WORTH_SAYING and after > 1.02 * least:
        yield (
            f"By the objective {objective!r} a step takes {after:.2f} times what even work would; "
            f"{least:.2f} may be possible. With {_rows_to_deal(figures)} there is little to choose from: "
            "more rows in a step help, and pack(method='balanced'), which makes rows of even cost."
        )
    if figures.mean("encoder_share") > 0.05 and figures.mean("encoder_imbalance") > 1.2:
        yield (
            f"The encoder has {100 * figures.mean('encoder_share'):.0f} % of the work, and its dearest rank "
            f"{figures.mean('encoder_imbalance'):.2f} times the mean: few rows hold images. Smaller images "
            "or more rows even that out."
        )


def _microbatches(figures: DryRunFigures) -> Iterator[str]:
    spread, objective = figures.run.graph.distribution, figures.run.graph.balancing.objective
    if spread.pipeline_axis is not None and objective == "step":
        yield (
            f"There are pipeline stages along {spread.pipeline_axis!r}, and the objective is 'step': "
            ".balance(..., objective='pipeline') counts the bubbles that uneven microbatches open."
        )
    if objective == "microbatch" and spread.microbatches == 1:
        yield "objective='microbatch' with one microbatch is as 'step': see distribute(microbatches=...)."
    uneven = figures.mean("microbatch_spread")
    if spread.microbatches > 1 and objective == "step" and spread.pipeline_axis is None and uneven > 1.1:
        yield (
            f"The dearest microbatch has {uneven:.2f} times the mean cost. That costs nothing where ranks "
            "meet once a step; where they meet in every microbatch (expert parallelism, ZeRO-3), say "
            "objective='microbatch'."
        )


def _notes(figures: DryRunFigures) -> Iterator[str]:
    noted = [step for step in figures.steps if step["note"]]
    if noted:
        first = noted[0]
        count = f"{len(noted)} of {len(figures.steps)} steps have a note"
        yield f"{count}. Step {first['step']}: {first['note']}."
