"""What can be asked of a catalogue, and how each answer is kept as JSON."""

import asyncio
import hashlib
import random
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from uuid import UUID

import orjson
import structlog
from pydantic import TypeAdapter

from queryserver.connectors.model import Connector
from queryserver.engines.protocol import (
    Catalog,
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    TableColumn,
    TableDescription,
)
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import column_not_found, nested_path_not_found
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.text import natural_key
from queryserver.sql.types import SqlType, parse_type


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Whose answer it is, of which connector; `digest` stands for what was asked."""

    user_id: int
    connector: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What is kept under a key, if anything, and the moment of the look.

    `changed_at` is the last change of objects that the user made there: two looks with different ones must not share
    an answer. All times are the database's.
    """

    value: bytes | None
    looked_at: datetime
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ForwardedLook:
    """What a process is asked; `request` is for the services of the process that takes it."""

    user_id: int
    request: bytes


_LOOK = """
select now() as looked_at, changed.at as changed_at, kept.value
from (select max(changed_at) as at from metadata_changes where user_id = $1 and connector = $2) as changed
left join metadata_answers as kept
    on kept.user_id = $1 and kept.connector = $2 and kept.digest = $3
    and kept.looked_at > now() - $4::interval and (changed.at is null or kept.looked_at > changed.at)
"""

_KEEP = """
insert into metadata_answers as kept (user_id, connector, digest, value, size_bytes, looked_at)
select $1::bigint, $2::text, $3::bytea, $4::bytea, $5::integer, $6::timestamptz
where $5 + (
    select coalesce(sum(size_bytes), 0) from metadata_answers
    where user_id = $1 and not (connector = $2 and digest = $3)
) <= $7
on conflict (user_id, connector, digest) do update
    set value = excluded.value, size_bytes = excluded.size_bytes, looked_at = excluded.looked_at
    where kept.looked_at < excluded.looked_at
returning true
"""

_CHANGED = """
with gone as (delete from metadata_answers where user_id = $1 and connector = $2)
insert into metadata_changes (user_id, connector, changed_at) values ($1, $2, clock_timestamp())
on conflict (user_id, connector) do update set changed_at = greatest(metadata_changes.changed_at, excluded.changed_at)
"""

_ROW_BYTES = 128  # what a row costs beside its value


class MetadataCacheRecords:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(self, key: CacheKey, *, max_age: timedelta) -> CacheLook:
        """An answer that is not older than `max_age`, nor than the user's last change of objects."""
        row = await self._database.row(_LOOK, key.user_id, key.connector, key.digest, max_age)
        if row is None:
            raise AssertionError("an aggregate always has a row")
        return CacheLook(row["value"], row["looked_at"], row["changed_at"])

    async def keep(self, key: CacheKey, value: bytes, *, looked_at: datetime, max_bytes: int) -> bool:
        """Keep an answer; `looked_at` comes from the look that found none, before the engine was asked.

        False when the user's answers fill `max_bytes`: then nothing is kept.
        """
        size = len(value) + _ROW_BYTES
        kept = await self._database.value(
            _KEEP, key.user_id, key.connector, key.digest, value, size, looked_at, max_bytes
        )
        return kept is True

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Forget the user's answers of a connector, those under way included."""
        await self._database.execute(_CHANGED, user_id, connector)

    async def sweep(self, *, older_than: timedelta) -> int:
        """Delete what nobody can be given any more."""
        deleted = await self._database.execute(
            "delete from metadata_answers where looked_at < now() - $1::interval", older_than
        )
        await self._database.execute(
            "delete from metadata_changes where changed_at < now() - $1::interval", 2 * older_than
        )
        return deleted


# What its asker could not delete, because it died, goes with the next look.
_ASK = """
with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)
"""


class ForwardedLooks:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def holder(self, connector: str) -> str | None:
        """The living process that holds the data of this name (`EngineCapabilities.data_name`)."""
        return await self._database.value(
            "select owner from engine_owners where connector = $1 and lease_until > now()", connector
        )

    async def ask(self, look_id: UUID, look: ForwardedLook, *, of: str) -> None:
        """Leave a look for the process `of`."""
        await self._database.execute(_ASK, look_id, of, look.user_id, look.request)

    async def take(self, look_id: UUID, *, by: str) -> ForwardedLook | None:
        """The look, once, if it is for this process and still wanted."""
        row = await self._database.row(
            """update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
            returning user_id, request""",
            look_id,
            by,
        )
        return ForwardedLook(row["user_id"], row["request"]) if row else None

    async def answer(self, look_id: UUID, answer: bytes) -> None:
        """Leave the answer for whoever asked; nothing happens when nobody waits any more."""
        await self._database.execute("update forwarded_looks set answer = $2 where id = $1", look_id, answer)

    async def read(self, look_id: UUID) -> bytes | None:
        """The answer, once it is there."""
        return await self._database.value("select answer from forwarded_looks where id = $1", look_id)

    async def forget(self, look_id: UUID) -> None:
        """Nobody waits any more."""
        await self._database.execute("delete from forwarded_looks where id = $1", look_id)


_THREAD_ABOVE_NAMES = 1000

T = TypeVar("T")
Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class TableList:
    """Tables of a database in natural order, column by column: 30,000 of them are read back in a few milliseconds."""

    names: Sequence[str]
    kinds: Sequence[str]
    """Values of `TableKind`."""
    comments: Sequence[str]


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column with what the engine knows of its values."""

    column: TableColumn
    statistics: ColumnStatistics
    of_view: bool


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One look at a catalogue. `kind` and `names` say everything about it; another process can build it of them."""

    kind: str
    names: tuple[str | None, ...]
    put_to: Callable[[Catalog], Awaitable[T]]
    decode: Callable[[bytes], T]

    def encode(self, answer: T) -> bytes:
        """The answer as JSON; `decode` reads it back."""
        return orjson.dumps(answer, default=_plain)


def databases() -> Question[list[str]]:
    """All databases, in natural order."""

    async def ask(catalog: Catalog) -> list[str]:
        return await naturally(await catalog.databases(), str)

    return Question("databases", (), ask, _NAMES.validate_json)


def database(name: str) -> Question[DatabaseDescription]:
    """One database. The answer raises database_not_found."""
    return Question("database", (name,), lambda catalog: catalog.database(name), _DATABASE.validate_json)


def tables(of: str) -> Question[TableList]:
    """Tables and views, in natural order. The answer raises database_not_found."""

    async def ask(catalog: Catalog) -> TableList:
        found = await naturally(await catalog.tables(of), lambda one: one.name)
        return TableList([one.name for one in found], [one.kind.value for one in found], [one.comment for one in found])

    return Question("tables", (of,), ask, lambda kept: TableList(**orjson.loads(kept)))


def table(of: str, name: str) -> Question[TableDescription]:
    """One table. The answer raises database_not_found, TableNotFound."""
    return Question("table", (of, name), lambda catalog: catalog.table(of, name), _TABLE.validate_json)


def column(of: str, in_table: str, name: str) -> Question[DescribedColumn]:
    """A column and its statistics. The answer raises database_not_found, TableNotFound, column_not_found."""

    async def ask(catalog: Catalog) -> DescribedColumn:
        described = await catalog.table(of, in_table)
        found = column_of(described, name)
        statistics = await catalog.column_statistics(described, found.name)
        return DescribedColumn(found, statistics, described.kind.is_view)

    return Question("column", (of, in_table, name), ask, _COLUMN.validate_json)


def functions(of: str | None) -> Question[list[FunctionDescription]]:
    """Functions, in natural order. The answer raises database_not_found."""

    async def ask(catalog: Catalog) -> list[FunctionDescription]:
        return await naturally(await catalog.functions(of), lambda one: one.name)

    return Question("functions", (of,), ask, _FUNCTIONS.validate_json)


def function(name: str) -> Question[FunctionDescription | None]:
    """One function by its name, or by `database.name`; None: unknown."""

    async def ask(catalog: Catalog) -> FunctionDescription | None:
        found = await catalog.function(None, name)
        before, dot, after = name.rpartition(".")
        return found if found or not (dot and before and after) else await catalog.function(before, after)

    return Question("function", (name,), ask, _FUNCTION.validate_json)


BY_KIND: Mapping[str, Callable[..., Question[Any]]] = MappingProxyType(
    {made.__name__: made for made in (databases, database, tables, table, column, functions, function)}
)
"""How to build a question anew: `BY_KIND[kind](*names)`."""


def column_of(described: TableDescription, name: str) -> TableColumn:
    """The column of that name. Raises column_not_found."""
    found = described.column(name)
    if found is None:
        raise column_not_found(described.name, name)
    return found


def nested_type(column: TableColumn, path: Sequence[str]) -> SqlType:
    """The type of a column, or of the part of it at nested segments. Raises nested_path_not_found."""
    found = parse_type(column.type).at(path)
    if found is None:
        raise nested_path_not_found("/".join(path))
    return found


async def naturally(found: Iterable[Named], name_of: Callable[[Named], str]) -> list[Named]:
    """In natural order; many of them in a thread, for 30,000 take 100 ms."""

    def in_order() -> list[Named]:
        return sorted(found, key=lambda one: natural_key(name_of(one)))

    many = isinstance(found, Sequence) and len(found) > _THREAD_ABOVE_NAMES
    return await asyncio.to_thread(in_order) if many else in_order()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value))


_NAMES = TypeAdapter(list[str])
_DATABASE = TypeAdapter(DatabaseDescription)
_TABLE = TypeAdapter(TableDescription)
_COLUMN = TypeAdapter(DescribedColumn)
_FUNCTIONS = TypeAdapter(list[FunctionDescription])
_FUNCTION: TypeAdapter[FunctionDescription | None] = TypeAdapter(FunctionDescription | None)


log = structlog.get_logger(__name__)

_THREAD_ABOVE_BYTES = 16 * 1024
_MAX_USER_BYTES = 32 * 1024 * 1024
_MIN_SWEEP_S = 5.0


@dataclass(frozen=True, slots=True)
class Found(CacheLook):
    """A look, and the key to keep what the engine will answer."""

    key: CacheKey


class MetadataCache:
    """Compressed answers per user and connector. An answer that cannot be kept is given all the same."""

    def __init__(self, records: MetadataCacheRecords, threads: Executor, *, max_age: timedelta) -> None:
        self._records = records
        self._threads = threads
        self._max_age = max_age

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Sweep what nobody can be given any more, while inside."""
        sweeper = asyncio.create_task(self._sweep(), name="metadata-sweep")
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    async def look(self, user: User, connector: Connector, login: str, question: Question[Any]) -> Found:
        """What is kept; `login` is the name by which the data source knows the caller, if it wants one."""
        # The former version of a connector may have meant another place.
        asked = orjson.dumps([question.kind, question.names, login, connector.version])
        key = CacheKey(user.id, connector.key, hashlib.sha256(asked).digest())
        look = await self._records.look(key, max_age=self._max_age)
        return Found(look.value, look.looked_at, look.changed_at, key)

    async def read(self, question: Question[T], value: bytes) -> T:
        """The answer that was kept."""

        def unpack() -> T:
            return question.decode(zlib.decompress(value))

        if len(value) <= _THREAD_ABOVE_BYTES:
            return unpack()
        return await asyncio.get_running_loop().run_in_executor(self._threads, unpack)

    async def keep(self, question: Question[T], answer: T, *, key: CacheKey, looked_at: datetime) -> None:
        """Keep an answer that the engine gave after `looked_at`."""
        if not self._max_age:
            return

        def pack() -> bytes:
            return zlib.compress(question.encode(answer), 1)

        value = await asyncio.get_running_loop().run_in_executor(self._threads, pack)
        try:
            await self._records.keep(key, value, looked_at=looked_at, max_bytes=_MAX_USER_BYTES)
        except DatabaseUnavailable:
            log.warning("metadata not kept", kind=question.kind)

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """The user changed objects of the connector: nothing from before is given any more, by no instance."""
        await self._records.objects_changed(user_id, connector)

    async def _sweep(self) -> None:
        period_s = max(self._max_age.total_seconds(), _MIN_SWEEP_S)
        while True:
            # Servers started together must not sweep in step.
            await asyncio.sleep(period_s * random.uniform(0.8, 1.0))  # noqa: S311 no secret
            try:
                await self._records.sweep(older_than=timedelta(seconds=period_s))
            except DatabaseUnavailable:
                log.warning("sweep of metadata failed")
