"""Meshes and specs, good and bad, in a process of their own (JAX's devices are set once a process)."""

import os
import subprocess
import sys
from pathlib import Path


def test_wrong_specs_are_refused_and_merged_axes_work() -> None:
    program = Path(__file__).parent / "specs_program.py"
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as they should be" in done.stdout
