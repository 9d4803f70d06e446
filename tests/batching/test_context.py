import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import packed_rows

from msdata_jax.batching.context import context_order, document_zigzag_order, place_order
from msdata_jax.batching.rows import RowFormat, Segments


@given(st.integers(2, 8), st.integers(1, 5))
def test_zigzag_is_a_permutation_of_equal_causal_work(num_parts, chunk):
    seq_len = 2 * num_parts * chunk
    order = context_order(seq_len, num_parts, "zigzag")
    assert sorted(order.tolist()) == list(range(seq_len))
    work = (order + 1).reshape(num_parts, -1).sum(axis=1)  # place p attends to p + 1 places
    assert len(set(work.tolist())) == 1
    contiguous = (np.arange(seq_len) + 1).reshape(num_parts, -1).sum(axis=1)
    assert contiguous.max() > work[0]


def test_by_hand():
    assert context_order(8, 2, "zigzag").tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert context_order(8, 4, "zigzag").tolist() == [0, 7, 1, 6, 2, 5, 3, 4]


@pytest.mark.parametrize(("num_parts", "layout"), [(1, "zigzag"), (4, "contiguous"), (1, "contiguous")])
def test_nothing_moves_where_nothing_is_to_gain(num_parts, layout):
    assert context_order(8, num_parts, layout) is None


# --- zigzag per document ------------------------------------------------------------------------------------


def rows_of(segments, num_rows):
    """The documents of each row as (first place, length)."""
    rows = [[] for _ in range(num_rows)]
    columns = (segments.row.tolist(), segments.offset.tolist(), segments.length.tolist())
    for row, offset, length in zip(*columns, strict=True):
        rows[row].append((offset, length))
    return rows


def plain_order(seq_len, num_parts, documents):
    """Place by place."""
    part_of_place = {}
    for offset, length in documents:
        chunk = length // (2 * num_parts)
        for number in range(2 * num_parts):
            for place in range(offset + number * chunk, offset + (number + 1) * chunk):
                part_of_place[place] = min(number, 2 * num_parts - 1 - number)
    turn = 0
    for place in range(seq_len):
        if place not in part_of_place:
            part_of_place[place] = turn % num_parts
            turn += 1
    return [place for part in range(num_parts) for place in range(seq_len) if part_of_place[place] == part]


def causal_work(order, num_parts, documents):
    """Places that the places of each part attend to."""
    seen = np.zeros(len(order), dtype=np.int64)
    for offset, length in documents:
        seen[offset : offset + length] = np.arange(1, length + 1)
    return seen[order].reshape(num_parts, -1).sum(axis=1)


@given(packed_rows())
def test_document_zigzag_equals_the_plain_loop(case):
    seq_len, num_parts, segments, num_rows = case
    order = document_zigzag_order(seq_len, num_parts, segments, num_rows)
    assert order.dtype == np.int64
    expected = [plain_order(seq_len, num_parts, documents) for documents in rows_of(segments, num_rows)]
    assert order.tolist() == expected


@given(packed_rows())
def test_document_zigzag_shows_each_place_once_and_works_evenly(case):
    seq_len, num_parts, segments, num_rows = case
    order = document_zigzag_order(seq_len, num_parts, segments, num_rows)
    assert np.array_equal(np.sort(order, axis=1), np.broadcast_to(np.arange(seq_len), order.shape))
    parts = order.reshape(num_rows, num_parts, -1)  # [rows, parts, places]: equal sizes
    assert (np.diff(parts, axis=2) > 0).all()
    for row, documents in zip(order, rows_of(segments, num_rows), strict=True):
        work = causal_work(row, num_parts, documents)
        # Chunks are exactly even; of what is dealt, two parts differ by a document's length at most per lap.
        left = sum(length % (2 * num_parts) > 0 for _, length in documents)
        longest = max((length for _, length in documents), default=0)
        assert work.max() - work.min() <= 3 * longest * max(left, 1)


def one_row(*lengths):
    length = np.array(lengths, dtype=np.int32)
    zero = np.zeros(len(lengths), dtype=np.int32)
    offset = (np.cumsum(length) - length).astype(np.int32)
    return Segments(row=zero, offset=offset, length=length, num_patches=zero.astype(np.int64))


def test_document_zigzag_by_hand():
    # Nine places in chunks of two, one left; three too short to cut; four of padding.
    assert document_zigzag_order(16, 2, one_row(9, 3), 1).tolist() == [
        [0, 1, 6, 7, 8, 10, 12, 14, 2, 3, 4, 5, 9, 11, 13, 15]
    ]
    # Two rows, the second without documents: dealt in turn.
    assert document_zigzag_order(4, 2, one_row(4), 2).tolist() == [[0, 3, 1, 2], [0, 2, 1, 3]]
    assert document_zigzag_order(6, 3, one_row(), 1).tolist() == [[0, 3, 1, 4, 2, 5]]


def test_many_documents_of_a_long_row_leave_the_parts_even():
    rng = np.random.default_rng(0)
    lengths = []
    while sum(lengths) < 30_000:
        lengths.append(int(rng.integers(1, 6000)))
    seq_len, documents = 40_000, one_row(*lengths)
    pairs = rows_of(documents, 1)[0]
    per_document = causal_work(document_zigzag_order(seq_len, 8, documents, 1)[0], 8, pairs)
    per_row = causal_work(context_order(seq_len, 8, "zigzag"), 8, pairs)
    assert per_document.max() / per_document.mean() < 1.001
    assert per_row.max() / per_row.mean() > 1.1


@pytest.mark.parametrize("num_parts", [1, 2])
def test_the_layout_of_a_format_decides(num_parts):
    documents = one_row(4)

    def order(layout):
        form = RowFormat(seq_len=8, context_parts=num_parts, context_layout=layout)
        found = place_order(form, documents, 1)
        return None if found is None else found.tolist()

    assert order("contiguous") is None
    assert order("zigzag") == (None if num_parts == 1 else [0, 1, 6, 7, 2, 3, 4, 5])
    assert order("zigzag_document") == (None if num_parts == 1 else [[0, 3, 4, 6, 1, 2, 5, 7]])
