"""Reads complete stored results, for repeatable downloads (Contract editor 8.2) and as tables in SQL statements.

A statement can read a result only if its user may read it. The result is retained during the read (ADR 78).

Implements the protocols `StatementResults` and `OpenResult` of `engines/external_data.py`, independently of engines.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

import pyarrow as pa

from queryserver import errors
from queryserver.engines.external_data import ResultPiece
from queryserver.errors.base import download_disabled
from queryserver.errors.files import PathNotFound, StorageError
from queryserver.errors.statements import DownloadRefused
from queryserver.formats.arrow import Column
from queryserver.formats.download.encoder import PackedRows
from queryserver.formats.download.stream import PackedStream, packed
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import DOWNLOAD, User
from queryserver.platform.caches import LruCache
from queryserver.platform.database import Database
from queryserver.platform.logs import AUDIT
from queryserver.platform.ownership import Ownership
from queryserver.results.segments import ResultStore, Segment
from queryserver.statements.grant_repository import FOREIGN, GrantRecords, ReadSources
from queryserver.statements.model import StatementStatus, StoredResult
from queryserver.statements.repository import StatementRecords
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.retention import RESULT_READS
from queryserver.statements.running_statements import StateSignals
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess, parse_operation_id

_OPERATION = "result.download"
_STREAM_CACHE_BYTES = 8 * 1024 * 1024
_CHECK_EVERY_S = 5.0
"""How often a running operation is read again while a statement waits for its result, in case a signal was lost."""

_CHECK_WITHIN_S = 10.0
"""How long it may take to check that all rows of a result are in the store."""

_DELETED = frozenset({StatementState.EXPIRED, StatementState.CLOSED})

_BEGIN = "insert into result_reads (id, statement_id, owner, lease_until) values ($1, $2, $3, 'infinity')"
_END = "delete from result_reads where id = $1"


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A finished result that can be read repeatedly."""

    status: StatementStatus
    columns: tuple[Column, ...]
    reader: ResultReader
    user_id: int
    """The user who reads, whose share of memory large segments use."""

    @property
    def rows(self) -> int:
        return self.status.rows

    def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows in order, one segment at a time."""
        return self.reader.tables(self.status.id, self.status.rows, user_id=self.user_id)

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """Yield each distinct schema of the segments once, without reading their rows."""
        return self.reader.schemas(self.status.id, self.status.rows)

    def packed(self) -> AsyncGenerator[PackedRows]:
        """Yield the segments in their stored form."""
        return self.reader.packed(self.status.id, self.status.rows, user_id=self.user_id)


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
        """File sizes in bytes by entity tag, recorded once a file has been generated completely."""
        self._streams = LruCache[UUID, _CachedStream](_STREAM_CACHE_BYTES, weigh=lambda stream: stream.weight)

    async def open(
        self, user: User, operation_id: UUID, *, statement_id: int | None = None, allow_truncated: bool = False
    ) -> StoredRows:
        """Open the result of an operation that the user may read.

        For a script, open the result of the statement `statement_id`, or by default the result of the last statement
        that has one.

        Raises download_disabled, OperationNotFound, PermissionDenied. Raises DownloadRefused if there is no result, or
        if a limit that the caller did not set truncated the result and `allow_truncated` is not set.
        """
        with AUDIT.failures(user.username, _OPERATION, facts={"operation_id": str(operation_id)}):
            self._require_right(user)
            record = await self._access.result_record(user, operation_id)
            part = await self._reader.part_of(record.status, statement_id)
            if part is not None and part != operation_id:
                record = await self._access.result_record(user, part)
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
                    "truncated", f"{message} To get the rows that were kept, add allow_truncated=true.", status=1
                )
            return StoredRows(status, record.columns or (), self._reader, user.id)

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
        """Yield the chunks of the file. Audits the download at the first chunk, and any failure."""
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

    async def require(self, user: User, status: StatementStatus) -> None:
        """Check that the user may continue a download.

        Raises download_disabled, OperationNotFound, PermissionDenied.
        """
        self._require_right(user)
        await self._access.require_result_reader(user, status)

    def _require_right(self, user: User) -> None:
        if not self._enabled or not user.may(DOWNLOAD):
            raise download_disabled("Downloads are disabled for your account.")


@dataclass(slots=True, eq=False)
class _TableReader:
    """Checks that a user may still read a result. Rereads the user's rights every `recheck_s` seconds."""

    user: User
    status: StatementStatus
    access: StatementAccess
    users: CallerRepository
    recheck_s: float
    _due: float = field(init=False)

    def __post_init__(self) -> None:
        self._due = time.monotonic() + self.recheck_s

    async def require(self) -> None:
        """Raise ResultRefused unless the user may read the result now."""
        with _refusals(str(self.status.id)):
            if time.monotonic() >= self._due:
                with suppress(errors.DatabaseUnavailable):  # tries again before the next piece
                    await self._refresh()
                    self._due = time.monotonic() + self.recheck_s
            await self.access.require_result_reader(self.user, self.status)

    async def _refresh(self) -> None:
        present = await self.users.user(self.user.id)
        if present is None:
            raise errors.OperationNotFound(str(self.status.id))
        self.user = present if self.user.api_token is None else present.narrowed(self.user.api_token)


@dataclass(frozen=True, slots=True)
class ResultTables:
    """Opens results as tables for SQL statements.

    Each read has a row in the table `result_reads` of the service database. The row prevents every process from
    deleting the result's bytes until the read has ended or the reading process has died.
    """

    database: Database
    records: StatementRecords
    results: ResultStore
    access: StatementAccess
    grants: GrantRecords
    reader: ResultReader
    ownership: Ownership
    signals: StateSignals
    users: CallerRepository
    recheck: timedelta

    def __post_init__(self) -> None:
        self.ownership.watch(RESULT_READS)

    @asynccontextmanager
    async def open(self, user: User, operation_id: str) -> AsyncGenerator["OpenTable"]:
        """Open a result for this user, as specified by `StatementResults.open`."""
        status = await self._status(user, operation_id)
        async with self._hold(status.id):
            # The hold must exist before the record is read. Otherwise, a sweep could delete the segments in between.
            stored = await self.records.stored_result(status.id, start_row=0, rows=max(status.rows, 1), used_by=user.id)
            if stored is None:
                raise errors.result_not_found(f"Operation {operation_id} does not exist.")
            _require_rows(operation_id, stored.status)
            is_own = stored.status.user_id == user.id
            sources = ReadSources(connectors=frozenset([stored.status.connector if is_own else FOREIGN]))
            sources |= await self.grants.sources(status.id)
            reader = _TableReader(user, stored.status, self.access, self.users, self.recheck.total_seconds())
            rows = partial(self.reader.tables, stored.status.id, stored.status.rows, user_id=user.id)
            yield OpenTable(stored, self.results, sources, reader.require, rows)

    async def wait_until_ended(self, user: User, operation_id: str) -> StatementStatus:
        """Wait until an operation has ended, and return its status. The caller limits the wait.

        Raises ResultRefused if the user may not read the result, DatabaseUnavailable.
        """
        with _refusals(operation_id), self.signals.watch(parse_operation_id(operation_id), ends_only=True) as watch:
            while (status := (await self.access.result_record(user, watch.statement_id)).status).state in ACTIVE:
                await watch.changed_within(_CHECK_EVERY_S)
            return status

    async def _status(self, user: User, operation_id: str) -> StatementStatus:
        """Return the status of the statement whose rows are requested. Raises ResultRefused."""
        with _refusals(operation_id):
            record = await self.access.result_record(user, parse_operation_id(operation_id))
            part = await self.reader.part_of(record.status, None)
        if part is None:
            _require_rows(operation_id, record.status)
            raise errors.ResultRefused(f"No statement of the script {operation_id} has a result set.")
        status = record.status if part == record.status.id else (await self.access.result_record(user, part)).status
        _require_rows(operation_id, status)
        return status

    @asynccontextmanager
    async def _hold(self, statement_id: UUID) -> AsyncGenerator[None]:
        read_id = uuid4()
        await self.ownership.require_current()
        with self.ownership.holding(RESULT_READS, read_id):
            try:
                await self.database.execute(_BEGIN, read_id, statement_id, self.ownership.id)
                yield
            finally:
                await self.ownership.release(_END, read_id)


@contextmanager
def _refusals(operation_id: str) -> Generator[None]:
    """Turn the errors of an API call into the outcome of a statement."""
    try:
        yield
    except errors.OperationNotFound as error:
        raise errors.result_not_found(error.message) from error
    except errors.PermissionDenied as error:
        raise errors.result_denied(f"Operation {operation_id}: {error.message}") from error


def _require_rows(operation_id: str, status: StatementStatus) -> None:
    """Raise ResultRefused unless the statement has an available result."""
    if status.state is StatementState.AVAILABLE:
        return
    if status.state in _DELETED:
        reason = "has expired" if status.state is StatementState.EXPIRED else "was closed"
        raise errors.result_expired(f"The result of operation {operation_id} {reason}.")
    if status.state in ACTIVE:
        raise errors.ResultRefused(
            f"Operation {operation_id} has not ended yet, so its result cannot be read as a table."
        )
    if status.state is StatementState.SUCCESS:
        raise errors.ResultRefused(f"Operation {operation_id} has no result set.")
    raise errors.ResultRefused(f"Operation {operation_id} ended without a result: {status.state.wire_status}.")


class OpenTable:
    """Implements `SourcedResult` for a result in the result store or in its statement record."""

    def __init__(
        self,
        stored: StoredResult,
        results: ResultStore,
        sources: ReadSources,
        require_reader: Callable[[], Awaitable[None]],
        rows: Callable[[], AsyncGenerator[pa.Table]],
    ) -> None:
        """`require_reader` is awaited before each read. It raises ResultRefused once a grant has ended."""
        self.sources = sources
        self._rows = rows
        self._require_reader = require_reader
        self._id = stored.status.id
        self._results = results
        self._inline = stored.inline
        self._segments = stored.segments
        self.columns: tuple[Column, ...] = stored.columns
        if stored.inline is not None:
            self.pieces = (ResultPiece(stored.status.rows, len(stored.inline)),)
        else:
            self.pieces = tuple(ResultPiece(segment.rows, segment.size_bytes) for segment in stored.segments)
        self.warning = stored.status.message if stored.status.is_truncated_by_server else ""

    async def descriptor(self, number: int) -> int | None:
        await self._require_reader()
        segment = self._segment(number)
        if segment is None:
            return None
        try:
            return await self._results.open_file(self._id, fence=segment.fence, number=segment.number)
        except (StorageError, PathNotFound) as error:
            raise errors.ServiceUnavailable("The result store cannot be reached.") from error

    async def read(self, number: int, start: int, stop: int) -> bytes:
        await self._require_reader()
        segment = self._segment(number)
        if segment is None:
            return (self._inline or b"")[start:stop]
        stop = min(stop, segment.size_bytes)
        if start >= stop:
            return b""
        try:
            return await self._results.part(self._id, start, stop, fence=segment.fence, number=segment.number)
        except (StorageError, PathNotFound) as error:
            raise errors.ServiceUnavailable("The result store cannot be reached.") from error

    async def require_whole(self) -> None:
        await self._require_reader()
        if self._inline is not None or not self._segments:
            return
        try:
            async with asyncio.timeout(_CHECK_WITHIN_S):
                is_whole = await self._results.has_all(self._id, self._segments)
        except (StorageError, TimeoutError) as error:
            raise errors.ServiceUnavailable("The result store cannot be reached.") from error
        if not is_whole:
            raise errors.ServiceUnavailable("The result store has lost some of its rows.")

    async def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows in order, one piece at a time. Raises ServiceUnavailable, TooManyRequests.

        Before it yields a very large piece, waits until memory for it is available.
        """
        async with aclosing(self._rows()) as rows:
            async for table in rows:
                await self._require_reader()
                yield table

    def _segment(self, number: int) -> Segment | None:
        """Return the segment with this number, or None if the rows are stored in the record."""
        return None if self._inline is not None else self._segments[number]
