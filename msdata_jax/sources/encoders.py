"""Tokenizer files -> encoders. The kind is told by the content of the file, never by its name.

Text is only text here: the spelling of a special token inside a record never becomes that token.
"""

import base64
import json
import os
import re
import threading
from typing import Any, Protocol

from msdata_jax.errors import RecipeError
from msdata_jax.sources.protocol import require

# The splitting of cl100k, for rank files that come without a pattern.
DEFAULT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
    r"\s*[\r\n]|\s+(?!\S)|\s"
)
_END_NAMES = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|end▁of▁sentence|>", "<eos>", "<|eos|>", "[SEP]")
_SENTENCEPIECE_CHARS = 32768  # its time grows faster than the text
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


class Encoder(Protocol):
    """A loaded tokenizer. Encodes from several threads at once and frees the GIL meanwhile.

    Attributes:
        vocab_size: ids are below it.
        end_id: the id that ends a document, None where the file names none.
    """

    vocab_size: int
    end_id: int | None

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens."""
        ...


_loaded: dict[tuple[str, int, int, str | None], Encoder] = {}
_lock = threading.Lock()


def load_encoder(path: str, pattern: str | None = None) -> Encoder:
    """The encoder of a file, loaded once per process.

    Args:
        path: a Hugging Face `tokenizer.json`, a tiktoken rank file, a Mistral `tekken.json` or a
            sentencepiece model.
        pattern: the splitting pattern of a rank file; None for that of cl100k.

    Raises:
        RecipeError: there is no such file, or it is none of these.
        SourceError: the package that reads it is not installed.
    """
    try:
        status = os.stat(path)
        with open(path, "rb") as stream:
            beginning = stream.read(4096)
    except OSError as error:
        raise RecipeError(
            f"tokenizer file {path} cannot be read: {error.strerror}; correct the path"
        ) from error
    key = (os.path.realpath(path), status.st_size, status.st_mtime_ns, pattern)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _choose(path, beginning, pattern)
        return _loaded[key]


def _choose(path: str, beginning: bytes, pattern: str | None) -> Encoder:
    try:
        if beginning.lstrip().startswith(b"{"):
            is_tekken = re.search(rb'"(default_vocab_size|num_vocab_tokens|token_bytes)"', beginning)
            return TekkenEncoder(path) if is_tekken else HuggingFaceEncoder(path)
        if _RANK_LINE.match(beginning):
            return RankEncoder(path, pattern or DEFAULT_PATTERN)
        return SentencePieceEncoder(path)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise RecipeError(
            f"{path} is no tokenizer that is known here (it begins with {beginning[:16]!r}): {error}. Known "
            "are Hugging Face tokenizer.json, tiktoken rank files ('<base64> <rank>' a line), Mistral "
            "tekken.json and sentencepiece models"
        ) from error


class HuggingFaceEncoder:
    """`tokenizer.json`; truncation and padding that the file may ask for are turned off."""

    def __init__(self, path: str) -> None:
        # One record at a time is encoded here, by threads of the loader: a pool of its own would only idle.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        tokenizers = require("tokenizers", "text")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(path)
        except Exception as error:
            raise ValueError(str(error)) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        found = (self._tokenizer.token_to_id(name) for name in _END_NAMES)
        self.end_id = next((token for token in found if token is not None), None)

    def encode(self, text: str) -> list[int]:
        """By the batched call: `encode` itself holds the GIL throughout."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


class RankEncoder:
    """tiktoken's rank file. It names no special tokens, so no end either."""

    def __init__(self, path: str, pattern: str) -> None:
        tiktoken = require("tiktoken", "text")
        with open(path, "rb") as stream:
            pairs = (line.split() for line in stream if line.strip())
            ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        self._encoding: Any = tiktoken.Encoding(
            os.path.basename(path), pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        self.vocab_size = self._encoding.n_vocab
        self.end_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Ordinary ids."""
        return self._encoding.encode_ordinary(text)


class TekkenEncoder:
    """Mistral's `tekken.json`: ranks for tiktoken, after a block of special ids."""

    def __init__(self, path: str) -> None:
        tiktoken = require("tiktoken", "text")
        with open(path, "rb") as stream:
            model = json.load(stream)
        config = model["config"]
        self._num_special = config["default_num_special_tokens"]
        num_ranks = config["default_vocab_size"] - self._num_special
        ranks = {base64.b64decode(item["token_bytes"]): item["rank"] for item in model["vocab"][:num_ranks]}
        self._encoding: Any = tiktoken.Encoding(
            "tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={}
        )
        self.vocab_size = config["default_vocab_size"]
        special = model.get("special_tokens") or [{"rank": 2, "token_str": "</s>"}]  # as in the first version
        self.end_id = next((item["rank"] for item in special if item["token_str"] == "</s>"), None)

    def encode(self, text: str) -> list[int]:
        """Ranks, moved behind the special ids."""
        num_special = self._num_special
        return [rank + num_special for rank in self._encoding.encode_ordinary(text)]


class SentencePieceEncoder:
    """A sentencepiece model. Long texts are cut between words, which gives the ids of one piece."""

    def __init__(self, path: str) -> None:
        sentencepiece = require("sentencepiece", "text")
        with open(path, "rb") as stream:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=stream.read())
        self.vocab_size = self._model.get_piece_size()
        self.end_id = self._model.eos_id() if self._model.eos_id() >= 0 else None
        # With a dummy prefix every piece starts as if after a space, which then stands for the one cut out.
        self._cuts_space_out = self._model.encode("a", out_type=str)[0].startswith("▁")

    def encode(self, text: str) -> list[int]:
        """The ids of all pieces in a row."""
        ids: list[int] = []
        start = 0
        while start < len(text):
            stop = _word_end(text, start, _SENTENCEPIECE_CHARS)
            ids += self._model.encode(text[start:stop])
            start = stop + self._cuts_space_out
        return ids


def _word_end(text: str, start: int, num_chars: int) -> int:
    """A single space after about `num_chars` characters, between two letters or signs; else the end."""
    match = re.compile(r"(?<=\S) (?=\S)").search(text, start + num_chars)
    return match.start() if match else len(text)
