"""Implements the engine for one MySQL or MariaDB server."""

import asyncio
import re
import ssl as tls
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from queryserver.engines.catalog_queries import backquoted, read_rows
from queryserver.engines.connections import DatabaseLogin, connect_first
from queryserver.engines.mysql.catalog import MysqlCatalog
from queryserver.engines.mysql.connection import MysqlConnection, MysqlStatement, connect_errors
from queryserver.engines.mysql.loader import MysqlLoader
from queryserver.engines.protocol import Catalog, EngineCapabilities, SessionOptions, TableLoader
from queryserver.engines.sessions import DatabaseAddress, PooledSessions, StreamedSession
from queryserver.identity.model import User
from queryserver.sql.literals import MYSQL
from queryserver.sql.literals import mysql_text as literal


@dataclass(frozen=True, slots=True)
class MysqlAddress(DatabaseAddress):
    """The address of one server.

    If `ssl` is None, connections are unencrypted and never send passwords in clear text.
    """

    product: ClassVar[str] = "MySQL"
    ssl: tls.SSLContext | None = None
    read_timeout_s: int | None = None
    """How long a read may wait for data. None, the default, sets no limit, because a statement may take any time."""

    async def connect(self, login: DatabaseLogin) -> MysqlConnection:
        """Open a connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database)."""
        hosts = await self.rules.resolve(self.host, self.port)
        limit_s = self.connect_timeout_s / len(hosts)
        return await connect_first(hosts, lambda host: self._connect_to(host, login, limit_s))

    async def _connect_to(self, host: str, login: DatabaseLogin, limit_s: float) -> MysqlConnection:
        with connect_errors():
            connection = MysqlConnection(
                is_private=self.ssl is not None,
                host=host,
                port=self.port,
                user=login.user,
                password=login.password.encode(),
                database=login.database,
                ssl=self.ssl,
                program_name="queryserver",
                connect_timeout=limit_s,
                read_timeout=self.read_timeout_s,
            )
            try:
                async with asyncio.timeout(limit_s):
                    await connection.connect()
                    await connection.set_up()
                connection.cell_max_bytes = self.cell_max_bytes
            except BaseException:  # the connection must not stay open after any failure
                connection.close()
                raise
        return connection


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class MysqlEngine:
    """Runs statements on one server. `SessionOptions.database` is a database name."""

    dialect = "mysql"
    lists_functions = True

    def __init__(self, address: MysqlAddress, *, tags: bool = True, read_only: bool = False) -> None:
        self._address = address
        self._tags = tags
        self._read_only = read_only
        self._sessions = PooledSessions("mysql", address.connect, connect_errors, idle_s=address.idle_s)
        self.capabilities = EngineCapabilities(
            wants_credentials=address.user is None,
            endpoints=((address.host, address.port),),
            parameters=MYSQL.support,
            enforces_read_only=True,
        )

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[StreamedSession]:  # noqa: ARG002 MySQL only has the login
        """Open a session in the database given by `options`. Leaving the context cancels a running statement."""
        login = self._login(options)
        interrupt = partial(self._interrupt, login)
        new_statement = partial(MysqlStatement, interrupt_thread=interrupt, tags=self._tags, read_only=self._read_only)
        return self._sessions.session(login, new_statement, partial(_prepare, options))

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            ((version,),) = await read_rows(session, "SELECT VERSION()")
            yield MysqlCatalog(session, mariadb="mariadb" in str(version).lower())

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        async with self.session(user, options) as session:
            fresh_session = partial(self.session, user, options)
            yield MysqlLoader(session, self._sessions.executor, fresh_session, read_only=self._read_only)

    async def ping(self) -> None:
        await self._sessions.call(self._login(SessionOptions()), lambda connection: connection.run("DO 0"))

    async def close(self) -> None:
        await self._sessions.close()

    def _login(self, options: SessionOptions) -> DatabaseLogin:
        database = options.database if options.database is not None else self._address.database
        return replace(self._address.login(options.credentials), database=database)

    async def _interrupt(self, login: DatabaseLogin, thread_id: int) -> None:
        """Cancel a statement through another connection of the same user, whose database does not matter."""
        anywhere = replace(login, database=self._address.database)
        await self._sessions.interrupt(anywhere, lambda connection: connection.run(f"KILL QUERY {thread_id:d}"))


async def _prepare(options: SessionOptions, connection: MysqlConnection) -> None:
    """Apply the settings. Names are quoted and strings are hexadecimal, which is valid in every `sql_mode`."""
    if options.settings:
        texts = {name: text if _NUMBER.fullmatch(text) else literal(text) for name, text in options.settings.items()}
        connection.may_read_otherwise = True
        await connection.run(f"SET {', '.join(f'SESSION {backquoted(name)} = {text}' for name, text in texts.items())}")
