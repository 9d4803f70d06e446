"""What is set around MPICH; what it is good for is seen in tests/slurm."""

import os
from pathlib import Path

import pytest
from msdata_transport.mpich import (
    PROVIDER,
    PROVIDER_VARIABLE,
    bound_tries,
    own_provider,
    unlink_shared_memory,
)


def test_the_provider_is_named_for_mpi_alone() -> None:
    environ = {PROVIDER_VARIABLE: PROVIDER, "FI_OFI_RXM_BUFFER_SIZE": "512"}
    before = dict(environ)
    with own_provider(environ):
        assert environ["FI_PROVIDER"] == PROVIDER
        assert environ["FI_OFI_RXM_BUFFER_SIZE"] == "512"
        assert environ["FI_OFI_RXM_MSG_RX_SIZE"] == "16"
    assert environ == before


@pytest.mark.parametrize(
    "environ", [{}, {"FI_PROVIDER": "efa"}, {"FI_PROVIDER": "efa", PROVIDER_VARIABLE: PROVIDER}]
)
def test_the_provider_of_others_is_left_alone(environ: dict[str, str]) -> None:
    before = dict(environ)
    with own_provider(environ):
        assert environ == before
    assert environ == before


def test_the_environment_is_restored_when_mpi_does_not_start() -> None:
    environ = {PROVIDER_VARIABLE: PROVIDER}
    with pytest.raises(ImportError), own_provider(environ):
        raise ImportError
    assert environ == {PROVIDER_VARIABLE: PROVIDER}


def test_tries_are_bounded_where_mpi_is_loaded_only() -> None:
    assert not bound_tries()


def test_the_shared_memory_that_mpich_maps_loses_its_name(tmp_path: Path) -> None:
    mapped = Path(f"/dev/shm/mpich_shm_test{os.getpid()}_0")
    other = mapped.with_name(f"mpich_shm_other{os.getpid()}_0")
    maps = tmp_path / "maps"
    for path in (mapped, other):
        path.write_bytes(b"")
    try:
        maps.write_text(
            f"7f00-7f01 rw-s 00000000 00:01 5   {mapped}\n"
            f"7f02-7f03 r-xp 00000000 00:01 6   /usr/lib/libmpi.so.12\n"
        )
        unlink_shared_memory(str(maps))
        unlink_shared_memory(str(maps))
        assert not mapped.exists()
        assert other.exists()
    finally:
        mapped.unlink(missing_ok=True)
        other.unlink()
