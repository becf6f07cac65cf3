"""Sessions over pooled connections: what the engines with asyncio drivers share."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Generic

from queryserver.domain.errors.statements import EngineError
from queryserver.engines.connection_pool import ConnectionPool, ConnectionT, LoginT
from queryserver.engines.streamed_operation import StatementSource
from queryserver.engines.streamed_session import StreamedSession

_CONVERTER_THREADS = 2
CALL_S = 5.0
_INTERRUPT_S = 5.0
_PREPARE_S = 30.0


class PooledSessions(Generic[LoginT, ConnectionT]):
    """The sessions of one engine; owns its connections, and the threads that turn rows into Arrow.

    Inside `connect_errors` the driver's errors become EngineUnavailable, CredentialsRequired or StatementRejected.
    """

    def __init__(
        self,
        dialect: str,
        pool: ConnectionPool[LoginT, ConnectionT],
        connect_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._pool = pool
        self._connect_errors = connect_errors
        self._executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix=dialect)

    @asynccontextmanager
    async def session(
        self,
        login: LoginT,
        new_source: Callable[[ConnectionT, str], StatementSource],
        prepare: Callable[[ConnectionT], Awaitable[None]],
    ) -> AsyncGenerator[StreamedSession]:
        """A session on a clean connection, made ready by `prepare`; leaving it stops what still runs in it."""
        connection = await self._pool.take(login)
        session = StreamedSession(
            partial(new_source, connection),
            is_connected=lambda: not connection.is_closed(),
            executor=self._executor,
        )
        try:
            await self._limited(prepare(connection), _PREPARE_S)
            yield session
        finally:
            await asyncio.shield(self._leave(login, connection, session))

    @asynccontextmanager
    async def connection(
        self, login: LoginT, prepare: Callable[[ConnectionT], Awaitable[None]]
    ) -> AsyncGenerator[tuple[ConnectionT, Executor]]:
        """A clean connection made ready by `prepare`, without a session, and threads for what it reads or writes.

        What raises out of the block puts the connection in doubt.
        """
        async with self._pool.borrowed(login) as connection:
            await self._limited(prepare(connection), _PREPARE_S)
            yield connection, self._executor

    async def call(
        self, login: LoginT, work: Callable[[ConnectionT], Awaitable[None]], *, within_s: float = CALL_S
    ) -> None:
        """A few words on a connection that no session has. Raises what `connect_errors` makes of a failure."""
        async with self._pool.borrowed(login) as connection:
            await self._limited(work(connection), within_s)

    async def interrupt(self, login: LoginT, signal: Callable[[ConnectionT], Awaitable[None]]) -> None:
        """Send the stop signal from a second connection. A failure is for another try."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_INTERRUPT_S):
                await self.call(login, signal)

    async def close(self) -> None:
        """Close what is idle; connections in use are closed when their sessions end. Idempotent."""
        await self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _limited(self, work: Awaitable[None], for_s: float) -> None:
        with self._connect_errors():
            async with asyncio.timeout(for_s):
                await work

    async def _leave(self, login: LoginT, connection: ConnectionT, session: StreamedSession) -> None:
        await session.leave()
        if session.is_reusable:
            await self._pool.give_back(login, connection)
        else:
            await connection.shut()
