"""One MySQL or MariaDB server as an Engine."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from queryserver.domain.user import User
from queryserver.engines.connection_pool import ConnectionPool
from queryserver.engines.mysql.address import Login, MysqlAddress
from queryserver.engines.mysql.catalog import MysqlCatalog, is_mariadb
from queryserver.engines.mysql.errors import connect_errors
from queryserver.engines.mysql.loading import DROP_S, LoaderSurroundings, MysqlLoader
from queryserver.engines.mysql.quoting import literal, quoted
from queryserver.engines.mysql.statement import MysqlStatement
from queryserver.engines.mysql.wire import Connection
from queryserver.engines.pooled_sessions import PooledSessions
from queryserver.engines.streamed_session import StreamedSession
from queryserver.interfaces.catalog import Catalog
from queryserver.interfaces.engine import EngineCapabilities, SessionOptions
from queryserver.interfaces.loading import TableLoader

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class MysqlEngine:
    """Statements on one server. `SessionOptions.database` names a database."""

    def __init__(self, address: MysqlAddress, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        pool = ConnectionPool(address.connect, max_idle=address.max_idle, idle_s=address.idle_s)
        self._sessions = PooledSessions("mysql", pool, connect_errors)
        self._capabilities = EngineCapabilities(
            explain_prefix="EXPLAIN ",
            wants_credentials=self._address.user is None,
            places=((self._address.host, self._address.port),),
        )

    @property
    def dialect(self) -> str:
        return "mysql"

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:  # noqa: ARG002 MySQL knows the login only
        """A session in the database of `options`; leaving it stops what still runs in it."""
        login = self._address.login(options)
        new_source = partial(self._statement, partial(self._interrupt, login))
        async with self._sessions.session(login, new_source, partial(_prepare, options)) as session:
            yield session

    @property
    def lists_functions(self) -> bool:
        """See CatalogEngine."""
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        """See CatalogEngine."""
        async with self.session(user, options) as session:
            yield MysqlCatalog(session, mariadb=await is_mariadb(session))

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:  # noqa: ARG002 as `session`
        """See LoadingEngine."""
        login = self._address.login(options)
        around = LoaderSurroundings(
            partial(self._interrupt, login), partial(self._sessions.call, login, within_s=DROP_S)
        )
        async with self._sessions.connection(login, partial(_prepare, options)) as (connection, executor):
            yield MysqlLoader(connection, executor, around, read_only=self._read_only)

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        await self._sessions.call(self._address.login(SessionOptions()), lambda connection: connection.run("DO 0"))

    async def close(self) -> None:
        await self._sessions.close()

    def _statement(
        self, interrupt: Callable[[int], Awaitable[None]], connection: Connection, sql: str
    ) -> MysqlStatement:
        return MysqlStatement(connection, sql, interrupt, read_only=self._read_only)

    async def _interrupt(self, login: Login, thread_id: int) -> None:
        """The same user may stop its statements, from whichever database."""
        anywhere = replace(login, database=self._address.database)
        await self._sessions.interrupt(anywhere, lambda connection: connection.run(f"KILL QUERY {thread_id:d}"))


async def _prepare(options: SessionOptions, connection: Connection) -> None:
    if options.settings:
        await connection.run(_set(options.settings))


def _set(settings: Mapping[str, str]) -> str:
    """A SET statement. Names are quoted; texts are hexadecimal, which reads the same in every `sql_mode`."""
    parts = [f"SESSION {quoted(key)} = {_value(text)}" for key, text in settings.items()]
    return f"SET {', '.join(parts)}"


def _value(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text
    return literal(text)
