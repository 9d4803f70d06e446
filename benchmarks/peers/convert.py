"""Writes the data that are missing; another loader's own format in its environment, out of the Parquet files.

usage: python -m benchmarks.peers.convert FOLDER FORMAT NAME... (sources)
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import data
from benchmarks.peers.job import Source, path_of
from benchmarks.peers.registry import PeerProblem

ADAPTERS = {"mds": "streaming_loader", "tar": "energon_loader", "chunks": "litdata_loader"}
REPOSITORY = Path(__file__).resolve().parents[2]


def write_missing(folder: Path, name: str, sources: Sequence[Source], python: str) -> None:
    """Write the sources that are not there yet.

    Args:
        folder: of all formats.
        name: the format, a key of `job.SUFFIXES`.
        sources: what is needed.
        python: an interpreter whose environment has what writes the format.

    Raises:
        PeerProblem: that environment could not write it.
    """
    paths = {source: path_of(folder, name, source) for source in sources}
    missing = [source for source, path in paths.items() if not path.exists()]
    if name in data.WRITERS:
        for source in missing:
            data.write_whole(paths[source], data.records_of(source), data.WRITERS[name])
    elif missing:
        write_missing(folder, "parquet", missing, python)
        _convert(folder, name, missing, python)


def _convert(folder: Path, name: str, sources: Sequence[Source], python: str) -> None:
    names = [source.name for source in sources]
    done = subprocess.run(
        [python, "-m", "benchmarks.peers.convert", str(folder), name, *names],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerProblem(f"{name} could not be written", done.stderr)


def main() -> None:
    from pyarrow import parquet

    folder, name = Path(sys.argv[1]), sys.argv[2]
    adapter = importlib.import_module(f"benchmarks.peers.{ADAPTERS[name]}")
    for source in sys.argv[3:]:
        table = parquet.read_table(folder / "parquet" / f"{source}.parquet")
        data.write_whole(folder / name / source, table.column("record").to_pylist(), adapter.write)
    sys.stdout.flush()
    os._exit(0)  # some writers leave threads behind


if __name__ == "__main__":
    main()
