"""The folder that keeps what a job was seen to do: how it is begun, and how it is read.

| file | holds |
|---|---|
| `about.json` | what the job is: written once, when it begins |
| `metrics.jsonl` | a line about every second, from the planner; thinned so that it stays below 32 MiB |
| `ended.json` | how the job ended; not there while it goes on, and where the planner was killed |
| `decisions.jsonl` | decisions of scaling, where there are any |
| `alarms.jsonl` | data-wait alarms (`observing.alarms.Alarm`), where there were any |
| `spans/rank-N.jsonl` | what rank N did and when, the newest of it, up to 16 MiB |
| `spans/rank-N.old.jsonl` | the same, just before, up to 16 MiB |

`about.json`:

```text
{"format": "msdata record", "version": 1, "msdata_jax": "0.6.0", "python": "3.12.3", "time": unix seconds,
 "clock": {"monotonic": seconds, "time": unix seconds, "boot": name of this start of the planner's host},
 "recipe": fingerprint, "seed": 17, "strategy": text,
 "sources": [{"name": ..., "data": text, "transforms": [text, ...], "block_size": 64}, ...],
 "ranks": {"0": {"role": "planner", "host": "node1"}, ...}}
```

`ended.json`; `bad` has the first hundred of each source that had any:

```text
{"time": unix seconds, "ok": true, "stopped": false, "bad": {source: [[epoch, position, reason], ...]}}
{"time": unix seconds, "ok": false, "rank": that failed first, "error": text}
```

A line of `metrics.jsonl`; counters, sums and histograms are since the start of the job:

```text
{"seconds": since the planner began to watch, "time": unix seconds,
 "status": what `runtime.status.describe` gives,
 "sources": {"blocks": [of each source], "samples": [...], "tokens": [...], "bytes": [...], "bad": [...],
             "read_seconds": [...], "transform_seconds": [...]},
 "ranks": {"1": {"role": "loader", "host": ..., "pid": ..., "memory_mb": resident, "pss_mb": ...,
                 "cpu_seconds": ..., "counters": {name: number}, "gauges": {name: number now},
                 "histograms": {name: {"count", "sum", "least", "most", "buckets": [[index, count], ...]}},
                 "peers": {"4": [messages, bytes, seconds]}}}}
```

The columns of `sources` go by `status["sources"]["name"]`. `docs/guides/observing.md` says what the counters,
gauges and histograms mean; buckets are those of `observing.metrics`. Ranks of one process, as of a DataLoader
that runs alone, share a `host` and `pid`, and each has the memory and CPU of all.

A file of spans begins with `{"rank", "role", "host", "pid", "monotonic", "time", "boot"}`; the last three are
of one moment. Every other line is a span: `{"name", "begin", "seconds", ...}`, `begin` by the monotonic clock
of that host, and what it is of:

| span | on | has |
|---|---|---|
| `plan` | planner | `step`, the first, and `steps` that were planned in one go |
| `open` | loader | `source`, `thread` |
| `queue` | loader | `source`, `start`, `stop` of a block that waits for a thread |
| `block` | loader | the same, `thread`, `read_seconds` (the rest is transforms), `samples`, `bytes` |
| `order` | loader | `step`, from the order to the first samples sent: it may wait for a block |
| `send` | loader | `step`, `to` (rank), `bytes`, `blocks`: `[source, start]` of 64 of them at most |
| `send` | constructor | the same without `blocks`, of samples that a leader passes on |
| `gather` | constructor | `step`, from its plan to its last sample |
| `assemble` | constructor | `step`, `sender` of the samples that are written into rows |
| `emit` | constructor | `step`, rows to arrays |
| `wait`, `step` | constructor | `step` that the trainer waits for, or works at |
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msdata_jax.errors import JobFailed, LaunchError, MSDataError
from msdata_jax.observing.files import old_of, read_lines
from msdata_jax.recipe import Recipe, without_addresses
from msdata_jax.roles.placement import Placement

FORMAT, VERSION = "msdata record", 1
ABOUT, METRICS, DECISIONS, SPANS = "about.json", "metrics.jsonl", "decisions.jsonl", "spans"
ALARMS, ENDED = "alarms.jsonl", "ended.json"
_MOST_ABOUT_BYTES = 64 << 20
_MOST_ENDED_BYTES = 64 << 20
_MOST_TEXT = 400
_MOST_ERROR = 10_000


def check_new(folder: Path) -> None:
    """Refuse a folder that holds anything: a record is of one run.

    Raises:
        LaunchError: it does, or it is no folder that can be written to.
    """
    try:
        held = sorted(os.listdir(folder)) if folder.exists() else []
        _check_writable(folder)
    except OSError as error:
        raise LaunchError(f"the record {folder} cannot be kept: {error}; name another folder") from error
    if ABOUT in held:
        raise LaunchError(
            f"{folder} holds the record of a run already; name a new folder, such as "
            f"{folder}-2 (in Slurm {folder.parent / 'run-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}'})"
        )
    if held:
        raise LaunchError(f"the record is kept in a folder of its own, and {folder} holds {held[0]}")


def _check_writable(folder: Path) -> None:
    """Raise OSError where the folder, or the nearest one above it that is there, may not be written to."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(f"{place} may not be written to")


def begin(folder: Path, about: Mapping[str, Any]) -> None:
    """Make the folder and its `about.json`.

    Raises:
        LaunchError: it is there already, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ABOUT).open("x") as file:
            json.dump(dict(about), file, indent=1)
    except FileExistsError:
        check_new(folder)
        raise
    except OSError as error:
        raise LaunchError(f"the record {folder} cannot be kept: {error}; name another folder") from error


def write_end(folder: Path, figures: Mapping[str, Any] | JobFailed) -> None:
    """Write down how the job ended: with figures (`runtime.data_rank.run_planner`), or failed.

    What cannot be written is left out: the job is over.
    """
    end: dict[str, Any] = {"time": time.time(), "ok": not isinstance(figures, JobFailed)}
    if isinstance(figures, JobFailed):
        end |= {"rank": figures.rank, "error": figures.message[:_MOST_ERROR]}
    else:
        bad = {name: each["bad"] for name, each in figures.get("sources", {}).items() if each["bad"]}
        end |= {"stopped": figures.get("stopped", False), "bad": bad}
    with contextlib.suppress(OSError):
        (folder / ENDED).write_text(json.dumps(end))


def describe_run(
    recipe: Recipe, placement: Placement, hosts: Mapping[int, str], clock: Mapping[str, Any]
) -> dict[str, Any]:
    """What `about.json` says.

    Args:
        recipe: what is delivered.
        placement: who plays what.
        hosts: of the ranks, as far as they are known.
        clock: of the planner's host (`runtime.observing.clock_anchor`).
    """
    from msdata_jax import __version__

    ranks = sorted((placement.planner, *placement.readers, *placement.constructors))
    return {
        "format": FORMAT,
        "version": VERSION,
        "msdata_jax": __version__,
        "python": platform.python_version(),
        "time": clock["time"],
        "clock": dict(clock),
        "recipe": recipe.fingerprint(),
        "seed": recipe.seed,
        "strategy": _text(recipe.strategy),
        "sources": [
            {
                "name": name,
                "data": _text(source.data),
                "transforms": [_text(each) for each in source.transforms],
                "block_size": source.block_size,
            }
            for name, source in recipe.sources.items()
        ],
        "ranks": {
            str(rank): {"role": placement.role_of(rank), "host": hosts.get(rank, "")} for rank in ranks
        },
    }


def _text(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return f"{len(value)} records"
    return without_addresses(repr(value))[:_MOST_TEXT]


@dataclass(frozen=True)
class RankSpans:
    """What a rank did.

    Attributes:
        rank: the rank.
        role: that it plays.
        host: that it runs on.
        spans: in the order in which they were written; `begin` is in seconds since the job began.
    """

    rank: int
    role: str
    host: str
    spans: list[dict[str, Any]]


class RunRecord:
    """A record that is read, also while its job goes on.

    Args:
        folder: that holds it.

    Raises:
        MSDataError: it holds none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            with (folder / ABOUT).open("rb") as file:
                about = json.loads(file.read(_MOST_ABOUT_BYTES))
        except (OSError, ValueError) as error:
            raise MSDataError(
                f"{folder} holds no record of a run ({error}); `msdata launch --record FOLDER` writes one"
            ) from error
        if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
            raise MSDataError(f"{folder / ABOUT} is not of a record of version {VERSION}")
        self.about: dict[str, Any] = about

    @cached_property
    def end(self) -> Mapping[str, Any] | None:
        """`ended.json`; None where there is none."""
        try:
            with (self.folder / ENDED).open("rb") as file:
                end = json.loads(file.read(_MOST_ENDED_BYTES))
        except (OSError, ValueError):
            return None
        return end if isinstance(end, dict) else None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines of `metrics.jsonl`, whole ones, in order."""
        return read_lines(self.folder / METRICS)

    def decisions(self) -> Iterator[dict[str, Any]]:
        """Rounds of scaling that decided something (`scaling.decision_log.Round.to_plain`), in order."""
        path = self.folder / DECISIONS
        for line in (*read_lines(old_of(path)), *read_lines(path)):
            if "decisions" in line:
                yield line

    def alarms(self) -> Iterator[dict[str, Any]]:
        """Data-wait alarms as they were given (`observing.alarms.Alarm.to_plain`), in order."""
        path = self.folder / ALARMS
        for line in (*read_lines(old_of(path)), *read_lines(path)):
            if "event" in line:
                yield line

    @cached_property
    def spans(self) -> list[RankSpans]:
        """What each rank did, by rank; those whose spans are not here are left out.

        Times of another host than the planner's are set by the wall clocks of both, which differ by what the
        hosts' clocks differ: some milliseconds under NTP.
        """
        paths = (self.folder / SPANS).glob("rank-*.jsonl")
        found = [self._spans_of(path) for path in paths if not path.name.endswith(".old.jsonl")]
        return sorted((each for each in found if each), key=lambda each: each.rank)

    def _spans_of(self, path: Path) -> RankSpans | None:
        head: dict[str, Any] | None = None
        spans: list[dict[str, Any]] = []
        offset = 0.0
        for each in (*read_lines(old_of(path)), *read_lines(path)):
            if "name" not in each:
                head, offset = each, self._offset(each)
            elif head is not None:
                each["begin"] = each["begin"] - offset
                spans.append(each)
        if head is None:
            return None
        return RankSpans(rank=int(head["rank"]), role=head["role"], host=head["host"], spans=spans)

    def _offset(self, anchor: Mapping[str, Any]) -> float:
        """When the job began, by the monotonic clock of a rank's host."""
        clock = self.about["clock"]
        if anchor["boot"] == clock["boot"]:
            return float(clock["monotonic"])
        return float(anchor["monotonic"] - (anchor["time"] - clock["time"]))
