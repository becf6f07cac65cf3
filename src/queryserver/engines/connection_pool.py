"""Connections that are logged in and clean, ready for the next session: a login costs several round trips."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from queryserver.domain.errors.statements import EngineUnavailable


class PooledConnection(Protocol):
    """What the pool asks of a connection. None of it raises."""

    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    async def clean(self) -> bool:
        """Make the connection as it was after its login; False when there is any doubt. Limited in time."""
        ...

    async def shut(self) -> None:
        """Close the connection. Limited in time."""
        ...


LoginT = TypeVar("LoginT")
ConnectionT = TypeVar("ConnectionT", bound=PooledConnection)


class ConnectionPool(Generic[LoginT, ConnectionT]):
    """Idle connections by login; one is never handed to another login.

    At most `max_idle` wait, each at most `idle_s`. How many are in use at once is the callers' affair.
    """

    def __init__(self, connect: Callable[[LoginT], Awaitable[ConnectionT]], *, max_idle: int, idle_s: float) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: deque[tuple[float, LoginT, ConnectionT]] = deque()
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self, login: LoginT) -> ConnectionT:
        """A clean connection, the one used last if there is one.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).
        """
        if self._closed:
            raise EngineUnavailable("This connector is closed.")
        while (connection := self._pop(login)) is not None:
            if not connection.is_closed():
                return connection
            # The other side closed it: our end still has its socket.
            await connection.shut()
        return await self._connect(login)

    async def give_back(self, login: LoginT, connection: ConnectionT) -> None:
        """Keep the connection for the next session, or close it: when it is in doubt, or enough are idle."""
        is_kept = False
        try:
            # Asked again afterwards: cleaning may take round trips.
            is_kept = self._has_room and await connection.clean() and self._has_room
        finally:
            if not is_kept:
                await connection.shut()
        if is_kept:
            self._keep(login, connection)

    @asynccontextmanager
    async def borrowed(self, login: LoginT) -> AsyncGenerator[ConnectionT]:
        """A clean connection for one call; any exception puts it in doubt. Raises as `take`."""
        connection = await self.take(login)
        try:
            yield connection
        except BaseException:  # a cancel too: the connection is in doubt
            await connection.shut()
            raise
        await self.give_back(login, connection)

    async def close(self) -> None:
        """Close all idle connections; those in use are closed when they come back. Idempotent."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        while self._idle:
            await self._idle.pop()[2].shut()

    @property
    def _has_room(self) -> bool:
        return not self._closed and len(self._idle) < self._max_idle

    def _keep(self, login: LoginT, connection: ConnectionT) -> None:
        self._idle.append((time.monotonic(), login, connection))
        if self._reaper is None or self._reaper.done():
            self._reaper = asyncio.create_task(self._reap(), name="idle connections")

    def _pop(self, login: LoginT) -> ConnectionT | None:
        """The connection of `login` that was used last."""
        for position in reversed(range(len(self._idle))):
            _, owner, connection = self._idle[position]
            if owner == login:
                del self._idle[position]
                return connection
        return None

    async def _reap(self) -> None:
        """Close what nobody took for `idle_s`; ends when none is left."""
        while self._idle:
            rest_s = self._idle[0][0] + self._idle_s - time.monotonic()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            else:
                await self._idle.popleft()[2].shut()
