"""Looking at statements without touching an engine (Contract editor 4.2, 7.1, 8.1)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from queryserver.db.statements.records import StatementRecords
from queryserver.domain.errors.statements import OperationNotFound
from queryserver.domain.statement import LogPage, StatementRecord, StatementStatus
from queryserver.domain.user import User
from queryserver.services.signals import StateSignals, Watch
from queryserver.services.statements.access import Access
from queryserver.services.streams import StreamPlace, Streams

# Another instance may run the statement: its changes are found by looking, at most this far apart.
_LOOK_EVERY_S = 0.5
_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A look at a statement with the log lines since the last one."""

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
        status = await self._access.follow(user, operation_id)
        if wait_s > 0 and not status.state.is_terminal:
            with self._streams.place(user) as place:
                status = await self.awaited(status, wait_s, place)
        return await self.placed(status)

    async def placed(self, status: StatementStatus) -> StatementStatus:
        """The same with its place in the queue, while it waits for one; for others no query is needed."""
        if not status.is_queued:
            return status
        return replace(status, queue_position=await self._records.queue_position(status.id))

    async def awaited(self, status: StatementStatus, wait_s: float, place: StreamPlace) -> StatementStatus:
        """As `settled`, while the user of the place may follow the statement. Raises as `StreamPlace.recheck`."""
        return await self.settled(status, wait_s, recheck=self._recheck(status, place))

    def _recheck(self, status: StatementStatus, place: StreamPlace) -> Callable[[], Awaitable[None]]:
        return partial(place.recheck, lambda user: self._access.require_follower(user, status))

    async def settled(
        self, status: StatementStatus, wait_s: float, *, recheck: Callable[[], Awaitable[None]] | None = None
    ) -> StatementStatus:
        """The first terminal status within `wait_s`, else the last one seen. Raises what `recheck` raises."""
        give_up = asyncio.get_running_loop().time() + wait_s
        with self._signals.watch(status.id) as watch:
            while True:
                status = await self._look(status.id)
                left_s = give_up - asyncio.get_running_loop().time()
                if status.state.is_terminal or left_s <= 0 or self._signals.waits_are_over:
                    return status
                await watch.changed(min(left_s, _LOOK_EVERY_S))
                if recheck is not None:
                    await recheck()

    async def record(self, user: User, operation_id: UUID) -> StatementRecord:
        """The whole record. Raises OperationNotFound, PermissionDenied."""
        return await self._access.record(user, operation_id)

    async def logs(
        self, user: User, operation_id: UUID, *, start: int = 0, size: int | None = None
    ) -> tuple[StatementStatus, LogPage]:
        """The log from line `start` on. Raises OperationNotFound, PermissionDenied."""
        status = await self.placed(await self._access.follow(user, operation_id))
        return status, await self._records.logs(operation_id, start=start, size=size)

    async def progress(
        self, status: StatementStatus, place: StreamPlace, *, log_from: int, until_s: float
    ) -> AsyncGenerator[Progress]:
        """A look now, at every change of state, and else once a second; ends after the terminal state or `until_s`.

        Raises as `StreamPlace.recheck` once the user of the place may not follow the statement any more.
        """
        recheck = self._recheck(status, place)
        give_up = asyncio.get_running_loop().time() + until_s
        with self._signals.watch(status.id) as watch:
            while True:
                status = await self._look(status.id)
                log = await self._records.logs(status.id, start=log_from, size=None)
                log_from = log.start + len(log.lines)
                yield Progress(status, log)
                over = self._signals.waits_are_over or asyncio.get_running_loop().time() >= give_up
                if status.state.is_terminal or over:
                    return
                await self._state_changed(status, watch, within_s=_LOOK_AGAIN_S)
                await recheck()

    async def _state_changed(self, status: StatementStatus, watch: Watch, *, within_s: float) -> None:
        """Return once the state is another, or after `within_s`: rows and log lines that arrive meanwhile can wait."""
        give_up = asyncio.get_running_loop().time() + within_s
        while (left_s := give_up - asyncio.get_running_loop().time()) > 0:
            await watch.changed(min(left_s, _LOOK_EVERY_S))
            if self._signals.waits_are_over or (await self._look(status.id)).state is not status.state:
                return

    async def _look(self, operation_id: UUID) -> StatementStatus:
        status = await self._records.status(operation_id)
        if status is None:
            raise OperationNotFound(str(operation_id))
        return status
