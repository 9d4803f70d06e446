"""grain's own check of checkpoints, in one process: every pipeline, saved and restored at every element."""

import grain
import pytest
from grain_adapter.pipelines import OF_ROWS, PIPELINES, SEVERAL
from grain_adapter.recipe import NUM_STEPS, make_recipe

from msdata_jax.grain import MSDataset

STEPS_OF_ROWS = 3  # each has four rows, and is restored at each

check = grain.experimental.assert_equal_output_after_checkpoint


@pytest.mark.parametrize("name", PIPELINES)
def test_goes_on_exactly_from_every_element(name: str) -> None:
    check(
        PIPELINES[name](MSDataset(make_recipe(), num_steps=STEPS_OF_ROWS if name in OF_ROWS else NUM_STEPS))
    )


@pytest.mark.parametrize("name", SEVERAL)
def test_two_datasets_read_in_turns(name: str) -> None:
    one, other = (MSDataset(make_recipe(seed=seed), num_steps=4) for seed in (3, 4))
    check(SEVERAL[name](one, other))


def test_data_that_end_by_themselves() -> None:
    import msdata_jax as msd

    recipe = make_recipe()
    strategy = msd.DGraph().mix({"long": 2, "short": 1}, on_exhausted="stop").pack(seq_len=16, rows=4)
    check(MSDataset(msd.Recipe(sources=recipe.sources, strategy=strategy)))
