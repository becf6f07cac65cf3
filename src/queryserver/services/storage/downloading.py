"""Files on their way to a client (Contract storage 5.5)."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from queryserver.domain.errors.base import QueryServerError, download_disabled
from queryserver.domain.errors.files import NotAFile, StorageError, SymlinkNotFollowed
from queryserver.domain.files import EntryKind, FileStatus, StoragePath
from queryserver.domain.user import DOWNLOAD, User
from queryserver.services.ranges import Conditions, Part, Version, is_unchanged, requested_part
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.stores import Caller, Place, Stores
from queryserver.services.streams import Streams

_OPERATION = "storage.download"
_TAG_TEXT = re.compile(r"[\x21\x23-\x7e]{1,200}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that may be sent. `part` None: the caller has it already."""

    place: Place
    status: FileStatus
    part: Part | None


class FileDownloads:
    """Finds files and sends them. Every body, and every refusal of one, leaves an audit event."""

    def __init__(self, stores: Stores, streams: Streams, audit: StorageAudit, *, enabled: bool) -> None:
        self._stores = stores
        self._streams = streams
        self._audit = audit
        self._enabled = enabled

    async def find(
        self, caller: Caller, path: StoragePath, conditions: Conditions, *, headers_only: bool = False
    ) -> FoundFile:
        """The file and what of it is to be sent; its bytes are not touched.

        Raises download_disabled, NotAFile, SymlinkNotFollowed, PathNotFound, RangeNotSatisfiable.
        """
        try:
            return await self._find(caller, path, conditions)
        except QueryServerError as error:
            if not headers_only:
                self._audit.record(caller, _OPERATION, path, error.code)
            raise

    async def _find(self, caller: Caller, path: StoragePath, conditions: Conditions) -> FoundFile:
        self._require_right(caller.user)
        place = self._stores.place(caller, path)
        status = await place.storage.stat(path.path)
        if status.kind is EntryKind.LINK:
            raise SymlinkNotFollowed(f"{path} is a link.")
        if not status.is_file:
            raise NotAFile(f"{path} is not a file.")
        version = Version(entity_tag(status), status.modified_at)
        part = None if is_unchanged(conditions, version) else requested_part(conditions, version, status.size_bytes)
        return FoundFile(place, status, part)

    def _require_right(self, user: User) -> None:
        if not self._enabled or not user.may(DOWNLOAD):
            raise download_disabled("Downloads are switched off for you.")

    def _require(self, caller: Caller, user: User, path: StoragePath) -> None:
        """Raises when the user, as he is now, may not go on with the download."""
        self._require_right(user)
        self._stores.require(caller, user, path.scheme)

    async def body(self, caller: Caller, found: FoundFile, part: Part) -> AsyncGenerator[bytes]:
        """The bytes of a part, to the last one: a clean end means that the store gave all and confirmed them.

        Raises TooManyStreams, NotAFile, ChangedMeanwhile, StorageError, and as `StreamPlace.recheck`.
        """
        outcome, sent = "interrupted", 0
        try:
            with self._streams.place(caller.user) as place:
                async with aclosing(_bytes(found, part)) as pieces:
                    async for piece in _exactly(pieces, part.length):
                        await place.recheck(lambda user: self._require(caller, user, found.place.path))
                        sent += len(piece)
                        if sent == part.length:
                            outcome = "ok"
                        yield piece
            outcome = "ok"
        except QueryServerError as error:
            outcome = error.code
            raise
        finally:
            self._audit.record(caller, _OPERATION, found.place.path, outcome, size_bytes=sent)


def _bytes(found: FoundFile, part: Part) -> AsyncGenerator[bytes]:
    length = None if part.is_whole else part.length
    return found.place.storage.read(found.place.path.path, offset=part.start, length=length, version=found.status)


async def _exactly(pieces: AsyncIterator[bytes], length: int) -> AsyncGenerator[bytes]:
    """`length` bytes. The last piece waits until the store has said that it is the last. Raises StorageError."""
    left = length
    last = b""
    async for piece in pieces:
        if len(piece) > left:
            raise StorageError("The store gave more bytes than the file has.")
        left -= len(piece)
        if left:
            yield piece
        elif piece:
            last = piece
    if left:
        raise StorageError("The store gave fewer bytes than the file has.")
    if last:
        yield last


def entity_tag(status: FileStatus) -> str:
    """A strong tag in quotes: the store's, else of file, size and time of change in milliseconds."""
    if _TAG_TEXT.fullmatch(status.tag):
        return f'"{status.tag}"'
    changed = 0 if status.modified_at is None else (status.modified_at - _EPOCH) // timedelta(milliseconds=1)
    seed = f"{status.tag}-{status.file_id}" if status.tag else status.file_id
    known = seed if not seed or _TAG_TEXT.fullmatch(seed) else sha256(seed.encode("utf-8", "replace")).hexdigest()
    return f'"{known}-{status.size_bytes}-{changed}"'
