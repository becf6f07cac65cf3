"""What both kinds of account do in the same way: looking at entries and reading files."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Protocol

import httpx

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import InvalidName, NotAFile, PathExists, VerificationFailed, bucket_listing_denied
from queryserver.files.model import FileStatus
from queryserver.files.paths import names_of
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls import places as entries
from queryserver.files.stores.adls.errors import AzureFailure, azure_errors
from queryserver.files.stores.adls.http import AzureClient, Call
from queryserver.files.stores.adls.places import AzurePlace, file_place, is_container_name, place_of, unfinished

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


class AccountTree(Protocol):
    """The entries of an account. Calls raise AzureFailure."""

    async def find(self, place: AzurePlace) -> FileStatus:
        """The entry at a place. Raises PathNotFound."""
        ...

    def list_directory(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """The entries of a directory or container."""
        ...

    def list_containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """The containers of the account."""
        ...


class Looking:
    """Part of a Storage. The same for every user."""

    def __init__(self, tree: AccountTree, reader: Reader) -> None:
        self._entries = tree
        self._contents = reader

    async def stat(self, path: str) -> FileStatus:
        place = place_of(path)
        if place is None:
            return entries.directory("")
        with azure_errors(path):
            return await self._entries.find(place)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. In flat accounts folders come where their marks stand: not in the order of names."""
        place = place_of(path)
        with azure_errors(path):
            if place is not None:
                async with aclosing(self._entries.list_directory(place, cursor, batch_size)) as batches:
                    async for batch in batches:
                        yield batch
                return
            try:
                async with aclosing(self._entries.list_containers(cursor, batch_size)) as batches:
                    async for batch in batches:
                        yield batch
            except AzureFailure as failure:
                if failure.is_denial:
                    raise bucket_listing_denied("the account refuses it.") from None
                raise

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        place = place_of(path)
        if place is None or place.is_container:
            raise NotAFile("A container is not a file.")
        with azure_errors(path):
            async with aclosing(self._contents.read(place, offset, length, version)) as pieces:
                async for piece in pieces:
                    yield piece


class AccountUploads(Protocol):
    """How an account takes files. Calls raise AzureFailure besides domain errors."""

    async def write(
        self, place: AzurePlace, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        """See `Storage.write`."""
        ...

    async def begin_parts(self, place: AzurePlace) -> str:
        """See `Storage.begin_parts`."""
        ...

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart:
        """See `Storage.write_part`."""
        ...

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See `Storage.join_parts`."""
        ...

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        """Make the parts a file under its reserved name. Raises VerificationFailed."""
        ...

    async def discard(self, staged: AzurePlace) -> None:
        """See `Storage.discard_parts`."""
        ...

    async def sweep(self, folder: AzurePlace, before: datetime) -> int:
        """See `Storage.sweep_leftovers`."""
        ...


class Writing(Looking):
    """Part of a Storage. The same for every user."""

    def __init__(self, tree: AccountTree, reader: Reader, uploads: AccountUploads) -> None:
        super().__init__(tree, reader)
        self._uploads = uploads

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        place = file_place(path)
        with azure_errors(path):
            return await self._uploads.write(place, body, overwrite=overwrite, size_bytes=size_bytes)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. Streamed through this service."""
        from_place, to_place = file_place(source), file_place(target)
        with azure_errors(source):
            found = await self._entries.find(from_place)
        if not found.is_file:
            raise NotAFile(f"abfs://{source} is not a file.")
        async with aclosing(self.read(source, version=found)) as body:
            with azure_errors(target):
                copied = await self._uploads.write(to_place, body, overwrite=overwrite, size_bytes=found.size_bytes)
        return same_size(found, copied)

    async def begin_parts(self, plan: PartPlan) -> str:
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.begin_parts(place)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            return await self._uploads.write_part(plan, staged, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.join_parts(plan, place, staging, parts, overwrite=overwrite)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """See `ReadableParts`. The parts are committed under the reserved name first: then they can be read."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            await self._uploads.complete_parts(plan, staged, parts)
            async with aclosing(self._contents.read(staged, 0, None, None)) as pieces:
                async for piece in pieces:
                    yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            await self._uploads.discard(staged)

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        place = place_of(path)
        if place is None:
            return 0
        with azure_errors(path):
            return await self._uploads.sweep(place, datetime.now(UTC) - timedelta(seconds=older_than_s))


async def make_container(name: str, find: Find, create: Callable[[str], Awaitable[None]], *, is_allowed: bool) -> None:
    """Raises PathExists (the root too), PermissionDenied, InvalidName, AzureFailure."""
    if not names_of(name):
        raise PathExists("The root exists.")
    if is_container_name(name) and await _exists(name, find):
        raise PathExists(f"abfs://{name} exists.")
    if not is_allowed:
        raise PermissionDenied("This server makes no containers.")
    if not is_container_name(name):
        raise InvalidName("A container has 3 to 63 lower-case letters, digits and single hyphens.")
    await create(name)


async def _exists(name: str, find: Find) -> bool:
    try:
        await find(AzurePlace((name,)))
    except AzureFailure as failure:
        if failure.is_missing:
            return False
        raise
    return True
