"""The allocation of memory by the process, and its return to the system."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# The C library can report its heaps as XML; here, it writes the report to standard output.
_THREADS_THAT_ALLOCATE = """
import ctypes, sys, threading
from queryserver.platform.memory import use_one_heap
if sys.argv[1] == "one":
    use_one_heap()
ready = threading.Barrier(9)
def work():
    kept = [bytes(1000) for _ in range(1000)]
    ready.wait()
for _ in range(8):
    threading.Thread(target=work).start()
ready.wait()
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
out = library.fdopen(1, b"w")
library.malloc_info(0, ctypes.c_void_p(out))
library.fflush(ctypes.c_void_p(out))
"""


def _heaps(how: str) -> int:
    command = [sys.executable, "-c", _THREADS_THAT_ALLOCATE, how]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return told.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has a heap for each thread")
def test_threads_share_one_heap() -> None:
    assert _heaps("one") < _heaps("each")
    assert _heaps("one") <= 2


def test_arrow_uses_the_common_heap() -> None:
    """Arrow chooses its memory pool when it is loaded, so no module may load it before the pool is set."""
    script = """
import sys
from queryserver.platform.memory import use_common_heap_for_arrow
assert "pyarrow" not in sys.modules
use_common_heap_for_arrow()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.split() == ["system"]


def test_duckdb_engine_is_built_without_loading_its_driver() -> None:
    """An idle server needs only the engine's capabilities, so the driver is loaded later."""
    script = """
import sys
from queryserver.engines.duckdb.engine import DuckdbEngine
assert not DuckdbEngine().capabilities.one_process
assert "duckdb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


# The last object remains at the end of the heap; without trimming, the process would keep all free memory below it.
_FREE_MEMORY_INSIDE_THE_HEAP = """
import asyncio, psutil
from queryserver.platform import memory, threads
memory.use_one_heap()
memory._TRIM_EVERY_S = 0.1
def resident():
    return psutil.Process().memory_info().rss
async def work():
    pieces = [bytes(1000) for _ in range(200_000)]
    last = pieces.pop()
    pieces.clear()
    before = resident()
    async with threads.background(memory.trim_heap_regularly(), "trim"):
        for _ in range(300):
            if before - resident() > 100_000_000:
                return "returned"
            await asyncio.sleep(0.1)
    return f"kept {len(last)}"
print(asyncio.run(work()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="requires glibc")
def test_free_memory_inside_the_heap_returns_to_the_system() -> None:
    command = [sys.executable, "-c", _FREE_MEMORY_INSIDE_THE_HEAP]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "returned\n"
