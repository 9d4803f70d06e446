"""Markup to plain text, for the few markups that the demo data comes in. Pure functions of strings."""

import html
import re

_BLANK_LINES = re.compile(r"[ \t\r\f\v]*\n\s*\n\s*")
_MARKUP = re.compile(r"<(script|style)[\s\S]*?</\1>|<!--[\s\S]*?-->|<[^>]+>")
_MALLARD_HEAD = re.compile(r"<info>[\s\S]*?</info>")

_ROFF_REQUEST = re.compile(r"^[.'][ \t]*([A-Za-z]+|\\\")[ \t]*(.*)$")
_ROFF_HEADING = re.compile(r"^[.'][ \t]*S[HhSs]\b")
_ROFF_HEADINGS = frozenset(("SH", "SS", "Sh", "Ss"))
_ROFF_WITHOUT_TEXT = frozenset(
    (
        *(
            '\\"',
            "so",
            "ig",
            "de",
            "ie",
            "el",
            "if",
            "nr",
            "ds",
            "tr",
            "ad",
            "nh",
            "hy",
            "ta",
            "ti",
            "in",
            "ft",
        ),
        *("mso", "TH", "TP", "PP", "P", "LP", "IP", "RS", "RE"),
    )
)
_ROFF_ESCAPE = re.compile(
    r"\\f(\[[^]]*\]|\([A-Z]{2}|.)"  # font
    r"|\\s[-+]?\d+"  # size
    r"|\\m\[[^]]*\]"  # colour
    r"|\\\*(\[[^]]*\]|\(..|.)"  # string
    r"|\\[&|^/,%:]"  # spacing and break hints
)
_ROFF_CHARACTERS = {r"\-": "-", r"\ ": " ", r"\~": " ", r"\(aq": "'", r"\(em": "—", r"\(bu": "•", r"\e": "\\"}

_DICTD_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_DICTD_VALUES = {digit: value for value, digit in enumerate(_DICTD_DIGITS)}


def decode(content: bytes) -> str:
    """UTF-8 where it is, Latin-1 otherwise: old manual pages do not say which."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def strip_markup(text: str) -> str:
    """HTML or Mallard help pages to text: tags, scripts and the page's head go, entities are resolved."""
    text = _MALLARD_HEAD.sub("", text)
    text = html.unescape(_MARKUP.sub(" ", text))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def strip_roff(text: str) -> str:
    """Source of a manual page to text: headings and the words of macros stay, requests and escapes go."""
    lines = text.split("\n")
    # What stands before the first heading are definitions of macros.
    first = next((number for number, line in enumerate(lines) if _ROFF_HEADING.match(line)), 0)
    return _BLANK_LINES.sub("\n\n", "\n".join(map(_strip_roff_line, lines[first:]))).strip()


def _strip_roff_line(line: str) -> str:
    request = _ROFF_REQUEST.match(line)
    if request is not None:
        name, words = request.groups()
        if name in _ROFF_WITHOUT_TEXT:
            return ""
        words = words.replace('"', "")
        line = f"\n{words}" if name in _ROFF_HEADINGS else words
    elif line[:1] in (".", "'"):
        return ""
    line = _ROFF_ESCAPE.sub("", line)
    for escape, character in _ROFF_CHARACTERS.items():
        line = line.replace(escape, character)
    return line


def read_dictd(index: str, entries: bytes) -> list[tuple[str, str]]:
    """(word, entry) of a dictd dictionary, each entry once; `entries` is the decompressed `.dict.dz`.

    An index line is `word <tab> offset <tab> length`, both numbers in base 64; words may share an entry.
    """
    words: dict[tuple[int, int], str] = {}
    for line in index.splitlines():
        word, offset, length = line.split("\t")[:3]
        if not word.startswith("00"):  # 00-database-info and the like
            words.setdefault((_dictd_number(offset), _dictd_number(length)), word)
    return [(word, decode(entries[start : start + length])) for (start, length), word in words.items()]


def _dictd_number(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 64 + _DICTD_VALUES[digit]
    return number
