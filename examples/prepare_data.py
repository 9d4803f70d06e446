"""Prepare the demo's data: ten real sources in four formats, and a tokenizer trained on them.

    python examples/prepare_data.py OUT [--cache DIR]

Texts and images come from Debian packages (downloaded with apt-get, never installed) and from Python's own
standard library. For the same package versions the same bytes come out. OUT appears complete or not at all;
a second call with the same OUT returns at once. `OUT/manifest.json` says what there is, under which licence
and from which packages.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from debian_packages import Package, PackageError, fetch
from demo_sources import CORRUPT_PHOTO, MB, PACKAGE_NAMES, SPECS, Packages, Record, SourceSpec

VOCABULARY_SIZE = 8192
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_SAMPLE_BYTES = 350_000  # of each source
LONGEST_SAMPLE_CHARS = 20_000  # one giant document shall not speak for its source
SHORTEST_TEXT_CHARS = 40
ROWS_PER_ROW_GROUP = 64


@dataclass(frozen=True, kw_only=True)
class SourceResult:
    """What came out of making one source."""

    entry: dict[str, object]
    sample_texts: list[str]
    seconds: float


# ------------------------------------------------------------------------------------------- writing records


def write_jsonl(records: Sequence[Record], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"id": record.key, **record.fields}, ensure_ascii=False) + "\n")


def write_parquet(records: Sequence[Record], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, list[str | bytes]] = {"id": [record.key for record in records]}
    for name in records[0].fields:
        columns[name] = [record.fields[name] for record in records]
    # Page checksums: without them a flipped byte can be read as wrong data, silently.
    parquet.write_table(
        pa.table(columns),
        path,
        compression="zstd",
        row_group_size=ROWS_PER_ROW_GROUP,
        write_page_checksum=True,
    )


def write_array_record(records: Sequence[Record], path: Path) -> None:
    """Each record is the UTF-8 text alone."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        text = record.fields["text"]
        writer.write(text.encode() if isinstance(text, str) else text)
    writer.close()


def tar_stem(number: int, record: Record) -> str:
    """The common name of a record's members: it has no dot, and it is unique."""
    name = re.sub(r"\W+", "_", record.key)[:60]
    return f"{number:05d}_{name}"


def write_tar(records: Sequence[Record], path: Path) -> None:
    """WebDataset: members of one record share the name before the first dot."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, record in enumerate(records):
            for extension, value in record.fields.items():
                content = value.encode() if isinstance(value, str) else value
                member = tarfile.TarInfo(f"{tar_stem(number, record)}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


FORMATS: dict[str, tuple[str, Callable[[Sequence[Record], Path], None]]] = {
    "JSONL": (".jsonl", write_jsonl),
    "Parquet": (".parquet", write_parquet),
    "ArrayRecord": (".arrayrecord", write_array_record),
    "WebDataset": (".tar", write_tar),
}


# ------------------------------------------------------------------------------------------------- the making


def choose(records: Iterable[Record], budget_bytes: float | None) -> list[Record]:
    """A sample that keeps the distribution of lengths: by a hash of the key, until the budget is spent.

    Texts too short to say anything are left out.
    """
    ordered = sorted(records, key=lambda record: hashlib.sha256(record.key.encode()).digest())
    chosen, num_bytes = [], 0
    for record in ordered:
        if record.num_bytes < SHORTEST_TEXT_CHARS:
            continue
        num_bytes += record.num_bytes
        if budget_bytes is not None and num_bytes > budget_bytes:
            break
        chosen.append(record)
    return chosen


def sample_texts(records: Iterable[Record]) -> list[str]:
    """Texts for the tokenizer, up to `TOKENIZER_SAMPLE_BYTES`."""
    texts, num_bytes = [], 0
    for record in records:
        for value in record.fields.values():
            if isinstance(value, str) and num_bytes < TOKENIZER_SAMPLE_BYTES:
                texts.append(value[:LONGEST_SAMPLE_CHARS])
                num_bytes += len(texts[-1].encode())
    return texts


def make_source(spec: SourceSpec, packages: Packages, folder: Path) -> SourceResult:
    """Read, choose and write one source; returns its entry of the manifest."""
    start = time.perf_counter()
    records = choose(spec.read(packages), spec.budget_bytes)
    suffix, write = FORMATS[spec.format]
    path = folder / f"{spec.name}{suffix}"
    write(records, path)
    entry: dict[str, object] = {
        "file": path.name,
        "format": spec.format,
        "modality": spec.modality,
        "docs": len(records),
        "bytes": path.stat().st_size,
        "fields": list(records[0].fields),
        "licence": spec.licence,
        "packages": [describe(packages[name]) for name in spec.packages]
        or [{"name": "Python standard library", "version": sys.version.split()[0]}],
    }
    corrupt = [tar_stem(n, record) for n, record in enumerate(records) if record.key == CORRUPT_PHOTO]
    if corrupt:
        entry["corrupt"] = corrupt
    return SourceResult(entry=entry, sample_texts=sample_texts(records), seconds=time.perf_counter() - start)


def describe(package: Package) -> dict[str, str]:
    return {"name": package.name, "version": package.version, "deb_sha256": package.sha256}


def train_tokenizer(texts: Sequence[str], path: Path) -> int:
    """Train a byte-level BPE, write it, and return the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer.get_vocab_size()


def make_all(packages: Packages, folder: Path) -> dict[str, object]:
    """Make every source, several at a time, then the tokenizer; returns the manifest."""
    results: dict[str, SourceResult] = {}
    with ProcessPoolExecutor(
        max_workers=min(4, os.cpu_count() or 1), mp_context=get_context("spawn")
    ) as pool:
        futures: dict[Future[SourceResult], str] = {
            pool.submit(make_source, spec, packages, folder): spec.name for spec in SPECS
        }
        for future in as_completed(futures):
            name = futures[future]
            results[name] = result = future.result()
            print(progress_line(name, result), flush=True)
    ordered = {spec.name: results[spec.name] for spec in SPECS}
    start = time.perf_counter()
    texts = [text for result in ordered.values() for text in result.sample_texts]
    vocabulary_size = train_tokenizer(texts, folder / "tokenizer.json")
    trained_on_mb = sum(len(text.encode()) for text in texts) / MB
    seconds = time.perf_counter() - start
    print(
        f"  tokenizer  {vocabulary_size} entries from {trained_on_mb:.1f} MB of text, {seconds:.1f} s",
        flush=True,
    )
    return {
        "prepared_by": fingerprint(),
        "tokenizer": {
            "file": "tokenizer.json",
            "vocabulary_size": vocabulary_size,
            "end_of_text": END_OF_TEXT,
        },
        "sources": {name: result.entry for name, result in ordered.items()},
    }


def progress_line(name: str, result: SourceResult) -> str:
    entry = result.entry
    size = f"{entry['bytes'] / MB:5.1f} MB"  # type: ignore[operator]  # an int in the manifest
    return f"  {name:9s}  {entry['docs']:>5} records  {size}  {entry['format']:<11s}  {result.seconds:4.1f} s"


def fingerprint() -> str:
    """Changes when the code that makes the data does: data made by other code is made again."""
    here = Path(__file__).parent
    names = ("prepare_data.py", "demo_sources.py", "debian_packages.py", "text_cleaning.py")
    code = b"".join((here / name).read_bytes() for name in names)
    return hashlib.sha256(code + sys.version.encode()).hexdigest()[:16]


def prepared_by(out: Path) -> str | None:
    """The fingerprint in OUT's manifest, None where there is no manifest."""
    manifest = out / "manifest.json"
    return json.loads(manifest.read_text())["prepared_by"] if manifest.exists() else None


def prepare(out: Path, cache: Path) -> None:
    """Fill `out`, unless this very code filled it before.

    Raises:
        PackageError: a package cannot be fetched or read, or `out` holds something else.
    """
    made_by = prepared_by(out)
    if made_by == fingerprint():
        print(f"{out} is prepared already; delete it to start over")
        return
    if made_by is None and out.exists() and any(out.iterdir()):
        raise PackageError(f"{out} is not empty and has no manifest.json of ours; name another folder")
    start = time.perf_counter()
    names = sorted({name for spec in SPECS for name in spec.packages})
    print(f"fetching {len(names)} Debian packages into {cache}", flush=True)
    found = fetch([PACKAGE_NAMES.get(name, (name,)) for name in names], cache)
    packages = dict(zip(names, found, strict=True))
    print(
        f"  {sum(p.path.stat().st_size for p in found) / MB:.0f} MB, {time.perf_counter() - start:.1f} s",
        flush=True,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-partial-", dir=out.parent))
    try:
        manifest = make_all(packages, folder)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        folder.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    megabytes = sum(path.stat().st_size for path in out.iterdir()) / MB
    print(f"{out}: {len(SPECS)} sources, {megabytes:.1f} MB, {time.perf_counter() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to fill")
    parser.add_argument("--cache", type=Path, help="keeps the .deb files; default: `debs` beside OUT")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    try:
        prepare(out, arguments.cache or out.parent / "debs")
    except PackageError as error:
        sys.exit(f"prepare_data: {error}")


if __name__ == "__main__":
    main()
