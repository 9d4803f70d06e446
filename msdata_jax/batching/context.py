"""Which places of a row each context-parallel part shows.

The parts are equal stretches of an emitted row; an order says which place of the assembled row each of its
places shows. Attention is causal inside a document, so a part's work is the sum of its places' positions:

    contiguous        part `i` shows the i-th stretch of the row; late parts have most of the work
    zigzag            the row is cut into chunks 0 .. 2c-1; part `i` of `c` shows chunks `i` and `2c-1-i`
    zigzag_document   each document (segment) is cut so; the work is even however documents are packed

Zigzag over a row: Llama 3, arXiv 2407.21783, section 3.3.2; over each document: WLB-LLM, OSDI 2025.
"""

import numpy as np

from msdata_jax.batching.rows import ContextLayout, RowFormat, Segments, counts


def place_order(form: RowFormat, segments: Segments, num_rows: int) -> np.ndarray | None:
    """Order of the places of the rows of a batch.

    Returns:
        int64 `[seq_len]`, the same for all rows, or int64 `[rows, seq_len]`, or None where nothing moves.
    """
    if form.context_layout == "zigzag_document" and form.context_parts > 1:
        return document_zigzag_order(form.seq_len, form.context_parts, segments, num_rows)
    return context_order(form.seq_len, form.context_parts, form.context_layout)


def context_order(seq_len: int, num_parts: int, layout: ContextLayout) -> np.ndarray | None:
    """Order of a row's places where it is the same for every row.

    Args:
        seq_len: places; divides by `2 * num_parts` for zigzag.
        num_parts: context-parallel parts.
        layout: `contiguous` or `zigzag`.

    Returns:
        int64 `[seq_len]`, or None where the order stays as it is.
    """
    if layout == "contiguous" or num_parts == 1:
        return None
    chunks = np.arange(seq_len, dtype=np.int64).reshape(2 * num_parts, -1)
    parts = np.arange(num_parts)
    return chunks[np.stack([parts, 2 * num_parts - 1 - parts], axis=1)].reshape(-1)


def document_zigzag_order(seq_len: int, num_parts: int, segments: Segments, num_rows: int) -> np.ndarray:
    """Order of the places of each row, zigzag inside every document.

    A document of L places is cut into `2 * num_parts` chunks of `L // (2 * num_parts)` places, and part `i`
    shows its chunks `i` and `2 * num_parts - 1 - i`. What remains of each document, and the row's padding, is
    dealt to the parts in turn, in order of place. A part shows its places in increasing order.

    Args:
        seq_len: places; divides by `num_parts`.
        num_parts: context-parallel parts, less than 2**16.
        segments: the documents.
        num_rows: rows of the batch.

    Returns:
        int64 `[num_rows, seq_len]`; stretch `i` of `seq_len // num_parts` holds the places of part `i`.
    """
    part = _part_of_places(seq_len, num_parts, segments, num_rows)
    # A stable sort of small integers is a radix sort: linear, and places stay in order inside a part.
    return np.argsort(part.reshape(num_rows, seq_len), axis=1, kind="stable")


def _part_of_places(seq_len: int, num_parts: int, segments: Segments, num_rows: int) -> np.ndarray:
    """uint16 `[num_rows * seq_len]`."""
    chunk = segments.length.astype(np.int64) // (2 * num_parts)
    first = segments.row.astype(np.int64) * seq_len + segments.offset
    in_chunks = 2 * num_parts * chunk
    part = np.full(num_rows * seq_len, num_parts, dtype=np.uint16)  # num_parts: not dealt yet
    parts = np.arange(num_parts, dtype=np.uint16)
    there_and_back = np.concatenate([parts, parts[::-1]])
    part_of_chunks = np.repeat(np.tile(there_and_back, len(chunk)), np.repeat(chunk, 2 * num_parts))
    part[np.repeat(first, in_chunks) + counts(in_chunks)] = part_of_chunks
    # Chunks take equally many places of every part, so each row leaves a multiple of num_parts to deal.
    left = np.flatnonzero(part == num_parts)
    part[left] = np.arange(len(left)) % num_parts
    return part
