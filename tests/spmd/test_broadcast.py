"""Samples that reach one process of each peer group, in two JAX processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("broadcast_program.py")


@pytest.mark.multiprocess
def test_devices_complete_what_the_leaders_bring() -> None:
    from msdata_jax.spmd.distributed import free_address

    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    address = free_address(one_host=True)
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(index), "2", address],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "completed 216 steps" in output
