"""Parquet files whose row groups are too large to be kept decoded, and what is kept over several sources."""

import contextlib
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources.opening import on_threads

from msdata_jax.errors import SourceError
from msdata_jax.sources import parquet as parquet_module
from msdata_jax.sources.decoded import DecodedBudget, DecodedGroups
from msdata_jax.sources.parquet import ParquetFormat
from msdata_jax.sources.protocol import BadRecord

GROUP_ROWS, NUM_GROUPS = 60, 3


@pytest.fixture
def docs(helpers):
    return helpers.make_docs(GROUP_ROWS * NUM_GROUPS)


@pytest.fixture
def path(tmp_path, helpers, docs):
    """Pages of a few rows, so that damage hits some of them."""
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 200, "write_batch_size": 5}
    options["write_statistics"] = False  # they would repeat values in page headers
    return helpers.write_parquet(tmp_path / "a.parquet", docs, rows=GROUP_ROWS, **options)


@pytest.fixture
def large_groups(monkeypatch):
    """Row groups are decoded in pieces of a few rows, and do not fit into what may be kept."""
    monkeypatch.setattr(parquet_module, "PIECE_BYTES", 1000)
    warnings.filterwarnings("ignore", ".*are decoded anew for each block", RuntimeWarning)
    return ParquetFormat(cache_bytes=2000)


def texts(found):
    return [record["text"] for record in found]


@pytest.mark.parametrize("order", ["shuffled", "in order", "backwards"])
def test_large_row_groups_give_the_same_records(path, docs, large_groups, order):
    file = large_groups.index(path)
    assert file.most_pieces > 3
    places = np.arange(len(docs))
    if order != "in order":
        places = np.random.default_rng(0).permutation(places) if order == "shuffled" else places[::-1].copy()
    with contextlib.closing(file.open()) as handle:
        for block in np.array_split(np.tile(places, 2), 20):
            assert texts(file.read(handle, block)) == [docs[place] for place in block.tolist()]
            assert large_groups.groups.num_bytes <= 2000


def test_records_in_order_are_decoded_twice_at_most(path, docs, large_groups, monkeypatch):
    """Once to see that the row group is whole, and once piece by piece."""
    file, passed = large_groups.index(path), []
    original = type(file)._pieces

    def counted(self, *arguments):
        for number, piece in original(self, *arguments):
            passed.append(piece.num_rows)
            yield number, piece

    monkeypatch.setattr(type(file), "_pieces", counted)
    with contextlib.closing(file.open()) as handle:
        for start in range(0, len(docs), 4):
            file.read(handle, np.arange(start, start + 4))
    assert len(docs) < sum(passed) <= 2.2 * len(docs)


def test_large_row_groups_are_read_by_threads(path, docs, large_groups):
    file, wrong, done = large_groups.index(path), [], []
    handle = file.open()

    def read(seed):
        asked = np.random.default_rng(seed).permutation(len(docs))[:60]
        found = [record for block in np.array_split(asked, 6) for record in file.read(handle, block)]
        wrong.extend(set(texts(found)) ^ {docs[place] for place in asked.tolist()})
        done.append(seed)

    on_threads(read)
    assert (wrong, sorted(done)) == ([], [0, 1, 2, 3])
    handle.close()


@pytest.mark.parametrize("damaged_row", [0, 30, GROUP_ROWS - 1])
def test_a_damaged_row_group_is_bad_as_a_whole_in_pieces_too(path, docs, large_groups, damaged_row):
    with open(path, "r+b") as stream:
        content = stream.read()
        stream.seek(content.index(docs[GROUP_ROWS + damaged_row].encode()) + 2)
        stream.write(b"\xff\xff")
    asked = np.arange(GROUP_ROWS - 2, GROUP_ROWS + 5)
    found = []
    for options in (large_groups, ParquetFormat()):
        file = options.index(path)
        with contextlib.closing(file.open()) as handle:
            found.append(file.read(handle, asked))
            assert file.read(handle, asked) == found[-1]
    assert found[0] == found[1]
    assert texts(found[0][:2]) == docs[GROUP_ROWS - 2 : GROUP_ROWS]
    assert all(isinstance(record, BadRecord) and "row group 1" in record.reason for record in found[0][2:])


def test_warns_once_of_row_groups_that_do_not_fit(path, monkeypatch):
    monkeypatch.setattr(parquet_module, "PIECE_BYTES", 1000)
    file = ParquetFormat(cache_bytes=2000).index(path)
    with contextlib.closing(file.open()) as handle:
        with pytest.warns(
            RuntimeWarning, match=r"a\.parquet has row groups of .* raise cache_bytes and MSDATA"
        ):
            file.read(handle, np.arange(3))
        file.read(handle, np.arange(3, 6))  # warnings are errors


def test_a_large_footer_is_read_again_with_its_file(path, docs, monkeypatch):
    monkeypatch.setattr(parquet_module, "_KEPT_FOOTER_BYTES", 1)
    file = ParquetFormat().index(path)
    assert file._metadata is None
    with contextlib.closing(file.open()) as handle:
        assert texts(file.read(handle, np.array([70, 3]))) == [docs[70], docs[3]]


class Group:
    """So many decoded bytes."""

    def __init__(self, num_bytes):
        self.nbytes = num_bytes


ACTIONS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 70), st.booleans()), max_size=60
)


@given(ACTIONS)
def test_sources_keep_no_more_than_their_budget(actions):
    """Against a list that says in which order they were used."""
    budget = DecodedBudget(100)
    limits = (30, 60, 100)
    sources = [DecodedGroups(limit, budget) for limit in limits]
    kept = []  # (source, key, bytes), the least recently used first
    for source, key, num_bytes, puts in actions:
        entry = next((each for each in kept if each[:2] == (source, key)), None)
        if not puts:
            found = sources[source].get(key)
            assert (found and found.nbytes) == (entry and entry[2])
            if entry:
                kept.remove(entry)
                kept.append(entry)
            continue
        sources[source].put(key, Group(num_bytes))
        if entry:
            continue
        kept.append((source, key, num_bytes))
        of_source = [each for each in kept if each[0] == source]
        while sum(each[2] for each in of_source) > limits[source] and len(of_source) > 1:
            kept.remove(of_source.pop(0))
        while sum(each[2] for each in kept) > 100:
            kept.pop(0)
        assert budget.num_bytes == sum(each[2] for each in kept) <= 100
        assert [len(each) for each in sources] == [sum(k[0] == s for k in kept) for s in range(3)]


def test_a_source_that_is_gone_keeps_nothing():
    budget = DecodedBudget(100)
    source = DecodedGroups(100, budget)
    source.put(0, Group(60))
    assert budget.num_bytes == 60
    del source
    assert budget.num_bytes == 0


def test_a_group_larger_than_the_budget_is_not_kept():
    groups = DecodedGroups(1000, DecodedBudget(100))
    groups.put(0, Group(101))
    assert (len(groups), groups.get(0), groups.max_bytes) == (0, None, 100)


def test_the_budget_of_the_process_is_set_by_the_environment(monkeypatch):
    from msdata_jax.sources import decoded as decoded_module

    monkeypatch.setattr(decoded_module, "_BUDGETS", {})
    monkeypatch.setenv("MSDATA_DECODED_MB", "3")
    assert ParquetFormat().groups.max_bytes == 3 << 20
    monkeypatch.setattr(decoded_module, "_BUDGETS", {})
    monkeypatch.setenv("MSDATA_DECODED_MB", "3.5")
    with pytest.raises(SourceError, match="MSDATA_DECODED_MB"):
        ParquetFormat()
