"""The service database: connection pool, transactions, errors, stored facts, and LISTEN and NOTIFY."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg
import orjson
import structlog
from asyncpg.pool import PoolConnectionProxy

from queryserver.errors.base import ConfigurationError, DatabaseUnavailable
from queryserver.platform.asyncpg_internals import register_arrays
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Tasks, background

Connection: TypeAlias = PoolConnectionProxy
Row: TypeAlias = asyncpg.Record

# Nearly every call runs one short query, for which acquiring and releasing a pooled connection accounts for half the
# cost. So connections stay acquired between queries (docs/benchmarks.md). They return to the pool regularly, so that
# the pool can replace them after many queries, and after some time without use, so that the pool can close them. A
# connection that was idle for a long time is closed, because a firewall may have dropped it.
_RETAINED_FOR_S = 300.0
_UNUSED_FOR_S = 10.0
_MAX_IDLE_S = 120.0

_UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # raised when the server closes a connection that asyncpg is still setting up
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,
)


@contextmanager
def database_errors() -> Generator[None]:
    """Translate errors of an unavailable or refusing database to DatabaseUnavailable. SQL errors are not translated."""
    try:
        yield
    except _UNAVAILABLE as error:
        raise DatabaseUnavailable from error


@dataclass(slots=True)
class _PooledConnection:
    """A connection acquired from the pool. Times are in seconds of the monotonic clock."""

    connection: Connection
    since: float
    idle_since: float = 0.0


class Database:
    """The service database. Each method runs one statement in autocommit mode; use `transaction` to combine several."""

    def __init__(self, pool: asyncpg.Pool, acquire_timeout_s: float, observe_query: Callable[[float], None]) -> None:
        self._pool = pool
        self._observe_query = observe_query
        self._acquire_timeout_s = acquire_timeout_s
        # Callers wait here, not in the pool, so that they too receive retained connections.
        self._free = asyncio.Semaphore(pool.get_max_size())
        self._retained: list[_PooledConnection] = []
        """The least recently used connection comes first."""
        self._is_closing = False

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Acquire a pooled connection for the context. Raises DatabaseUnavailable if none becomes free in time."""
        return _ConnectionUse(self._acquire, self._release)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Run a transaction: commit on a clean exit, otherwise roll back."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch(self, sql: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Return all rows."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *arguments)

    async def row(self, sql: str, *arguments: object) -> asyncpg.Record | None:
        """Return the first row, or None if there is none."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *arguments)

    async def value(self, sql: str, *arguments: object) -> Any:
        """Return the first column of the first row; None if there is no row."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> int:
        """Run a statement that changes rows. Returns the number of affected rows."""
        async with self.connection() as connection:
            tag = await connection.execute(sql, *arguments)
        _, _, count = tag.rpartition(" ")
        return int(count) if count.isdecimal() else 0

    @property
    def connections(self) -> tuple[int, int]:
        """The numbers of open and of idle connections of this process."""
        return self._pool.get_size(), self._pool.get_idle_size() + len(self._retained)

    async def aclose(self) -> None:
        """Release the retained connections, so that the pool can be closed."""
        self._is_closing = True
        while self._retained:
            await self._pool.release(self._retained.pop().connection)

    async def _acquire(self) -> _PooledConnection:
        """Return a retained connection, or acquire one from the pool."""
        if self._free.locked():
            async with asyncio.timeout(self._acquire_timeout_s):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            while self._retained:
                pooled = self._retained.pop()
                if _is_open(pooled.connection):
                    if time.monotonic() - pooled.idle_since < _MAX_IDLE_S:
                        return pooled
                    pooled.connection.terminate()
                await self._pool.release(pooled.connection)
            connection = await self._pool.acquire(timeout=self._acquire_timeout_s)
        except BaseException:  # includes cancellation
            self._free.release()
            raise
        return _PooledConnection(connection, since=time.monotonic())

    async def _release(self, pooled: _PooledConnection, used_s: float, *, may_retain: bool) -> None:
        """Release a connection after `used_s` seconds of use. After a failure, pass `may_retain=False`."""
        try:
            self._observe_query(used_s)
            if may_retain and self._may_retain(pooled):
                pooled.idle_since = time.monotonic()
                self._retained.append(pooled)
                if pooled.idle_since - self._retained[0].idle_since > _UNUSED_FOR_S:
                    await self._pool.release(self._retained.pop(0).connection)
            else:
                await self._pool.release(pooled.connection)
        finally:
            self._free.release()

    def _may_retain(self, pooled: _PooledConnection) -> bool:
        """Return whether to retain a connection: it is not too old, and no transaction is open on it."""
        if self._is_closing or time.monotonic() - pooled.since > _RETAINED_FOR_S:
            return False
        return _is_open(pooled.connection) and not pooled.connection.is_in_transaction()


class _ConnectionUse:
    """A pooled connection, for the duration of a context. As a generator, it would take 5 µs more for each query."""

    __slots__ = ("_acquire", "_began", "_pooled", "_release")

    def __init__(
        self, acquire: Callable[[], Awaitable[_PooledConnection]], release: Callable[..., Awaitable[None]]
    ) -> None:
        self._acquire = acquire
        self._release = release

    async def __aenter__(self) -> Connection:
        try:
            self._pooled = await self._acquire()
        except _UNAVAILABLE as error:
            raise DatabaseUnavailable from error
        self._began = time.perf_counter()
        return self._pooled.connection

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            await self._release(self._pooled, time.perf_counter() - self._began, may_retain=error is None)
        except _UNAVAILABLE as failure:
            raise DatabaseUnavailable from failure
        if isinstance(error, _UNAVAILABLE):
            raise DatabaseUnavailable from error


def _is_open(connection: Connection) -> bool:
    """Return whether the connection is open. A closed connection may already have returned to the pool on its own."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


@asynccontextmanager
async def open_database(
    dsn: str, settings: DatabaseSettings | None = None, observe_query: Callable[[float], None] = lambda _: None
) -> AsyncGenerator[Database]:
    """Open a connection pool on `dsn`; close it on exit. `observe_query` receives the duration of each use in seconds.

    Raises DatabaseUnavailable.
    """
    settings = settings or DatabaseSettings()
    with database_errors():
        pool = await asyncpg.create_pool(
            dsn,
            min_size=settings.pool_min,
            max_size=settings.pool_max,
            timeout=settings.connect_timeout_s,
            command_timeout=settings.statement_timeout_s,
            init=_prepare_connection,
            reset=_skip_reset,
            server_settings={
                "application_name": "queryserver",
                "timezone": "UTC",
                "statement_timeout": str(settings.statement_timeout_s * 1000),
                # Frequent queries are small index lookups, for which JIT compilation costs more than execution.
                "jit": "off",
            },
        )
    database = Database(pool, settings.connect_timeout_s, observe_query)
    try:
        yield database
    finally:
        try:
            async with asyncio.timeout(5):
                await database.aclose()
                await pool.close()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()


async def _prepare_connection(connection: Connection) -> None:
    def to_json(value: object) -> str:
        return orjson.dumps(value).decode()

    await connection.set_type_codec("jsonb", encoder=to_json, decoder=orjson.loads, schema="pg_catalog")
    register_arrays(connection)


async def _skip_reset(connection: Connection) -> None:
    """Skip asyncpg's reset, which costs a round trip per use: this service leaves no session state behind."""
    del connection


_MAX_KEYS_PER_QUERY = 200

_Key = tuple[object, ...]
_RowFuture: TypeAlias = "asyncio.Future[asyncpg.Record | None]"
_PendingKeys = dict[_Key, list[_RowFuture]]
"""Futures of the callers, by key. Each caller has its own future, so canceling one does not cancel the others."""


class CoalescingReader:
    """Reads rows by key. Keys requested while queries are running are combined into the next query.

    Under load, most calls read the same two facts, their user and the status of a statement. 64 concurrent calls then
    take a few round trips instead of 64. The data is never older than the call that requests it. Up to `max_queries`
    queries run concurrently, so one slow query does not delay all others. Canceling one caller does not affect the
    others. A failed query fails for all of its callers.

    `many` takes one array for each part of the key and returns rows with the 1-based index of their key as column `n`.
    Each array should be a subquery, `unnest((select $1::uuid[]))`: PostgreSQL then does not know its length when it
    plans, and keeps the plan. With `unnest($1::uuid[])`, it plans `many` again on each execution, because the plan for
    the actual length always seems cheaper. This takes longer than the query itself (docs/benchmarks.md).
    """

    def __init__(self, database: "Database", *, many: str, one: str | None = None, max_queries: int = 2) -> None:
        self._database = database
        self._many = many
        self._one = one
        self._max_queries = max_queries
        self._waiting: _PendingKeys = {}
        """The keys for the next query."""
        self._queries = Tasks()
        self._running = 0

    async def get(self, *key: object) -> asyncpg.Record | None:
        """Return the row of `key`; None if there is none. Raises DatabaseUnavailable."""
        if self._running < self._max_queries and self._one is not None:
            # Querying in the caller's own task needs no future and no further iterations of the event loop.
            self._running += 1
            try:
                return await self._database.row(self._one, *key)
            finally:
                self._query_ended()
        answer: _RowFuture = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._running < self._max_queries:
            self._start_query()
        return await answer

    async def aclose(self) -> None:
        """Cancel the combined queries and their callers. Queries for single callers run in the callers' own tasks."""
        _cancel(self._waiting)
        self._waiting.clear()
        await self._queries.aclose()

    def _start_query(self) -> None:
        self._running += 1
        # In an empty context: the query outlives this call, so its log lines must not carry this call's ids.
        query = Context().run(self._queries.start, self._read_waiting(), "coalesced-query")
        query.add_done_callback(lambda _: self._query_ended())

    def _query_ended(self) -> None:
        self._running -= 1
        if self._waiting:
            self._start_query()

    async def _read_waiting(self) -> None:
        """Read the keys that are waiting when this task begins to run."""
        pending = {key: self._waiting.pop(key) for key in list(self._waiting)[:_MAX_KEYS_PER_QUERY]}
        if not pending:
            return
        keys = list(pending)
        try:
            if self._one is not None and len(keys) == 1:
                found = {keys[0]: await self._database.row(self._one, *keys[0])}
            else:
                rows = await self._database.fetch(self._many, *map(list, zip(*keys, strict=True)))
                found = {keys[row["n"] - 1]: row for row in rows}
        except asyncio.CancelledError:
            _cancel(pending)
            raise
        except Exception as error:  # noqa: BLE001 passed on to each caller
            for _, answer in _pending_answers(pending):
                answer.set_exception(error)
        else:
            for key, answer in _pending_answers(pending):
                answer.set_result(found.get(key))


def _pending_answers(pending: _PendingKeys) -> Iterator[tuple[_Key, _RowFuture]]:
    """Yield the futures whose callers are still waiting."""
    return ((key, answer) for key, answers in pending.items() for answer in answers if not answer.done())


def _cancel(pending: _PendingKeys) -> None:
    for _, answer in _pending_answers(pending):
        answer.cancel()


_CHANNEL = "queryserver"
_RECONNECT_S = 2.0

log = structlog.get_logger(__name__)


class Notices:
    """Notifies all instances. A lost notification is harmless, because periodic sweeps find the same changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, kind: str, subject: str) -> None:
        """Notify every instance, including this one. Logs a database failure instead of raising."""
        try:
            await self._database.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")
        except DatabaseUnavailable:
            log.warning("notification not sent", kind=kind)


async def notify(connection: Connection, kind: str, subject: str) -> None:
    """Notify every instance when the current transaction commits."""
    await connection.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")


def notice(kind: str, subject: str) -> str:
    """Return an SQL expression that notifies every instance on commit. `subject` is an SQL expression of type text."""
    return f"pg_notify('{_CHANNEL}', '{kind} ' || {subject})"


COMMIT_EARLY = "set_config('synchronous_commit', 'off', true)"
"""SQL expression: the commit of this transaction does not wait until its changes are on disk (ADR 85).

Everybody sees the changes at once, and they are written at most a second later. Only a crash of the database server
itself loses them. An expression, because `set local` would be a query of its own.
"""


def listening(
    dsn: str, notified: Callable[[str, str], None], connected: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[None]:
    """Call `notified(kind, subject)` for each notification while the context is open. Reconnects automatically.

    `connected` is called each time listening starts; notifications sent before that are lost.
    """
    return background(_listen(dsn, notified, connected), "notices")


async def _listen(dsn: str, notified: Callable[[str, str], None], connected: Callable[[], None]) -> None:
    def receive(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
        kind, _, subject = str(payload).partition(" ")
        notified(kind, subject)

    lost = asyncio.Event()

    def ended(_connection: Any) -> None:
        lost.set()

    while True:
        lost.clear()
        try:
            with database_errors():
                connection = await asyncpg.connect(dsn, timeout=10)
                try:
                    connection.add_termination_listener(ended)
                    await connection.add_listener(_CHANNEL, receive)
                    connected()
                    await lost.wait()
                finally:
                    connection.terminate()
        except DatabaseUnavailable:
            log.warning("not listening to other instances, trying again")
        await asyncio.sleep(_RECONNECT_S)


def required_dsn(settings: Settings) -> str:
    """Return the service database's DSN. Raises ConfigurationError if none is configured."""
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(
            ["desktop.database.url: a PostgreSQL database is required, unless the server runs with `serve --embedded`."]
        )
    return dsn


# The lookbehind excludes the second colon of a cast (`::`).
_PARAMETER = re.compile(r"(?<!:):([a-z][a-z_]*)")


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with named parameters such as `:user_id`, translated once to the positional parameters of PostgreSQL.

    A colon before a lower-case letter always starts a parameter, even in a string literal.
    """

    sql: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "NamedQuery":
        """Translate a query. Parameters are numbered in the order of their first use."""
        numbers: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

        return cls(_PARAMETER.sub(number, text), tuple(numbers))

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """Return the values in the order of the parameters.

        Raises KeyError if a value is missing, ValueError if a name is unknown.
        """
        if len(values) != len(self.names):
            raise ValueError(f"unknown parameters: {sorted(values.keys() - set(self.names))}")
        return [values[name] for name in self.names]


_KEEP = """
    with made as (insert into facts (name, value) values ($1, $2) on conflict do nothing returning value)
    select value from made union all select value from facts where name = $1 limit 1
"""


class FactRepository:
    """Named values, such as key fingerprints, that all servers share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, name: str, value: str) -> str:
        """Store `value` unless `name` already has a value. Returns the stored value. Raises DatabaseUnavailable."""
        kept = await self._database.value(_KEEP, name, value)
        # No row: another server's insert committed after this query's snapshot was taken. A new query sees it.
        return kept or await self._database.value("select value from facts where name = $1", name)

    async def value(self, name: str) -> str | None:
        """Return the value of `name`; None if there is none. Raises DatabaseUnavailable."""
        return await self._database.value("select value from facts where name = $1", name)

    async def replace(self, name: str, value: str) -> None:
        await self._database.execute(
            "insert into facts (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            name,
            value,
        )
