"""Debian packages as a source of real data: fetch a `.deb` with apt-get and read it, nothing is installed.

A `.deb` is an `ar` archive of three members: `debian-binary`, `control.tar.*` (name, version, ...) and
`data.tar.*` (the files). Only the standard library is needed, and neither root nor dpkg.
"""

import gzip
import hashlib
import lzma
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

AR_MAGIC = b"!<arch>\n"
AR_HEADER_BYTES = 60
DECOMPRESSORS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "": lambda member: member,
    ".gz": lambda member: gzip.GzipFile(fileobj=member),
    ".xz": lzma.LZMAFile,
}
APT_TIMEOUT_SECONDS = 600


class PackageError(RuntimeError):
    """A package cannot be fetched or read; the message says the way out."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """One fetched `.deb` file: where it lies and exactly which package it is."""

    name: str
    version: str
    sha256: str
    path: Path


def fetch(wanted: Sequence[Sequence[str]], cache: Path) -> list[Package]:
    """Bring one `.deb` per entry of `wanted` into `cache`; those already there cost no network.

    Args:
        wanted: for each package the names it may have, best first (`python3.11-doc`, else `python3.13-doc`).
        cache: folder that keeps the files between runs; made when it does not exist.

    Returns:
        the packages, in the order of `wanted`.

    Raises:
        PackageError: no apt-get, no such package, or the download failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    missing = [names for names in wanted if _cached(names, cache) is None]
    if missing:
        _require_apt()
        _apt_download([_choose(names) for names in missing], cache)
    found = [_cached(names, cache) for names in wanted]
    return [_describe(path) for path in found if path is not None]


def read_files(deb: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the regular files whose name matches, in one pass and in archive order.

    Content of a name that ends in `.gz` comes decompressed, under the name without it.
    """
    matches = re.compile(pattern).search
    with deb.open("rb") as file, tarfile.open(fileobj=_open_tar(file, deb, "data.tar"), mode="r|") as archive:
        for member in archive:
            if not (member.isreg() and matches(member.name)):
                continue
            content = archive.extractfile(member).read()  # type: ignore[union-attr]  # a regular file
            if member.name.endswith(".gz"):
                yield member.name.removesuffix(".gz"), gzip.decompress(content)
            else:
                yield member.name, content


def read_control(deb: Path) -> dict[str, str]:
    """The control fields of a package: `Package`, `Version`, ... (continuation lines are left out)."""
    with (
        deb.open("rb") as file,
        tarfile.open(fileobj=_open_tar(file, deb, "control.tar"), mode="r|") as archive,
    ):
        for member in archive:
            if member.name.removeprefix("./") == "control":
                text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                lines = [line for line in text.splitlines() if line[:1].strip() and ":" in line]
                return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}
    raise PackageError(f"{deb}: control.tar has no file 'control'; delete the file and fetch it again")


def _open_tar(file: IO[bytes], deb: Path, prefix: str) -> IO[bytes]:
    """Stand at the member whose name starts with `prefix` and decompress from there."""
    if file.read(len(AR_MAGIC)) != AR_MAGIC:
        raise PackageError(f"{deb} is not an ar archive; delete the file and fetch it again")
    while len(header := file.read(AR_HEADER_BYTES)) == AR_HEADER_BYTES:
        name = header[:16].decode().strip().rstrip("/")
        size = int(header[48:58])
        if name.startswith(prefix):
            suffix = name.removeprefix(prefix)
            if suffix not in DECOMPRESSORS:
                raise PackageError(f"{deb}: {name} is packed with {suffix!r}, read are {list(DECOMPRESSORS)}")
            return DECOMPRESSORS[suffix](_Window(file, size))  # type: ignore[arg-type]
        file.seek(size + size % 2, 1)
    raise PackageError(f"{deb}: no member {prefix}.*; delete the file and fetch it again")


class _Window:
    """The next `size` bytes of a file, as a file: what follows them in the archive stays unread."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        content = self._file.read(size)
        self._left -= len(content)
        return content


def _cached(names: Sequence[str], cache: Path) -> Path | None:
    """The newest file in the cache of the first name that has one."""
    for name in names:
        files = sorted(cache.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
        if files:
            return files[-1]
    return None


def _describe(path: Path) -> Package:
    fields = read_control(path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Package(name=fields["Package"], version=fields["Version"], sha256=digest, path=path)


def _require_apt() -> None:
    if shutil.which("apt-get") is None:
        raise PackageError(
            "apt-get is not on PATH: the demo data comes from Debian packages. Run on Debian or Ubuntu "
            "(a container will do), or copy a cache of .deb files from such a machine and pass --cache"
        )


def _choose(names: Sequence[str]) -> str:
    """The first name that apt knows; the package lists are fetched when it knows none."""
    for attempt in ("as the lists are", "after apt-get update"):
        for name in names:
            if subprocess.run(["apt-cache", "show", name], capture_output=True, check=False).returncode == 0:
                return name
        if attempt == "as the lists are":
            _run_apt(
                ["apt-get", "update"], Path.cwd(), "run it as root (sudo apt-get update), then try again"
            )
    raise PackageError(f"apt knows none of {list(names)}: this release of Debian or Ubuntu does not have it")


def _apt_download(names: Sequence[str], cache: Path) -> None:
    """Download into a folder beside the files, then move: a broken download never looks like a package."""
    folder = cache / "partial"
    folder.mkdir(exist_ok=True)
    hint = "check the network, run `apt-get update` when the lists are old, then try again"
    _run_apt(["apt-get", "download", *names], folder, hint)
    for path in folder.glob("*.deb"):
        path.replace(cache / path.name)
    shutil.rmtree(folder)


def _run_apt(command: Sequence[str], folder: Path, way_out: str) -> None:
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=APT_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise PackageError(
            f"`{' '.join(command)}` did not end in {APT_TIMEOUT_SECONDS} s: {way_out}"
        ) from error
    if result.returncode != 0:
        last = "\n  ".join(result.stderr.strip().splitlines()[-3:])
        raise PackageError(f"`{' '.join(command)}` failed: {way_out}\n  {last}")
