"""Files that arrive in one request (Contract storage 9.1)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass

from queryserver.domain.errors.files import VerificationFailed, file_too_large
from queryserver.domain.files import FileStatus, StoragePath
from queryserver.interfaces.storage import CheckedWrites
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.stores import Caller
from queryserver.services.storage.upload_rules import UploadRules


@dataclass(frozen=True, slots=True)
class ArrivingFile:
    """A file as its client announces it."""

    directory: StoragePath
    name: str
    overwrite: bool = False
    sha256: bytes | None = None
    """What the digest must be."""
    size_bytes: int | None = None
    """About how large it is, never too small; None: unknown."""


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file that arrived."""

    path: StoragePath
    entry: FileStatus
    sha256: bytes


class CheckedContent:
    """Bytes on their way to a store: counted, hashed, and held against what was announced.

    What is wrong with them is raised before they end, so that the store keeps nothing.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        threads: Executor,
        *,
        max_bytes: int | None = None,
        sha256: bytes | None = None,
    ) -> None:
        self._content = content
        self._threads = threads
        self._max_bytes = max_bytes
        self._wanted = sha256
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> bytes:
        """The digest of what passed."""
        return self._hash.digest()

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The bytes. Raises file_too_large, VerificationFailed, and what the content raises."""
        loop = asyncio.get_running_loop()
        async with aclosing(_one_ahead(self._content)) as content:
            async for piece in content:
                self.size_bytes += len(piece)
                if self._max_bytes is not None and self.size_bytes > self._max_bytes:
                    raise file_too_large(self._max_bytes)
                # Hashed by a thread while the store writes the same piece.
                hashed = loop.run_in_executor(self._threads, self._hash.update, piece)
                yield piece
                await hashed
        if self._wanted is not None and self._wanted != self.sha256:
            raise VerificationFailed("The SHA-256 of the received bytes is not the one that was announced.")


async def _one_ahead(content: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same pieces; while one is taken, the next is on its way already."""
    coming = asyncio.create_task(_next(content), name="next piece")
    try:
        while (piece := await coming) is not None:
            coming = asyncio.create_task(_next(content), name="next piece")
            yield piece
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await content.aclose()


async def _next(content: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(content, None)


class Uploads:
    """Takes files in."""

    def __init__(self, rules: UploadRules, leftovers: Leftovers, audit: StorageAudit, threads: Executor) -> None:
        self._rules = rules
        self._leftovers = leftovers
        self._audit = audit
        self._threads = threads

    async def receive(self, caller: Caller, file: ArrivingFile, content: AsyncGenerator[bytes]) -> UploadedFile:
        """Store one file; under its name it is complete, or nothing is there.

        Raises as `UploadRules.target` and `Storage.write`, file_too_large, VerificationFailed, and as `content` does.
        """
        with self._audit.event(caller, "storage.upload", file.directory.child(file.name)) as noted:
            place = await self._rules.target(caller, file.directory, file.name, overwrite=file.overwrite)
            checked = CheckedContent(content, self._threads, max_bytes=self._rules.max_bytes, sha256=file.sha256)
            async with self._leftovers.noted(caller, place.path), aclosing(checked.pieces()) as pieces:
                # The rules have looked at the target just now: an object store need not ask for it all again.
                storage = place.storage
                write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
                entry = await write(place.path.path, pieces, overwrite=file.overwrite, size_bytes=file.size_bytes)
            noted.size_bytes = checked.size_bytes
            return UploadedFile(place.path, entry, checked.sha256)
