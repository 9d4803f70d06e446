"""How the MPI transport waits, answers and carries: idle CPU, latency of small messages, bandwidth of large.

Run `python -m benchmarks.transport [--quick] [--json]` in the repository. Each measurement is one job of
mpiexec that runs this file again with `--program`.
"""

import argparse
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msdata_transport import Message, TooLate, find_mpiexec
from msdata_transport.conformance import Party

from benchmarks.headline import headline

_ROOT = Path(__file__).resolve().parent.parent
_SIZES_BYTES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
_COLD_BYTES = 64 << 20  # of sources, and of targets: more than a cache holds

Row = dict[str, Any]


def run(quick: bool) -> dict[str, Any]:
    """Measure all, in jobs of their own; `quick` measures for a shorter time."""
    seconds = 5.0 if quick else 30.0
    jobs = (
        ("idle", 6, ["--seconds", str(seconds)]),
        ("latency", 6, ["--rounds", "300" if quick else "1500"]),
        ("bandwidth", 2, ["--rounds", "5" if quick else "15"]),
    )
    rows: list[Row] = []
    for name, num_ranks, options in jobs:
        rows += _run_program(name, num_ranks, options)
    return {"name": "transport", "rows": rows}


def headlines(result: dict[str, Any]) -> list[Row]:
    """Bandwidth, latency and what waiting costs."""
    rows = result["rows"]
    idle, latency = (next(row for row in rows if row["what"] == what) for what in ("idle", "latency"))
    found = [
        headline(
            f"share of memcpy outside of caches, messages of {row['message_bytes'] >> 20} MB",
            row["fraction_of_cold_copy"],
            beside={"of memcpy in them": row["fraction_of_memcpy"]},
            at_least=0.5,
        )
        for row in rows
        if row["what"] == "bandwidth" and row["message_bytes"] >= 1 << 20
    ]
    found.append(headline("microseconds of a small message, median", latency["p50_microseconds"]))
    figure = f"% of a core, {idle['num_ranks']} ranks that wait"
    return [*found, headline(figure, idle["percent_of_core"])]


def _run_program(name: str, num_ranks: int, options: list[str]) -> list[Row]:
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise SystemExit("benchmarks.transport: no mpiexec; install msdata-jax[mpi]")
    program = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.transport", "--program", name, *options]
    command = [mpiexec, "-n", str(num_ranks), *program]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _idle(party: Party, options: argparse.Namespace) -> list[Row]:
    """All ranks wait for nothing; CPU of all together as percent of one core."""
    _meet(party)
    started, cpu_started = time.monotonic(), time.process_time()
    if party.rank == 0:
        with contextlib.suppress(TooLate):
            party.endpoint.receive(options.seconds)
        for rank in range(party.size):
            party.send(rank, "enough")
    party.expect("enough", options.seconds + 30)
    used = time.process_time() - cpu_started
    elapsed = time.monotonic() - started
    told = _gather(party, {"cpu": used})
    if not told:
        return []
    cpu_seconds = sum(message.header["cpu"] for message in told)
    return [
        {
            "what": "idle",
            "num_ranks": party.size,
            "elapsed_seconds": round(elapsed, 2),
            "cpu_seconds": round(cpu_seconds, 3),
            "percent_of_core": round(100 * cpu_seconds / elapsed, 2),
        }
    ]


def _latency(party: Party, options: argparse.Namespace) -> list[Row]:
    """One way from rank 0 to rank 1 on one host, whose clock they share; rank 0 thinks in between."""
    thinking = random.Random(0)
    array = np.zeros(1024, np.uint8)
    latencies: list[float] = []
    _meet(party)
    if party.rank == 0:
        for _ in range(options.rounds):
            time.sleep(thinking.uniform(0.0, 6e-3))
            party.send(1, "ping", {"at": time.monotonic()}, [array])
            party.expect("pong")
    elif party.rank == 1:
        for _ in range(options.rounds):
            message = party.expect("ping")[1]
            latencies.append(time.monotonic() - message.header["at"])
            party.send(0, "pong")
    told = _gather(party, {"latencies": latencies})
    if not told:
        return []
    micros = sorted(1e6 * latency for message in told for latency in message.header["latencies"])
    percentile = {percent: micros[min(len(micros) - 1, len(micros) * percent // 100)] for percent in (50, 99)}
    return [
        {
            "what": "latency",
            "message_bytes": array.nbytes,
            "num_messages": len(micros),
            "p50_microseconds": round(percentile[50], 1),
            "p99_microseconds": round(percentile[99], 1),
        }
    ]


def _bandwidth(party: Party, options: argparse.Namespace) -> list[Row]:
    """Rank 0 streams to rank 1, which drops what it gets; medians of rounds, each beside copies.

    A fraction is the time of a copy of as many bytes over the time of a message:

    - `fraction_of_memcpy`: over and over from one array into another. Up to some MB both stay in a cache
      of this core, which the bytes of another process never are in: small messages cannot come near it.
    - `fraction_of_cold_copy`: each time from another array into another, which no cache holds: what a message
      should cost that is copied once. It is over 1 where the receiver's memory is used again while cached.
    - `fraction_of_copy_into_new`: from one array into one that is made for it, as a receiver has to.
    """
    rows: list[Row] = []
    for num_bytes in _SIZES_BYTES:
        array = np.ones(num_bytes, np.uint8)
        num_messages = max(4, min(200, (64 << 20) // num_bytes))
        cold = _cold_pairs(num_bytes)
        rounds = [_one_round(party, array, num_messages, cold) for _ in range(options.rounds + 1)][1:]
        median = {name: statistics.median(seconds[name] for seconds in rounds) for name in rounds[0]}
        if party.rank == 0:
            continue
        transfer = median["transfer"]
        rows.append(
            {
                "what": "bandwidth",
                "message_bytes": num_bytes,
                "num_messages": num_messages,
                "microseconds": round(1e6 * transfer, 1),
                "gigabytes_per_second": round(num_bytes / transfer / 1e9, 2),
                "memcpy_gigabytes_per_second": round(num_bytes / median["copy"] / 1e9, 2),
                "fraction_of_memcpy": round(median["copy"] / transfer, 3),
                "cold_copy_gigabytes_per_second": round(num_bytes / median["cold_copy"] / 1e9, 2),
                "fraction_of_cold_copy": round(median["cold_copy"] / transfer, 3),
                "fraction_of_copy_into_new": round(median["new_copy"] / transfer, 3),
            }
        )
    return rows


def _cold_pairs(num_bytes: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Targets and sources, going round; when a pair comes again no cache holds it."""
    num_pairs = max(1, _COLD_BYTES // num_bytes)
    targets, sources = (list(np.ones((num_pairs, num_bytes), np.uint8)) for _ in range(2))
    return itertools.cycle(zip(targets, sources, strict=True))


def _one_round(
    party: Party, array: np.ndarray, num_messages: int, cold: Iterator[tuple[np.ndarray, np.ndarray]]
) -> dict[str, float]:
    """Seconds of one message and of each kind of copy; nothing at rank 0."""
    if party.rank == 0:
        party.expect("go")
        for _ in range(num_messages):
            party.send(1, "bulk", {}, [array])
        party.expect("done")  # sends what is queued meanwhile
        return {}
    target = np.zeros_like(array)
    seconds = {
        "copy": _seconds_of(lambda: np.copyto(target, array), num_messages),
        "cold_copy": _seconds_of(lambda: np.copyto(*next(cold)), num_messages),
        "new_copy": _seconds_of(array.copy, num_messages),
    }
    party.send(0, "go")
    seconds["transfer"] = _seconds_of(lambda: party.expect("bulk"), num_messages)
    party.send(0, "done")
    return seconds


def _seconds_of(action: Any, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - started) / times


def _gather(party: Party, header: dict[str, Any]) -> list[Message]:
    """The headers of all ranks, at rank 0."""
    party.send(0, "told", header)
    return [party.expect("told")[1] for _ in range(party.size)] if party.rank == 0 else []


def _meet(party: Party) -> None:
    if _gather(party, {}):
        for rank in range(party.size):
            party.send(rank, "go")
    party.expect("go")


def _show(row: Row) -> str:
    return f"{row['what']:<10} " + "  ".join(f"{key}={value}" for key, value in row.items() if key != "what")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure for a shorter time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--program", choices=("idle", "latency", "bandwidth"), help="be one rank of that job")
    parser.add_argument("--seconds", type=float, default=5.0, help="of idleness, for --program")
    parser.add_argument("--rounds", type=int, default=5, help="of measuring, for --program")
    options = parser.parse_args()
    if options.program is not None:
        from msdata_transport.mpi import join

        program = {"idle": _idle, "latency": _latency, "bandwidth": _bandwidth}[options.program]
        job = join("all")
        rows = program(Party(job.endpoint), options)
        job.leave(ok=True)
        if rows:
            print(json.dumps(rows))
        return
    result = run(options.quick)
    print(json.dumps(result, indent=2) if options.json else "\n".join(map(_show, result["rows"])))


if __name__ == "__main__":
    main()
