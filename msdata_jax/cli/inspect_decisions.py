"""What was decided while a job ran, from its record, and whether a policy decides the same again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msdata_jax.cli.recipes import load_recipe
from msdata_jax.cli.tables import make_table
from msdata_jax.errors import PlanError
from msdata_jax.observing.record import ABOUT, RunRecord
from msdata_jax.scaling.decision_log import Round, replay
from msdata_jax.scaling.observation import Decision
from msdata_jax.scaling.policy import Hysteresis

_WORDS = {"widen": "{source} also on rank {rank}", "narrow": "{source} no longer on rank {rank}"}


def is_record(folder: Path) -> bool:
    """Whether `msdata launch --record` wrote this folder."""
    return folder.is_dir() and (folder / ABOUT).is_file()


def describe_decisions(folder: Path, recipe_file: Path | None) -> dict[str, Any]:
    """What was decided, one entry a decision; and how many rounds the recipe's policy decides otherwise.

    Args:
        folder: of the record.
        recipe_file: asks its policy again, on what was seen then; None asks nobody.

    Raises:
        MSDataError: the folder is no record, or its decisions are none.
    """
    rounds = [Round.from_plain(line) for line in RunRecord(folder).decisions()]
    result: dict[str, Any] = {
        "record": str(folder),
        "rounds": len(rounds),
        "decisions": [
            {
                "seconds": round(each.observation.seconds, 1),
                "step": each.observation.step,
                "decision": _in_words(decision, each),
                "why": decision.why,
            }
            for each in rounds
            for decision in each.decisions
        ],
        "notes": [each.note for each in rounds if each.note],
    }
    if recipe_file is not None:
        policy = load_recipe(recipe_file).scaling or Hysteresis()
        try:
            otherwise = [
                each.observation.step
                for each, again in replay(rounds, policy)
                if not each.note and tuple(again) != each.decisions
            ]
        except Exception as error:  # the user's policy
            raise PlanError(f"the policy of {recipe_file} fails: {type(error).__name__}: {error}") from error
        result["replayed"] = {"policy": repr(policy), "otherwise_at_steps": otherwise}
    return result


def _in_words(decision: Decision, round_: Round) -> str:
    if decision.kind == "threads":
        return f"rank {decision.loader}: {decision.threads} threads"
    source = round_.observation.sources[decision.source].name
    return _WORDS[decision.kind].format(source=source, rank=decision.loader)


def show_decisions(console: Any, result: Mapping[str, Any]) -> None:
    """As a table."""
    decisions, count = result["decisions"], len(result["decisions"])
    console.print(f"[bold]{result['record']}[/bold]: {count} decision{'' if count == 1 else 's'} of scaling")
    if decisions:
        console.print(make_table(decisions))
    for note in result["notes"]:
        console.print(f"- {note}", markup=False)
    if "replayed" in result:
        otherwise = result["replayed"]["otherwise_at_steps"]
        same = f"decides otherwise at steps {otherwise}" if otherwise else "decides the same again"
        console.print(f"{result['replayed']['policy']} {same}", markup=False)
