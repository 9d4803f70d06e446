"""Real text for benchmarks, from the source files of Python's standard library: nothing is downloaded.

Each kind of document has its own lengths: `modules` are whole files, `blocks` are their top-level functions
and classes, `docstrings` are prose.
"""

import itertools
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

VOCABULARY_SIZE = 8192
END_OF_TEXT = "<|endoftext|>"
SHORTEST_CHARS = 64
PARQUET_GROUP_RECORDS = 256

_BLOCK = re.compile(r"^(?=(?:async )?def |class |@)", re.MULTILINE)
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)


@cache
def modules() -> tuple[str, ...]:
    """The texts of all modules, tests among them, in a fixed shuffled order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    random.Random(0).shuffle(paths)
    texts = (path.read_text(errors="replace") for path in paths)
    return tuple(text for text in texts if len(text) >= SHORTEST_CHARS)


@cache
def blocks() -> tuple[str, ...]:
    """Top-level functions and classes."""
    pieces = itertools.chain.from_iterable(map(_BLOCK.split, modules()))
    return tuple(piece for piece in pieces if len(piece) >= SHORTEST_CHARS)


@cache
def docstrings() -> tuple[str, ...]:
    """What stands between triple quotes."""
    pieces = itertools.chain.from_iterable(map(_DOCSTRING.findall, modules()))
    return tuple(piece for piece in pieces if len(piece) >= SHORTEST_CHARS)


def deal(documents: Sequence[str], num_sources: int, docs_per_source: int) -> Iterator[list[str]]:
    """Documents of each source, each document once; they start over where there are not enough."""
    endless = itertools.cycle(documents)
    for _ in range(num_sources):
        yield list(itertools.islice(endless, docs_per_source))


def write_jsonl(documents: Sequence[str], path: Path) -> None:
    """One object with `text` a line."""
    with path.open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)


def write_parquet(documents: Sequence[str], path: Path) -> None:
    """A column `text` in row groups of 256 records."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": list(documents)})
    parquet.write_table(table, path, row_group_size=PARQUET_GROUP_RECORDS)


WRITERS: Mapping[str, Callable[[Sequence[str], Path], None]] = {
    ".jsonl": write_jsonl,
    ".parquet": write_parquet,
}


def write_tokenizer(path: Path) -> None:
    """A byte-level BPE trained on 2 MB of modules."""
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
    sizes = itertools.accumulate(len(text) for text in modules())
    tokenizer.train_from_iterator(
        [text for text, size in zip(modules(), sizes, strict=True) if size <= 2_000_000], trainer
    )
    tokenizer.save(str(path))


def write_job(
    folder: Path, documents: Mapping[str, Sequence[str]], suffixes: Mapping[str, str], **settings: Any
) -> None:
    """Sources, tokenizer and settings of `text_job/recipe.py`.

    Args:
        folder: to fill.
        documents: texts by source name.
        suffixes: format by source name: `.jsonl` or `.parquet`.
        settings: `weights` by source name, `unit`, `seq_len`, `rows`, `block_size`.
    """
    for name, texts in documents.items():
        WRITERS[suffixes[name]](texts, folder / f"{name}{suffixes[name]}")
    write_tokenizer(folder / "tokenizer.json")
    files = {name: f"{name}{suffixes[name]}" for name in documents}
    (folder / "settings.json").write_text(json.dumps({"files": files, **settings}))
