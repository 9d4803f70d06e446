import pytest
from msdata_transport.mpich import PROVIDER, PROVIDER_VARIABLE, bound_tries, own_provider


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
