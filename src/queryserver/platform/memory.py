"""The memory of a process: one heap, pages given back, and few searches for garbage."""

import asyncio
import ctypes
import gc
import os
import sys
from importlib.abc import MetaPathFinder

# Calls make little that only the search for cycles can free: by default it would run at every tenth call.
_GARBAGE_THRESHOLDS = (20_000, 10, 10)
_TRIM_EVERY_S = 15.0
# malloc.h of glibc
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_LARGEST_IN_HEAP = 16 * 1024 * 1024


def use_one_heap() -> None:
    """Let all threads take memory from one heap. To be called before they begin.

    glibc gives each thread a heap of its own, up to eight for each core, and returns little of them: the pieces of a
    hundred downloads at once, made by a dozen threads, cost three times their size. An idle server has 199 MiB with
    heaps of threads and 161 MiB with one. Blocks above 16 MiB stay outside of the heap: glibc would take the second
    hash of a password (19 MiB) from it, and keep that. Without glibc nothing happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
        set_option(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_IN_HEAP)


def let_arrow_use_the_common_heap() -> None:
    """Arrow's own heap hardly ever returns memory: 24 downloads at once take 389 MiB with it, and 284 MiB without.

    Without effect once Arrow is loaded.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


class WithoutPandas(MetaPathFinder):
    """Finds no pandas. Arrow loads it with the first value where it is installed; nothing here uses it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """None for all other modules: the next finder decides."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def keep_pandas_out() -> None:
    """Loading it takes half a second to five, in which the loop stands still and leases of statements run out."""
    if not any(isinstance(finder, WithoutPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, WithoutPandas())


def keep_what_is_there() -> None:
    """Leave objects that live as long as the process out of every later search for garbage, which stops the loop.

    A search of all that a started server holds takes 0.16 s of processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


async def return_memory() -> None:
    """Give free pages inside the heap back to the system; by itself glibc returns its end only.

    After a preview of 20,000 columns they are 150 MiB, after 24 downloads at once 76 MiB. Without glibc nothing
    happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_EVERY_S)
        await asyncio.to_thread(trim, 0)
