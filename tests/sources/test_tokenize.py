import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.sources import encoders
from msdata_jax.sources.encoders import load_encoder
from msdata_jax.sources.tokenize import Tokenize

TEXTS = [
    "",
    " ",
    "The quick brown fox — Größe, 東京 tower, привет мир; def f(x): return x**2\n",
    "  two  spaces,\ttabs\r\nand\n\n\nlines  ",
    "<|endoftext|></s><s>[INST] written out",
    "🙂" * 20 + "a" * 500,
]


@pytest.fixture(params=["tekken", "sentencepiece", "huggingface", "ranks"])
def tokenizer(request, mistral_data, huggingface_file, rank_file):
    """(path, the library's own encode, end id)."""
    if request.param == "tekken":
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        path = mistral_data / "tekken_240911.json"
        reference = Tekkenizer.from_file(path)
        return str(path), lambda text: reference.encode(text, bos=False, eos=False), reference.eos_id
    if request.param == "sentencepiece":
        from sentencepiece import SentencePieceProcessor

        path = str(mistral_data / "mistral_instruct_tokenizer_240323.model.v3")
        model = SentencePieceProcessor(model_file=path)
        return path, model.encode, model.eos_id()
    if request.param == "huggingface":
        from tokenizers import Tokenizer

        own = Tokenizer.from_file(huggingface_file)
        own.no_truncation()
        own.no_padding()
        own.encode_special_tokens = True
        return huggingface_file, lambda text: own.encode(text, add_special_tokens=False).ids, 0
    import base64

    from tiktoken import Encoding

    with open(rank_file, "rb") as stream:
        pairs = [line.split() for line in stream]
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    encoding = Encoding("small", pat_str=encoders.DEFAULT_PATTERN, mergeable_ranks=ranks, special_tokens={})
    return rank_file, lambda text: encoding.encode(text, disallowed_special=()), None


def test_gives_the_ids_of_the_library(tokenizer):
    path, reference, end_id = tokenizer
    transform = Tokenize(path, add_eos=end_id is not None)
    transform.open()
    for text in TEXTS:
        tokens = transform({"text": text})["tokens"]
        assert tokens.dtype == np.int32
        assert tokens.tolist() == reference(text) + [end_id] * (end_id is not None)
        assert transform({"text": text.encode()})["tokens"].tolist() == tokens.tolist()
        assert (tokens < transform.vocab_size).all()


def test_threads_get_the_same_ids(tokenizer):
    path, reference, _ = tokenizer
    transform = Tokenize(path, add_eos=False)
    expected = [reference(text) for text in TEXTS]
    found = {}

    def encode(number):
        found[number] = [transform({"text": text})["tokens"].tolist() for text in TEXTS * 5]

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == dict.fromkeys(range(4), expected * 5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "größe", "  ", " ", "\n", "東京", "x" * 9, "."]), max_size=60),
    st.integers(1, 20),
)
def test_sentencepiece_in_pieces_is_as_in_one(mistral_data, words, num_chars):
    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        encoder = load_encoder(str(mistral_data / name))
        text = " ".join(words)
        with pytest.MonkeyPatch.context() as patch:
            whole = encoder.encode(text)
            patch.setattr(encoders, "_SENTENCEPIECE_CHARS", num_chars)
            assert encoder.encode(text) == whole


def test_sentencepiece_long_text(mistral_data, helpers):
    path = str(mistral_data / "mistral_instruct_tokenizer_240323.model.v3")
    encoder = load_encoder(path)
    text = "\n".join(helpers.make_docs(1500))
    assert len(text) > 3 * encoders._SENTENCEPIECE_CHARS
    assert encoder.encode(text) == encoder._model.encode(text)


def test_loads_a_file_once(huggingface_file, tmp_path):
    assert load_encoder(huggingface_file) is load_encoder(huggingface_file)
    with open(huggingface_file) as stream:
        model = json.load(stream)
    other = tmp_path / "t.json"
    other.write_text(json.dumps(model))
    first = load_encoder(str(other))
    model["added_tokens"][0]["content"] = "</s>"
    other.write_text(json.dumps(model) + " ")
    assert load_encoder(str(other)) is not first  # the file is another one now


def test_appends_to_what_is_there(huggingface_file):
    transform = Tokenize(huggingface_file, key="caption", add_eos=7)
    record = transform({"caption": "data", "tokens": np.array([-1, -1]), "kept": 1})
    assert record["tokens"][:2].tolist() == [-1, -1]
    assert record["tokens"][-1] == 7
    assert record["kept"] == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"body": "a"}, r"no text or txt .*\['body'\]"),
        ({"text": None}, "'text' is NoneType"),
        ({"text": 5}, "'text' is int"),
        ({"text": b"a\xffb"}, "'text' is not UTF-8: invalid start byte at 1"),
        ({"text": "a\ud800"}, "'text' is not UTF-8: surrogates not allowed at 1"),
    ],
)
def test_what_is_no_text_is_a_bad_sample(huggingface_file, record, reason):
    with pytest.raises(BadSampleError, match=reason):
        Tokenize(huggingface_file)(record)


def test_a_panic_of_the_library_is_a_bad_sample(mistral_data, capfd):
    with pytest.raises(BadSampleError, match="gives up on 1000000 characters: PanicException"):
        Tokenize(str(mistral_data / "tekken_240911.json"))({"text": " " * 1_000_000})


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b'{"a": 1}', b'{"config": {"pattern": "a"}, "vocab": [{"token_bytes": 1}]}',
     b"YQ== 0\nYg==\n", b"YQ== 0\nYg== x\n", b"plain text", b"\x0a\x10\x00garbage" * 30, bytes(range(256))],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(tmp_path, content, capfd):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="no tokenizer that is known here") as caught:
        Tokenize(str(path)).open()
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="No such file"):
        Tokenize(str(tmp_path / "no.json")).open()


def test_an_end_that_the_file_does_not_name_has_to_be_given(rank_file):
    with pytest.raises(RecipeError, match="add_eos=<id>"):
        Tokenize(rank_file).open()
    with pytest.raises(RecipeError, match="add_eos is"):
        Tokenize(rank_file, add_eos=-1).open()
    Tokenize(rank_file, add_eos=False).open()
    assert Tokenize(rank_file, add_eos=3000).vocab_size == 3001
