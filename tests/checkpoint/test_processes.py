"""Saved by two JAX processes, restored by one, two and four: one set of files for all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("processes_program.py")


def run(count: int, root: Path, what: str, version: str) -> None:
    from msdata_jax.spmd.distributed import free_address

    address = free_address(one_host=True)
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(index), str(count), address, str(root), what, version],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-8_000:]
        assert "all is well" in output


@pytest.mark.multiprocess
@pytest.mark.parametrize("version", ["v0", "v1"])
def test_saved_on_two_restored_on_one_two_and_four(tmp_path: Path, version: str) -> None:
    run(2, tmp_path, "save", version)
    for count in (1, 2, 4) if version == "v0" else (1, 4):
        run(count, tmp_path, "restore", version)
