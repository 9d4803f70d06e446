"""`SourceReader` against a plain loop, under each policy."""

import json
import threading

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.errors import MSDataError, RecipeError, SourceError
from msdata_jax.recipe import Source
from msdata_jax.records import IMAGE_TOKEN, default_measure, info_dtype
from msdata_jax.sources import DecodeImage, Order, Patchify, SourceReader, Split, Tokenize, Truncate


def make_reader(source, *, name="a", index=2, seed=1, columns=()):
    return SourceReader(name, index, source, seed=seed, columns=columns)


def as_lists(block):
    samples = [{key: value.tolist() for key, value in sample.items()} for sample in block.samples]
    return (block.start, block.stop, block.infos.tolist(), samples, list(block.bad))


def plain_loop(source, start, stop, *, name="a", index=2, seed=1):
    """The oracle for data in memory whose transforms are callables: (infos, samples, bad positions)."""
    order = Order(len(source.data), seed=seed, source_name=name, shuffle=source.shuffle)

    def content(position):
        parts = [source.data[int(order.locate(np.array([position])).records[0])]]
        try:
            for transform in source.transforms:
                results = [transform(part) for part in parts]
                results = [result if isinstance(result, list) else [result] for result in results]
                parts = [part for result in results for part in result if part is not None]
            return [part["tokens"] for part in parts if len(part["tokens"])]
        except (ValueError, KeyError):
            return None

    infos, samples, bad = [], [], []
    for position in range(start, stop):
        found = content(position)
        if found is None:
            bad.append(position)
            following = (
                [content(position + 1 + n) for n in range(16)] if source.on_bad_sample == "replace" else []
            )
            found = next((tokens for tokens in following if tokens), [])
        for part, tokens in enumerate(found):
            infos.append((index, part, position, len(tokens), 0, 4 * len(tokens)))
            samples.append({"tokens": list(tokens)})
    return infos, samples, bad


def fail_on_sevens(record):
    if record["n"] % 7 == 0:
        raise ValueError(f"seven in {record['n']}")
    return record


def leave_out_fives(record):
    return None if record["n"] % 5 == 0 else record


DATA = [{"n": n, "tokens": np.arange(n % 9)} for n in range(23)]


@settings(deadline=None)
@given(
    st.sampled_from(["raise", "skip", "replace"]),
    st.booleans(),
    st.integers(0, 60),
    st.integers(0, 30),
    st.integers(0, 2**63 - 1),
)
def test_a_block_is_what_a_plain_loop_gives(policy, shuffle, start, count, seed):
    source = Source(DATA, [leave_out_fives, fail_on_sevens, Split(3)], on_bad_sample=policy, shuffle=shuffle)
    block = make_reader(source, seed=seed).read_block(start, start + count)
    infos, samples, bad = plain_loop(source, start, start + count, seed=seed)
    assert block.infos.dtype == info_dtype()
    assert block.infos.tolist() == infos
    assert as_lists(block)[3] == samples
    assert all(sample["tokens"].dtype == np.int32 for sample in block.samples)
    assert [item.position for item in block.bad] == bad
    assert all(item.reason.startswith("fail_on_sevens: ValueError: seven in ") for item in block.bad)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_blocks_do_not_depend_on_their_borders(write, helpers, huggingface_file, policy):
    source = Source(
        write(helpers.make_docs(30)), [Tokenize(huggingface_file), Split(8)], on_bad_sample=policy
    )
    reader, other = make_reader(source), make_reader(source)
    whole = reader.read_block(0, 75)
    for size in (1, 7, 64):
        blocks = [other.read_block(start, min(start + size, 75)) for start in range(0, 75, size)]
        assert np.array_equal(np.concatenate([block.infos for block in blocks]), whole.infos)
        parts = [sample for block in blocks for sample in as_lists(block)[3]]
        assert parts == as_lists(whole)[3]
    assert reader.num_open_files == 1
    for opened in (reader, other):
        opened.close()
        assert opened.num_open_files == 0


def test_each_epoch_has_every_document_once(write, helpers, huggingface_file):
    docs = helpers.make_docs(30)
    reader = make_reader(Source(write(docs), [Tokenize(huggingface_file)]))
    encode = Tokenize(huggingface_file)
    expected = sorted(encode({"text": doc})["tokens"].tolist() for doc in docs)
    orders = []
    for epoch in range(2):
        samples = reader.read_block(30 * epoch, 30 * (epoch + 1)).samples
        orders.append([sample["tokens"].tolist() for sample in samples])
        assert sorted(orders[-1]) == expected
    assert orders[0] != orders[1]
    assert reader.num_records == 30
    reader.close()


def test_threads_read_blocks_of_one_source(write, helpers, huggingface_file):
    reader = make_reader(Source(write(helpers.make_docs(60)), [Tokenize(huggingface_file)]))
    expected = {start: as_lists(reader.read_block(start, start + 20)) for start in range(0, 120, 20)}
    found = {}

    def read(start):
        found[start] = as_lists(reader.read_block(start, start + 20))

    threads = [threading.Thread(target=read, args=(start,)) for start in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == expected
    reader.close()


def test_bad_lines_follow_the_policy(tmp_path, huggingface_file):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"doc {n}"}) for n in range(10)]
    lines[3], lines[4], lines[9] = "{", '{"body": 1}', "[]"
    path.write_text("\n".join(lines))
    blocks = {}
    for policy in ("raise", "skip", "replace"):
        source = Source(str(path), [Tokenize(huggingface_file)], on_bad_sample=policy, shuffle=False)
        reader = make_reader(source)
        blocks[policy] = reader.read_block(0, 10)
        reader.close()
    for block in blocks.values():
        assert [item.position for item in block.bad] == [3, 4, 9]
        assert "a.jsonl: line 4 is not JSON" in block.bad[0].reason
        assert "Tokenize: no text" in block.bad[1].reason
    assert blocks["skip"].infos["position"].tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert as_lists(blocks["skip"]) == as_lists(blocks["raise"])
    replaced = blocks["replace"]
    assert replaced.infos["position"].tolist() == list(range(10))
    for position, other in ((3, 5), (4, 5), (9, 0)):  # position 10 is record 0 of the next epoch
        assert np.array_equal(replaced.samples[position]["tokens"], replaced.samples[other]["tokens"])


def test_replace_gives_up_after_some_tries():
    data = [{"tokens": [1]}] + [{"n": n} for n in range(40)]
    block = make_reader(Source(data, on_bad_sample="replace", shuffle=False)).read_block(20, 41)
    assert [item.position for item in block.bad] == list(range(20, 41))
    assert block.infos["position"].tolist() == list(range(25, 41))
    assert block.bad[4].reason.endswith("none of the next 16 positions can replace it")
    assert block.bad[5].reason.endswith("adds int tokens (record 25)")


def test_images_with_captions(tmp_path, helpers, huggingface_file):
    import io

    from PIL import Image

    members = []
    for n in range(6):
        stream = io.BytesIO()
        Image.fromarray(np.full((20, 30, 3), 40 * n, np.uint8)).save(stream, "PNG")
        content = stream.getvalue()[: -40 if n == 2 else None]
        members += [(f"{n}.png", content), (f"{n}.txt", f"caption {n}".encode())]
    path = helpers.write_tar(tmp_path / "a.tar", members)
    transforms = [DecodeImage(), Patchify(10), Tokenize(huggingface_file)]
    reader = make_reader(Source(path, transforms, on_bad_sample="skip", shuffle=False))
    block = reader.read_block(0, 6)
    reader.close()
    assert block.infos["position"].tolist() == [0, 1, 3, 4, 5]
    assert block.infos["patches"].tolist() == [6] * 5
    assert block.bad[0].position == 2
    assert block.bad[0].reason.startswith("DecodeImage: PNG of ")
    for info, sample in zip(block.infos, block.samples, strict=True):
        assert sample.keys() == {"tokens", "patches"}
        assert (sample["patches"] == 40 * info["position"]).all()
        assert sample["tokens"][:6].tolist() == [IMAGE_TOKEN] * 6
        assert (sample["tokens"][6:] >= 0).all()
        assert info["tokens"] == len(sample["tokens"])
        assert info["num_bytes"] == default_measure(sample)["num_bytes"]


def test_a_map_dataset_keeps_its_own_order_and_epochs():
    dataset = grain.MapDataset.range(12).seed(5).shuffle().map(lambda n: {"tokens": np.array([n])})
    dataset = dataset.filter(lambda element: element["tokens"][0] != 4)
    block = make_reader(Source(dataset, shuffle=False)).read_block(0, 24)
    found = dict(zip(block.infos["position"].tolist(), (s["tokens"][0] for s in block.samples), strict=True))
    assert found == {p: dataset[p]["tokens"][0] for p in range(24) if dataset[p] is not None}
    shuffled = make_reader(Source(dataset)).read_block(12, 24)
    assert sorted(s["tokens"][0] for s in shuffled.samples) == sorted(found[p] for p in found if p >= 12)


def test_measured_columns():
    def measure(record):
        return {"letters": np.int32(len(record["text"])), "images": 3, "tokens": 99}

    source = Source(
        [{"text": "abc", "tokens": [1, 2]}], measure=measure, columns=("letters", "images"), shuffle=False
    )
    block = make_reader(source, columns=("letters", "images", "other")).read_block(0, 2)
    assert block.infos.dtype == info_dtype(("letters", "images", "other"))
    assert (
        block.infos[["tokens", "num_bytes", "letters", "images", "other"]].tolist() == [(2, 8, 3, 3, 0)] * 2
    )
    forgets = Source([{"tokens": [1]}], measure=lambda record: {}, columns=("letters",), on_bad_sample="skip")
    assert "measure (columns ['letters']): KeyError" in make_reader(forgets).read_block(0, 1).bad[0].reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "a"}, r"no 'tokens' but \['text'\]; end them with Tokenize"),
        ("text", r"no 'tokens' but \['record'\]"),
        ({"tokens": [0.5]}, "1-D integers, got float64"),
        ({"tokens": np.zeros((2, 2), int)}, r"1-D integers, got int64 of shape \(2, 2\)"),
        ({"tokens": [-2, 1]}, "got -2 to 1"),
        ({"tokens": [2**31]}, "got 2147483648"),
        ({"tokens": [-1, 1]}, "1 places .* 0 patches"),
        ({"tokens": [1], "patches": np.zeros((1, 3), np.uint8)}, "0 places .* 1 patches"),
        ({"tokens": [-1], "patches": np.zeros((1, 3))}, "patches are uint8"),
        ({"tokens": [-1], "patches": np.zeros(1, np.uint8)}, "patches are uint8"),
    ],
)
def test_what_is_no_sample_is_bad(record, reason):
    import re

    block = make_reader(Source([record], on_bad_sample="skip")).read_block(0, 1)
    assert not block.samples
    assert re.search(reason, block.bad[0].reason), block.bad[0].reason


def test_empty_samples_are_left_out():
    block = make_reader(Source([{"tokens": []}, {"tokens": np.zeros(0)}, None])).read_block(0, 3)
    assert (len(block.samples), list(block.bad)) == (0, [])


def test_fingerprint_is_of_the_data(write, helpers, huggingface_file):
    path = write(helpers.make_docs(10))
    readers = [make_reader(Source(path, [Tokenize(huggingface_file)]), name=name) for name in "ab"]
    assert readers[0].fingerprint() == readers[1].fingerprint()
    for reader in readers:
        reader.close()


@pytest.mark.parametrize(
    ("source", "error", "rule"),
    [
        (Source("/no/such.jsonl"), SourceError, "source 'a': /no/such.jsonl: there is no such file"),
        (Source([]), SourceError, r"source 'a': \[\] has no records"),
        (Source([1], options={"columns": ("a",)}), SourceError, "options are for files"),
        (Source([1], [Tokenize("/no/such.json")]), RecipeError, "source 'a': tokenizer file /no/such.json"),
        (Source([1], [Truncate]), RecipeError, "source 'a': .* is no transform"),
    ],
)
def test_what_is_wrong_is_an_error_at_open(source, error, rule):
    with pytest.raises(error, match=rule) as caught:
        make_reader(source)
    assert isinstance(caught.value, MSDataError)


def test_refuses_positions_out_of_range():
    reader = make_reader(Source([{"tokens": [1]}]))
    for start, stop in ((-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="got"):
            reader.read_block(start, stop)
    assert reader.read_block(2**40, 2**40 + 1).infos["position"].tolist() == [2**40]


@settings(deadline=None)
@given(
    st.sampled_from(["raise", "skip", "replace"]),
    st.integers(0, 40),
    st.integers(0, 30),
    st.sets(st.integers(0, 90), max_size=40),
)
def test_verdicts_are_taken_over_without_a_try(policy, start, count, positions):
    tried = []

    def note(record):
        tried.append(record["n"])
        return record

    source = Source(DATA, [note, fail_on_sevens], on_bad_sample=policy, shuffle=False)
    verdicts = {position: f"took over 2 s at {position}" for position in positions}
    reader = make_reader(source)
    block = reader.read_block(start, start + count, verdicts)
    if count <= 7:  # then no two positions show one record
        assert not {p % 23 for p in positions if start <= p < start + count} & set(tried)
    by_luck = {bad.position: bad.reason for bad in block.bad if bad.by_luck}
    assert by_luck.keys() == {p for p in positions if start <= p < start + count}
    assert all(by_luck[p].startswith(verdicts[p]) for p in by_luck)
    assert block.verdicts.items() <= verdicts.items()
    assert by_luck.keys() <= block.verdicts.keys()
    again = make_reader(source).read_block(start, start + count, block.verdicts)
    assert as_lists(again) == as_lists(block)
    assert again.verdicts == block.verdicts


def test_a_verdict_behind_the_block_counts_for_its_substitutes():
    data = [{"tokens": [n]} for n in range(9)]
    data[3] = {"n": 3}
    reader = make_reader(Source(data, on_bad_sample="replace", shuffle=False))
    block = reader.read_block(0, 4, {4: "crashed", 5: "crashed", 7: "crashed"})
    assert [sample["tokens"].tolist() for sample in block.samples] == [[0], [1], [2], [6]]
    assert [(bad.position, bad.by_luck) for bad in block.bad] == [(3, False)]
    assert block.verdicts == {4: "crashed", 5: "crashed"}


def test_file_digests_are_of_the_records(write, helpers, huggingface_file, file_format):
    reader = make_reader(Source(write(helpers.make_docs(10)), [Tokenize(huggingface_file)]))
    assert list(reader.file_digests()) == [f"a.{file_format}"]
    assert make_reader(Source(DATA)).file_digests() == {}
    reader.close()
