"""`msdata inspect` on checkpoints: which steps hold a state of the data, and what is in one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from msdata_jax.checkpoint.files import MAGIC
from msdata_jax.checkpoint.finding import Found, find_states, load_state
from msdata_jax.checkpoint.journal import is_journal, list_journal, read_journal
from msdata_jax.cli.tables import make_table
from msdata_jax.data_state import DataState
from msdata_jax.errors import CheckpointError
from msdata_jax.planning.mixing import WEIGHT_SCALE

MOST_BAD_SHOWN = 20


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a directory, or a state file by its first bytes."""
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def describe_checkpoint(path: Path, step: int | None) -> tuple[dict[str, Any], CheckpointError | None]:
    """The states that there are, and what is in those of one step.

    Args:
        path: a folder of steps, a step, an item, a state file, or the folder of a journal.
        step: whose states; the newest by default.

    Returns:
        also why a state of that step cannot be read; None where all can.

    Raises:
        CheckpointError: no state is there, or none of that step.
    """
    if path.is_dir() and is_journal(path):
        return _describe_journal(path, step), None
    found = find_states(path)
    step = found[-1].step if step is None else step
    chosen = [each for each in found if each.step == step]
    if not chosen:
        steps = sorted({each.step for each in found})
        raise CheckpointError(f"{path} holds no state of step {step}; there are {', '.join(map(str, steps))}")
    states, errors = [], {}
    for each in chosen:
        try:
            states.append(describe_state(each.item, each.step, load_state(each.file)))
        except CheckpointError as error:
            errors[each.file] = error
    steps = [_summary(each, errors.get(each.file)) for each in found]
    result = {"checkpoint": str(path), "steps": steps, "states": states}
    return result, next(iter(errors.values()), None)


def _describe_journal(path: Path, step: int | None) -> dict[str, Any]:
    """A journal as if its states were checkpoints: `step` is the last one that its trainer took."""
    there = list_journal(path)
    if step is not None and there and step + 1 not in (before for _, before in there):
        taken = [before - 1 for _, before in there]
        raise CheckpointError(
            f"{path} holds no state of step {step}; there are those of steps {min(taken)} to {max(taken)}"
        )
    state = read_journal(path, None if step is None else step + 1)
    steps = {file: [before - 1 for each, before in there if each == file] for file, _ in there}
    return {
        "checkpoint": str(path),
        "steps": [
            {
                "file": file.name,
                "first_step": min(taken),
                "last_step": max(taken),
                "bytes": file.stat().st_size,
            }
            for file, taken in steps.items()
        ],
        "states": [describe_state("journal", state.step - 1, state)],
    }


def _summary(found: Found, error: CheckpointError | None) -> dict[str, Any]:
    head = found.head
    return {
        "step": found.step,
        "item": found.item,
        "kind": head.kind if head and error is None else "unreadable",
        "bytes": head.file_bytes if head else None,
        "base": head.base.where if head and head.base else None,
        "next_step": head.step if head else None,
        "problem": found.problem if error is None else str(error),
    }


def describe_state(item: str, step: int, state: DataState) -> dict[str, Any]:
    """What is in a state."""
    stream, num_sources = state.stream, len(state.sources)
    carried = np.bincount(stream.carry.infos["source"], minlength=num_sources)
    sources = [
        {
            "source": source.name,
            "position": int(stream.last_position[i]),
            "epoch": max(int(stream.last_position[i]), 0) // source.num_records,
            "num_records": source.num_records,
            "owed": int(stream.credit[i]) / WEIGHT_SCALE,
            "carried": int(carried[i]),
            "exhausted": bool(stream.exhausted[i]),
            "bad": bad.num_bad,
            "verdicts": [list(each) for each in bad.verdicts],
            "bad_listed": [[each.position, each.reason] for each in bad.listed],
            "data": source.data,
            "fingerprint": source.fingerprint,
        }
        for i, (source, bad) in enumerate(zip(state.sources, state.bad, strict=True))
    ]
    return {
        "step": step,
        "item": item,
        "next_step": state.step,
        "recipe": state.recipe,
        "seed": state.seed,
        "plan_digest": state.plan_digest,
        "mesh": state.mesh,
        "packing": state.packing,
        "unit": state.mixture.unit,
        "ended": stream.ended,
        "carried": len(stream.carry),
        "steps_composed_ahead": len(stream.gathered) + len(stream.pending),
        "sources": sources,
    }


# --- for people -------------------------------------------------------------------------------------------


def show_checkpoint(console: Any, result: Mapping[str, Any], error: CheckpointError | None = None) -> None:
    """The steps and the states as tables; `error` is told elsewhere."""
    console.print(f"[bold]{result['checkpoint']}[/bold]")
    rows = [{name: row[name] for name in row if name != "problem"} for row in result["steps"]]
    console.print(make_table(rows, texts=("base",)))
    for row in result["steps"]:
        if row.get("problem") and row["problem"] != str(error):
            console.print(f"  step {row['step']}: {row['problem']}", markup=False)
    for state in result["states"]:
        _show_state(console, state)


def _show_state(console: Any, state: Mapping[str, Any]) -> None:
    console.print(
        f"\n[bold]Step {state['step']}, {state['item']}[/bold]: step {state['next_step']} is delivered next"
        f"{'; the data ended' if state['ended'] else ''}, mesh {state['mesh']}, seed {state['seed']}"
    )
    console.print(
        f"recipe {state['recipe']}; digest of all steps before {state['plan_digest']}; {state['carried']} "
        f"samples wait for a later step, {state['steps_composed_ahead']} steps are composed",
        style="dim",
    )
    console.print(state["packing"], style="dim", markup=False)
    rows = [
        {
            **{name: source[name] for name in ("source", "position", "epoch")},
            f"owed {state['unit']}": source["owed"],
            **{name: source[name] for name in ("carried", "exhausted", "bad")},
            "verdicts": len(source["verdicts"]),
            "data fingerprint": source["fingerprint"][:16],
        }
        for source in state["sources"]
    ]
    console.print(make_table(rows))
    _show_bad(console, state["sources"])


def _show_bad(console: Any, sources: list[Mapping[str, Any]]) -> None:
    bad = [
        {"source": source["source"], "position": position, "reason": reason, "verdict": verdict}
        for source in sources
        for position, reason, verdict in (
            *((position, reason, "by its bytes") for position, reason in source["bad_listed"]),
            *((position, reason, "by time-out or crash") for _, position, reason in source["verdicts"]),
        )
    ]
    if not bad:
        return
    console.print("\n[bold]Bad records[/bold]")
    console.print(make_table(bad[:MOST_BAD_SHOWN]))
    if len(bad) > MOST_BAD_SHOWN:
        console.print(f"... and {len(bad) - MOST_BAD_SHOWN} more (--json has all)")
