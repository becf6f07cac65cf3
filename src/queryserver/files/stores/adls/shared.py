"""What both kinds of account have in common: places, entries, reads, and the calls of a Storage."""

import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Protocol

import httpx

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import (
    InvalidName,
    InvalidPath,
    NotAFile,
    PathExists,
    PathNotFound,
    VerificationFailed,
    bucket_listing_denied,
)
from queryserver.files.model import RESERVED_PREFIX, EntryKind, FileStatus, names_of
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls.errors import AzureFailure, azure_errors
from queryserver.files.stores.adls.http import AzureCall, AzureClient

_CONTAINER = re.compile(r"\$root|\$web|\$logs|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_STAGING = re.compile(r"[0-9a-f]{32}")
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """A container (`names` has one name) or an entry inside one. Never the root."""

    names: tuple[str, ...]

    @property
    def path(self) -> str:
        return "/".join(self.names)

    @property
    def container(self) -> str:
        return self.names[0]

    @property
    def key(self) -> str:
        return "/".join(self.names[1:])

    @property
    def is_container(self) -> bool:
        return len(self.names) == 1

    @property
    def parent(self) -> "AzurePlace":
        return AzurePlace(self.names[:-1])

    def child(self, name: str) -> "AzurePlace":
        return AzurePlace((*self.names, name))

    def beside(self, name: str) -> "AzurePlace":
        return self.parent.child(name)


def place_of(path: str) -> AzurePlace | None:
    """None for the root. Raises InvalidPath, PathNotFound: no container has such a name."""
    names = names_of(path)
    if not names:
        return None
    if not _CONTAINER.fullmatch(names[0]):
        raise PathNotFound(f"abfs://{path} does not exist.")
    return AzurePlace(names)


def file_place(path: str) -> AzurePlace:
    """The place of a file. Raises InvalidPath: the root or directly below it; PathNotFound."""
    place = place_of(path)
    if place is None or place.is_container:
        raise InvalidPath("Files lie in containers.")
    return place


def is_container_name(name: str) -> bool:
    """Whether the account takes it for a new container; those with `$` are its own."""
    return _CONTAINER.fullmatch(name) is not None and not name.startswith("$")


def unfinished(place: AzurePlace, token: str | None = None) -> AzurePlace:
    """The place of a file's bytes until it is complete. Raises InvalidPath: a foreign token."""
    token = secrets.token_hex(16) if token is None else token
    if not _STAGING.fullmatch(token):
        raise InvalidPath("There is no such staging place.")
    return place.beside(f"{RESERVED_PREFIX}upload_{token}")


ALL_MAY_ENTER = 0o777
ALL_MAY_WRITE = 0o666
"""Modes where the account has no permissions of its own (Contract storage 4)."""

_BITS = (0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001)


def directory(path: str, modified_at: datetime | None = None) -> FileStatus:
    return FileStatus(path, EntryKind.DIRECTORY, 0, modified_at, permissions=ALL_MAY_ENTER)


def blob(path: str, size_bytes: int, modified_at: datetime | None, etag: str) -> FileStatus:
    return FileStatus(path, EntryKind.FILE, size_bytes, modified_at, permissions=ALL_MAY_WRITE, tag=tag(etag))


def hierarchical(path: str, *, is_directory: bool, size_bytes: int, facts: Mapping[str, str]) -> FileStatus:
    """An entry of a hierarchical account; `facts`: last-modified, etag, owner, group, permissions."""
    permissions, has_acl = permission_bits(facts.get("permissions", ""))
    return FileStatus(
        path,
        EntryKind.DIRECTORY if is_directory else EntryKind.FILE,
        0 if is_directory else size_bytes,
        time(facts.get("last-modified", "")),
        permissions=permissions,
        owner=facts.get("owner", ""),
        group=facts.get("group", ""),
        has_acl=has_acl,
        tag="" if is_directory else tag(facts.get("etag", "")),
    )


def permission_bits(text: str) -> tuple[int, bool]:
    """`rwxr-x--t+` as bits, and whether there is an access control list; other texts are no rights."""
    if len(text) < len(_BITS):
        return 0, False
    bits = sum(bit for bit, letter in zip(_BITS, text, strict=False) if letter in "rwxt")
    return bits | (0o1000 if text[8] in "tT" else 0), text.endswith("+")


def time(text: str) -> datetime | None:
    """In UTC; None when it is no time."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except ValueError:
        return None


def tag(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


Find = Callable[[AzurePlace], Awaitable[FileStatus]]
"""The entry at a place. Raises PathNotFound."""


class Reader:
    """Reads files: the same in both services."""

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
        headers: dict[str, str] = {}
        if offset or length is not None:
            headers["range"] = f"bytes={offset}-" if length is None else f"bytes={offset}-{offset + length - 1}"
        if version is not None and version.tag:
            headers["if-match"] = f'"{version.tag}"'
        try:
            async with self._client.stream(AzureCall("GET", place.names, {}, headers)) as response:
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


def joined_size(plan: PartPlan, parts: Sequence[StoredPart]) -> int:
    """Bytes of the whole file. Raises VerificationFailed: parts are missing."""
    if sum(part.size_bytes for part in parts) != plan.size_bytes:
        raise VerificationFailed("Parts of the file are missing.")
    return plan.size_bytes


async def drain(body: AsyncIterator[bytes]) -> None:
    """Read a body that must be empty. Raises VerificationFailed."""
    async with aclosing(exactly(body, 0)) as pieces:
        async for _ in pieces:
            pass


class AccountTree(Protocol):
    """The entries of an account. Calls raise AzureFailure; `find` raises PathNotFound, too."""

    async def find(self, place: AzurePlace) -> FileStatus: ...
    def list_directory(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]: ...
    def list_containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]: ...


class AccountUploads(Protocol):
    """Uploads to an account, as in `Storage`. Calls raise AzureFailure besides domain errors."""

    async def write(
        self, place: AzurePlace, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus: ...

    async def begin_parts(self, place: AzurePlace) -> str: ...

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart: ...

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus: ...

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        """Make the parts a file under its reserved name. Raises VerificationFailed."""
        ...

    async def discard(self, staged: AzurePlace) -> None: ...
    async def sweep(self, folder: AzurePlace, before: datetime) -> int: ...


class AzureStorage:
    """The part of a Storage that is the same for both kinds of account, and for every user."""

    def __init__(self, tree: AccountTree, reader: Reader, uploads: AccountUploads) -> None:
        self._entries = tree
        self._contents = reader
        self._uploads = uploads

    async def stat(self, path: str) -> FileStatus:
        place = place_of(path)
        if place is None:
            return directory("")
        with azure_errors(path):
            return await self._entries.find(place)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """In flat accounts folders come in the order of their marks, not of their names."""
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

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        place = file_place(path)
        with azure_errors(path):
            return await self._uploads.write(place, body, overwrite=overwrite, size_bytes=size_bytes)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Streamed through this service."""
        from_place, to_place = file_place(source), file_place(target)
        with azure_errors(source):
            found = await self._entries.find(from_place)
        if not found.is_file:
            raise NotAFile(f"abfs://{source} is not a file.")
        async with aclosing(self.read(source, version=found)) as body:
            with azure_errors(target):
                copied = await self._uploads.write(to_place, body, overwrite=overwrite, size_bytes=found.size_bytes)
        if copied.size_bytes != found.size_bytes:
            raise VerificationFailed("The copy has another size than its source.")
        return copied

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
        """The parts are committed under the reserved name first: then they can be read."""
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

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        place = place_of(path)
        if place is None:
            return 0
        with azure_errors(path):
            return await self._uploads.sweep(place, datetime.now(UTC) - timedelta(seconds=older_than_s))


async def make_container(name: str, find: Find, create: Callable[[str], Awaitable[None]], *, is_allowed: bool) -> None:
    """Raises PathExists (the root too), PermissionDenied, InvalidName, AzureFailure."""
    if not names_of(name):
        raise PathExists("The root exists.")
    if is_container_name(name):
        try:
            await find(AzurePlace((name,)))
        except AzureFailure as failure:
            if not failure.is_missing:
                raise
        else:
            raise PathExists(f"abfs://{name} exists.")
    if not is_allowed:
        raise PermissionDenied("This server makes no containers.")
    if not is_container_name(name):
        raise InvalidName("A container has 3 to 63 lower-case letters, digits and single hyphens.")
    await create(name)
