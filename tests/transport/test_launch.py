import pytest
from msdata_transport import TransportError, find_mpiexec, world_size_from_environment
from msdata_transport.launch import check_world_size, has_pmi, is_hydra, is_in_step, is_open_mpi

STEP = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
INTERACTIVE = {"SLURM_STEP_ID": str(0xFFFF_FFFA), "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, None),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, 3),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 2),
        ({"PMI_SIZE": "nonsense"}, None),
        (STEP, 4),
        (STEP | {"PMI_SIZE": "8"}, 8),
        ({"SLURM_NTASKS": "4"}, None),  # a batch script
        (INTERACTIVE, None),
    ],
)
def test_world_size_from_environment(environ: dict[str, str], size: int | None) -> None:
    assert world_size_from_environment(environ) == size


def test_silent_singletons_are_refused() -> None:
    with pytest.raises(TransportError, match=r"4 silent singletons.*--mpi=pmi2"):
        check_world_size(1, STEP)


@pytest.mark.parametrize(
    ("size", "environ"), [(4, STEP), (8, STEP), (1, {}), (1, INTERACTIVE), (1, {"SLURM_NTASKS": "4"})]
)
def test_other_worlds_are_let_through(size: int, environ: dict[str, str]) -> None:
    check_world_size(size, environ)


def test_mpiexec_beside_python_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert find_mpiexec() is None
    mpiexec = tmp_path / "mpiexec"
    mpiexec.touch(mode=0o755)
    assert find_mpiexec() == str(mpiexec)


def test_steps_and_what_is_none() -> None:
    assert is_in_step(STEP)
    assert not any(is_in_step(environ) for environ in ({}, {"SLURM_NTASKS": "4"}, INTERACTIVE))


@pytest.mark.parametrize("name", ["PMI_RANK", "PMIX_NAMESPACE", "PMI_FD", "PALS_RANKID"])
def test_a_way_to_the_other_processes(name: str) -> None:
    assert has_pmi({**STEP, name: "0"})
    assert not has_pmi(STEP)


def test_whose_mpiexec_it_is(tmp_path) -> None:
    mpiexec = tmp_path / "mpiexec"
    for says, expect in (
        ("HYDRA build details:", (True, False)),
        ("mpiexec (Open MPI) 5.0.11", (False, True)),
    ):
        mpiexec.write_text(f"#!/bin/sh\necho '{says}'\n")
        mpiexec.chmod(0o755)
        assert (is_hydra(str(mpiexec)), is_open_mpi(str(mpiexec))) == expect
    assert not is_open_mpi(str(tmp_path / "none"))
