"""What the server does about its memory, seen from outside."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.harness import running_server

_HEAP_BYTES = 64 * 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="heaps of threads are glibc's")
async def test_threads_share_one_heap(tmp_path: Path) -> None:
    """Each further heap of glibc is a mapping of 64 MiB, most of it never touched."""
    async with running_server(tmp_path / "data") as server:
        mappings = await asyncio.to_thread(psutil.Process(server.pid).memory_maps, grouped=False)
        threads = psutil.Process(server.pid).num_threads()
    heaps = {mapping.addr for mapping in mappings if _size(mapping.addr) <= _HEAP_BYTES and _is_heap(mapping)}
    assert threads > 4
    assert len(heaps) <= 2


def _size(addresses: str) -> int:
    begin, end = (int(address, 16) for address in addresses.split("-"))
    return end - begin


def _is_heap(mapping: Any) -> bool:
    """Heaps of threads begin at multiples of their size, have no file, and can be written."""
    begin = int(mapping.addr.split("-")[0], 16)
    return begin % _HEAP_BYTES == 0 and mapping.path == "[anon]" and mapping.perms.startswith("rw")
