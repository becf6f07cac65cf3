"""Lets statements read stored results as tables: checks access rights, and retains the results meanwhile (ADR 78).

Implements the protocols `StatementResults` and `OpenResult` of `engines/external_data.py`, independently of engines.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.engines.external_data import ResultPiece
from queryserver.errors.files import PathNotFound, StorageError
from queryserver.formats.arrow import Column
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.threads import renewed
from queryserver.results.segments import ResultStore, Segment
from queryserver.statements.model import StatementStatus, StoredResult
from queryserver.statements.repository import StatementRecords
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess, parse_operation_id

_DELETED = frozenset({StatementState.EXPIRED, StatementState.CLOSED})

_BEGIN = "insert into result_reads (id, statement_id, lease_until) values ($1, $2, now() + $3::interval)"
_RENEW = "update result_reads set lease_until = now() + $2::interval where id = $1 returning true"
_END = "delete from result_reads where id = $1"


@dataclass(frozen=True, slots=True)
class ResultTables:
    """Opens results for statements.

    Each read has a row with a lease in the service database (table `result_reads`). The row keeps all processes from
    deleting the bytes of the result until the read has ended or the reading process has died.
    """

    database: Database
    records: StatementRecords
    results: ResultStore
    access: StatementAccess
    reader: ResultReader
    lease: timedelta

    @asynccontextmanager
    async def open(self, user: User, operation_id: str) -> AsyncGenerator["OpenTable"]:
        """Open a result for this user, as specified by `StatementResults.open`."""
        status = await self._status(user, operation_id)
        async with self._hold(status.id):
            # The record is read only after the hold is in place, because sweeps may delete the segments until then.
            stored = await self.records.stored_result(status.id, start_row=0, rows=max(status.rows, 1))
            if stored is None:
                raise errors.result_not_found(f"Operation {operation_id} does not exist.")
            _require_rows(operation_id, stored.status)
            yield OpenTable(stored, self.results)

    async def _status(self, user: User, operation_id: str) -> StatementStatus:
        """Return the status of the statement whose rows are requested. Raises ResultRefused."""
        try:
            record = await self.access.own_record(user, parse_operation_id(operation_id))
            part = await self.reader.part_of(record.status, None)
        except errors.OperationNotFound as error:
            raise errors.result_not_found(error.message) from error
        except errors.PermissionDenied as error:
            raise errors.result_denied(f"Operation {operation_id}: {error.message}") from error
        if part is None:
            _require_rows(operation_id, record.status)
            raise errors.ResultRefused(f"No statement of the script {operation_id} has a result set.")
        status = record.status if part == record.status.id else (await self.access.own_record(user, part)).status
        _require_rows(operation_id, status)
        return status

    @asynccontextmanager
    async def _hold(self, statement_id: UUID) -> AsyncGenerator[None]:
        read_id = uuid4()
        await self.database.execute(_BEGIN, read_id, statement_id, self.lease)
        try:
            async with renewed(partial(self._renew, read_id), every_s=self.lease.total_seconds() / 3):
                yield
        finally:
            with suppress(errors.DatabaseUnavailable):  # then the lease expires
                await self.database.execute(_END, read_id)

    async def _renew(self, read_id: UUID) -> bool:
        return bool(await self.database.value(_RENEW, read_id, self.lease))


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
    """Implements `OpenResult` for a result in the result store or in its statement record."""

    def __init__(self, stored: StoredResult, results: ResultStore) -> None:
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
        segment = self._segment(number)
        if segment is None:
            return None
        try:
            return await self._results.open_file(self._id, fence=segment.fence, number=segment.number)
        except (StorageError, PathNotFound) as error:
            raise errors.ServiceUnavailable("The result store cannot be reached.") from error

    async def read(self, number: int, start: int, stop: int) -> bytes:
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

    def _segment(self, number: int) -> Segment | None:
        """Return the segment with this number, or None if the rows are stored in the record."""
        return None if self._inline is not None else self._segments[number]
