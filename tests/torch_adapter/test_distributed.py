"""`msdata_jax.torch.initialize` in a process alone; test_jobs.py starts several."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def run(program: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", f"from msdata_jax.torch import initialize\n{program}"]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_alone_there_is_a_world_of_one() -> None:
    done = run(
        "import os, torch.distributed as dist\n"
        "processes = initialize()\n"
        "assert (processes.process_index, processes.num_processes) == (0, 1)\n"
        "assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, 'gloo')\n"
        "names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')\n"
        "assert [os.environ[name] for name in names] == ['0', '1', '0', '1']\n"
        "dist.barrier()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_core_stays_as_it_is() -> None:
    """Importing a submodule puts it in the place of a lazy name that is called alike."""
    done = run("import msdata_jax as msd; initialize(); assert msd.initialize().num_processes == 1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            "initialize(); initialize()",
            "torch.distributed runs already; msdata_jax.torch.initialize() starts it",
        ),
        ("initialize(backend='mpich')", "torch.distributed did not start with backend='mpich': "),
    ],
)
def test_wrong_calls_say_the_way_out(calls: str, message: str) -> None:
    done = run(calls)
    assert done.returncode == 1
    assert f"LaunchError: {message}" in done.stderr
