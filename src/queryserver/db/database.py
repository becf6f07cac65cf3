"""One asyncpg pool per process, and what goes wrong with it as domain errors."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from queryserver.domain.errors import DatabaseUnavailable

Connection = PoolConnectionProxy

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


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Size and patience of the pool (settings `desktop.database`)."""

    min_size: int = 1
    max_size: int = 10
    connect_timeout: timedelta = timedelta(seconds=5)
    statement_timeout: timedelta = timedelta(seconds=30)


class Database:
    """The service database. Each method is one statement in autocommit; `transaction` joins several."""

    def __init__(self, pool: asyncpg.Pool, limits: PoolLimits) -> None:
        self._pool = pool
        self._acquire_timeout_s = limits.connect_timeout.total_seconds()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A pooled connection. Raises DatabaseUnavailable when none is had in time."""
        with database_errors():
            async with self._pool.acquire(timeout=self._acquire_timeout_s) as connection:
                yield connection

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
        return self._pool.get_size(), self._pool.get_idle_size()


@asynccontextmanager
async def open_database(dsn: str, limits: PoolLimits | None = None) -> AsyncGenerator[Database]:
    """A pool on `dsn`, closed at the end. Raises DatabaseUnavailable."""
    limits = limits or PoolLimits()
    with database_errors():
        pool = await asyncpg.create_pool(
            dsn,
            min_size=limits.min_size,
            max_size=limits.max_size,
            timeout=limits.connect_timeout.total_seconds(),
            command_timeout=limits.statement_timeout.total_seconds(),
            init=_prepare_connection,
            reset=_leave_as_is,
            server_settings={
                "application_name": "queryserver",
                "timezone": "UTC",
                "statement_timeout": str(int(limits.statement_timeout.total_seconds() * 1000)),
                # Hot queries are small index look-ups: compiling them costs more than running them.
                "jit": "off",
            },
        )
    try:
        yield Database(pool, limits)
    finally:
        await _close(pool)


async def _prepare_connection(connection: Connection) -> None:
    await connection.set_type_codec("jsonb", encoder=_to_json, decoder=orjson.loads, schema="pg_catalog")


async def _leave_as_is(connection: Connection) -> None:
    """Our own SQL leaves no session state behind, so the usual reset would only cost each call a round trip."""
    del connection


def _to_json(value: object) -> str:
    return orjson.dumps(value).decode()


async def _close(pool: asyncpg.Pool) -> None:
    try:
        async with asyncio.timeout(5):
            await pool.close()
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()
