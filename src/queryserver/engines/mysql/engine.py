"""One MySQL or MariaDB server as an Engine."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from queryserver.domain.errors import EngineError
from queryserver.domain.user import User
from queryserver.engines.connection_pool import ConnectionPool
from queryserver.engines.mysql.address import Login, MysqlAddress
from queryserver.engines.mysql.catalog import MysqlCatalog, is_mariadb
from queryserver.engines.mysql.errors import connect_errors
from queryserver.engines.mysql.quoting import literal, quoted
from queryserver.engines.mysql.statement import MysqlStatement
from queryserver.engines.mysql.wire import Connection
from queryserver.engines.streamed_session import StreamedSession
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import EngineCapabilities, SessionOptions

_CONVERTER_THREADS = 2
_INTERRUPT_S = 5.0
_PING_S = 5.0
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class MysqlEngine:
    """Statements on one server. `SessionOptions.database` names a database."""

    def __init__(self, address: MysqlAddress, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._pool = ConnectionPool(address.connect, max_idle=address.max_idle, idle_s=address.idle_s)
        self._executor = ThreadPoolExecutor(_CONVERTER_THREADS, thread_name_prefix="mysql")

    @property
    def dialect(self) -> str:
        return "mysql"

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(explain_prefix="EXPLAIN ", wants_credentials=self._address.user is None)

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:  # noqa: ARG002 MySQL knows the login only
        """A session in the database of `options`; leaving it stops what still runs in it."""
        login = self._address.login(options)
        connection = await self._pool.take(login)
        interrupt = partial(self._interrupt, login)
        session = StreamedSession(
            lambda sql: MysqlStatement(connection, sql, interrupt, read_only=self._read_only),
            is_connected=lambda: not connection.is_closed(),
            executor=self._executor,
        )
        try:
            if options.settings:
                with connect_errors():
                    await connection.run(_set(options.settings))
            yield session
        finally:
            await asyncio.shield(self._leave(login, connection, session))

    @property
    def lists_functions(self) -> bool:
        """See CatalogEngine."""
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        """See CatalogEngine."""
        async with self.session(user, options) as session:
            yield MysqlCatalog(session, mariadb=await is_mariadb(session))

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        async with self._pool.borrowed(self._address.login(SessionOptions())) as connection:
            with connect_errors():
                async with asyncio.timeout(_PING_S):
                    await connection.run("DO 0")

    async def close(self) -> None:
        await self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _leave(self, login: Login, connection: Connection, session: StreamedSession) -> None:
        await session.leave()
        if session.is_reusable:
            await self._pool.give_back(login, connection)
        else:
            await connection.shut()

    async def _interrupt(self, login: Login, thread_id: int) -> None:
        """Send the stop signal from a second connection; the same user may do so. A failure is for another try."""
        with suppress(EngineError, TimeoutError):
            async with (
                asyncio.timeout(_INTERRUPT_S),
                self._pool.borrowed(replace(login, database=self._address.database)) as connection,
            ):
                with connect_errors():
                    await connection.run(f"KILL QUERY {thread_id:d}")


def _set(settings: Mapping[str, str]) -> str:
    """A SET statement. Names are quoted; texts are hexadecimal, which reads the same in every `sql_mode`."""
    parts = [f"SESSION {quoted(key)} = {_value(text)}" for key, text in settings.items()]
    return f"SET {', '.join(parts)}"


def _value(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text
    return literal(text)
