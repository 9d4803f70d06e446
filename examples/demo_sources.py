"""The ten sources of the demo: where each comes from, and how its records are read.

To add a source write a function that yields records and add a `SourceSpec` to `SPECS`; nothing else changes.
"""

import gzip
import io
import random
import re
import struct
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from debian_packages import Package, read_files
from text_cleaning import decode, read_dictd, strip_markup, strip_roff

MB = 1_000_000
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
