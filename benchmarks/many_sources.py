"""Memory and open files of loader ranks that serve hundreds of sources in four formats, over three epochs.

The job is real: under mpiexec 1 planner, 4 loaders and 1 training process take all samples of all sources
three times, mixed evenly. The sources are Parquet, JSON Lines, tar and ArrayRecord in turn, of two files
each; they hold text of Python's standard library, and bytes count as tokens. About 20 times an epoch the
training process looks at each loader: its PSS, and how many data files it has open. The job runs with a
quarter, half and all of the sources, which gives the growth per source.

A loader keeps at most MSDATA_OPEN_FILES (64) data files open; the run fails where one has more.
"""

import io
import json
import statistics
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs, text_data
from benchmarks.headline import headline

MANY_JOB = Path(__file__).parent / "many_job"
NUM_SOURCES, LOADERS = 306, 4
FILES_PER_SOURCE = 2
MAX_OPEN_FILES = 64
_BEING_LOOKED_AT = 2  # a source that is opened just now is indexed and digested through files of its own
_WARM = 1.0  # epochs: until then sources are opened, and what is kept decoded is filled


def run(quick: bool) -> dict[str, Any]:
    """A row for each number of sources."""
    if quick:
        return measure((76, NUM_SOURCES), LOADERS, docs_per_source=48)
    return measure((76, 153, NUM_SOURCES), LOADERS, docs_per_source=512)


def headlines(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a loader holds with all sources."""
    most = result["rows"][-1]
    files = most["files"]
    return [
        headline(f"MB of a loader of {LOADERS}, {most['sources']} sources", most["mean_pss_mb"]),
        headline("MB that it grows an epoch", most["slope_mb_per_epoch"]),
        headline(
            "data files that it holds open", most["most_open_files_of_a_loader"], beside={"files": files}
        ),
    ]


def measure(
    numbers: Sequence[int], loaders: int, *, docs_per_source: int, epochs: int = 3, looks_per_epoch: int = 20
) -> dict[str, Any]:
    """The job with each of the numbers of sources.

    Raises:
        AssertionError: a loader had more data files open than it may.
    """
    rows = []
    for num_sources in numbers:
        with jobs.data_folder() as folder:
            _say(f"writing {num_sources} sources of {docs_per_source} documents")
            write_data(folder, num_sources, docs_per_source)
            _say(f"starting 1 planner, {loaders} loaders, 1 training process")
            options = ("--epochs", str(epochs), "--looks", str(looks_per_epoch))
            report = jobs.launch_script(MANY_JOB, folder, loaders=loaders, options=options)
        rows.append(describe(num_sources, report))
    return {"name": "many_sources", "rows": rows, "notes": _notes(rows, docs_per_source)}


def write_data(folder: Path, num_sources: int, docs_per_source: int) -> None:
    """Sources in all formats in turn, and `settings.json` of `many_job/recipe.py`."""
    patterns = {}
    suffixes = list(WRITERS)
    dealt = text_data.deal(text_data.blocks(), num_sources, docs_per_source)
    for number, documents in enumerate(dealt):
        suffix = suffixes[(number + number // len(suffixes)) % len(suffixes)]  # a loader has all of them
        for part in range(FILES_PER_SOURCE):
            path = folder / f"source{number:03d}-{part}{suffix}"
            WRITERS[suffix](documents[part::FILES_PER_SOURCE], path)
        patterns[f"source{number:03d}"] = f"source{number:03d}-*{suffix}"
    settings = {"patterns": patterns, "samples_per_epoch": num_sources * docs_per_source}
    (folder / "settings.json").write_text(json.dumps(settings))


def describe(num_sources: int, report: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a job.

    Raises:
        AssertionError: a loader had more data files open than it may.
    """
    looks = report["looks"]
    most_open = max(max(look["open_files"]) for look in looks)
    allowed = MAX_OPEN_FILES + _BEING_LOOKED_AT
    assert most_open <= allowed, f"a loader had {most_open} data files open, not {MAX_OPEN_FILES}"
    pss = np.array([look["pss_mb"] for look in looks])
    epochs = np.array([look["epoch"] for look in looks])
    warm = epochs >= _WARM
    slopes = [slope(epochs[warm], column) for column in pss[warm].T]
    return {
        "sources": num_sources,
        "files": num_sources * FILES_PER_SOURCE,
        "first_batch_seconds": round(report["first_seconds"], 2),
        "seconds": round(report["seconds"], 1),
        "most_open_files_of_a_loader": most_open,
        "mean_pss_mb_first": round(float(pss[0].mean()), 1),
        "mean_pss_mb_after_an_epoch": round(float(pss[warm][0].mean()), 1),
        "mean_pss_mb": round(float(pss[-1].mean()), 1),
        "pss_mb_of_each": [round(each, 1) for each in pss[-1].tolist()],
        "slope_mb_per_epoch": round(statistics.mean(each for each, _ in slopes), 2),
        "slope_error_mb": round(max(error for _, error in slopes), 2),
    }


def slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope of a fitted line, and its standard error."""
    away = x - x.mean()
    fitted = float(away @ y / (away @ away))
    rest = y - y.mean() - fitted * away
    return fitted, float(np.sqrt((rest @ rest) / max(1, len(x) - 2) / (away @ away)))


def _notes(rows: Sequence[Mapping[str, Any]], docs_per_source: int) -> list[str]:
    notes = [
        f"{', '.join(WRITERS)} in turn, {docs_per_source} documents in {FILES_PER_SOURCE} files each; "
        f"slope of a loader's PSS behind the first epoch, mean of the loaders, and the largest standard error"
    ]
    if len(rows) > 1:
        sources = np.array([row["sources"] for row in rows], float)
        fitted, error = slope(sources, np.array([sum(row["pss_mb_of_each"]) for row in rows]))
        notes.append(f"all loaders together grow by {fitted:.3f} MB (± {error:.3f}) for each source more")
    return notes


def _write_tar(documents: Sequence[str], path: Path) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, document in enumerate(documents):
            content = document.encode()
            member = tarfile.TarInfo(f"{number:06d}.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _write_arrayrecord(documents: Sequence[str], path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for document in documents:
        writer.write(document.encode())
    writer.close()


WRITERS: Mapping[str, Callable[[Sequence[str], Path], None]] = {
    ".parquet": text_data.write_parquet,
    ".jsonl": text_data.write_jsonl,
    ".tar": _write_tar,
    ".arrayrecord": _write_arrayrecord,
}


def _say(text: str) -> None:
    print(f"many_sources: {text}", file=sys.stderr)
