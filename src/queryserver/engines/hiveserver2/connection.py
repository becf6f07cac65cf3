"""One connection to a HiveServer2: one call at a time, each limited in time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from queryserver.engines.connections import Retries
from queryserver.engines.hiveserver2.errors import LOST_IN_TRANSIT, NOT_SENT, LoginRefused, WireLost
from queryserver.engines.hiveserver2.protocol.messages import (
    Method,
    ReplyT,
    RequestT,
    ServerException,
    decode_reply,
    encode_call,
)
from queryserver.engines.hiveserver2.transports import Expected, Overlong, Transport
from queryserver.engines.hiveserver2.variants import CELL_BYTES, Limits
from queryserver.errors.statements import EngineError, EngineUnavailable

REPLY_BYTES = 64 * 1024 * 1024
"""The longest answer that is kept, where no other limit is given."""


class Connection:
    """A PooledConnection.

    A caller who is cancelled leaves its call to itself: the connection waits for the answer and throws it away, for
    closing it would end the session that it opened.
    """

    def __init__(self, transport: Transport, *, most_bytes: int = REPLY_BYTES) -> None:
        self._transport = transport
        self._most_bytes = most_bytes
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._sequence = 0
        self._exchange: asyncio.Task[object] | None = None
        self._broken = False
        self.opened_session = False
        """Whether a session lives as long as this connection."""

    def is_closed(self) -> bool:
        """Whether no call can be made any more."""
        return self._broken or self._transport.is_closed()

    @property
    def is_busy(self) -> bool:
        """Whether a call is on its way, or waits for its turn."""
        return self._waiting > 0 or self._turn.locked()

    async def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        *,
        limit_s: float,
        largest_cell: int | None = None,
    ) -> ReplyT:
        """Send a call and wait for its answer. Raises WireLost, LoginRefused, ServerException, Overlong.

        With `largest_cell`, a limit in bytes, CellFound instead of Overlong where an answer has a larger cell; the
        connection is broken then.
        """
        await self._take_turn(limit_s)
        task = asyncio.create_task(self._carry_out(method, request, limit_s, largest_cell), name=method.name)
        self._exchange = task
        task.add_done_callback(self._end_turn)
        # By `wait`, since a task that `shut` cancels must not look like a caller who is cancelled.
        await asyncio.wait({task})
        if task.cancelled():
            raise WireLost(sent=True)
        return task.result()

    async def clean(self) -> bool:
        """Whether another session may have the connection."""
        return not (self.is_closed() or self.is_busy or self.opened_session)

    async def shut(self) -> None:
        """Close the connection; a call on its way is given up."""
        self._broken = True
        if self._exchange is not None and not self._exchange.done():
            self._exchange.cancel()
            await asyncio.wait({self._exchange})
        await self._transport.close()

    async def _take_turn(self, limit_s: float) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                await self._turn.acquire()
        except TimeoutError:
            raise WireLost(sent=False) from None
        finally:
            self._waiting -= 1

    async def _carry_out(
        self, method: Method[RequestT, ReplyT], request: RequestT, limit_s: float, largest_cell: int | None
    ) -> ReplyT:
        if self.is_closed():
            raise WireLost(sent=False)
        self._sequence = self._sequence % 0x7FFFFFFF + 1
        raw = encode_call(method, request, self._sequence)
        decode = partial(decode_reply, method, sequence=self._sequence)
        try:
            async with asyncio.timeout(limit_s):
                return await self._transport.exchange(raw, Expected(decode, self._most_bytes, largest_cell))
        except (LoginRefused, ServerException, Overlong):
            raise
        except LOST_IN_TRANSIT as error:
            self._broken = True
            is_sent = not isinstance(error, NOT_SENT)
            raise WireLost(sent=is_sent, timed_out=isinstance(error, TimeoutError)) from error
        except BaseException:  # a cancel too: the rest of the answer is unread
            self._broken = True
            raise

    def _end_turn(self, task: asyncio.Task[ReplyT]) -> None:
        self._turn.release()
        if self._exchange is task:
            # An answer may have 40 MiB; a connection that waits for its next call does not keep it.
            self._exchange = None
        if not task.cancelled():
            task.exception()


_MOST_CONNECTIONS = 3


class Wire:
    """Calls of one session. `more` gives another connection to the same member under the same login."""

    def __init__(
        self,
        opener: Connection,
        more: Callable[[], Awaitable[Connection]],
        limits: Limits,
        cell_max_bytes: int = CELL_BYTES,
    ) -> None:
        self.limits = limits
        self.cell_max_bytes = cell_max_bytes
        self._opener = opener
        self._more = more
        self._connections = [opener]
        self._growing = asyncio.Lock()
        self._is_released = False

    @property
    def is_connected(self) -> bool:
        """Whether the connection that the session lives with is still there."""
        return not self._opener.is_closed()

    @property
    def is_released(self) -> bool:
        """Whether no calls can be made any more."""
        return self._is_released

    async def call(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        *,
        limit_s: float,
        largest_cell: int | None = None,
    ) -> ReplyT:
        """Make a call on a connection that is free. Raises as Connection.call.

        `limit_s` is for the wait for a connection, for that for its turn, and for the answer.
        """
        try:
            async with asyncio.timeout(limit_s):
                connection = self._idle() or await self._another()
        except TimeoutError:
            raise WireLost(sent=False) from None
        self._check_kept()
        return await connection.call(method, request, limit_s=limit_s, largest_cell=largest_cell)

    async def call_until_answered(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float
    ) -> ReplyT:
        """As `call`, repeated over new connections while the network is broken, for `limits.retry_s` at most.

        Only for calls that have the same effect when the server receives them twice.
        """
        retries: Retries | None = None
        while True:
            try:
                return await self.call(method, request, limit_s=limit_s)
            except WireLost as error:
                retries = retries or Retries(self.limits.retry_s)
                if error.is_refused or self._is_released or not await retries.pause():
                    raise

    async def call_opener(self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float) -> ReplyT:
        """Make a call that only the session's own connection may make."""
        self._check_kept()
        return await self._opener.call(method, request, limit_s=limit_s)

    def release(self) -> list[Connection]:
        """All connections; the wire has none afterwards, and makes no calls."""
        self._is_released = True
        connections, self._connections = self._connections, []
        return connections

    def _idle(self) -> Connection | None:
        return next((one for one in self._connections if not one.is_busy and not one.is_closed()), None)

    async def _another(self) -> Connection:
        """One more connection; the least bad of the present ones when there are enough, or none can be made."""
        async with self._growing:
            self._check_kept()
            if idle := self._idle():
                return idle
            living = [one for one in self._connections if not one.is_closed()]
            if len(living) >= _MOST_CONNECTIONS:
                return living[-1]
            try:
                connection = await self._more()
            except EngineError as error:
                if not living:
                    is_refused = not isinstance(error, EngineUnavailable)
                    raise WireLost(sent=False, is_refused=is_refused) from None
                return living[-1]
            if self._is_released:
                # Nobody else would close it.
                await connection.shut()
                raise WireLost(sent=False)
            self._connections.append(connection)
            await self._shut_broken()
            return connection

    async def _shut_broken(self) -> None:
        """A connection that broke still has its socket."""
        for broken in [one for one in self._connections if one is not self._opener and one.is_closed()]:
            await broken.shut()
            self._connections = [one for one in self._connections if one is not broken]

    def _check_kept(self) -> None:
        """The connections of a session that was left may already serve another one."""
        if self._is_released:
            raise WireLost(sent=False)


class BackgroundTasks:
    """Tasks with an owner. Each limits its own time; nobody has to wait for one."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Whoever waits for the task shields it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, *, grace_s: float) -> None:
        """Wait for what is under way; what still is after `grace_s` is cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
