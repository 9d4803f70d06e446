import pytest

from msdata_jax.simulate.memory import MemoryAssumptions, loader_memory, memory_rows


@pytest.mark.parametrize(
    ("gpus", "ranks", "sources", "workers", "reader_mb", "ratio", "ratio_of_gpu"),
    [(576, 18, 50, 8, 61, 9.9, 318), (576, 18, 306, 8, 61, 18.8, 601.2), (4096, 128, 306, 4, 9, 7.4, 236.8)],
)
def test_ratios(  # noqa: PLR0917 - pytest calls it by name
    gpus: int, ranks: int, sources: int, workers: int, reader_mb: float, ratio: float, ratio_of_gpu: float
) -> None:
    figures = loader_memory(ranks=ranks, gpus=gpus, sources=sources, workers=workers, reader_mb=reader_mb)
    assert figures["ratio"] == ratio
    assert figures["ratio_of_gpu"] == ratio_of_gpu


def test_formula() -> None:
    figures = loader_memory(
        ranks=10,
        gpus=80,
        sources=3,
        workers=2,
        reader_mb=5,
        assumptions=MemoryAssumptions(process_mb=100, batch_mb=20, buffer_mb=7, loaders_per_worker=0.5),
    )
    assert figures["source_loaders"] == 10
    assert figures["loader_of_rank_gb"] == round(10 * (3 * 100 + 2 * 3 * 5 + 2 * 2 * 20) / 1000, 1)
    assert figures["disaggregated_gb"] == round((10 * (100 + 5 + 7) + 10 * (100 + 60) + 100) / 1000, 1)


def test_rows_say_what_they_are_about() -> None:
    rows = memory_rows([(576, 18), (4096, 128)])
    assert [row["gpus"] for row in rows] == [576] * 6 + [4096] * 6
    for row in rows:
        figures = loader_memory(
            ranks=int(row["gpus"]) // 32,
            gpus=int(row["gpus"]),
            sources=int(row["sources"]),
            workers=int(row["workers"]),
            reader_mb=row["reader_mb"],
        )
        assert row.items() >= figures.items()
