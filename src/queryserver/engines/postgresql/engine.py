"""One PostgreSQL database as an Engine."""

import asyncio
import hmac
import re
import secrets
import ssl as tls
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import asyncpg
import pyarrow as pa
from asyncpg.cursor import Cursor
from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.connections import ConnectionPool
from queryserver.engines.postgresql.catalog import PostgresqlCatalog
from queryserver.engines.postgresql.catalog_sql import literal
from queryserver.engines.postgresql.connection import Connection, Field, connect_errors, refusals, statement_errors
from queryserver.engines.postgresql.loading import PostgresqlLoader
from queryserver.engines.postgresql.own_database import OwnDatabase
from queryserver.engines.postgresql.values import (
    NESTED,
    DeclaredType,
    Kind,
    Unfit,
    columns,
    declare,
    dimensions_of,
    native_as_text,
    read_native,
    read_nested,
    with_fields,
)
from queryserver.engines.protocol import Catalog, Credentials, EngineCapabilities, SessionOptions, TableLoader
from queryserver.engines.sessions import PooledSessions, Rows, StreamedSession
from queryserver.engines.statement_texts import KeptLines, first_keyword
from queryserver.engines.threaded import lower_priority
from queryserver.errors.statements import CredentialsRequired, EngineError, StatementRejected
from queryserver.formats.columns import Column
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules


class Portal:
    """Open from `start` until its last row is read or `end` is called."""

    def __init__(self, connection: Connection, statement: PreparedStatement, columns: Sequence[str] = ()) -> None:
        self._connection = connection
        self._statement = statement
        self._columns = columns
        self._cursor: Cursor | None = None
        self._owns_transaction = False
        self._in_use = asyncio.Lock()
        self.is_open = True
        self.rows_read = 0

    async def start(self) -> None:
        """Open the transaction. Nothing is executed before the first `fetch`. Raises as `statement_errors`."""
        with statement_errors(started=False):
            if not self._connection.is_in_transaction():
                await self._connection.execute("BEGIN")
                self._owns_transaction = True

    async def fetch(self, count: int) -> Rows:
        """Up to `count` rows, and only as many as weigh some MiB. After the last ones the statement is committed.

        Raises cell_too_large, RowTooLarge.
        """
        async with self._in_use:
            if not self.is_open:
                return ()
            rows = await self._next(count)
            self.rows_read += len(rows)
            if not self._connection.guard.was_cut and len(rows) < count:
                await self._end("COMMIT")
            return rows

    async def _next(self, count: int) -> Rows:
        guard = self._connection.guard
        with refusals(guard, self._columns, self.rows_read), statement_errors(started=True):
            if self._cursor is None:
                self._cursor = await self._statement.cursor()
            cursor: Any = self._cursor
            guard.begin_chunk()
            try:
                rows: Rows = await cursor.fetch(count)
            finally:
                guard.end_chunk()
            if guard.was_cut:
                # asyncpg takes a short chunk for the last one.
                cursor._exhausted = False  # noqa: SLF001 nothing public says so
            return rows

    async def end(self, *, commit: bool) -> None:
        """Give up the remaining rows. What the statement did so far is kept or undone. Idempotent."""
        async with self._in_use:
            if self.is_open:
                await self._end("COMMIT" if commit else "ROLLBACK")

    async def _end(self, verb: str) -> None:
        self.is_open = False
        self._connection.guard.drop_rest()
        if self._owns_transaction and not self._connection.is_closed():
            with statement_errors(started=True):
                await self._connection.execute(verb)


Values = Sequence[Any]


class ColumnReader:
    """Reads one column, chunk by chunk."""

    def __init__(self, name: str, declared: DeclaredType) -> None:
        self._name = name
        self._declared = declared
        self._read: Callable[[Values], pa.Array] | None = None

    def read(self, values: Values) -> pa.Array:
        """The next values. Raises StatementRejected for one that does not fit what the first chunk decided."""
        try:
            if self._read is None:
                self._read = _reader_for(self._declared, values)
            return self._read(values)
        except Unfit as error:
            message = (
                f'column "{self._name}" holds a value that type {self._declared.name} cannot carry'
                f" (infinity, NaN, BC, another array dimension) after rows that could: cast the column to text"
            )
            raise StatementRejected(message) from error


def _reader_for(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    try:
        read = _typed_reader(declared, first)
        read(first)
    except Unfit:
        return partial(native_as_text, declared)
    return read


def _typed_reader(declared: DeclaredType, first: Values) -> Callable[[Values], pa.Array]:
    if declared.kind is Kind.RECORD:
        declared = with_fields(declared, first)
    if declared.kind not in NESTED:
        return partial(read_native, declared)
    dimensions = dimensions_of(declared, first) if declared.kind is Kind.ARRAY else 1
    return partial(read_nested, declared, dimensions=max(dimensions, 1))


class RowReader:
    """Reads the rows of one result."""

    def __init__(self, names: Sequence[str], declared: Sequence[DeclaredType]) -> None:
        self._names = list(names)
        self._readers = [ColumnReader(name, kind) for name, kind in zip(names, declared, strict=True)]

    def read(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """The next rows as one batch."""
        by_column: Sequence[Values] = list(zip(*rows, strict=True)) or [()] * len(self._readers)
        arrays = [reader.read(values) for reader, values in zip(self._readers, by_column, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._names)


_COMMAND_TAG = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE|SELECT) (\d+)")
_COPY_STREAM = re.compile(r"\b(?:FROM\s+STDIN|TO\s+STDOUT)\b", re.IGNORECASE)
_CHANGES_ROWS = ("INSERT", "UPDATE", "DELETE", "MERGE")


class PostgresqlStatement:
    """A StatementSource. `interrupt_process` sends the stop signal to a server process."""

    def __init__(
        self,
        connection: Connection,
        sql: str,
        interrupt_process: Callable[[int], Awaitable[None]],
        *,
        read_only: bool = False,
    ) -> None:
        self.columns: tuple[Column, ...] = ()
        self.log_lines = KeptLines()
        self._connection = connection
        self._sql = sql
        self._keyword = first_keyword(sql)
        self._interrupt_process = interrupt_process
        self._read_only = read_only
        self._reader = RowReader((), ())
        self._portal: Portal | None = None
        self._whole: Rows = ()
        self._tag = ""
        connection.on_notice = self._log

    @property
    def is_open(self) -> bool:
        return self._portal is not None and self._portal.is_open

    @property
    def modified_rows(self) -> int | None:
        """From the command tag; asyncpg gives none for a portal, but there every changed row was returned."""
        if match := _COMMAND_TAG.match(self._tag):
            return int(match[1])
        if self._portal is None or self._portal.is_open or self._keyword not in _CHANGES_ROWS:
            return None
        return self._portal.rows_read

    async def execute(self, go_on: Callable[[], None]) -> None:
        if self._keyword == "COPY" and _COPY_STREAM.search(self._sql):
            raise StatementRejected("COPY FROM STDIN and COPY TO STDOUT are not supported: there is no stream")
        go_on()
        if self._read_only:
            # Anew for each statement: one before it may have switched the default off by set_config().
            with statement_errors(started=False):
                await self._connection.execute("SET default_transaction_read_only = on")
        statement, fields = await self._prepare()
        go_on()
        if not fields or self._keyword == "CALL":
            # A procedure may commit, which the server refuses inside a transaction of ours; its result is one row.
            guard = self._connection.guard
            with refusals(guard, [field.name for field in fields]), statement_errors(started=True):
                self._whole = await statement.fetch()
            self._tag = statement.get_statusmsg() or ""
        else:
            self._portal = Portal(self._connection, statement, [field.name for field in fields])
            await self._portal.start()

    async def fetch(self, count: int) -> Rows:
        if self._portal is not None:
            return await self._portal.fetch(count)
        rows, self._whole = self._whole, ()
        return rows if self.columns else ()

    def read(self, rows: Rows) -> pa.RecordBatch:
        return self._reader.read(rows)

    async def interrupt(self) -> None:
        if not self._connection.is_closed():
            await self._interrupt_process(self._connection.get_server_pid())

    def was_interrupted(self, error: EngineError) -> bool:
        return isinstance(error.__cause__, asyncpg.QueryCanceledError)

    async def end(self, *, keep: bool) -> None:
        if self._portal is not None:
            await self._portal.end(commit=keep)

    async def _prepare(self) -> tuple[PreparedStatement, tuple[Field, ...]]:
        with statement_errors(started=False):
            statement, fields = await self._connection.prepare_described(self._sql)
            if statement.get_parameters():
                raise StatementRejected("there is no parameter $1")
            declared = await declare(self._connection, fields) if fields else ()
        self.columns = columns(fields, declared)
        self._reader = RowReader([field.name for field in fields], declared)
        return statement, fields

    def _log(self, line: str) -> None:
        self.log_lines.keep(line)


_SESSION_DEFAULTS = {"TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres"}


@dataclass(frozen=True, slots=True)
class Login:
    """Who a connection is."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """How the operating system notices that the server is gone while nothing is sent."""

    idle_s: int = 60
    interval_s: int = 15
    count: int = 4


@dataclass(frozen=True, slots=True)
class PostgresqlAddress:
    """One database of a server, the login used when a session brings none, and the limits of the pool.

    `host` may be the directory of a unix socket. `ssl` takes libpq's words (`prefer`, `require`, `verify-full`, …), and
    so does `server_state` (`any`, `primary`, …).
    """

    host: str
    port: int
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: str | tls.SSLContext = "prefer"
    application_name: str = "queryserver"
    connect_timeout_s: int = 10
    max_idle: int = 8
    idle_s: float = 60.0
    server_state: str = "any"
    keep_alive: KeepAlive | None = KeepAlive()
    cell_max_bytes: int | None = None
    """Largest value of a result; a row with a larger one is refused before it is in memory."""
    rules: AddressRules = field(default_factory=AddressRules)
    own_database: OwnDatabase | None = None
    """The service's, which this must not be."""
    own_servers: AddressRules = field(default_factory=AddressRules)
    """Tells which servers have the service's database."""

    def login(self, credentials: Credentials | None) -> Login:
        """The login of a session: its own credentials, else those of the address. Raises CredentialsRequired."""
        if credentials is not None:
            return Login(credentials.username, credentials.password)
        if self.user is None:
            raise CredentialsRequired("PostgreSQL needs a user and a password.")
        return Login(self.user, self.password or "")

    async def connect(self, login: Login) -> Connection:
        """A new connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).

        Of EngineUnavailable, HostRefused: a refused address, or the service's own database.
        """
        hosts = [self.host] if self.host.startswith("/") else list(await self.rules.resolve(self.host, self.port))
        with connect_errors():
            connection: Connection = await asyncpg.connect(
                host=hosts,
                port=self.port,
                user=login.user,
                password=login.password,
                database=self.database,
                ssl=self.ssl,
                timeout=self.connect_timeout_s,
                statement_cache_size=0,
                connection_class=Connection,
                target_session_attrs=self.server_state,
                server_settings={"application_name": self.application_name, **_SESSION_DEFAULTS},
            )
        if self.cell_max_bytes is not None:
            connection.guard.limit(self.cell_max_bytes)
        if self.keep_alive is not None:
            keep = self.keep_alive
            connection.keep_alive(idle_s=keep.idle_s, interval_s=keep.interval_s, count=keep.count)
        await self._require_other_database(connection, hosts)
        return connection

    async def _require_other_database(self, connection: Connection, hosts: Sequence[str]) -> None:
        """Close the connection and raise HostRefused when it leads to the service's own database."""
        if self.own_database is None:
            return
        try:
            on_own_server = await asyncio.to_thread(self.own_servers.is_database_server, hosts, self.port)
            await self.own_database.require_other(connection, on_own_server=on_own_server)
        except BaseException:  # a cancel too: the connection must not stay open
            await connection.shut()
            raise


_CALL_S = 10
_MOST_CONNECTIONS = 20
"""Of one user."""

_RULES = f"LOGIN INHERIT CONNECTION LIMIT {_MOST_CONNECTIONS} VALID UNTIL 'infinity'"


class UserLogins:
    """Makes the roles with `admin_dsn`, whose role may create roles and grant `group`.

    `role_of` names the role of a user; a name is a plain identifier. Passwords derive from the one in `admin_dsn`: all
    processes that know it give a role the same password, so that none makes another's invalid.
    """

    def __init__(self, admin_dsn: str, *, group: str, database: str, role_of: Callable[[int], str]) -> None:
        self.group = group
        self._admin_dsn = admin_dsn
        self._database = database
        self._role_of = role_of
        self._key = (urlsplit(admin_dsn).password or secrets.token_urlsafe(32)).encode()
        self._roles = set[str]()
        self._making = WeakValueDictionary[str, asyncio.Lock]()

    def login(self, user_id: int) -> Login:
        """The login of a user; `repair` before it is used."""
        role = self._role_of(user_id)
        self._roles.add(role)
        return Login(role, hmac.digest(self._key, role.encode(), "sha256").hex())

    def is_own(self, login: Login) -> bool:
        """Whether it is the login of a user, and not that of the connector."""
        return login.user in self._roles

    async def repair(self, login: Login) -> None:
        """Make the role, or make it as it was: its password, its rules, its group, and no settings.

        A transaction of the user that changes the role makes it wait: the user's other connections, nobody else's.
        Raises EngineUnavailable, StatementRejected.
        """
        role = login.user
        async with self._making.setdefault(role, asyncio.Lock()):
            with connect_errors():
                connection = await asyncpg.connect(self._admin_dsn, timeout=_CALL_S, command_timeout=_CALL_S)
                try:
                    async with connection.transaction():
                        await self._make(connection, role, login.password)
                finally:
                    await connection.close(timeout=_CALL_S)

    async def _make(self, connection: asyncpg.Connection, role: str, password: str) -> None:
        # Two changes of one role at once would collide, also those of two processes.
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1))", role)
        if not await connection.fetchval("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = $1", role):
            await connection.execute(f"CREATE ROLE {role}")
        # The password is hexadecimal: no quoting is needed.
        await connection.execute(f"ALTER ROLE {role} {_RULES} PASSWORD '{password}'")
        await connection.execute(f"GRANT {self.group} TO {role}")
        await connection.execute(f"ALTER ROLE {role} RESET ALL")
        await connection.execute(f"ALTER ROLE {role} IN DATABASE {self._database} RESET ALL")


_NICENESS = 5
"""Of the processes of our own server that work on statements. They share locks with those that serve the service."""


class PostgresqlEngine:
    """Statements on one database of one server. `SessionOptions.database` names a schema.

    With `user_logins` each user's sessions log in as a role of their own.
    """

    def __init__(
        self, address: PostgresqlAddress, *, read_only: bool = False, user_logins: UserLogins | None = None
    ) -> None:
        self._address = address
        self._read_only = read_only
        self._user_logins = user_logins
        pool = ConnectionPool(self._connect, max_idle=address.max_idle, idle_s=address.idle_s)
        self._sessions = PooledSessions("postgresql", pool, connect_errors)
        self._capabilities = EngineCapabilities(
            explain_prefix="EXPLAIN ",
            wants_credentials=self._address.user is None,
            places=((self._address.host, self._address.port),),
        )

    @property
    def dialect(self) -> str:
        return "postgresql"

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[StreamedSession]:
        """A session whose `search_path` is the schema of `options`; leaving it stops what still runs in it."""
        login = self._login(user, options)
        new_source = partial(self._statement, partial(self._interrupt, login))
        async with self._sessions.session(login, new_source, partial(_prepare, options, self._acting_role)) as session:
            yield session

    @property
    def lists_functions(self) -> bool:
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield PostgresqlCatalog(session)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[TableLoader]:
        login = self._login(user, options)
        async with self._sessions.connection(login, partial(_prepare, options, self._acting_role)) as (
            connection,
            executor,
        ):
            yield PostgresqlLoader(connection, executor, read_only=self._read_only)

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        await self._sessions.call(self._address.login(None), partial(_run, "SELECT 1"))

    async def close(self) -> None:
        await self._sessions.close()

    @property
    def _acting_role(self) -> str | None:
        return self._user_logins.group if self._user_logins is not None else None

    def _login(self, user: User, options: SessionOptions) -> Login:
        if self._user_logins is not None and options.credentials is None:
            return self._user_logins.login(user.id)
        return self._address.login(options.credentials)

    async def _connect(self, login: Login) -> Connection:
        if self._user_logins is None or not self._user_logins.is_own(login):
            return await self._address.connect(login)
        await self._user_logins.repair(login)
        connection = await self._address.connect(login)
        # Only a server that is our own makes such logins: its processes run beside this one.
        lower_priority(connection.get_server_pid(), niceness=_NICENESS)
        return connection

    def _statement(
        self, interrupt: Callable[[int], Awaitable[None]], connection: Connection, sql: str
    ) -> PostgresqlStatement:
        return PostgresqlStatement(connection, sql, interrupt, read_only=self._read_only)

    async def _interrupt(self, login: Login, process_id: int) -> None:
        """The same login may stop its statements."""
        await self._sessions.interrupt(login, partial(_run, f"SELECT pg_cancel_backend({process_id:d})"))


async def _run(sql: str, connection: Connection) -> None:
    await connection.execute(sql)


async def _prepare(options: SessionOptions, role: str | None, connection: Connection) -> None:
    """Apply the role, the schema and the settings in one round trip each; a fresh connection without them costs none.

    The role is not kept by DISCARD ALL.
    """
    if role is not None:
        await connection.execute(f"SET ROLE {role}")
    if options.settings:
        calls = [f"set_config({literal(k)}, {literal(v)}, false)" for k, v in options.settings.items()]
        await connection.execute(f"SELECT {', '.join(calls)}")
    if options.database is not None:
        schema = literal(options.database)
        tag = await connection.execute(
            f"SELECT set_config('search_path', quote_ident({schema}), false)"  # noqa: S608 the name is quoted
            f" FROM pg_catalog.pg_namespace WHERE nspname = {schema}"
        )
        if tag != "SELECT 1":
            raise StatementRejected(f'schema "{options.database}" does not exist')
