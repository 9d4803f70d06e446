"""Which GPUs and which coordinator the training processes get; whole jobs are in tests/slurm."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdata_jax.errors import LaunchError
from msdata_jax.spmd.distributed import TROUBLE, count_gpus, free_address, share_gpus


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 3),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937, MIG-2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_PER_TASK": "1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "JAX_PLATFORMS": "cpu"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "JAX_PLATFORMS": "cuda,cpu"}, 2),
    ],
)
def test_gpus_of_this_host(environ: dict[str, str], count: int, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus(environ, tmp_path) == count


def test_no_gpu_and_no_word_of_any(tmp_path: Path) -> None:
    assert count_gpus({}, tmp_path) == 0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.randoms())
def test_each_host_shares_its_gpus(per_host: list[int], each: int, random) -> None:
    hosts = [f"n{host}" for host, count in enumerate(per_host) for _ in range(count)]
    random.shuffle(hosts)  # ranks need not be in blocks
    shares = [share_gpus(hosts, index, each * per_host[int(host[1:])]) for index, host in enumerate(hosts)]
    for host, count in enumerate(per_host):
        its = [share for name, share in zip(hosts, shares, strict=True) if name == f"n{host}"]
        if count == 1:
            assert its == [None]
        else:
            assert [device for share in its for device in share or []] == list(range(each * count))
            assert {len(share or []) for share in its} == {each}


def test_shares_that_do_not_come_out_even() -> None:
    with pytest.raises(LaunchError, match="2 training processes on n1 cannot share 3 GPUs equally"):
        share_gpus(["n0", "n1", "n1"], 2, 3)
    assert share_gpus(["n0", "n1", "n1"], 0, 3) is None
    assert share_gpus(["n0", "n0"], 1, 0) is None


def test_a_port_that_another_job_has() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        trouble = free_address(one_host=True, port=port)
    assert trouble.startswith(f"{TROUBLE}JAX's coordinator cannot listen on port {port} of ")
    assert "coordinator_port" in trouble
    assert free_address(one_host=True, port=port) == f"127.0.0.1:{port}"


def test_any_free_port() -> None:
    host, port = free_address(one_host=True).rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert free_address(one_host=False).startswith(f"{os.uname().nodename}:")
