"""Reads complete stored results for downloads, as often as requested (Contract editor 8.2)."""

from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from queryserver.errors.base import download_disabled
from queryserver.errors.statements import DownloadRefused
from queryserver.formats.arrow import Column
from queryserver.formats.download.encoder import PackedRows
from queryserver.formats.download.stream import PackedStream, packed
from queryserver.identity.model import DOWNLOAD, User
from queryserver.platform.caches import LruCache
from queryserver.platform.logs import AUDIT
from queryserver.statements.model import StatementStatus
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.states import StatementState
from queryserver.statements.status import StatementAccess

_OPERATION = "result.download"
_STREAM_CACHE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A finished result that can be read repeatedly."""

    status: StatementStatus
    columns: tuple[Column, ...]
    reader: ResultReader

    @property
    def rows(self) -> int:
        return self.status.rows

    def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows in order, one segment at a time."""
        return self.reader.tables(self.status.id, self.status.rows, user_id=self.status.user_id)

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """Yield the schema of each segment, without its rows."""
        return self.reader.schemas(self.status.id, self.status.rows)

    def packed(self) -> AsyncGenerator[PackedRows]:
        """Yield the segments in their stored form."""
        return self.reader.packed(self.status.id, self.status.rows)


@dataclass(frozen=True, slots=True)
class _CachedStream:
    stream: PackedStream | None

    @property
    def weight(self) -> int:
        return 256 + (self.stream.weight if self.stream is not None else 0)


class Downloads:
    """Opens results for downloads, checks the download permission, and writes audit events."""

    def __init__(self, access: StatementAccess, reader: ResultReader, *, enabled: bool) -> None:
        self._access = access
        self._reader = reader
        self._enabled = enabled
        self.sizes = LruCache[str, int](4096)
        """File sizes in bytes by entity tag, recorded once a file was generated completely."""
        self._streams = LruCache[UUID, _CachedStream](_STREAM_CACHE_BYTES, weigh=lambda stream: stream.weight)

    async def open(
        self, user: User, operation_id: UUID, *, statement_id: int | None = None, allow_truncated: bool = False
    ) -> StoredRows:
        """Open the result of a user's operation.

        For a script, open the result of the statement `statement_id`, or by default of the last statement that has
        one.

        Raises download_disabled, OperationNotFound, PermissionDenied. Raises DownloadRefused if there is no result, or
        if a limit that the caller did not set truncated the result and `allow_truncated` is not set.
        """
        with AUDIT.failures(user.username, _OPERATION, facts={"operation_id": str(operation_id)}):
            self._require_right(user)
            record = await self._access.own_record(user, operation_id)
            part = await self._reader.part_of(record.status, statement_id)
            if part is not None and part != operation_id:
                record = await self._access.own_record(user, part)
            status = record.status
            if status.outcome is not None:
                number, code = status.outcome
                is_deleted = status.state in {StatementState.EXPIRED, StatementState.CLOSED}
                raise DownloadRefused(code, status.message, status=number, gone=is_deleted)
            if not status.state.is_terminal:
                raise DownloadRefused("not_finished", "The statement has not ended yet.", status=1)
            if status.state is StatementState.SUCCESS:
                raise DownloadRefused("no_result_set", "The statement has no result set.", status=1)
            if status.is_truncated_by_server and not allow_truncated:
                message = status.message or f"Only the first {status.rows} rows were kept."
                raise DownloadRefused(
                    "truncated", f"{message} To download the rows that were kept, add allow_truncated=true.", status=1
                )
            return StoredRows(status, record.columns or (), self._reader)

    async def packed(self, user: User, rows: StoredRows, *, threads: Executor) -> PackedStream | None:
        """Return the stored rows as one Arrow stream, or None if they must be converted. Audits failures.

        The stream is cached: clients request its byte ranges one after another, and building the stream reads the
        schema of every segment.
        """
        cached = self._streams.get(rows.status.id)
        if cached is None:
            with AUDIT.failures(user.username, _OPERATION, facts={"operation_id": str(rows.status.id)}):
                cached = _CachedStream(await packed(rows, threads=threads))
            self._streams.put(rows.status.id, cached)
        return cached.stream

    async def audited(self, user: User, operation_id: UUID, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the chunks of the file. Audits the download at the first chunk, and again if a later chunk fails."""
        facts = {"operation_id": str(operation_id)}
        async with aclosing(pieces):
            with AUDIT.failures(user.username, _OPERATION, facts=facts):
                first = await anext(pieces, b"")
            AUDIT.record(user.username, _OPERATION, facts=facts)
            yield first
            with AUDIT.failures(user.username, _OPERATION, facts=facts):
                async for piece in pieces:
                    yield piece

    async def size_of(self, user: User, operation_id: UUID, tag: str, pieces: AsyncGenerator[bytes]) -> int:
        """Return the size in bytes of the file with this entity tag.

        If the size is not known, generate the file to measure it. Audits failures.
        """
        async with aclosing(pieces):
            size = self.sizes.get(tag)
            if size is None:
                size = 0
                with AUDIT.failures(user.username, _OPERATION, facts={"operation_id": str(operation_id)}):
                    async for piece in pieces:
                        size += len(piece)
                self.sizes.put(tag, size)
            return size

    def require(self, user: User, status: StatementStatus) -> None:
        """Check that the user may continue a download.

        Raises download_disabled, OperationNotFound, PermissionDenied.
        """
        self._require_right(user)
        self._access.require_owner(user, status)

    def _require_right(self, user: User) -> None:
        if not self._enabled or not user.may(DOWNLOAD):
            raise download_disabled("You do not have the right to download results.")
