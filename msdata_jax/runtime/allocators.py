"""What the allocators of a data rank may keep that nobody uses.

glibc gives threads arenas of their own, up to eight for each core, and each keeps what was freed at its end.
Libraries that read files start dozens of threads (array_record has 64), and a rank would grow for as long as
they have not all been at work. Arrow's own pool keeps a multiple of what is decoded at a time.
"""

import ctypes
import os
from collections.abc import MutableMapping

_M_ARENA_MAX = -8  # malloc.h
_ARENA_VARIABLES = {"MALLOC_ARENA_MAX": "", "GLIBC_TUNABLES": "glibc.malloc.arena_max"}
_ARROW_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"


def keep_little(num_threads: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Bound what the allocators keep; to be called before there are many threads, and before Arrow is loaded.

    What the user has set in the environment stays.

    Args:
        num_threads: threads that allocate all the time: as many arenas there are, and the main one.
        environ: of the process.
    """
    environ.setdefault(_ARROW_VARIABLE, "system")
    if any(what in environ.get(name, "") for name, what in _ARENA_VARIABLES.items() if name in environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1 + num_threads)
