"""Tables made from results, with types that files do not have (Contract exports 8).

Every engine that loads tables runs this test.
"""

import asyncio
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.loading_basis import LoadingBasis, staging_of

from queryserver.engines.protocol import Engine, TableLoad, TableLoader, TableName
from queryserver.exports.table_columns import table_columns
from queryserver.formats.arrow import Column, ResultType

_STRUCTS = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
_NESTED = [{"a": 2**60, "b": 'it\'s "x" \\ é'}, {"a": None, "b": None}]
_INSTANT = dt.datetime(2024, 1, 31, 10, 20, 30, 123000, tzinfo=dt.UTC)
_LONG = Decimal("123456789012345678901234567890123456789012345.5")

RESULT: dict[Column, tuple[pa.DataType, Any]] = {
    Column("id", ResultType.BIGINT, "bigint"): (pa.int64(), 1),
    Column("nested", ResultType.ARRAY, "struct[]"): (_STRUCTS, _NESTED),
    Column("json", ResultType.STRING, "jsonb"): (pa.string(), '{"k": [1, "it\'s"]}'),
    Column("zoned", ResultType.TIMESTAMP_TZ, "timestamp with time zone"): (pa.timestamp("us", "UTC"), _INSTANT),
    Column("long", ResultType.DECIMAL, "numeric"): (pa.string(), str(_LONG)),
    Column("huge", ResultType.DECIMAL, "uhugeint"): (pa.decimal256(39, 0), Decimal(2**128 - 1)),
    Column("uuid", ResultType.STRING, "uuid"): (pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    Column("clock", ResultType.STRING, "time without time zone"): (pa.string(), "10:20:30"),
    Column("bytes", ResultType.BINARY, "bytea"): (pa.binary(), b"\x00\xff'"),
    Column("nothing", ResultType.NULL, "null"): (pa.null(), None),
    Column("ID", ResultType.INT, "integer"): (pa.int32(), 7),
}
"""Columns of a result, with the Arrow type and one value of each."""


class ResultLoading(LoadingBasis):
    """The test of result types. The loader contracts inherit it."""

    @pytest.mark.capability("Tables from files")
    @pytest.mark.exports(18)
    async def test_types_that_only_results_have_are_loaded(
        self, engine: Engine, loader: TableLoader, target: TableName
    ):
        kinds = [kind for kind, _ in RESULT.values()]
        values = [pa.array([value, None if place else 2], kind) for place, (kind, value) in enumerate(RESULT.values())]
        batch = pa.RecordBatch.from_arrays(values, names=[column.name for column in RESULT])
        made = table_columns(tuple(RESULT), [batch.schema], self.loading_facts.dialect)
        load = TableLoad(target, staging_of(target), made.load_columns)
        assert await self.load(loader, load, await asyncio.to_thread(made.convert, batch)) == 2
        found = await self.run(engine, self.loading_facts.select_sql, target)
        # Phoenix adds a column with row numbers.
        full, empty = sorted((row[: len(RESULT)] for row in found), key=lambda row: int(row[0]))
        assert (int(empty[0]), set(empty[1:])) == (2, {None})
        read = [_comparable(column, value) for column, value in zip(RESULT, full, strict=True)]
        assert read == [_comparable(column, value) for column, (_, value) in RESULT.items()], kinds


def _comparable(column: Column, value: Any) -> Any:
    """Convert a value to the type in which values of all engines can be compared."""
    match column.name:
        case "nested" | "json":
            return json.loads(value) if isinstance(value, str) else value
        case "zoned":
            text = str(value).replace(" UTC", "+00:00")
            moment = dt.datetime.fromisoformat(text)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        case "long" | "huge":
            return Decimal(value)
        case "clock":
            return str(value).removesuffix(".000000")
        case _:
            return value
