"""Published length distributions: how many tokens and image patches the samples of known datasets have.

Each is a function of (context, number, generator). Text is cut at the context into whole chunks and a rest,
as pre-training does; images and clips are scaled down until they fit. Spreads that no paper gives are
assumed, and said to be so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from msdata_jax.errors import RecipeError

PATCHES_PER_TOKEN = 4
"""A token shows 2 x 2 merged patches of 14 x 14 pixels (Qwen2-VL, arXiv 2409.12191): 28 x 28 pixels."""

MAX_IMAGE_TOKENS = 4096
MAX_CLIP_TOKENS = 16384
TOKENS_PER_FRAME_PAIR = 128


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Columns of samples, each int64 `[samples]`.

    Attributes:
        tokens: places in a row, from 1 to the context.
        patches: image patches over all images of the sample; 0 for text.
        images: images (or pairs of frames) that share them equally; 0 for text.
    """

    tokens: np.ndarray
    patches: np.ndarray
    images: np.ndarray

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.tokens)

    def __getitem__(self, index: np.ndarray | slice) -> "Samples":
        """The samples of an index array or slice, in its order."""
        return Samples(tokens=self.tokens[index], patches=self.patches[index], images=self.images[index])


def join(parts: list[Samples]) -> Samples:
    """The samples of all parts, one part after the other."""
    return Samples(
        tokens=np.concatenate([part.tokens for part in parts]),
        patches=np.concatenate([part.patches for part in parts]),
        images=np.concatenate([part.images for part in parts]),
    )


Draw = Callable[[int, int, np.random.Generator], Samples]
"""`draw(context, number, rng)`: `number` samples of at most `context` tokens."""


# --- text -------------------------------------------------------------------------------------------------

# Component of the Pile: (raw GiB, epochs, mean document in KiB, assumed spread of the logarithm).
PILE: Mapping[str, tuple[float, float, float, float]] = {
    "Pile-CC": (227.12, 1.0, 4.33, 1.0),
    "PubMed Central": (90.27, 2.0, 30.55, 0.8),
    "Books3": (100.96, 1.5, 538.36, 0.8),
    "OpenWebText2": (62.77, 2.0, 3.85, 1.0),
    "ArXiv": (56.21, 2.0, 46.61, 0.8),
    "Github": (95.16, 1.0, 5.25, 1.0),
    "FreeLaw": (51.15, 1.5, 15.06, 1.0),
    "Stack Exchange": (32.20, 2.0, 2.16, 1.0),
    "USPTO Backgrounds": (22.90, 2.0, 4.08, 0.6),
    "PubMed Abstracts": (19.26, 2.0, 1.30, 0.5),
    "Gutenberg (PG-19)": (10.88, 2.5, 398.73, 0.8),
    "OpenSubtitles": (12.98, 1.5, 30.48, 0.6),
    "Wikipedia (en)": (6.38, 3.0, 1.11, 1.0),
    "DM Mathematics": (7.75, 2.0, 8.00, 0.1),
    "Ubuntu IRC": (5.52, 2.0, 545.48, 0.8),
    "BookCorpus2": (6.30, 1.5, 369.87, 0.8),
    "EuroParl": (4.59, 2.0, 68.87, 1.0),
    "HackerNews": (3.90, 2.0, 4.92, 1.0),
    "YoutubeSubtitles": (3.73, 2.0, 22.55, 1.0),
    "PhilPapers": (2.38, 2.0, 73.37, 1.0),
    "NIH ExPorter": (1.89, 2.0, 2.11, 0.5),
    "Enron Emails": (0.88, 2.0, 1.78, 1.0),
}
BYTES_PER_TOKEN = 4


def text_pile(context: int, number: int, rng: np.random.Generator) -> Samples:
    """The Pile: 22 components, each lognormal around its mean document, at 4 bytes a token.

    Sizes, epochs and mean documents: Gao et al., arXiv 2101.00027, table 1. The spread within a component is
    assumed: 1.0 for mixed ones, less for uniform ones.
    """
    gib, epochs, kib, sigma = np.array(list(PILE.values())).T
    documents = gib * epochs / kib

    def lengths(count: int) -> np.ndarray:
        component = rng.choice(len(PILE), size=count, p=documents / documents.sum())
        return _lognormal(rng, kib[component] * 1024 / BYTES_PER_TOKEN, sigma[component])

    return _chunked(lengths, context, number, rng)


def text_wlb(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Documents of WLB-LLM: 97.6 % below 6.2k tokens, 2.4 % log-uniform from 6.5k to 125k.

    A fit to the lengths that WLB-LLM (OSDI 2025) shows, as digitised in hao-ai-lab/DistCA: mean 3962, median
    3227, 99th percentile 26k; documents above 8k are 2.4 % of all and hold 22 % of the tokens.
    """

    def lengths(count: int) -> np.ndarray:
        bulk = 6200 * rng.beta(1.0, 0.98, size=count)
        tail = np.exp(rng.uniform(np.log(6.5e3), np.log(125e3), size=count))
        return np.where(rng.random(count) < 0.024, tail, bulk)

    return _chunked(lengths, context, number, rng)


def text_prolong(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Documents of ProLong: lognormal(7.60, 0.85) from 575 tokens up, and 0.2 % log-uniform from 16k to 340k.

    A fit to the lengths of ProLong (arXiv 2410.02660) as digitised in hao-ai-lab/DistCA: mean 3052, median
    1913, 99th percentile 16.3k, longest 340k.
    """

    def lengths(count: int) -> np.ndarray:
        bulk = np.maximum(575, rng.lognormal(7.60, 0.85, size=count))
        tail = np.exp(rng.uniform(np.log(16e3), np.log(340e3), size=count))
        return np.where(rng.random(count) < 0.002, tail, bulk)

    return _chunked(lengths, context, number, rng)


# --- images and video -------------------------------------------------------------------------------------


def coyo(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Web images with alternative text: sides lognormal, one caption of 17.24 tokens in the mean.

    Means 621.78 x 540.99 pixels (of the area), sides from 200, tokens of text: kakaobrain/coyo-dataset,
    README. The spread of a side (0.55), the correlation of both (0.6) and aspect up to 3 are assumed.
    """
    return _captioned(_coyo_image_tokens(number, rng), _lognormal(rng, 17.24, 0.6, number), context)


def navit(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Images at native resolution, 1.1 megapixels in the mean, at most 16384 patches, and 125 tokens of text.

    Native resolution as in NaViT (arXiv 2307.06304) and Qwen2-VL (arXiv 2409.12191); mean and spread (area
    1.1, aspect 0.35, text 1.0) are assumed.
    """
    area = _lognormal(rng, 1.1e6, 1.1, number)
    aspect = rng.lognormal(0.0, 0.35, size=number)
    tokens = _grid_tokens(np.sqrt(area * aspect), np.sqrt(area / aspect))
    return _captioned(tokens, _lognormal(rng, 125.0, 1.0, number), context)


def interleaved(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Web documents of text and images: 816 tokens of text and 2.5 images in the mean.

    OBELICS (arXiv 2306.16527): 141M documents, 353M images, 115G tokens of text. Images are those of `coyo`;
    their number (at least one) and the spread of the text (1.0) are assumed.
    """
    images = 1 + rng.poisson(1.5, size=number)
    owner = np.repeat(np.arange(number), images)
    tokens = np.bincount(owner, weights=_coyo_image_tokens(len(owner), rng), minlength=number)
    return _captioned(tokens.astype(np.int64), _lognormal(rng, 816.0, 1.0, number), context, images)


def video(context: int, number: int, rng: np.random.Generator) -> Samples:
    """Clips at 2 frames a second, pairs of frames merged, 128 tokens a pair, at most 16384 tokens of frames.

    85 % are short, 10 s in the mean (Panda-70M, arXiv 2402.19479: 8.5 s; InternVid, arXiv 2307.06942: 11.7
    s), 15 % long, 352 s in the mean, half of them below 300 s (InternVid). Limits: Qwen2-VL (arXiv
    2409.12191).
    """
    is_long = rng.random(number) < 0.15
    seconds = _lognormal(rng, np.where(is_long, 351.9, 10.0), np.where(is_long, 0.55, 0.65))
    pairs = np.clip(np.rint(seconds), 1, MAX_CLIP_TOKENS // TOKENS_PER_FRAME_PAIR).astype(np.int64)
    return _captioned(pairs * TOKENS_PER_FRAME_PAIR, _lognormal(rng, 100.0, 1.0, number), context, pairs)


def mix(context: int, number: int, rng: np.random.Generator) -> Samples:
    """30 % `text_wlb`, 40 % `coyo`, 12 % `navit`, 10 % `interleaved`, 8 % `video`, by samples (assumed)."""
    parts = (text_wlb, coyo, navit, interleaved, video)
    counts = rng.multinomial(number, (0.30, 0.40, 0.12, 0.10, 0.08))
    samples = join([part(context, int(count), rng) for part, count in zip(parts, counts, strict=True)])
    return samples[rng.permutation(number)]


DISTRIBUTIONS: Mapping[str, Draw] = {
    each.__name__: each for each in (text_pile, text_wlb, text_prolong, coyo, navit, interleaved, video, mix)
}


def draw(name: str, context: int, number: int, rng: np.random.Generator) -> Samples:
    """`number` samples of a distribution, in random order.

    Args:
        name: one of `DISTRIBUTIONS`.
        context: longest sample in tokens, at least 256.
        number: samples, at least 1.
        rng: the source of all randomness; equal generators give equal samples.

    Raises:
        RecipeError: an unknown name, or a context or number that is too small.
    """
    if name not in DISTRIBUTIONS:
        raise RecipeError(f"there is no distribution {name!r}; there are {', '.join(DISTRIBUTIONS)}")
    if context < 256 or number < 1:
        raise RecipeError(
            f"a context is at least 256 tokens and a number at least 1, got {context}, {number}"
        )
    return DISTRIBUTIONS[name](context, number, rng)


# --- parts ------------------------------------------------------------------------------------------------


def _lognormal(
    rng: np.random.Generator, mean: float | np.ndarray, sigma: float | np.ndarray, number: int | None = None
) -> np.ndarray:
    """Lognormal values of the given mean; `sigma` is the spread of the logarithm."""
    return rng.lognormal(np.log(mean) - np.square(sigma) / 2, sigma, size=number)


def _chunked(
    lengths: Callable[[int], np.ndarray], context: int, number: int, rng: np.random.Generator
) -> Samples:
    """Documents cut at the context into chunks, all chunks in random order."""
    documents = np.maximum(1, np.rint(lengths(max(number, 1)))).astype(np.int64)  # each gives a chunk or more
    chunks = -(-documents // context)
    tokens = np.full(int(chunks.sum()), context, dtype=np.int64)
    tokens[np.cumsum(chunks) - 1] = documents - (chunks - 1) * context
    tokens = rng.permutation(tokens)[:number]
    return Samples(tokens=tokens, patches=np.zeros_like(tokens), images=np.zeros_like(tokens))


def _grid_tokens(width: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Tokens of images of these sides in pixels, scaled down to `MAX_IMAGE_TOKENS`."""
    tokens = np.maximum(1, width // 28) * np.maximum(1, height // 28)
    return np.minimum(tokens, MAX_IMAGE_TOKENS).astype(np.int64)


def _coyo_image_tokens(number: int, rng: np.random.Generator) -> np.ndarray:
    sigma, correlation = 0.55, 0.6
    shared, own = rng.standard_normal((2, number))
    across = correlation * shared + np.sqrt(1 - correlation**2) * own
    log_scale = -(sigma**2) * (1 + correlation) / 2  # so that the mean area is that of the published means
    width = np.maximum(200, 621.78 * np.exp(log_scale + sigma * shared))
    height = np.clip(np.maximum(200, 540.99 * np.exp(log_scale + sigma * across)), width / 3, width * 3)
    return _grid_tokens(width, height)


def _captioned(
    image_tokens: np.ndarray, text: np.ndarray, context: int, images: np.ndarray | int = 1
) -> Samples:
    """Images with text: the text takes at most half the context, the images what is left."""
    text = np.clip(np.rint(text).astype(np.int64), 1, context // 2)
    image_tokens = np.minimum(image_tokens, context - text)
    return Samples(
        tokens=image_tokens + text,
        patches=image_tokens * PATCHES_PER_TOKEN,
        images=np.broadcast_to(np.asarray(images, dtype=np.int64), image_tokens.shape).copy(),
    )
