"""The locations, file statuses and `Storage` methods that flat and hierarchical accounts share."""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from queryserver import errors
from queryserver.files.model import RESERVED_PREFIX, EntryKind, FileStatus, escaped_file_name, is_escaped_file, names_of
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.adls.http import (
    AzureAccount,
    AzureCall,
    AzureClient,
    AzureFailure,
    azure_errors,
    unless_missing,
)
from queryserver.files.stores.keys import key_segment, path_name

_CONTAINER = re.compile(r"\$root|\$web|\$logs|(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_STAGING = re.compile(r"[0-9a-f]{32}")
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AzureLocation:
    """The location of a container (`names` has one name) or of an entry in a container; never the root.

    `names` are unescaped. In flat accounts, they are the segments of a key, some of which `path` may have to escape.
    """

    names: tuple[str, ...]
    is_blob: bool = False
    """Whether this denotes the blob, even if a folder has the same name."""

    @property
    def path(self) -> str:
        names = [path_name(name) or name for name in self.names]
        return "/".join([*names[:-1], escaped_file_name(self.names[-1].encode())] if self.is_blob else names)

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
    def is_marker(self) -> bool:
        """Whether the key ends with a slash, like that of a folder marker."""
        return self.is_blob and not self.names[-1]

    @property
    def marker(self) -> "AzureLocation":
        """The location of this folder's marker blob, whose key is the folder's key followed by a slash."""
        return AzureLocation((*self.names, ""), is_blob=True)

    @property
    def parent(self) -> "AzureLocation":
        return AzureLocation(self.names[:-1])

    def child(self, name: str) -> "AzureLocation":
        return AzureLocation((*self.names, name))


def parse_location(path: str, *, escapes: bool = False) -> AzureLocation | None:
    """Parse a path. Return None for the root. Raises InvalidPath, and PathNotFound for an invalid container name."""
    names = names_of(path, escapes=escapes)
    if not names:
        return None
    inner = [key_segment(name, is_last=number == len(names)) for number, name in enumerate(names[1:], start=2)]
    if not _CONTAINER.fullmatch(names[0]):
        raise errors.PathNotFound(f"abfs://{path} does not exist.")
    return AzureLocation((names[0], *inner), is_blob=is_escaped_file(names[-1]))


def parse_file_location(path: str, *, escapes: bool = False) -> AzureLocation:
    """Parse the path of a file. Raises InvalidPath for the root and for containers, and PathNotFound."""
    location = parse_location(path, escapes=escapes)
    if location is None or location.is_container:
        raise errors.InvalidPath("Files must be inside a container.")
    return location


def is_container_name(name: str) -> bool:
    """Return whether a new container can have this name. Azure reserves names that start with `$`."""
    return _CONTAINER.fullmatch(name) is not None and not name.startswith("$")


def staging_location(location: AzureLocation, token: str | None = None) -> AzureLocation:
    """Return the location, next to the target, where a file is staged under a reserved name until it is complete.
    Raises InvalidPath for an invalid token.
    """
    token = secrets.token_hex(16) if token is None else token
    if not _STAGING.fullmatch(token):
        raise errors.InvalidPath("The staging location does not exist.")
    return location.parent.child(f"{RESERVED_PREFIX}upload_{token}")


DIRECTORY_PERMISSIONS = 0o777
FILE_PERMISSIONS = 0o666
"""Permissions reported for accounts without permissions (Contract storage 4)."""

_BITS = (0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001)


def directory_status(path: str, modified_at: datetime | None = None) -> FileStatus:
    return FileStatus(path, EntryKind.DIRECTORY, 0, modified_at, permissions=DIRECTORY_PERMISSIONS)


def blob_status(path: str, size_bytes: int, modified_at: datetime | None, etag: str) -> FileStatus:
    return FileStatus(path, EntryKind.FILE, size_bytes, modified_at, permissions=FILE_PERMISSIONS, tag=plain_tag(etag))


def hierarchical_status(path: str, *, is_directory: bool, size_bytes: int, facts: Mapping[str, str]) -> FileStatus:
    """Return the status of an entry in a hierarchical account. `facts` contains last-modified, etag, owner, group and
    permissions.
    """
    permissions, has_acl = permission_bits(facts.get("permissions", ""))
    return FileStatus(
        path,
        EntryKind.DIRECTORY if is_directory else EntryKind.FILE,
        0 if is_directory else size_bytes,
        parse_time(facts.get("last-modified", "")),
        permissions=permissions,
        owner=facts.get("owner", ""),
        group=facts.get("group", ""),
        has_acl=has_acl,
        tag="" if is_directory else plain_tag(facts.get("etag", "")),
    )


def permission_bits(text: str) -> tuple[int, bool]:
    """Parse permissions such as `rwxr-x--t+`. Return the bits, and whether the entry has an ACL (`+`). Strings that are
    too short mean no permissions.
    """
    if len(text) < len(_BITS):
        return 0, False
    bits = sum(bit for bit, letter in zip(_BITS, text, strict=False) if letter in "rwxt")
    return bits | (0o1000 if text[8] in "tT" else 0), text.endswith("+")


def parse_time(text: str) -> datetime | None:
    """Parse an HTTP date and return it in UTC, or None if it is invalid."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except ValueError:
        return None


def plain_tag(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def write_condition(old: FileStatus | None) -> dict[str, str]:
    """Return headers that make a write conditional: the name must be free, or must still denote the file `old`."""
    return {"if-none-match": "*"} if old is None else {"if-match": f'"{old.tag}"'}


async def _check_size(body: AsyncIterator[bytes], size_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the chunks of the body. Raises VerificationFailed if its size is not `size_bytes`."""
    seen = 0
    async for piece in body:
        seen += len(piece)
        if seen > size_bytes:
            break
        if piece:
            yield piece
    if seen != size_bytes:
        raise errors.VerificationFailed(f"The part does not have the declared size of {size_bytes} bytes.")


class AzureStorage(ABC):
    """The methods of `Storage` that both kinds of accounts share. All users share one instance.

    The abstract methods call the service that the kind of account requires. They raise AzureFailure as well as domain
    errors.
    """

    has_flat_keys = False
    """Whether paths may contain escaped names."""

    def __init__(self, account: AzureAccount, client: AzureClient, container_query: Mapping[str, str | int]) -> None:
        """`container_query` contains the query parameters that every call for a container requires."""
        self._account = account
        self._client = client
        self._container_query = container_query

    @staticmethod
    @abstractmethod
    def _is_directory(headers: Mapping[str, str]) -> bool: ...
    @abstractmethod
    async def _find_entry(self, location: AzureLocation) -> FileStatus: ...
    @abstractmethod
    async def _find_replaced(self, location: AzureLocation, *, overwrite: bool) -> FileStatus | None:
        """Return the file that a new file would replace, or None. Raises PathExists if the entry must not be
        replaced.
        """

    @abstractmethod
    def _containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]: ...
    @abstractmethod
    def _entries(self, location: AzureLocation, cursor: str | None, size: int) -> AsyncGenerator[Batch]: ...
    @abstractmethod
    async def _is_empty(self, container: AzureLocation) -> bool: ...
    @abstractmethod
    async def _make_directory(self, location: AzureLocation, permissions: int | None) -> None: ...
    @abstractmethod
    async def _delete_entry(self, location: AzureLocation, *, recursive: bool) -> None: ...
    @abstractmethod
    async def _discard(self, staged: AzureLocation) -> None:
        """Delete a file if it exists."""

    @abstractmethod
    async def _write(
        self, location: AzureLocation, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus: ...
    @abstractmethod
    async def _create_staged(self, staged: AzureLocation) -> None: ...
    @abstractmethod
    async def _send_part(
        self, plan: PartPlan, staged: AzureLocation, index: int, content: AsyncIterator[bytes]
    ) -> None: ...
    @abstractmethod
    async def _complete_parts(self, plan: PartPlan, staged: AzureLocation, parts: Sequence[StoredPart]) -> None:
        """Join the parts into the staged file. Idempotent. Raises VerificationFailed."""

    @abstractmethod
    async def _publish(
        self, staged: AzureLocation, location: AzureLocation, size_bytes: int, *, overwrite: bool
    ) -> FileStatus:
        """Move the complete staged file to its target."""

    @abstractmethod
    def _reserved_in(self, folder: AzureLocation) -> AsyncGenerator[tuple[str, str]]:
        """Yield the name and modification time of each reserved entry directly in a folder."""

    def _location(self, path: str) -> AzureLocation | None:
        return parse_location(path, escapes=self.has_flat_keys)

    def _file_location(self, path: str) -> AzureLocation:
        return parse_file_location(path, escapes=self.has_flat_keys)

    async def _find(self, location: AzureLocation) -> FileStatus:
        """Return the status of the entry. Raises PathNotFound."""
        if not location.is_container:
            return await self._find_entry(location)
        facts = (await self._client.read(AzureCall("HEAD", location.names, self._container_query))).headers
        return directory_status(location.path, parse_time(facts.get("last-modified", "")))

    async def _require_directory(self, location: AzureLocation) -> None:
        if not (await self._find(location)).is_directory:
            raise errors.NotADirectory(f"abfs://{location.path} is not a directory.")

    async def _require_file(self, location: AzureLocation) -> FileStatus:
        found = await self._find(location)
        if not found.is_file:
            raise errors.NotAFile(f"abfs://{location.path} is not a file.")
        return found

    async def stat(self, path: str) -> FileStatus:
        location = self._location(path)
        if location is None:
            return directory_status("")
        with azure_errors(path):
            return await self._find(location)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """Yield the entries. In flat accounts, a folder sorts by the key of its marker or prefix, so listings are not
        in name order.
        """
        location = self._location(path)
        found = (
            self._containers(cursor, batch_size) if location is None else self._entries(location, cursor, batch_size)
        )
        with azure_errors(path):
            try:
                async with aclosing(found) as batches:
                    async for batch in batches:
                        yield batch
            except AzureFailure as failure:
                if location is None and failure.is_denial:
                    raise errors.bucket_listing_denied("the account denied the request.") from None
                raise

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        location = self._location(path)
        if location is None or location.is_container:
            raise errors.NotAFile("A container is not a file.")
        with azure_errors(path):
            async with aclosing(self._content(location, offset, length, version)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _content(
        self, location: AzureLocation, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        if length is not None and length <= 0:
            await self._require_file(location)
            return
        headers: dict[str, str] = {}
        if offset or length is not None:
            headers["range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        if version is not None and version.tag:
            headers["if-match"] = f'"{version.tag}"'
        try:
            async with self._client.stream(AzureCall("GET", location.names, {}, headers)) as response:
                if self._is_directory(response.headers):
                    raise errors.NotAFile(f"abfs://{location.path} is not a file.")
                async for piece in response.aiter_raw(_PIECE_BYTES):
                    yield piece
        except AzureFailure as failure:
            # 416: the offset is past the end, or the file is empty. With the other statuses, the path may not be a
            # file.
            if failure.is_missing or failure.status in {400, 409, 416}:
                await self._require_file(location)
            if failure.status != 416:
                raise

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        location = self._file_location(path)
        with azure_errors(path):
            return await self._write(location, body, overwrite=overwrite, size_bytes=size_bytes)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """Copy a file by streaming its bytes through queryserver."""
        source_location, target_location = self._file_location(source), self._file_location(target)
        with azure_errors(source):
            found = await self._require_file(source_location)
        async with aclosing(self.read(source, version=found)) as body:
            with azure_errors(target):
                copied = await self._write(target_location, body, overwrite=overwrite, size_bytes=found.size_bytes)
        if copied.size_bytes != found.size_bytes:
            raise errors.VerificationFailed("The copy and its source have different sizes.")
        return copied

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """Create a directory or, directly below the root, a container if the settings allow it."""
        with azure_errors(path):
            if "/" in path:
                await self._make_directory(self._file_location(path), permissions)
            else:
                await self._make_container(path)

    async def _make_container(self, name: str) -> None:
        """Create a container. Raises PathExists (also for the root), PermissionDenied, InvalidName."""
        if not names_of(name):
            raise errors.PathExists("The root already exists.")
        if is_container_name(name):
            with unless_missing():
                await self._find(AzureLocation((name,)))
                raise errors.PathExists(f"abfs://{name} already exists.")
        if not self._account.allow_container_creation:
            raise errors.PermissionDenied("Creating containers is not allowed on this server.")
        if not is_container_name(name):
            raise errors.InvalidName(
                "A container name must have 3 to 63 lower-case letters, digits and single hyphens."
            )
        await self._client.change(AzureCall("PUT", (name,), self._container_query))

    async def delete(self, path: str, *, recursive: bool) -> None:
        location = self._location(path)
        if location is None:
            raise errors.root_not_allowed("The root cannot be deleted.")
        with azure_errors(path):
            if not location.is_container:
                await self._delete_entry(location, recursive=recursive)
                return
            if not await self._is_empty(location):
                raise errors.DirectoryNotEmpty(f"abfs://{path} is not empty.")
            await self._client.change(AzureCall("DELETE", location.names, self._container_query))

    async def begin_parts(self, plan: PartPlan) -> str:
        location, staging = self._file_location(plan.path), secrets.token_hex(16)
        with azure_errors(plan.path):
            await self._require_directory(location.parent)
            await self._create_staged(staging_location(location, staging))
        return staging

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        staged, length = staging_location(self._file_location(plan.path), staging), plan.size_of(index)
        with azure_errors(plan.path):
            async with aclosing(_check_size(body, length)) as content:
                if length:
                    await self._send_part(plan, staged, index, content)
                else:
                    async for _ in content:
                        pass
        return StoredPart(index, length, receipt="")

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        location = self._file_location(plan.path)
        staged = staging_location(location, staging)
        with azure_errors(plan.path):
            await self._find_replaced(location, overwrite=overwrite)
            await self._complete(plan, staged, parts)
            return await self._publish(staged, location, plan.size_bytes, overwrite=overwrite)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """Yield the bytes of the joined parts. To be readable, the parts are first committed to the staged file."""
        staged = staging_location(self._file_location(plan.path), staging)
        with azure_errors(plan.path):
            await self._complete(plan, staged, parts)
            async with aclosing(self._content(staged)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _complete(self, plan: PartPlan, staged: AzureLocation, parts: Sequence[StoredPart]) -> None:
        if sum(part.size_bytes for part in parts) != plan.size_bytes:
            raise errors.VerificationFailed("Parts of the file are missing.")
        await self._complete_parts(plan, staged, parts)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        with azure_errors(plan.path):
            await self._discard(staging_location(self._file_location(plan.path), staging))

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        folder = self._location(path)
        if folder is None:
            return 0
        before, swept = datetime.now(UTC) - timedelta(seconds=older_than_s), 0
        with azure_errors(path):
            async with aclosing(self._reserved_in(folder)) as found:
                async for name, written in found:
                    written_at = parse_time(written)
                    if written_at is not None and written_at < before:
                        await self._discard(folder.child(name))
                        swept += 1
        return swept
