"""The service database: connection pool, transactions, errors, named values, and LISTEN and NOTIFY."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
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

# Nearly every call runs one short query, and acquiring and releasing a pooled connection adds half of its cost. So up
# to this many connections stay acquired between two queries. They return to the pool regularly, which replaces them
# after many queries. A connection that was idle for long is discarded, because a firewall may have dropped it.
_MAX_RETAINED = 4
_RETAINED_FOR_S = 300.0
_MAX_IDLE_S = 120.0

_UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # raised when the server closes a connection while asyncpg prepares it
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
    """Translate errors of an unavailable or refusing database to DatabaseUnavailable; SQL errors pass unchanged."""
    try:
        yield
    except _UNAVAILABLE as error:
        raise DatabaseUnavailable from error


@dataclass(slots=True)
class _PooledConnection:
    """A connection acquired from the pool. Times are monotonic."""

    connection: Connection
    since: float
    idle_since: float = 0.0


class Database:
    """The service database. Each method runs one statement in autocommit mode; `transaction` combines several."""

    def __init__(self, pool: asyncpg.Pool, acquire_timeout_s: float, observe_query: Callable[[float], None]) -> None:
        self._pool = pool
        self._observe_query = observe_query
        self._acquire_timeout_s = acquire_timeout_s
        self._retained: list[_PooledConnection] = []
        self._waiting = 0
        self._is_closing = False

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Acquire a pooled connection. Raises DatabaseUnavailable if no connection becomes free in time."""
        with database_errors():
            pooled = await self._acquire()
            began, may_retain = time.perf_counter(), False
            try:
                yield pooled.connection
                may_retain = True
            finally:
                await self._release(pooled, time.perf_counter() - began, may_retain=may_retain)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Run a transaction. Commit on a clean exit, else roll back."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch(self, sql: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Return all rows."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *arguments)

    async def row(self, sql: str, *arguments: object) -> asyncpg.Record | None:
        """Return the first row or None."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *arguments)

    async def value(self, sql: str, *arguments: object) -> Any:
        """Return the first value of the first row, or None."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> int:
        """Run a change and return the number of affected rows."""
        async with self.connection() as connection:
            tag = await connection.execute(sql, *arguments)
        _, _, count = tag.rpartition(" ")
        return int(count) if count.isdecimal() else 0

    @property
    def connections(self) -> tuple[int, int]:
        """The numbers of this process's open and idle connections."""
        return self._pool.get_size(), self._pool.get_idle_size() + len(self._retained)

    async def aclose(self) -> None:
        """Release the retained connections, so that the pool can be closed."""
        self._is_closing = True
        while self._retained:
            await self._pool.release(self._retained.pop().connection)

    async def _acquire(self) -> _PooledConnection:
        """Acquire a retained connection, or else a connection from the pool."""
        while self._retained:
            pooled = self._retained.pop()
            if _is_open(pooled.connection):
                if time.monotonic() - pooled.idle_since < _MAX_IDLE_S:
                    return pooled
                pooled.connection.terminate()
            await self._pool.release(pooled.connection)
        self._waiting += 1
        try:
            connection = await self._pool.acquire(timeout=self._acquire_timeout_s)
        finally:
            self._waiting -= 1
        return _PooledConnection(connection, since=time.monotonic())

    async def _release(self, pooled: _PooledConnection, used_s: float, *, may_retain: bool) -> None:
        """Return a connection after `used_s` seconds of use. After a failure it must not be retained."""
        self._observe_query(used_s)
        if may_retain and self._may_retain(pooled):
            pooled.idle_since = time.monotonic()
            self._retained.append(pooled)
        else:
            await self._pool.release(pooled.connection)

    def _may_retain(self, pooled: _PooledConnection) -> bool:
        """Whether to retain a connection: no caller waits for the pool, and the connection is in its initial state."""
        if self._waiting or self._is_closing or len(self._retained) >= _MAX_RETAINED:
            return False
        if time.monotonic() - pooled.since > _RETAINED_FOR_S:
            return False
        return _is_open(pooled.connection) and not pooled.connection.is_in_transaction()


def _is_open(connection: Connection) -> bool:
    """Whether the connection is still open. A closed connection may already have returned to the pool by itself."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


@asynccontextmanager
async def open_database(
    dsn: str, settings: DatabaseSettings | None = None, observe_query: Callable[[float], None] = lambda _: None
) -> AsyncGenerator[Database]:
    """Open a pool on `dsn`, and close it on exit. `observe_query` gets the seconds of each use.

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
                # Frequent queries are small index lookups: compiling them costs more than running them.
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
    """Skip asyncpg's reset, which costs a round trip per use: our SQL leaves no session state behind."""
    del connection


_MAX_KEYS_PER_QUERY = 200

_Key = tuple[object, ...]
_RowFuture: TypeAlias = "asyncio.Future[asyncpg.Record | None]"
_PendingKeys = dict[_Key, list[_RowFuture]]
"""The callers' futures by key. Each caller has its own, so canceling one does not cancel the others."""


class CoalescingReader:
    """Reads rows by key. Keys requested while queries run are combined into the next query.

    Under load, most calls need the same two facts: their user and a statement's status. 64 concurrent calls then cost
    a few round trips instead of 64. No caller gets data older than its call. Up to `max_queries` queries run
    concurrently, so one slow query does not delay all others. Canceling a caller does not affect the others; an error
    reaches every caller of its query.

    `many` takes one array per part of the key, and returns the 1-based index of the row's key as column `n`. `one`
    takes a single key: PostgreSQL replans `many` on each execution because it expects long arrays, but `one` only five
    times (0.13 instead of 0.43 ms).
    """

    def __init__(self, database: "Database", *, many: str, one: str | None = None, max_queries: int = 2) -> None:
        self._database = database
        self._many = many
        self._one = one
        self._max_queries = max_queries
        self._waiting: _PendingKeys = {}
        """The keys of the next query."""
        self._queries = Tasks()
        self._running = 0

    async def get(self, *key: object) -> asyncpg.Record | None:
        """Return the row of `key` or None. Raises DatabaseUnavailable."""
        if self._running < self._max_queries and self._one is not None:
            # A query in the caller's own task needs no future and no further turns of the event loop.
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
        """Stop the combined queries and cancel their callers. Queries of single callers end with these."""
        _cancel(self._waiting)
        self._waiting.clear()
        await self._queries.aclose()

    def _start_query(self) -> None:
        self._running += 1
        # In an empty context, because the query outlives this call, and must not log the call's ids.
        query = Context().run(self._queries.start, self._read_waiting(), "coalesced-query")
        query.add_done_callback(lambda _: self._query_ended())

    def _query_ended(self) -> None:
        self._running -= 1
        if self._waiting:
            self._start_query()

    async def _read_waiting(self) -> None:
        """Read the keys that wait when this task starts to run."""
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
    """Yield the futures whose callers still wait."""
    return ((key, answer) for key, answers in pending.items() for answer in answers if not answer.done())


def _cancel(pending: _PendingKeys) -> None:
    for _, answer in _pending_answers(pending):
        answer.cancel()


_CHANNEL = "queryserver"
_RECONNECT_S = 2.0

log = structlog.get_logger(__name__)


class Notices:
    """Notifies all instances. A lost notification is harmless, as periodic sweeps find the same changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, kind: str, subject: str) -> None:
        """Notify every instance, including this one. Never raises."""
        try:
            await self._database.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")
        except DatabaseUnavailable:
            log.warning("notice not sent", kind=kind)


async def notify(connection: Connection, kind: str, subject: str) -> None:
    """Notify every instance when the current transaction commits."""
    await connection.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")


def notice(kind: str, subject: str) -> str:
    """Return SQL that sends a notification on commit. `subject` is an SQL expression of type text."""
    return f"pg_notify('{_CHANNEL}', '{kind} ' || {subject})"


def listening(
    dsn: str, notified: Callable[[str, str], None], connected: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[None]:
    """Call `notified(kind, subject)` for each notification for the duration of the context. Reconnects automatically.

    `connected` is called whenever listening starts; earlier notifications are lost.
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
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    return dsn


# not the second colon of a cast
_PARAMETER = re.compile(r"(?<!:):([a-z][a-z_]*)")


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with parameters such as `:user_id`, created once from its text and sent as a prepared statement.

    A colon before a lower-case letter is always a parameter, even in a string literal.
    """

    sql: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "NamedQuery":
        """Number the parameters in the order of their first use."""
        numbers: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            return f"${numbers.setdefault(found[1], len(numbers) + 1)}"

        return cls(_PARAMETER.sub(number, text), tuple(numbers))

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """Return the values in parameter order.

        Raises KeyError for a missing value, ValueError for an unknown name.
        """
        if len(values) != len(self.names):
            raise ValueError(f"unknown parameters: {sorted(values.keys() - set(self.names))}")
        return [values[name] for name in self.names]


_KEEP = """
    with made as (insert into facts (name, value) values ($1, $2) on conflict do nothing returning value)
    select value from made union all select value from facts where name = $1 limit 1
"""


class FactRepository:
    """Named values that all servers share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, name: str, value: str) -> str:
        """Store `value` unless `name` has a value already. Returns the stored value. Raises DatabaseUnavailable."""
        kept = await self._database.value(_KEEP, name, value)
        # Without a row, another server's insert committed after this query's snapshot. A new query sees it.
        return kept or await self._database.value("select value from facts where name = $1", name)

    async def value(self, name: str) -> str | None:
        """Return the stored value of `name`, or None. Raises DatabaseUnavailable."""
        return await self._database.value("select value from facts where name = $1", name)

    async def replace(self, name: str, value: str) -> None:
        await self._database.execute(
            "insert into facts (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            name,
            value,
        )
