"""Where lines are, however the bytes of a file come."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.sources.jsonl import LineFinder


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b" ")), max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_lines_are_found_however_the_text_comes(lines: list[bytes], cuts: list[int]) -> None:
    text = b"\n".join(lines)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    finder = LineFinder()
    for start, stop in pairwise(edges):
        finder.feed(text[start:stop])
    found = finder.lines()
    expected = [(n, line) for n, line in enumerate(lines, 1) if line.strip(b" \t\n\r\x0b\x0c")]
    assert found.numbers.tolist() == [number for number, _ in expected]
    pieces = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    assert [text[start : start + size].rstrip(b"\n") for start, size in pieces] == [
        line for _, line in expected
    ]
