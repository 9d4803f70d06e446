import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msdata_jax.errors import BadSampleError, RecipeError
from msdata_jax.records import IMAGE_TOKEN
from msdata_jax.sources.lengths import Split, Truncate


def make_record(tokens):
    tokens = np.array(tokens, np.int32)
    places = np.flatnonzero(tokens == IMAGE_TOKEN)
    # each patch says at which place it is shown
    return {"tokens": tokens, "patches": places[:, None].astype(np.uint8), "kept": "yes"}


TOKENS = st.lists(st.one_of(st.just(IMAGE_TOKEN), st.integers(0, 9)), max_size=60)


@settings(deadline=None)
@given(TOKENS, st.integers(1, 20), st.integers(1, 20))
def test_parts_give_back_the_whole(tokens, max_tokens, min_tokens):
    record = make_record(tokens)
    parts = Split(max_tokens, min(min_tokens, max_tokens))(record)
    left_out = len(tokens) % max_tokens if len(tokens) % max_tokens < min_tokens else 0
    kept = len(tokens) - left_out
    assert [token for part in parts for token in part["tokens"]] == tokens[:kept]
    assert all(len(part["tokens"]) == max_tokens for part in parts[:-1])
    start = 0
    for part in parts:
        assert part["kept"] == "yes"
        assert part["tokens"].flags.owndata
        places = np.flatnonzero(part["tokens"] == IMAGE_TOKEN) + start
        assert part["patches"][:, 0].tolist() == places.tolist()
        start += len(part["tokens"])


@settings(deadline=None)
@given(TOKENS, st.integers(1, 70))
def test_truncate_keeps_the_first_part(tokens, max_tokens):
    record = make_record(tokens)
    short = Truncate(max_tokens)(record)
    assert short["tokens"].tolist() == tokens[:max_tokens]
    assert len(short["patches"]) == tokens[:max_tokens].count(IMAGE_TOKEN)
    assert np.array_equal(short["patches"], record["patches"][: len(short["patches"])])


def test_refuses_lengths_that_make_no_sense():
    for wrong in (lambda: Truncate(0), lambda: Split(0), lambda: Split(4, 5), lambda: Split(4, 0)):
        with pytest.raises(RecipeError, match="got"):
            wrong()
    for transform in (Truncate(3), Split(3)):
        with pytest.raises(BadSampleError, match=r"no 'tokens' .*\['text'\]"):
            transform({"text": "a"})
