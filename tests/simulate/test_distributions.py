import numpy as np
import pytest

from msdata_jax.errors import RecipeError
from msdata_jax.simulate.cluster import MODELS
from msdata_jax.simulate.distributions import DISTRIBUTIONS, PATCHES_PER_TOKEN, PILE, draw

# Mean, median and 99th percentile of the tokens at a context of 32k, but of the whole documents for ProLong.
EXPECTED = {
    "text_pile": (1491, 503, 21_800),
    "text_wlb": (3982, 3301, 32_768),
    "text_prolong": (3052, 1913, 16_300),
    "coyo": (417, 264, 2500),
    "navit": (1318, 897, 4300),
    "interleaved": (1758, 1436, 6500),
    "video": (3560, 1243, 16_500),
    "mix": (1974, 864, 16_400),
}
UNCUT = 400_000


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_lengths_are_those_published(name: str) -> None:
    context = UNCUT if name == "text_prolong" else 32_768
    tokens = draw(name, context, 200_000, np.random.default_rng(0)).tokens
    measured = (tokens.mean(), *np.percentile(tokens, (50, 99)))
    np.testing.assert_allclose(measured, EXPECTED[name], rtol=0.1)


@pytest.mark.parametrize(
    ("name", "share"),
    [("coyo", 0.45), ("navit", 0.59), ("interleaved", 0.22), ("video", 0.29), ("mix", 0.14)],
)
def test_encoder_work_over_backbone_work(name: str, share: float) -> None:
    samples = draw(name, 32_768, 100_000, np.random.default_rng(0))
    backbone, encoder = MODELS["llama-12b+vit-1b"].sample_flops(samples).sum(axis=1)
    assert encoder / backbone == pytest.approx(share, rel=0.15)


def test_the_pile_adds_up() -> None:
    gib, epochs, kib, _ = np.array(list(PILE.values())).T
    assert len(PILE) == 22
    assert gib.sum() == pytest.approx(825.18, abs=0.1)
    assert (gib * epochs).sum() == pytest.approx(1254.2, abs=0.5)  # GiB in one pass over the Pile
    assert gib.sum() / (gib / kib).sum() == pytest.approx(5.91, rel=0.05)  # KiB of the mean document


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("context", [256, 4096, 32_768])
def test_samples_fit_the_context(name: str, context: int) -> None:
    samples = draw(name, context, 5000, np.random.default_rng(1))
    assert len(samples) == 5000
    assert samples.tokens.dtype == samples.patches.dtype == samples.images.dtype == np.int64
    assert samples.tokens.min() >= 1
    assert samples.tokens.max() <= context
    assert np.all(samples.patches < samples.tokens * PATCHES_PER_TOKEN)
    np.testing.assert_array_equal(samples.patches > 0, samples.images > 0)
    assert name.startswith("text") == (samples.images.max() == 0)


def test_documents_are_cut_not_shortened() -> None:
    whole = draw("text_wlb", UNCUT, 100_000, np.random.default_rng(3)).tokens
    cut = draw("text_wlb", 4096, 100_000, np.random.default_rng(4)).tokens
    chunks_per_document = (-(-whole // 4096)).mean()
    assert cut.mean() * chunks_per_document == pytest.approx(whole.mean(), rel=0.02)
    assert (cut == 4096).mean() == pytest.approx(
        ((whole - 1) // 4096).sum() / (-(-whole // 4096)).sum(), rel=0.1
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_equal_seeds_give_equal_samples(name: str) -> None:
    first, again, other = (draw(name, 4096, 1000, np.random.default_rng(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.patches, again.patches)
    assert not np.array_equal(first.tokens, other.tokens)


def test_refusals() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RecipeError, match=r"no distribution 'pile'; there are text_pile, "):
        draw("pile", 4096, 10, rng)
    with pytest.raises(RecipeError, match=r"at least 256 tokens .* got 255, 10"):
        draw("coyo", 255, 10, rng)
    with pytest.raises(RecipeError, match="got 256, 0"):
        draw("coyo", 256, 0, rng)
