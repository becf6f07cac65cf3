"""The connections of one session: calls about it may use any of them, but it lives as long as its opener."""

import asyncio
from collections.abc import Awaitable, Callable

from queryserver.domain.errors.statements import EngineError, EngineUnavailable
from queryserver.engines.hiveserver2.address import CELL_BYTES, Limits
from queryserver.engines.hiveserver2.connection import Connection
from queryserver.engines.hiveserver2.errors import WireLost
from queryserver.engines.hiveserver2.protocol.methods import Method, ReplyT, RequestT
from queryserver.engines.retrying import Retries

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
