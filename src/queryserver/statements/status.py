"""Access to statements, their status and logs, cancel and close, history (Contract editor 1.6, 3, 7)."""

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from queryserver.connectors.registry import Connectors
from queryserver.errors.statements import OperationNotFound
from queryserver.identity.limits import StreamPlace, Streams
from queryserver.identity.model import User
from queryserver.statements.dispatcher import StatementDispatcher
from queryserver.statements.model import HistoryEntry, LogPage, StatementRecord, StatementStatus
from queryserver.statements.repository import StatementRecords
from queryserver.statements.signals import StateSignals, Watch
from queryserver.statements.states import StatementState

_LONGEST_ID_SHOWN = 64
_PROGRESS_EVERY_S = 1.0
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class Access:
    """Finds operations for callers. Unknown, malformed and foreign ids give the same OperationNotFound."""

    def __init__(self, records: StatementRecords, connectors: Connectors) -> None:
        self._records = records
        self._connectors = connectors

    async def id_of(self, user: User, operation_id: str | None, guid: str | None) -> UUID:
        """The operation that a caller names, by id or by the `guid` of its handle.

        An id may still belong to another user. A guid does not: no error may show the id behind a foreign guid.
        Raises OperationNotFound.
        """
        if operation_id is None and guid is not None:
            found = await self._records.id_of_guid(guid, user_id=None if user.is_admin else user.id)
            if found is None:
                raise OperationNotFound(guid[:_LONGEST_ID_SHOWN])
            return found
        return parse_operation_id(operation_id or "")

    async def follow(self, user: User, operation_id: UUID) -> StatementStatus:
        """The status, for the owner and for administrators. Raises OperationNotFound, PermissionDenied."""
        status = await self.end(user, operation_id)
        self._connectors.require_permission(user, status.connector)
        return status

    async def end(self, user: User, operation_id: UUID) -> StatementStatus:
        """For who may cancel: owners, also without permission, and administrators. Raises OperationNotFound."""
        status = await self._records.status(operation_id)
        if status is None or not _is_seen(user, status, by_admin=True):
            raise OperationNotFound(str(operation_id))
        return status

    def require_follower(self, user: User, status: StatementStatus) -> None:
        """Raises OperationNotFound, PermissionDenied when the user may not, or may no longer, follow the operation."""
        if not _is_seen(user, status, by_admin=True):
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)

    async def own(self, user: User, operation_id: UUID) -> StatementRecord:
        """The record, for the owner only. Raises OperationNotFound, PermissionDenied."""
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        self.require_owner(user, record.status)
        return record

    async def record(self, user: User, operation_id: UUID) -> StatementRecord:
        """The record, for the owner and for administrators. Raises OperationNotFound, PermissionDenied."""
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        self.require_follower(user, record.status)
        return record

    def require_owner(self, user: User, status: StatementStatus) -> None:
        """Results are for the owner only, administrators included. Raises OperationNotFound, PermissionDenied."""
        if not _is_seen(user, status, by_admin=False):
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)


def _is_seen(user: User, status: StatementStatus, *, by_admin: bool) -> bool:
    """A token that is limited to other connectors sees the operation in no call (ADR 62)."""
    return (status.user_id == user.id or (by_admin and user.is_admin)) and user.reaches(status.connector)


def parse_operation_id(text: str) -> UUID:
    """A UUID in its usual form. Raises OperationNotFound."""
    if not _UUID.fullmatch(text):
        # UUID() would read more: braces, `urn:uuid:`, hyphens anywhere or nowhere.
        raise OperationNotFound(text[:_LONGEST_ID_SHOWN])
    return UUID(text)


Queued = TypeVar("Queued", StatementStatus, HistoryEntry)


async def placed(records: StatementRecords, one: Queued) -> Queued:
    """The same with its place in the queue while it waits for a free slot of its connector; else no query."""
    if one.state is not StatementState.WAITING or one.times.started is not None:
        return one
    return replace(one, queue_position=await records.queue_position(one.id))


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """The status of a statement, with the log lines since the last one."""

    status: StatementStatus
    log: LogPage


class Following:
    """Status, logs and waiting."""

    def __init__(self, records: StatementRecords, access: Access, signals: StateSignals, streams: Streams) -> None:
        self._records = records
        self._access = access
        self._signals = signals
        self._streams = streams

    async def status(self, user: User, operation_id: UUID, *, wait_s: float = 0) -> StatementStatus:
        """The present status, or the first terminal one within `wait_s`.

        Raises OperationNotFound, PermissionDenied, and with a wait TooManyStreams and as `StreamPlace.recheck`.
        """
        if wait_s <= 0:
            return await self.placed(await self._access.follow(user, operation_id))
        with self._signals.watch(operation_id, ends_only=True) as watch:
            status = await self._access.follow(user, operation_id)
            if not status.state.is_terminal:
                with self._streams.place(user) as place:
                    status = await self.settled(status, wait_s, watch, place)
        return await self.placed(status)

    async def placed(self, status: StatementStatus) -> StatementStatus:
        """The same with its place in the queue."""
        return await placed(self._records, status)

    async def awaited(self, status: StatementStatus, wait_s: float, place: StreamPlace) -> StatementStatus:
        """The first terminal status within `wait_s` of a statement that was just recorded, else the last one.

        Raises as `StreamPlace.recheck` once the user of `place` may no longer follow the statement.
        """
        with self._signals.watch(status.id, ends_only=True) as watch:
            return await self.settled(status, wait_s, watch, place)

    async def _recheck(self, status: StatementStatus, place: StreamPlace) -> None:
        await place.recheck(lambda user: self._access.require_follower(user, status))

    async def settled(
        self, status: StatementStatus, wait_s: float, watch: Watch, place: StreamPlace | None = None
    ) -> StatementStatus:
        """The first terminal status within `wait_s`, else the last one. Raises as `StreamPlace.recheck`.

        `status` was read since `watch` began, or the statement cannot have changed before. A wait reads nothing until
        the statement changes, but the rights of the user when they are due.
        """
        now = asyncio.get_running_loop().time
        give_up = now() + wait_s
        while not (status.state.is_terminal or self._signals.waits_are_over):
            left_s = give_up - now()
            if left_s <= 0:
                break
            has_changed = await watch.came(left_s if place is None else min(left_s, place.due_in_s))
            if place is not None:
                await self._recheck(status, place)
            if has_changed or now() >= give_up:
                status = await self._read(status.id)
        return status

    def record(self, user: User, operation_id: UUID) -> Coroutine[Any, Any, StatementRecord]:
        """The whole record. Raises OperationNotFound, PermissionDenied."""
        return self._access.record(user, operation_id)

    async def logs(
        self, user: User, operation_id: UUID, *, start: int = 0, size: int | None = None
    ) -> tuple[StatementStatus, LogPage]:
        """The log from line `start` on. Raises OperationNotFound, PermissionDenied."""
        status = await self.placed(await self._access.follow(user, operation_id))
        return status, await self._records.logs(operation_id, start=start, size=size)

    async def progress(
        self, status: StatementStatus, place: StreamPlace, *, log_from: int, until_s: float
    ) -> AsyncGenerator[StatementProgress]:
        """The progress now, at every change of state, and once a second; ends after the terminal state or `until_s`.

        Raises as `StreamPlace.recheck` once the user of `place` may no longer follow the statement.
        """
        give_up = asyncio.get_running_loop().time() + until_s
        with self._signals.watch(status.id) as watch:
            while True:
                status = await self._read(status.id)
                watch.seen = status.state
                log = await self._records.logs(status.id, start=log_from, size=None)
                log_from = log.start + len(log.lines)
                yield StatementProgress(status, log)
                is_over = self._signals.waits_are_over or asyncio.get_running_loop().time() >= give_up
                if status.state.is_terminal or is_over:
                    return
                # Rows and log lines that arrive before the state changes can wait for the next round.
                next_round = asyncio.get_running_loop().time() + _PROGRESS_EVERY_S
                while (left_s := next_round - asyncio.get_running_loop().time()) > 0:
                    if not await watch.came(left_s):
                        break
                    if self._signals.waits_are_over or (await self._read(status.id)).state is not status.state:
                        break
                await self._recheck(status, place)

    async def _read(self, operation_id: UUID) -> StatementStatus:
        status = await self._records.status(operation_id)
        if status is None:
            raise OperationNotFound(str(operation_id))
        return status


@dataclass(slots=True, eq=False, kw_only=True)
class Ending:
    """Cancel and close. Both may be repeated."""

    records: StatementRecords
    access: Access
    following: Following
    dispatcher: StatementDispatcher
    signals: StateSignals
    cancel_wait: timedelta

    async def cancel(self, user: User, operation_id: UUID) -> StatementStatus:
        """Stop a statement and wait at most `cancel_wait` for the confirmation. Raises OperationNotFound."""
        status = await self.access.end(user, operation_id)
        if status.state.is_terminal:
            return status
        return await self.stop(status, by=user.username)

    async def stop(self, status: StatementStatus, *, by: str) -> StatementStatus:
        """The same, for a statement that the caller may stop."""
        with self.signals.watch(status.id, ends_only=True) as watch:
            status = await self.records.request_cancel(status.id, by=by) or status
            await self.dispatcher.cancel(status.id, owner=status.owner)
            self.signals.notify(status.id)
            return await self.following.settled(status, self.cancel_wait.total_seconds(), watch)

    async def close(self, user: User, operation_id: UUID) -> StatementState:
        """Delete the result now, or stop the statement. Answers the state before. Raises OperationNotFound."""
        status = settled = await self.access.end(user, operation_id)
        if not status.state.is_terminal:
            settled = await self.stop(status, by=user.username)
        # Statements of a script that failed, or was stopped, may have results.
        if settled.state is StatementState.AVAILABLE or status.is_script:
            await self.records.close_result(operation_id)
            self.signals.notify(operation_id)
        return status.state


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which entries of the history a caller wants; `page` counts from 1."""

    doc_type: str | None = None
    text: str | None = None
    connector: str | None = None
    is_active: bool = False
    """Only those that wait or run."""
    page: int = 1
    limit: int = 50


class History:
    """Only the caller's own statements, newest first, and only of the connectors that the caller's token reaches."""

    def __init__(self, records: StatementRecords, connectors: Connectors) -> None:
        self._records = records
        self._connectors = connectors

    async def page(self, user: User, query: HistoryQuery) -> tuple[int, Sequence[HistoryEntry]]:
        """How many entries match, and one page of them; waiting ones with their place in the queue."""
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
        return count, await asyncio.gather(*(placed(self._records, entry) for entry in entries))
