"""Statement operations for callers: status, logs, cancel, close, history (Contract editor 1.6, 3, 7)."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from queryserver.connectors.model import ResultSharing
from queryserver.connectors.registry import Connectors
from queryserver.errors.statements import OperationNotFound
from queryserver.identity.limits import Streams, StreamSlot
from queryserver.identity.model import User
from queryserver.statements.grant_repository import Grant, GrantRecords, ReadSources
from queryserver.statements.model import (
    NO_HANDLE,
    HistoryEntry,
    LogPage,
    StatementRecord,
    StatementStatus,
    without_statement,
)
from queryserver.statements.repository import StatementRecords
from queryserver.statements.runner import StatementDispatcher
from queryserver.statements.running_statements import StateSignals, Watch
from queryserver.statements.states import StatementState

_MAX_SHOWN_ID_CHARACTERS = 64
_PROGRESS_EVERY_S = 1.0
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class StatementAccess:
    """Finds statements for callers and checks their rights.

    Unknown ids, malformed ids and other users' ids raise the same OperationNotFound, and so do grants that have ended.
    Grants are read only for callers who are not the owner.
    """

    def __init__(self, records: StatementRecords, connectors: Connectors, grants: GrantRecords | None) -> None:
        """`grants` is None if sharing is disabled."""
        self._records = records
        self._connectors = connectors
        self._grants = grants

    async def id_of(self, user: User, operation_id: str | None, guid: str | None) -> UUID:
        """Return the id of an operation, given its id or the `guid` of its handle.

        Rights are checked only when searching by `guid`, because error messages then contain the operation's id.
        Raises OperationNotFound.
        """
        if operation_id is None and guid is not None:
            operation = await self._records.id_of_guid(guid, user_id=None if user.is_admin else user.id)
            if operation is None:
                raise OperationNotFound(guid[:_MAX_SHOWN_ID_CHARACTERS])
            return operation
        return parse_operation_id(operation_id or "")

    async def status(self, user: User, operation_id: UUID) -> StatementStatus:
        """Return the status if the user is the owner or an administrator.

        Raises OperationNotFound, PermissionDenied.
        """
        status = await self.status_for_cancellation(user, operation_id)
        self._connectors.require_permission(user, status.connector)
        return status

    async def status_for_cancellation(self, user: User, operation_id: UUID) -> StatementStatus:
        """Return the status if the user is the owner or an administrator, even without permission for the connector.

        Raises OperationNotFound.
        """
        status = await self._records.status(operation_id)
        if status is None or not _is_visible(user, status, by_admin=True):
            raise OperationNotFound(str(operation_id))
        return status

    async def close_available(self, user: User, operation_id: UUID) -> tuple[StatementStatus, bool]:
        """Close the result if it is available and its statement is no script, with the rights of
        `status_for_cancellation`.

        Return the previous status and whether the result was closed. Raises OperationNotFound.
        """
        connectors = None if user.reached is None else list(user.reached)
        found = await self._records.close_available(
            operation_id, user_id=None if user.is_admin else user.id, connectors=connectors
        )
        if found is None or not _is_visible(user, found[0], by_admin=True):
            raise OperationNotFound(str(operation_id))
        return found

    async def shared_status(self, user: User, operation_id: UUID) -> StatementStatus:
        """Return the status if the user is the owner or an administrator, or if the result is granted to the user.

        A user to whom the result is granted sees neither the statement nor messages of the engine. Raises
        OperationNotFound, PermissionDenied.
        """
        status = await self._records.status(operation_id)
        if status is None:
            raise OperationNotFound(str(operation_id))
        await self.require_shared_reader(user, status)
        return shown_to(user, status)

    async def require_shared_reader(self, user: User, status: StatementStatus) -> None:
        """Raise OperationNotFound or PermissionDenied unless the user may read the status now, perhaps by a grant."""
        if _is_visible(user, status, by_admin=True):
            self._connectors.require_permission(user, status.connector)
        else:
            await self.grant(user, status)

    async def require_result_reader(self, user: User, status: StatementStatus) -> None:
        """Raise OperationNotFound or PermissionDenied unless the user may read the rows now.

        Only the owner may, and users to whom the result is granted.
        """
        if _is_visible(user, status, by_admin=False):
            self._connectors.require_permission(user, status.connector)
        else:
            await self.grant(user, status)

    async def grant(self, user: User, status: StatementStatus) -> Grant:
        """Return the grant through which the user may read another user's result.

        Its connector must still permit it (Contract sharing 4). Raises OperationNotFound.
        """
        if self._grants is not None and self._connectors.may_receive_results(user, status.connector):
            grant = await self._grants.find(status.id, user.id)
            if grant is not None and self.may_receive(user, status.connector, grant.sources):
                return grant
        raise OperationNotFound(str(status.id))

    def may_receive(self, user: User, connector: str, sources: ReadSources) -> bool:
        """Return whether a result of this connector, with rows from these sources, may be granted to the user.

        Only `ResultSharing.ANYONE` permits rows that depend on the rights of the statement's user.
        """
        return all(
            self._connectors.may_receive_results(user, key)
            and (not sources.own_rights or self._connectors.result_sharing(key) is ResultSharing.ANYONE)
            for key in {connector, *sources.connectors}
        )

    def require_reader(self, user: User, status: StatementStatus) -> None:
        """Raise OperationNotFound or PermissionDenied unless the user may read the status now."""
        if not _is_visible(user, status, by_admin=True):
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)

    async def own_record(self, user: User, operation_id: UUID) -> StatementRecord:
        """Return the record if the user is the owner. Raises OperationNotFound, PermissionDenied."""
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        self.require_owner(user, record.status)
        return record

    async def result_record(self, user: User, operation_id: UUID) -> StatementRecord:
        """Return the record if the user may read the result, without the statement if it is granted to the user.

        Raises OperationNotFound, PermissionDenied.
        """
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        await self.require_result_reader(user, record.status)
        if record.status.user_id == user.id:
            return record
        status = without_statement(record.status)
        return replace(record, status=status, handle=NO_HANDLE, script_id=None, settings={}, canceled_by=None)

    async def record(self, user: User, operation_id: UUID) -> StatementRecord:
        """Return the record if the user is the owner or an administrator.

        Raises OperationNotFound, PermissionDenied.
        """
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        self.require_reader(user, record.status)
        return record

    def require_owner(self, user: User, status: StatementStatus) -> None:
        """Raise OperationNotFound or PermissionDenied unless the user is the owner."""
        if not _is_visible(user, status, by_admin=False):
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)


def _is_visible(user: User, status: StatementStatus, *, by_admin: bool) -> bool:
    """Return whether the user may see the operation. An API token sees only operations on its connectors (ADR 62)."""
    return (status.user_id == user.id or (by_admin and user.is_admin)) and user.reaches(status.connector)


def shown_to(user: User, status: StatementStatus) -> StatementStatus:
    """Return the status as the user may see it, given that the user may read it."""
    return status if _is_visible(user, status, by_admin=True) else without_statement(status)


def parse_operation_id(text: str) -> UUID:
    """Parse a UUID in its canonical form. Raises OperationNotFound."""
    if not _UUID.fullmatch(text):
        # UUID() would also accept braces, `urn:uuid:`, and hyphens in any position.
        raise OperationNotFound(text[:_MAX_SHOWN_ID_CHARACTERS])
    return UUID(text)


Waiting = TypeVar("Waiting", StatementStatus, HistoryEntry)


async def with_queue_position(records: StatementRecords, statement: Waiting) -> Waiting:
    """Add the queue position. Queries it only if the statement waits for a free slot of its connector."""
    if statement.state is not StatementState.WAITING or statement.times.started is not None:
        return statement
    return replace(statement, queue_position=await records.queue_position(statement.id))


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """A statement's status, and the log lines since the previous progress report."""

    status: StatementStatus
    log: LogPage


class StatementReader:
    """Reads a statement's status and log, immediately or once they change."""

    def __init__(
        self, records: StatementRecords, access: StatementAccess, signals: StateSignals, streams: Streams
    ) -> None:
        self._records = records
        self.access = access
        self._signals = signals
        self._streams = streams

    async def status(self, user: User, operation_id: UUID, *, wait_s: float = 0) -> StatementStatus:
        """Return the current status, as `StatementAccess.shared_status` does.

        If `wait_s` is positive, wait up to that long for a terminal status.

        Raises OperationNotFound, PermissionDenied. When waiting, also raises TooManyStreams and the errors of
        `StreamSlot.recheck`.
        """
        if wait_s <= 0:
            return await self.with_queue_position(await self.access.shared_status(user, operation_id))
        with self._signals.watch(operation_id, ends_only=True) as watch:
            status = await self.access.shared_status(user, operation_id)
            if not status.state.is_terminal:
                with self._streams.slot(user) as slot:
                    status = shown_to(user, await self.wait_on_watch(status, wait_s, watch, slot))
        return await self.with_queue_position(status)

    async def with_queue_position(self, status: StatementStatus) -> StatementStatus:
        """Return the status, with the queue position if the statement is waiting."""
        return await with_queue_position(self._records, status)

    async def with_failure(self, status: StatementStatus) -> StatementStatus:
        """Return the status with its failure details, which are missing if the statement is long.

        Raises OperationNotFound.
        """
        if status.failure is not None:
            return status
        record = await self._records.read(status.id)
        if record is None:
            raise OperationNotFound(str(status.id))
        return record.status

    async def wait_for_end(self, status: StatementStatus, wait_s: float, slot: StreamSlot) -> StatementStatus:
        """Return the first terminal status of a newly recorded statement within `wait_s`, otherwise the latest status.

        Raises the errors of `StreamSlot.recheck` once the user of `slot` may no longer read the statement.
        """
        with self._signals.watch(status.id, ends_only=True) as watch:
            return await self.wait_on_watch(status, wait_s, watch, slot)

    async def _recheck(self, status: StatementStatus, slot: StreamSlot, *, by_grant: bool) -> None:
        def require(user: User) -> Awaitable[None] | None:
            if by_grant:
                return self.access.require_shared_reader(user, status)
            return self.access.require_reader(user, status)

        await slot.recheck(require)

    async def wait_on_watch(
        self, status: StatementStatus, wait_s: float, watch: Watch, slot: StreamSlot | None = None
    ) -> StatementStatus:
        """Return the first terminal status within `wait_s`, otherwise the latest status.

        `status` must have been read after `watch` began, unless the statement could not have changed before. Queries
        the record only after a change. Rechecks the user's rights whenever `slot` requires it, and raises the errors
        of `StreamSlot.recheck`.
        """
        now = asyncio.get_running_loop().time
        give_up = now() + wait_s
        while not (status.state.is_terminal or self._signals.waits_are_over):
            left_s = give_up - now()
            if left_s <= 0:
                break
            has_changed = await watch.changed_within(left_s if slot is None else min(left_s, slot.due_in_s))
            if slot is not None:
                await self._recheck(status, slot, by_grant=True)
            if has_changed or now() >= give_up:
                status = watch.final_status or await self._read(status.id)
        return status

    async def logs(
        self, user: User, operation_id: UUID, *, start: int = 0, size: int | None = None
    ) -> tuple[StatementStatus, LogPage]:
        """Read the log, starting at line `start`. Raises OperationNotFound, PermissionDenied."""
        status = await self.with_queue_position(await self.access.status(user, operation_id))
        return status, await self._records.logs(operation_id, start=start, size=size)

    async def progress(
        self, status: StatementStatus, slot: StreamSlot, *, log_from: int, until_s: float
    ) -> AsyncGenerator[StatementProgress]:
        """Yield the current progress, then yield it again on every state change and at most once a second otherwise.

        Ends with the terminal state or after `until_s`. Raises the errors of `StreamSlot.recheck` once the user of
        `slot` may no longer read the statement.
        """
        give_up = asyncio.get_running_loop().time() + until_s
        with self._signals.watch(status.id) as watch:
            while True:
                status = await self._read(status.id)
                watch.seen_state = status.state
                log = await self._records.logs(status.id, start=log_from, size=None)
                log_from = log.start + len(log.lines)
                yield StatementProgress(status, log)
                is_over = self._signals.waits_are_over or asyncio.get_running_loop().time() >= give_up
                if status.state.is_terminal or is_over:
                    return
                # New rows and log lines are reported once a second. Only state changes are reported earlier.
                next_round = asyncio.get_running_loop().time() + _PROGRESS_EVERY_S
                while (left_s := next_round - asyncio.get_running_loop().time()) > 0:
                    if not await watch.changed_within(left_s):
                        break
                    if self._signals.waits_are_over or (await self._read(status.id)).state is not status.state:
                        break
                await self._recheck(status, slot, by_grant=False)

    async def _read(self, operation_id: UUID) -> StatementStatus:
        status = await self._records.status(operation_id)
        if status is None:
            raise OperationNotFound(str(operation_id))
        return status


@dataclass(slots=True, eq=False, kw_only=True)
class StatementControl:
    """Cancels statements and closes their results. Both are idempotent."""

    records: StatementRecords
    access: StatementAccess
    reader: StatementReader
    dispatcher: StatementDispatcher
    signals: StateSignals
    cancel_wait: timedelta

    async def cancel(self, user: User, operation_id: UUID) -> StatementStatus:
        """Cancel a statement, and wait at most `cancel_wait` for it to end. Raises OperationNotFound."""
        status = await self.access.status_for_cancellation(user, operation_id)
        if status.state.is_terminal:
            return status
        return await self.stop(status, by=user.username)

    async def stop(self, status: StatementStatus, *, by: str) -> StatementStatus:
        """Cancel a statement as `cancel` does, but without checking rights. Records `by` as the user name."""
        with self.signals.watch(status.id, ends_only=True) as watch:
            status = await self.records.request_cancel(status.id, by=by) or status
            await self.dispatcher.cancel(status.id, owner=status.owner)
            self.signals.notify(status.id)
            return await self.reader.wait_on_watch(status, self.cancel_wait.total_seconds(), watch)

    async def close(self, user: User, operation_id: UUID) -> StatementState:
        """Cancel the statement if it is active, and delete its result. Return the previous state.

        Raises OperationNotFound.
        """
        status, is_closed = await self.access.close_available(user, operation_id)
        settled = status if status.state.is_terminal else await self.stop(status, by=user.username)
        # A failed or canceled script may contain statements with results.
        if not is_closed and (settled.state is StatementState.AVAILABLE or status.is_script):
            is_closed = await self.records.close_result(operation_id)
        if is_closed:
            self.signals.notify(operation_id)
        return status.state


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A history filter and the requested page of matches. Pages are counted from 1."""

    doc_type: str | None = None
    text: str | None = None
    connector: str | None = None
    is_active: bool = False
    """Whether to include only waiting and running statements."""
    page: int = 1
    limit: int = 50


class StatementHistory:
    """Lists the statements of one user, newest first. An API token lists only statements on its connectors."""

    def __init__(self, records: StatementRecords, connectors: Connectors) -> None:
        self._records = records
        self._connectors = connectors

    async def page(self, user: User, query: HistoryQuery) -> tuple[int, Sequence[HistoryEntry]]:
        """Return the number of matches and one page of them. Waiting entries have a queue position."""
        keys, dialect = self._connectors.matching(query.doc_type) if query.doc_type else (None, None)
        if query.connector is not None:
            keys = tuple(key for key in (query.connector,) if keys is None or key in keys)
        if user.reached is not None:
            keys = tuple(key for key in user.reached if keys is None or key in keys)
        count, entries = await self._records.history(
            user.id,
            connectors=keys,
            dialect=dialect,
            text=query.text,
            is_active=query.is_active,
            offset=(query.page - 1) * query.limit,
            limit=query.limit,
        )
        return count, await asyncio.gather(*(with_queue_position(self._records, entry) for entry in entries))
