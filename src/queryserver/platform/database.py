"""The service database: pool, transactions, errors, LISTEN and NOTIFY."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg
import orjson
import structlog
from asyncpg.pool import PoolConnectionProxy

from queryserver.errors.base import ConfigurationError, DatabaseUnavailable
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Tasks, background

Connection: TypeAlias = PoolConnectionProxy
Row: TypeAlias = asyncpg.Record

# Nearly every call asks one short question, and the pool's way in and out takes as long as half of it: so many
# connections are kept out of the pool between two questions. Now and then they go back to it, which renews them after
# many queries; one that lay idle for long may have been forgotten by something on the way, and is not used again.
_AT_HAND = 4
_AT_HAND_FOR_S = 300.0
_IDLE_AT_MOST_S = 120.0

# Arrays of PostgreSQL's own types that our statements use: the numbers are the same in every release. asyncpg knows
# arrays of text.
_ARRAYS = tuple(
    {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{element}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element_oid,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for oid, element, element_oid in (
        (1000, "bool", 16),
        (1001, "bytea", 17),
        (1007, "int4", 23),
        (1016, "int8", 20),
        (1185, "timestamptz", 1184),
        (2951, "uuid", 2950),
    )
)

_OUT_OF_REACH = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # What asyncpg says when the server ends a connection that is just being prepared.
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
    """Turn a lost or refusing database into DatabaseUnavailable; mistakes in our own SQL pass as they are."""
    try:
        yield
    except _OUT_OF_REACH as error:
        raise DatabaseUnavailable from error


@dataclass(slots=True)
class _Taken:
    """A connection out of the pool. Moments are those of the monotonic clock."""

    connection: Connection
    since: float
    idle_since: float = 0.0


class Database:
    """The service database. Each method is one statement in autocommit; `transaction` joins several."""

    def __init__(self, pool: asyncpg.Pool, acquire_timeout_s: float, observe_query: Callable[[float], None]) -> None:
        self._pool = pool
        self._observe_query = observe_query
        self._acquire_timeout_s = acquire_timeout_s
        self._at_hand: list[_Taken] = []
        self._waiting = 0
        self._is_closing = False

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A pooled connection, inside. Raises DatabaseUnavailable when none is had in time."""
        with database_errors():
            taken = await self._take()
            began, may_stay = time.perf_counter(), False
            try:
                yield taken.connection
                may_stay = True
            finally:
                await self._give_back(taken, time.perf_counter() - began, may_stay=may_stay)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Commit on a clean exit, else roll back."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch(self, sql: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """All rows."""
        async with self.connection() as connection:
            return await connection.fetch(sql, *arguments)

    async def row(self, sql: str, *arguments: object) -> asyncpg.Record | None:
        """The first row or None."""
        async with self.connection() as connection:
            return await connection.fetchrow(sql, *arguments)

    async def value(self, sql: str, *arguments: object) -> Any:
        """The first value of the first row or None."""
        async with self.connection() as connection:
            return await connection.fetchval(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> int:
        """Run a change and return how many rows it touched."""
        async with self.connection() as connection:
            tag = await connection.execute(sql, *arguments)
        _, _, count = tag.rpartition(" ")
        return int(count) if count.isdecimal() else 0

    @property
    def connections(self) -> tuple[int, int]:
        """Open and idle connections of this process."""
        return self._pool.get_size(), self._pool.get_idle_size() + len(self._at_hand)

    async def aclose(self) -> None:
        """Give back what is kept at hand; the pool can be closed then."""
        self._is_closing = True
        while self._at_hand:
            await self._pool.release(self._at_hand.pop().connection)

    async def _take(self) -> _Taken:
        """A connection at hand or from the pool; to be given back."""
        while self._at_hand:
            taken = self._at_hand.pop()
            if _is_open(taken.connection):
                if time.monotonic() - taken.idle_since < _IDLE_AT_MOST_S:
                    return taken
                taken.connection.terminate()
            await self._pool.release(taken.connection)
        self._waiting += 1
        try:
            connection = await self._pool.acquire(timeout=self._acquire_timeout_s)
        finally:
            self._waiting -= 1
        return _Taken(connection, since=time.monotonic())

    async def _give_back(self, taken: _Taken, used_s: float, *, may_stay: bool) -> None:
        """The end of a use that took `used_s`; a connection that failed may not stay at hand."""
        self._observe_query(used_s)
        if may_stay and self._has_room_for(taken):
            taken.idle_since = time.monotonic()
            self._at_hand.append(taken)
        else:
            await self._pool.release(taken.connection)

    def _has_room_for(self, taken: _Taken) -> bool:
        """Whether a connection may stay out of the pool: nobody waits for one there, and it is as good as new."""
        if self._waiting or self._is_closing or len(self._at_hand) >= _AT_HAND:
            return False
        if time.monotonic() - taken.since > _AT_HAND_FOR_S:
            return False
        return _is_open(taken.connection) and not taken.connection.is_in_transaction()


def _is_open(connection: Connection) -> bool:
    """Whether the server has not ended it; one that was ended may have gone back to the pool by itself."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


@asynccontextmanager
async def open_database(
    dsn: str, settings: DatabaseSettings | None = None, observe_query: Callable[[float], None] = lambda _: None
) -> AsyncGenerator[Database]:
    """A pool on `dsn`, closed at the end. `observe_query` gets the seconds of each use. Raises DatabaseUnavailable."""
    settings = settings or DatabaseSettings()
    with database_errors():
        pool = await asyncpg.create_pool(
            dsn,
            min_size=settings.pool_min,
            max_size=settings.pool_max,
            timeout=settings.connect_timeout_s,
            command_timeout=settings.statement_timeout_s,
            init=_prepare_connection,
            reset=_leave_as_is,
            server_settings={
                "application_name": "queryserver",
                "timezone": "UTC",
                "statement_timeout": str(settings.statement_timeout_s * 1000),
                # Hot queries are small index look-ups: compiling them costs more than running them.
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
    # asyncpg asks the server, on each new connection, what an array consists of: 10 ms of its time for the first kind
    # of array, 4 ms for each other. There is no public way to tell it; a release without this one asks.
    with suppress(AttributeError, KeyError, TypeError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        connection._protocol.get_settings().register_data_types(_ARRAYS)  # noqa: SLF001


async def _leave_as_is(connection: Connection) -> None:
    """Our own SQL leaves no session state behind, so the usual reset would only cost each call a round trip."""
    del connection


_LARGEST_QUERY = 200

_Key = tuple[object, ...]
_Answer: TypeAlias = "asyncio.Future[asyncpg.Record | None]"
_Waiting = dict[_Key, list[_Answer]]
"""What the callers of each key wait for. Each has its own, so that one who leaves cancels no other."""


class CoalescingReader:
    """Reads rows by key, with one query for all keys requested while the last one was under way.

    Under load most calls need the same two facts: their user, and the status of a statement. 64 calls at once then cost
    one round trip instead of 64. No caller gets data from before its call. At most `side_by_side` queries run at once,
    so that a slow one does not delay all others. A canceled caller cancels no other; an error reaches every caller of
    its query.

    `many` takes an array for each part of the key; column `n` of a row is the place of its key, from 1. `one` takes the
    parts of a single key: PostgreSQL plans `many` anew each time, for it expects long arrays, and `one` only five times
    (0.13 instead of 0.43 ms).
    """

    def __init__(self, database: "Database", *, many: str, one: str | None = None, side_by_side: int = 2) -> None:
        self._database = database
        self._many = many
        self._one = one
        self._side_by_side = side_by_side
        self._waiting: _Waiting = {}
        self._are_waiting = asyncio.Event()
        self._readers = Tasks()
        self._reading = 0

    def get(self, *key: object) -> _Answer:
        """The row of `key` or None, to be awaited. Raises DatabaseUnavailable."""
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        self._are_waiting.set()
        for _ in range(self._side_by_side - self._reading):
            self._reading += 1
            # Not in the context of this call: what is logged in the long life of a reader has no part in it.
            Context().run(self._readers.start, self._read(), "coalescing-reader")
        return answer

    async def aclose(self) -> None:
        """Stops the queries on their way; their callers are canceled."""
        await self._readers.aclose()
        self._reading = 0  # also of those that had not begun
        _cancel(self._waiting)
        self._waiting.clear()

    async def _read(self) -> None:
        try:
            while True:
                await self._are_waiting.wait()
                asked = {key: self._waiting.pop(key) for key in list(self._waiting)[:_LARGEST_QUERY]}
                if not self._waiting:
                    self._are_waiting.clear()
                if asked:
                    await self._answer(asked)
        finally:
            self._reading -= 1

    async def _answer(self, asked: _Waiting) -> None:
        keys = list(asked)
        try:
            if self._one is not None and len(keys) == 1:
                found = dict(zip(keys, await self._database.fetch(self._one, *keys[0]), strict=False))
            else:
                rows = await self._database.fetch(self._many, *map(list, zip(*keys, strict=True)))
                found = {keys[row["n"] - 1]: row for row in rows}
        except asyncio.CancelledError:
            _cancel(asked)
            raise
        except Exception as error:  # noqa: BLE001 passed on to each caller; the reader lives on
            for _, answer in _open_answers(asked):
                answer.set_exception(error)
        else:
            for key, answer in _open_answers(asked):
                answer.set_result(found.get(key))


def _open_answers(asked: _Waiting) -> Iterator[tuple[_Key, _Answer]]:
    """Without those of callers that have left."""
    return ((key, answer) for key, answers in asked.items() for answer in answers if not answer.done())


def _cancel(asked: _Waiting) -> None:
    for _, answer in _open_answers(asked):
        answer.cancel()


_CHANNEL = "queryserver"
_RECONNECT_S = 2.0

log = structlog.get_logger(__name__)


class Notices:
    """Notices to all instances. A lost one does no harm: periodic sweeps find the same changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, kind: str, subject: str) -> None:
        """Tell every instance, this one included. Never raises."""
        try:
            await self._database.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")
        except DatabaseUnavailable:
            log.warning("notice not sent", kind=kind)


async def notify(connection: Connection, kind: str, subject: str) -> None:
    """Publish with the commit of the transaction that is under way."""
    await connection.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")


def notice(kind: str, subject: str) -> str:
    """The SQL of a notice within a query, sent with its commit. `subject` is an expression of type text."""
    return f"pg_notify('{_CHANNEL}', '{kind} ' || {subject})"


def listening(
    dsn: str, notified: Callable[[str, str], None], connected: Callable[[], None] = lambda: None
) -> AbstractAsyncContextManager[None]:
    """Call `notified(kind, subject)` for every notice while inside; reconnects by itself.

    `connected` is called whenever it begins to listen; notices from before are lost.
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
    """The address of the service database. Raises ConfigurationError when there is none."""
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    return dsn
