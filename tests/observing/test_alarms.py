"""Alarms: each fault is found and named, nothing is said twice, and a healthy job is left in peace."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from observing.made_lines import BUDGET, MadeJob

import msdata_jax as msd
from msdata_jax.observing.alarm_log import AlarmLog
from msdata_jax.observing.alarms import Alarm, AlarmRules, Memory, look
from msdata_jax.observing.record import RunRecord

BEFORE, LONG = 8, 12  # seconds


def alarms_of(lines: Iterable[Mapping[str, Any]]) -> list[Alarm]:
    """What is said of these lines."""
    found: list[Alarm] = []
    log = AlarmLog([found.append])
    for line in lines:
        log.write(line)
    return found


def with_fault(job: MadeJob, seconds: int = LONG, **fault: Any) -> list[dict[str, Any]]:
    """A healthy time, then one with a fault."""
    return [job.second() for _ in range(BEFORE)] + [job.second(**fault) for _ in range(seconds)]


def only(lines: Iterable[Mapping[str, Any]]) -> Alarm:
    (alarm,) = alarms_of(lines)
    assert alarm.event == "began"
    assert alarm.text.startswith("data wait ")
    assert "\n" not in alarm.text
    return alarm


def test_a_healthy_job_is_left_in_peace() -> None:
    job = MadeJob()
    assert alarms_of(job.second(wait=0.01, lacking="a") for _ in range(100)) == []


def test_a_transform_that_takes_all_of_a_thread_is_named() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.3, lacking="b", transform={"b": 0.95}))
    assert (alarm.kind, alarm.source, alarm.ranks) == ("threads", "b", (2,))
    assert "data wait 30 % of the last 10 s: steps lack samples of 'b'" in alarm.text
    assert "transforms" in alarm.text
    assert "--threads" in alarm.text


def test_slow_reads_point_at_storage() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.3, lacking="a", read={"a": 0.9}))
    assert (alarm.kind, alarm.source, alarm.ranks) == ("reads", "a", (1,))
    assert "storage" in alarm.text


def test_a_source_behind_another_one_names_that_one() -> None:
    job = MadeJob(sources=("a", "dear"), loaders=1)
    alarm = only(with_fault(job, wait=0.2, lacking="a", transform={"dear": 0.93}))
    assert (alarm.kind, alarm.source, alarm.ranks) == ("behind", "dear", (1,))
    assert "lack samples of 'a'" in alarm.text


def test_full_buffers_are_named_with_their_option() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.2, lacking="a", held=BUDGET))
    assert (alarm.kind, alarm.source) == ("buffers", "a")
    assert "buffer_bytes_per_loader" in alarm.text


def test_idle_loaders_mean_that_blocks_begin_too_late() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.2, lacking="a"))
    assert (alarm.kind, alarm.source) == ("late", "a")
    assert "block_size" in alarm.text


def test_a_planner_that_cannot_keep_up_is_named() -> None:
    busy = {0: {"plan": (0.09,) * 10, "handle": (0.095,) * 10}}
    alarm = only(with_fault(MadeJob(), wait=0.2, spent=busy))
    assert (alarm.kind, alarm.ranks) == ("planner", (0,))
    assert "90 ms a step" in alarm.text
    assert "every 100 ms" in alarm.text


def test_a_trainer_without_cpu_to_put_steps_together_is_named() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.2, spent={4: {"handle": (0.5,), "emit": (0.04,) * 10}}))
    assert (alarm.kind, alarm.ranks) == ("constructor", (4,))


def test_a_loader_that_hands_over_too_slowly_is_named() -> None:
    alarm = only(with_fault(MadeJob(), wait=0.2, spent={2: {"send": (0.009,) * 100}}))
    assert (alarm.kind, alarm.ranks) == ("loader", (2,))
    assert "1 MB/s" in alarm.text


def test_a_late_trainer_that_the_others_wait_for_is_named() -> None:
    late = {4: {"step": (0.1,) * 10, "wait": (0.0,) * 10}}
    alarm = only(with_fault(MadeJob(), wait=0.4, spent=late))
    assert (alarm.kind, alarm.ranks) == ("trainer", (4,))
    assert "100 ms a step and the others 60 ms" in alarm.text


def test_where_nobody_stands_out_it_says_so() -> None:
    assert only(with_fault(MadeJob(), wait=0.2)).kind == "unknown"


def test_a_status_alone_is_enough_to_name_a_source() -> None:
    lines = with_fault(MadeJob(), wait=0.3, lacking="b", transform={"b": 0.95})
    alarm = only({"status": line["status"]} for line in lines)
    assert (alarm.kind, alarm.source, alarm.ranks) == ("threads", "b", (2,))
    assert alarm.text.startswith("data wait 30 % of the last 10 s: steps lack samples of 'b': all threads")


def test_the_end_is_said_once_and_the_middle_not_at_all() -> None:
    job = MadeJob()
    lines = with_fault(job, 60, wait=0.2, lacking="a") + [job.second() for _ in range(30)]
    began, over = alarms_of(lines)
    assert (began.event, began.seconds) == ("began", BEFORE + AlarmRules().lines)
    assert (over.event, over.seconds, over.source) == ("over", BEFORE + 60 + AlarmRules().lines, "a")
    assert over.text == "data wait is over: 0.0 % of the last 10 s, after 60 s"


def test_a_wait_that_swings_about_the_limit_neither_repeats_nor_ends() -> None:
    job = MadeJob()
    lines = with_fault(job, 5, wait=0.03, lacking="a")
    lines += [job.second(wait=(0.015, 0.03, 0.005)[index % 3], lacking="a") for index in range(60)]
    assert [alarm.event for alarm in alarms_of(lines)] == ["began"]


def test_short_waits_are_no_alarm() -> None:
    job = MadeJob()
    assert alarms_of(job.second(wait=0.3 if index % 3 else 0.0) for index in range(60)) == []


def test_another_cause_is_told_but_not_at_once() -> None:
    job = MadeJob()
    lines = with_fault(job, 10, wait=0.2, lacking="a") + [
        job.second(wait=0.2, lacking="b") for _ in range(40)
    ]
    began, changed = alarms_of(lines)
    assert (changed.event, changed.source) == ("changed", "b")
    assert changed.seconds - began.seconds == AlarmRules().again_seconds


def test_the_start_of_a_job_is_no_alarm() -> None:
    job = MadeJob()
    assert alarms_of(job.second(wait=0.5, lacking="a") for _ in range(4)) == []


def test_nothing_is_said_of_a_job_that_has_not_begun_or_has_ended() -> None:
    job = MadeJob()
    lines = with_fault(job, wait=0.2)
    for line, key in zip(lines, ("began", "ended") * len(lines), strict=False):
        line["status"][key] = key == "ended"
    assert alarms_of(lines) == []


def test_a_source_that_is_not_listed_is_named_without_its_costs() -> None:
    lines = with_fault(MadeJob(), wait=0.2, lacking="a", transform={"a": 0.95})
    for line in lines:
        if line["status"]["lacking"]:
            line["status"]["lacking"]["source"] = "the thousandth\n"
    assert "'the thousandth?': all threads of its loader (rank 1) are busy" in only(lines).text


def test_looking_twice_says_the_same() -> None:
    rules, memory = AlarmRules(), Memory()
    for line in with_fault(MadeJob(), wait=0.2, lacking="a"):
        first, again = look(line, memory, rules), look(line, memory, rules)
        assert first == again
        memory = first[1]
    assert memory.active is not None
    assert len(memory.readings) == rules.lines + 1


def test_lines_of_a_real_record_are_understood(tmp_path: Any) -> None:
    records = [{"tokens": np.full(8, index, np.int32)} for index in range(100)]
    recipe = msd.Recipe(
        sources={"a": msd.Source(records), "b": msd.Source(records)},
        strategy=msd.DGraph().mix({"a": 1, "b": 1}).pack(seq_len=16, rows=4),
    )
    with msd.DataLoader(recipe, num_steps=20, record=tmp_path / "record") as loader:
        for _ in loader:
            pass
    lines = list(RunRecord(tmp_path / "record").lines())
    always = AlarmRules(share=-1.0, lines=1, stepping_seconds=0.0)
    found: list[Alarm] = []
    log = AlarmLog([found.append], always)
    for line in lines:
        log.write({**line, "status": {**line["status"], "ended": False, "data_wait": 0.5}})
    assert [alarm.event for alarm in found][:1] == ["began"]
    assert list(RunRecord(tmp_path / "record").alarms()) == []


@pytest.mark.parametrize("line", [{"status": {}}, {}])
def test_a_line_without_a_status_is_an_error(line: dict[str, Any]) -> None:
    with pytest.raises(LookupError):
        look(line, Memory(), AlarmRules())
