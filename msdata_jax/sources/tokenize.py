"""Text -> tokens."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources.encoders import Encoder, load_encoder
from msdata_jax.sources.protocol import one_line

TEXT_KEYS = ("text", "txt", "content", "caption", "record")


@dataclass(frozen=True)
class Tokenize:
    """Encodes a text of the record and appends the ids to its `tokens` (int32), which it makes if need be.

    So `Patchify` then `Tokenize` gives an image and its caption. The tokenizer is loaded when a source opens,
    once per process, and never leaves the process with this object.

    Attributes:
        path: a Hugging Face `tokenizer.json`, a tiktoken rank file, a Mistral `tekken.json` or a
            sentencepiece model; the content of the file decides.
        key: the text's name in the record; None takes the first of text, txt, content, caption, record.
        add_eos: True appends the id with which the tokenizer ends a document, an int appends that id, False
            appends nothing.
        pattern: the splitting pattern of a tiktoken rank file; None for that of cl100k.

    Raises:
        RecipeError: when a source opens; the file is no tokenizer, or names no end while add_eos is True.
        BadSampleError: for a record without the text, or with one that is not UTF-8 or breaks the tokenizer.
    """

    path: str
    key: str | None = None
    add_eos: bool | int = True
    pattern: str | None = None

    def open(self) -> None:
        """Load the tokenizer, so that a wrong file is an error before training."""
        encoder = self._encoder
        if self.add_eos is True and encoder.end_id is None:
            raise RecipeError(
                f"{self.path} names no token that ends a document; give its id (add_eos=<id>) or "
                "add_eos=False"
            )
        if self.add_eos is not True and not 0 <= self.add_eos < 2**31:
            raise RecipeError(f"add_eos is True, False or an id from 0 to 2**31 - 1, got {self.add_eos}")

    @property
    def vocab_size(self) -> int:
        """Ids are below it. Loads the tokenizer."""
        size = self._encoder.vocab_size
        return size if isinstance(self.add_eos, bool) else max(size, self.add_eos + 1)

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with its tokens."""
        encoder = self._encoder
        ids = _encode(encoder, self._text(record))
        if self.add_eos is not False:
            ids.append(encoder.end_id if self.add_eos is True else self.add_eos)  # type: ignore[arg-type]
        tokens = np.array(ids, np.int32)
        if record.get("tokens") is not None:
            tokens = np.concatenate([np.asarray(record["tokens"], np.int32), tokens])
        return {**record, "tokens": tokens}

    @cached_property
    def _encoder(self) -> Encoder:
        return load_encoder(self.path, self.pattern)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: the tokenizer stays in its process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def _text(self, record: dict[str, Any]) -> str:
        keys = TEXT_KEYS if self.key is None else (self.key,)
        key = next((key for key in keys if key in record), None)
        if key is None:
            raise BadSampleError(f"no {' or '.join(keys)} in the record, which has {sorted(record)}")
        value = record[key]
        try:
            if isinstance(value, bytes):
                return value.decode()
            if isinstance(value, str):
                value.encode()  # a lone surrogate is no text
                return value
        except UnicodeError as error:
            raise BadSampleError(f"{key!r} is not UTF-8: {error.reason} at {error.start}") from error  # type: ignore[attr-defined]
        raise BadSampleError(f"{key!r} is {type(value).__name__}; text is str or bytes in UTF-8")


def _encode(encoder: Encoder, text: str) -> list[int]:
    try:
        return encoder.encode(text)
    except BaseException as error:
        # A panic in Rust is no Exception. tiktoken's patterns give up on a million spaces, say.
        if type(error).__name__ != "PanicException":
            raise
        raise BadSampleError(
            f"the tokenizer gives up on {len(text)} characters: {one_line(error)}"
        ) from error
