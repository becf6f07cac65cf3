"""Reduces a process's memory use and garbage collection pauses."""

import asyncio
import ctypes
import gc
import os
import sys
from importlib.abc import MetaPathFinder

# Calls create few reference cycles. With the default threshold, every tenth call would trigger a collection.
_GARBAGE_THRESHOLDS = (20_000, 10, 10)
_TRIM_EVERY_S = 15.0
# constants from glibc's malloc.h
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_MAX_HEAP_BLOCK_BYTES = 16 * 1024 * 1024


def use_one_heap() -> None:
    """Make all threads use one heap. Call this before threads are started.

    By default glibc creates a heap per thread, up to eight per core, and returns little of their memory to the system:
    the chunks of a hundred concurrent downloads in a dozen threads occupy three times their size. An idle server takes
    199 MiB with heaps per thread and 161 MiB with a single heap. Blocks above 16 MiB are mapped separately; otherwise
    the memory of the second password hash (19 MiB) would stay in the heap. Has no effect without glibc.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)
        set_option(_M_MMAP_THRESHOLD, _MAX_HEAP_BLOCK_BYTES)
        set_option(_M_TRIM_THRESHOLD, 2 * _MAX_HEAP_BLOCK_BYTES)


def use_common_heap_for_arrow() -> None:
    """Make Arrow allocate from the process heap, because Arrow's own heap hardly ever returns memory to the system.

    24 concurrent downloads take 389 MiB with Arrow's heap and 284 MiB without it. Has no effect once Arrow is loaded.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


class PandasHider(MetaPathFinder):
    """Hides pandas. If it is installed, Arrow imports it when converting the first value, although it is not needed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas. Return None for other modules, so that the next finder is tried."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def hide_pandas() -> None:
    """Hide pandas: importing it would block the event loop for 0.5 to 5 s, so the process can miss heartbeats."""
    if not any(isinstance(finder, PandasHider) for finder in sys.meta_path):
        sys.meta_path.insert(0, PandasHider())


def freeze_present_objects() -> None:
    """Exempt all existing objects from garbage collection. They live as long as the process.

    Collecting the objects of a started server takes 0.16 s of CPU time and blocks the event loop.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


async def trim_heap_regularly() -> None:
    """Periodically return free pages inside the heap to the system.

    On its own, glibc returns only free pages at the end of the heap. The others amount to 150 MiB after a preview of
    20,000 columns and to 76 MiB after 24 concurrent downloads. Has no effect without glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_EVERY_S)
        await asyncio.to_thread(trim, 0)
