"""Prepare the demo's data: ten real sources in five formats, and a tokenizer trained on them.

    python examples/prepare_data.py OUT [--cache DIR]

Texts and images come from Debian packages (downloaded with apt-get, never installed) and from Python's own
standard library. For the same package versions the same bytes come out. OUT appears complete or not at all;
a second call with the same OUT returns at once. `OUT/manifest.json` says what there is, under which licence
and from which packages.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import struct
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path, PurePosixPath

from debian_packages import Package, PackageError, fetch, read_files
from text_cleaning import decode, read_dictd, strip_markup, strip_roff

MB = 1_000_000
VOCABULARY_SIZE = 8192
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_SAMPLE_BYTES = 350_000  # of each source
LONGEST_SAMPLE_CHARS = 20_000  # one giant document shall not speak for its source
SHORTEST_TEXT_CHARS = 40
ROWS_PER_ROW_GROUP = 64

PHOTO_VIEWS = 20  # of each photograph: itself, and details of it
PHOTO_SIDE_PX = (64, 1024)
STAMP_SIDE_PX = 320
CAPTION_LANGUAGES = ("de", "fr", "ja", "ru")
CORRUPT_PHOTO = "premature_end"

Packages = Mapping[str, Package]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record before it is written: a key that orders it, and its fields by name."""

    key: str
    fields: dict[str, str | bytes]

    @property
    def num_bytes(self) -> int:
        return sum(len(v.encode() if isinstance(v, str) else v) for v in self.fields.values())


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """How one source is made.

    Attributes:
        read: all records there are, in any order.
        packages: what `read` needs, by the name that `read` uses for it.
        budget_bytes: records are taken until their fields hold this much; None for all of them.
    """

    name: str
    format: str
    modality: str
    licence: str
    read: Callable[[Packages], Iterator[Record]]
    packages: tuple[str, ...] = ()
    budget_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class SourceResult:
    """What came out of making one source."""

    entry: dict[str, object]
    sample_texts: list[str]
    seconds: float


# ------------------------------------------------------------------------------------------- reading records


def read_standard_library(packages: Packages) -> Iterator[Record]:
    """The modules of the Python that runs this."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skipped.isdisjoint(relative.parts):
            yield Record(key=relative.as_posix(), fields={"text": decode(path.read_bytes())})


def read_python_docs(packages: Packages) -> Iterator[Record]:
    """The reStructuredText sources of Python's documentation."""
    for name, content in read_files(packages["python-doc"].path, r"/_sources/.*\.rst\.txt$"):
        yield Record(key=name.split("/_sources/")[1], fields={"text": decode(content)})


@dataclass(frozen=True)
class ReadManualPages:
    """The manual pages of one package; a class and not a closure, so that another process can be given it."""

    package: str

    def __call__(self, packages: Packages) -> Iterator[Record]:
        for name, content in read_files(packages[self.package].path, r"/man/.*\.gz$"):
            yield Record(key=name.split("/man/")[1], fields={"text": strip_roff(decode(content))})


def read_help_pages(packages: Packages) -> Iterator[Record]:
    """GNOME's help pages in German."""
    for name, content in read_files(packages["gnome-user-docs"].path, r"/help/de/.*\.page$"):
        yield Record(key=name.split("/help/de/")[1], fields={"txt": strip_markup(decode(content))})


def read_dictionary(packages: Packages) -> Iterator[Record]:
    """The entries of the Free On-line Dictionary of Computing."""
    found = dict(read_files(packages["dict-foldoc"].path, r"/foldoc\.(index|dict\.dz)$"))
    parts = {PurePosixPath(name).name: content for name, content in found.items()}
    for word, entry in read_dictd(decode(parts["foldoc.index"]), gzip.decompress(parts["foldoc.dict.dz"])):
        yield Record(key=word, fields={"text": entry.strip()})


def read_photos(packages: Packages) -> Iterator[Record]:
    """Photographs at many sizes, most small and a few large, and one file that ends too early."""
    originals = {
        **dict(read_files(packages["lomiri-wallpapers-16.04"].path, r"/backgrounds/.*\.jpg$")),
        **dict(
            read_files(packages["forensics-samples-files"].path, r"/original-files/.*/IMG[^/]*\.(jpg|JPG)$")
        ),
    }
    for name in sorted(originals):
        yield from photo_views(PurePosixPath(name).stem, originals[name])
    corrupt = dict(read_files(packages["gdk-pixbuf-tests"].path, r"/premature-end\.jpg$"))
    for content in corrupt.values():
        yield Record(key=CORRUPT_PHOTO, fields={"jpg": content, "txt": "A picture that ends too early."})


def photo_views(stem: str, content: bytes) -> Iterator[Record]:
    """One photograph whole, then details of it; longest sides follow a log-normal law in pixels."""
    from PIL import Image

    rng = random.Random(stem)
    key = re.sub(r"\W+", "_", stem)
    title = key.replace("_", " ")
    image = Image.open(io.BytesIO(content)).convert("RGB")
    for view in range(PHOTO_VIEWS):
        side = round(min(max(rng.lognormvariate(5.2, 0.55), PHOTO_SIDE_PX[0]), PHOTO_SIDE_PX[1]))
        box = detail_box(rng, image.size, side) if view else (0, 0, *image.size)
        picture = image.crop(box)
        picture.thumbnail((side, side))
        packed = io.BytesIO()
        picture.save(packed, "JPEG", quality=rng.choice((75, 85, 90)))
        of_what = f"detail of {title}, {box[0]} px from the left and {box[1]} px from the top"
        caption = of_what if view else title
        yield Record(key=f"{key}_{view:02d}", fields={"jpg": packed.getvalue(), "txt": caption})


def detail_box(rng: random.Random, size: tuple[int, int], side: int) -> tuple[int, int, int, int]:
    """A window about twice `side` wide, somewhere in an image of `size`: left, top, right, bottom."""
    width = min(size[0], 2 * side)
    height = min(size[1], round(2 * side * rng.uniform(0.5, 1.5)))
    left, top = rng.randrange(size[0] - width + 1), rng.randrange(size[1] - height + 1)
    return left, top, left + width, top + height


def read_stamps(packages: Packages) -> Iterator[Record]:
    """Tux Paint's stamps up to `STAMP_SIDE_PX`, with captions in several languages."""
    pictures: dict[str, bytes] = {}
    captions: dict[str, str] = {}
    for name, content in read_files(packages["tuxpaint-stamps-default"].path, r"/stamps/.*\.(png|txt)$"):
        key, _, kind = name.split("/stamps/")[1].rpartition(".")
        if kind == "txt":
            captions[key] = stamp_caption(decode(content))
        elif max(struct.unpack(">II", content[16:24])) <= STAMP_SIDE_PX:  # width and height in a PNG's head
            pictures[key] = content
    for key in sorted(pictures.keys() & captions.keys()):
        yield Record(key=key, fields={"image": pictures[key], "caption": captions[key]})


def stamp_caption(text: str) -> str:
    """The English line, then a line for each of `CAPTION_LANGUAGES` that the file has."""
    first, *others = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    translations = dict(line.split(".utf8=", 1) for line in others if ".utf8=" in line)
    lines = [
        f"{language}: {translations[language]}" for language in CAPTION_LANGUAGES if language in translations
    ]
    return "\n".join([first, *lines])


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


def write_tar(records: Sequence[Record], path: Path) -> None:
    """WebDataset: members of one record share the name before the first dot."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, record in enumerate(records):
            stem = re.sub(r"\W+", "_", record.key)[:60]
            for extension, value in record.fields.items():
                content = value.encode() if isinstance(value, str) else value
                member = tarfile.TarInfo(f"{number:05d}_{stem}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


FORMATS: dict[str, tuple[str, Callable[[Sequence[Record], Path], None]]] = {
    "JSONL": (".jsonl", write_jsonl),
    "Parquet": (".parquet", write_parquet),
    "ArrayRecord": (".arrayrecord", write_array_record),
    "WebDataset": (".tar", write_tar),
}


# ------------------------------------------------------------------------------------------------ the sources

MANUAL_LICENCE = "GPL-3.0-or-later (manpages-l10n); single pages may differ"
SPECS = (
    # The dear ones first: they share two processes.
    SourceSpec(
        name="stamps",
        format="Parquet",
        modality="image + caption",
        licence="GPL-2.0",
        read=read_stamps,
        packages=("tuxpaint-stamps-default",),
    ),
    SourceSpec(
        name="photos",
        format="WebDataset",
        modality="image + caption",
        licence="CC-BY-4.0, CC-BY-SA-4.0, CC0-1.0 (per photograph); the corrupt file LGPL-2.0-or-later",
        read=read_photos,
        packages=("lomiri-wallpapers-16.04", "forensics-samples-files", "gdk-pixbuf-tests"),
    ),
    SourceSpec(
        name="code_py",
        format="JSONL",
        modality="text",
        licence="PSF-2.0",
        read=read_standard_library,
        budget_bytes=5 * MB,
    ),
    SourceSpec(
        name="docs_rst",
        format="Parquet",
        modality="text",
        licence="PSF-2.0",
        read=read_python_docs,
        packages=("python-doc",),
        budget_bytes=5 * MB,
    ),
    SourceSpec(
        name="man_de",
        format="ArrayRecord",
        modality="text",
        licence=MANUAL_LICENCE,
        read=ReadManualPages("manpages-de"),
        packages=("manpages-de",),
        budget_bytes=3 * MB,
    ),
    SourceSpec(
        name="man_fr",
        format="Parquet",
        modality="text",
        licence=MANUAL_LICENCE,
        read=ReadManualPages("manpages-fr"),
        packages=("manpages-fr",),
        budget_bytes=3 * MB,
    ),
    SourceSpec(
        name="man_ja",
        format="Parquet",
        modality="text",
        licence="as the original pages, which are free by Debian's guidelines",
        read=ReadManualPages("manpages-ja"),
        packages=("manpages-ja",),
        budget_bytes=3 * MB,
    ),
    SourceSpec(
        name="man_ru",
        format="JSONL",
        modality="text",
        licence=MANUAL_LICENCE,
        read=ReadManualPages("manpages-ru"),
        packages=("manpages-ru",),
        budget_bytes=3 * MB,
    ),
    SourceSpec(
        name="help_de",
        format="WebDataset",
        modality="text",
        licence="CC-BY-SA-3.0",
        read=read_help_pages,
        packages=("gnome-user-docs",),
    ),
    SourceSpec(
        name="dict_en",
        format="JSONL",
        modality="text",
        licence="GFDL-1.1-or-later",
        read=read_dictionary,
        packages=("dict-foldoc",),
        budget_bytes=3 * MB,
    ),
)
# Where the name of a package has a version in it: the names to try, best first.
PACKAGE_NAMES = {"python-doc": ("python3.11-doc", "python3.13-doc", "python3.12-doc")}


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
    if any(record.key == CORRUPT_PHOTO for record in records):
        entry["corrupt"] = [CORRUPT_PHOTO]
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
    names = ("prepare_data.py", "debian_packages.py", "text_cleaning.py")
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
