"""URLs and patterns of URLs as text."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urljoin, urlsplit

from msdata_jax.errors import SourceError
from msdata_jax.recipe import without_credentials

MAX_EXPANDED = 1_000_000
_BRACES = re.compile(r"\{([^{}/]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SECRETIVE = re.compile(
    r"key|secret|token|passw|credential|user|auth|anon|profile|sig|expires|policy|x-", re.I
)


def expand_braces(pattern: str) -> Iterator[str]:
    """`part-{000..002}.tar` -> its three names, `{a,b}` -> two; several braces as in a shell.

    Raises:
        SourceError: more than `MAX_EXPANDED` names.
    """
    pieces = _BRACES.split(pattern)
    choices = [[piece] if place % 2 == 0 else _choices(piece) for place, piece in enumerate(pieces)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > MAX_EXPANDED:
        raise SourceError(f"{without_credentials(pattern)} names {count} files, {MAX_EXPANDED} are the most")
    return map("".join, itertools.product(*choices))


def _choices(inside: str) -> list[str]:
    match = _RANGE.fullmatch(inside)
    if match is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first, last = map(int, match.groups())
    if not first <= last < first + MAX_EXPANDED:
        raise SourceError(f"a range of names goes up, by at most {MAX_EXPANDED}, got {{{inside}}}")
    width = len(match[1]) if match[1].startswith("0") or len(match[1]) == len(match[2]) else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def is_glob(pattern: str) -> bool:
    """Whether a pattern needs a listing. In http URLs a question mark begins the query."""
    magic = "*[" if urlsplit(pattern).scheme in ("http", "https") else "*[?"
    return any(each in pattern for each in magic)


def manifest_entries(text: str, base: str) -> list[str]:
    """The URLs of a list of files: one a line, relative to the list, without blank lines and `#` comments.

    Raises:
        SourceError: one that leads to another host or scheme, which would get this source's credentials.
    """
    found = []
    home = urlsplit(base)
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            continue
        there = urlsplit(line if "://" in line else urljoin(base.replace(home.scheme, "http", 1), line))
        scheme = there.scheme if "://" in line else home.scheme
        if (scheme, there.netloc) != (home.scheme, home.netloc):
            raise SourceError(
                f"{without_credentials(base)} lists {without_credentials(line)}, which is on another host; "
                "make it a source of its own"
            )
        found.append(there._replace(scheme=scheme).geturl())
    return found


def identity(host: str, address: str, storage: Mapping[str, Any]) -> str:
    """A digest of where an object is: free of what proves who asks.

    Args:
        host: where the file system is, if its addresses do not say.
        address: of the object in the file system.
        storage: the file system's options.
    """
    query = sorted(pair for pair in parse_qsl(urlsplit(address).query) if not _SECRETIVE.search(pair[0]))
    where = [host, without_credentials(address), query, _open_options(storage)]
    text = json.dumps(where, default=lambda each: type(each).__name__)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _open_options(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        str(key): _open_options(value) if isinstance(value, Mapping) else value
        for key, value in sorted(options.items(), key=str)
        if not _SECRETIVE.search(str(key))
    }
    return {key: value for key, value in kept.items() if value != {}}


def redacted(text: str) -> str:
    """A message of another library without what its URLs may give away."""
    text = re.sub(r"(https?://[^\s'\"?]*)\?[^\s'\"]*", r"\1", text)
    text = re.sub(r"://[^/@\s'\"]*@", "://", text)
    return " ".join(text.split())[:300]


def base_name(url: str) -> str:
    """The file's name as a local file has it."""
    name = url.rsplit("/", 1)[-1]
    return unquote(name) if urlsplit(url).scheme in ("http", "https") else name
