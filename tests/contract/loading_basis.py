"""The base class of the loading suite, which builds loads from an engine's facts, records them in a ledger, and
compares rows.
"""

import asyncio
import datetime as dt
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.contract.engine_basis import NO_OPTIONS, STOP_S, USER
from tests.contract.engine_driving import run
from tests.contract.loading_facts import LoadingFacts

from queryserver.engines.protocol import Engine, LoadColumn, LoadingEngine, TableLoad, TableLoader, TableName
from queryserver.formats.arrow import BaseType, ColumnType
from queryserver.formats.conversion import arrow_type
from queryserver.imports.model import declared_type

INT64 = ColumnType(BaseType.INT64)
STRING = ColumnType(BaseType.STRING)
CHUNK_TEXT = "x" * 200

Rows = Sequence[tuple[Any, ...]]


class MemoryLedger:
    """A LoadLedger in memory that records its calls. `add` calls `on_add` before it returns."""

    def __init__(self, on_add: Callable[[TableName], Awaitable[None]] | None = None) -> None:
        self.open: set[TableName] = set()
        self.calls: list[tuple[str, TableName]] = []
        self._on_add = on_add

    async def add(self, table: TableName) -> None:
        self.calls.append(("add", table))
        self.open.add(table)
        if self._on_add is not None:
            await self._on_add(table)

    async def remove(self, table: TableName) -> None:
        self.calls.append(("remove", table))
        self.open.discard(table)


class LoadingBasis:
    """The base class of the loading tests.

    A subclass declares `loading_facts`, `running_statements` and the fixture `engine`.
    """

    loading_facts: ClassVar[LoadingFacts]
    tested_with: ClassVar[str] = ""
    """The server that the tests connect to, as named in the support table."""

    async def running_statements(self, engine: Engine) -> int:
        """Return how many of the tests' statements the engine is running."""
        raise NotImplementedError

    @pytest.fixture
    async def loader(self, engine: Engine) -> AsyncGenerator[TableLoader]:
        async with self.loading(engine) as loader:
            yield loader

    @pytest.fixture
    async def target(self, engine: Engine) -> AsyncGenerator[TableName]:
        """Yield the name of a table that does not exist yet; drop that table afterward."""
        table = TableName(None, f"t_{uuid4().hex[:12]}")
        yield table
        await self.drop(engine, table)

    @pytest.fixture
    def reading_engine(self) -> Engine:
        """Return an engine on the same database with a read-only connector."""
        pytest.skip("connectors of this engine have no read-only mode")

    @asynccontextmanager
    async def loading(self, engine: Engine) -> AsyncGenerator[TableLoader]:
        """Open a loader session, as one import does."""
        assert isinstance(engine, LoadingEngine)
        async with engine.loader(USER, NO_OPTIONS) as loader:
            yield loader

    async def drop(self, engine: Engine, table: TableName) -> None:
        async with self.loading(engine) as loader:
            await loader.drop(table)

    async def load(self, loader: TableLoader, load: TableLoad, *batches: pa.RecordBatch) -> int:
        """Run a load and check that the ledger has no open entry afterward."""
        ledger = MemoryLedger()
        try:
            return await loader.load(load, stream(*batches), ledger)
        finally:
            assert not ledger.open

    async def run(self, engine: Engine, sql: str, table: TableName) -> list[tuple[Any, ...]]:
        """Run a statement in a separate session; `{t}` stands for the table."""
        async with engine.session(USER, NO_OPTIONS) as session:
            answer = await run(session, sql.format(t=self.loading_facts.sql_name(table)))
            return answer.rows

    async def rows(self, engine: Engine, load: TableLoad) -> list[tuple[Any, ...]]:
        """Return the target's rows, sorted by the first column and converted for comparison with the loaded rows."""
        found = await self.run(engine, self.loading_facts.select_sql, load.target)
        return sorted((comparable(row, load.columns) for row in found), key=lambda row: row[0])

    async def missing(self, engine: Engine, *tables: TableName) -> bool:
        """Return whether none of the tables exists, as seen by a new session."""
        async with self.loading(engine) as loader:
            return not any([await loader.exists(table) for table in tables])

    async def eventually_idle(self, engine: Engine) -> None:
        """Wait until the engine runs no statement; fail after `STOP_S`."""
        async with asyncio.timeout(STOP_S):
            while await self.running_statements(engine):  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.05)

    def column(self, name: str, kind: ColumnType, *, nullable: bool = True) -> LoadColumn:
        return LoadColumn(name, kind, declared_type(kind, self.loading_facts.dialect), nullable)

    def load_of(
        self,
        target: TableName,
        *columns: LoadColumn,
        append: bool = False,
        replace: bool = False,
        staging: TableName | None = None,
    ) -> TableLoad:
        """Return a load with the given columns, by default `n` and `s`."""
        given = columns or (self.column("n", INT64), self.column("s", STRING))
        return TableLoad(target, staging or staging_of(target), given, append, replace)


def staging_of(target: TableName) -> TableName:
    return TableName(target.database, f"_qs_import_{uuid4().hex[:16]}")


def batch_of(load: TableLoad, rows: Rows) -> pa.RecordBatch:
    """Return the rows as one batch with the load's column types."""
    types = [arrow_type(column.type) for column in load.columns]
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in load.columns])


def numbered(load: TableLoad, start: int, count: int, text: str = "x") -> pa.RecordBatch:
    """Return the rows (start, text), (start + 1, text), …"""
    numbers = pa.array(range(start, start + count), pa.int64())
    return pa.RecordBatch.from_arrays(
        [numbers, pa.array([text] * count, pa.string())], names=[column.name for column in load.columns]
    )


async def stream(*batches: pa.RecordBatch) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        yield batch


async def failing(*batches: pa.RecordBatch, error: Exception) -> AsyncIterator[pa.RecordBatch]:
    """Yield the batches, then raise the error."""
    for batch in batches:
        yield batch
    raise error


def comparable(row: Sequence[Any], columns: Sequence[LoadColumn]) -> tuple[Any, ...]:
    """Convert a row that was read back to the Python types of the loaded row, because an engine may substitute types
    that it lacks.
    """
    assert len(row) == len(columns)
    return tuple(_value(value, column.type.base) for value, column in zip(row, columns, strict=True))


def _value(value: Any, base: BaseType) -> Any:
    if value is None:
        return None
    if base is BaseType.BOOLEAN:
        assert value in {0, 1}
        return bool(value)
    if base.value.startswith(("Int", "UInt")):
        assert int(value) == Decimal(value)
        return int(value)
    read = _READ.get(base)
    return value if read is None else read(value)


def _float(value: Any) -> Any:
    """Return a string, because NaN does not equal itself and 0.0 equals -0.0."""
    number = float(value)
    return "nan" if math.isnan(number) else repr(number)


def _date(value: Any) -> dt.date:
    return dt.date.fromisoformat(value) if isinstance(value, str) else value


def _datetime(value: Any) -> dt.datetime:
    read = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return read.replace(tzinfo=None)


def _time(value: Any) -> dt.time:
    return dt.time.fromisoformat(value) if isinstance(value, str) else value


_INTERVAL = re.compile(r"(-?)(\d+) (\d\d):(\d\d):(\d\d)\.(\d{3})")
"""An SQL interval; the sign applies to all its fields."""
_CLOCK = re.compile(r"(?:(-?\d+) days? ?)?([+-]?)(?:(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?")


def _duration(value: Any) -> dt.timedelta:
    if isinstance(value, dt.timedelta):
        return value
    if isinstance(value, pa.MonthDayNano):
        assert value.months == 0
        return dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)
    if interval := _INTERVAL.fullmatch(value):
        days, hours, minutes, seconds, milliseconds = map(int, interval.groups()[1:])
        size = dt.timedelta(days, seconds, 0, milliseconds, minutes, hours)
        return -size if interval[1] else size
    found = _CLOCK.fullmatch(value)
    assert found, value
    days, sign, hours, minutes, seconds, fraction = found.groups()
    clock = dt.timedelta(
        hours=int(hours or 0), minutes=int(minutes or 0), seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")[:6]),
    )  # fmt: skip
    return dt.timedelta(days=int(days or 0)) + (-clock if sign == "-" else clock)


_READ: dict[BaseType, Callable[[Any], Any]] = {
    BaseType.FLOAT32: _float,
    BaseType.FLOAT64: _float,
    BaseType.DECIMAL: Decimal,
    BaseType.DATE: _date,
    BaseType.DATETIME: _datetime,
    BaseType.TIME: _time,
    BaseType.DURATION: _duration,
}
