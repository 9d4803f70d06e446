"""What the allocators of a data rank keep."""

import re
import subprocess
import sys

import pytest

THREADS = 12

COUNT_ARENAS = f"""
import ctypes, sys, threading
from msdata_jax.runtime.allocators import keep_little

if sys.argv[1] != "untold":
    keep_little(int(sys.argv[1]))
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
everybody = threading.Barrier({THREADS})

def allocate():
    everybody.wait(10)
    place = libc.malloc(5000)
    everybody.wait(10)  # an arena is given to the next thread when one has ended
    libc.free(place)

threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc")


def arenas(told: str, **environ: str) -> int:
    """Arenas of a process whose threads have all allocated at the same time."""
    finished = subprocess.run(
        [sys.executable, "-c", COUNT_ARENAS, told],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return len(re.findall("<heap nr", finished.stdout))


def test_many_threads_share_a_few_arenas():
    assert arenas("untold") > THREADS // 2
    assert arenas("2") <= 3


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "6"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=6")]
)
def test_the_users_number_of_arenas_stays(name, value):
    assert 3 < arenas("2", **{name: value}) <= 6


@pytest.mark.parametrize(
    ("given", "kept"), [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}, "jemalloc")]
)
def test_arrow_allocates_as_the_process_does_unless_told_otherwise(given, kept):
    show = (
        "from msdata_jax.runtime.allocators import keep_little; keep_little(1); "
        "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", show], env=given, capture_output=True, text=True, timeout=30, check=True
    )
    assert finished.stdout.strip() == kept
