"""The file descriptors that this process has open."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from queryserver.files.stores.local.storage import LocalFileSystem


def open_below(directory: Path) -> list[str]:
    """Return the open descriptors of this process that refer to entries below a directory."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(directory))]


@asynccontextmanager
async def file_system_of(root: Path) -> AsyncGenerator[LocalFileSystem]:
    """Provide a local root, and check at the end that no descriptor below the root is open."""
    file_system = LocalFileSystem(root)
    yield file_system
    await file_system.close()
    assert not await asyncio.to_thread(open_below, root)
