"""Digests of files on their way."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from queryserver.interfaces.storage import Storage


class Digest:
    """SHA-256 and size of what passes through."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def value(self) -> bytes:
        """Of what passed until now."""
        return self._digest.digest()

    async def through(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """The same pieces."""
        async for piece in body:
            self._digest.update(piece)
            self.size_bytes += len(piece)
            yield piece


async def digest_of(storage: Storage, path: str) -> bytes:
    """Of a whole file as the store has it. Raises as `Storage.read`."""
    digest = Digest()
    async with aclosing(storage.read(path)) as content, aclosing(digest.through(content)) as pieces:
        async for _ in pieces:
            pass
    return digest.value
