"""Bytes on their way out of and into an account."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

import httpx

from queryserver.domain.errors.files import NotAFile, VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.adls.errors import AzureFailure
from queryserver.storages.adls.http import AzureClient, Call
from queryserver.storages.adls.places import AzurePlace

_PIECE_BYTES = 256 * 1024

Find = Callable[[AzurePlace], Awaitable[FileStatus]]
"""The entry at a place. Raises PathNotFound."""


class Reader:
    """Reads files, which both services give in the same way."""

    def __init__(self, client: AzureClient, find: Find, is_directory: Callable[[httpx.Headers], bool]) -> None:
        self._client = client
        self._find = find
        self._is_directory = is_directory

    async def read(
        self, place: AzurePlace, offset: int, length: int | None, version: FileStatus | None
    ) -> AsyncGenerator[bytes]:
        """See `Storage.read`. Raises AzureFailure."""
        if length is not None and length <= 0:
            await self._refuse_directory(place)
            return
        try:
            async with self._client.stream(Call("GET", place.names, {}, _range(offset, length, version))) as response:
                if self._is_directory(response.headers):
                    raise _not_a_file(place)
                async for piece in response.aiter_raw(_PIECE_BYTES):
                    yield piece
        except AzureFailure as failure:
            # Past the end, also of the empty file; or not the bytes of any file.
            if failure.status != 416:
                if failure.is_missing or failure.status in {400, 409}:
                    await self._refuse_directory(place)
                raise
            await self._refuse_directory(place)

    async def _refuse_directory(self, place: AzurePlace) -> None:
        if not (await self._find(place)).is_file:
            raise _not_a_file(place)


def _range(offset: int, length: int | None, version: FileStatus | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if offset or length is not None:
        headers["range"] = f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"
    if version is not None and version.tag:
        headers["if-match"] = f'"{version.tag}"'
    return headers


def _not_a_file(place: AzurePlace) -> NotAFile:
    return NotAFile(f"abfs://{place.path} is not a file.")


async def blocks_of(body: AsyncIterator[bytes], block_bytes: int) -> AsyncGenerator[bytes]:
    """The body in blocks of one size but the last; none for an empty body. Holds one block."""
    block = bytearray()
    async for piece in body:
        left = memoryview(piece)
        while left:
            room = block_bytes - len(block)
            block += left[:room]
            left = left[room:]
            if len(block) == block_bytes:
                full = bytes(block)
                block.clear()
                yield full
    if block:
        yield bytes(block)


async def exactly(body: AsyncIterator[bytes], size_bytes: int) -> AsyncGenerator[bytes]:
    """The body, announced with this size. Raises VerificationFailed when it has another one."""
    seen = 0
    async for piece in body:
        seen += len(piece)
        if seen > size_bytes:
            break
        if piece:
            yield piece
    if seen != size_bytes:
        raise VerificationFailed(f"The part does not have the announced {size_bytes} bytes.")


def part_length(plan: PartPlan, index: int) -> int:
    """Bytes of one part."""
    return max(0, min(plan.part_bytes, plan.size_bytes - index * plan.part_bytes))


def joined_size(plan: PartPlan, parts: Sequence[StoredPart]) -> int:
    """Bytes of the whole file. Raises VerificationFailed: parts are missing."""
    if sum(part.size_bytes for part in parts) != plan.size_bytes:
        raise VerificationFailed("Parts of the file are missing.")
    return plan.size_bytes


async def drained(body: AsyncIterator[bytes]) -> None:
    """Reads a body that must be empty. Raises VerificationFailed."""
    async with aclosing(exactly(body, 0)) as pieces:
        async for _ in pieces:
            pass


def same_size(source: FileStatus, copied: FileStatus) -> FileStatus:
    """The copy. Raises VerificationFailed."""
    if copied.size_bytes != source.size_bytes:
        raise VerificationFailed("The copy has another size than its source.")
    return copied
