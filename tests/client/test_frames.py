"""`db.imports.load` of data frames of pandas, polars and pyarrow (issue 38)."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.client.conftest import Server
from tests.client.threads import in_thread

from queryserver_client import Connection, ConversionFailed, connect_sync, frames
from queryserver_client.frames import is_frame, spooled

AT = dt.datetime(2024, 1, 3, 4, 5, 6)  # noqa: DTZ001 a TIMESTAMP has no time zone


async def types_and_rows(db: Connection, table: str) -> tuple[dict[str, str], list[tuple[object, ...]]]:
    result = await db.query("duckdb", f"SELECT * FROM {table}")
    return {column.name: column.native_type for column in result.columns}, await result.rows()


async def written(frame: Any) -> pa.Table:
    async with spooled(frame) as file:
        return pa.ipc.open_stream(file.read()).read_all()


async def test_pandas_frame_becomes_table_with_its_types(db: Connection):
    frame = pd.DataFrame(
        {
            "number": pd.array([1, None, 3], "Int16"),
            "name": ["x", None, "z"],
            "kind": pd.Categorical(["u", "v", "u"]),
            "at": pd.to_datetime(["2024-01-01 00:00:00", None, "2024-01-03 04:05:06"]),
            "price": [Decimal("1.1"), None, Decimal("22.22")],
        }
    )
    loaded = await db.imports.load(frame[frame["name"] != "x"], "duckdb.from_pandas")
    assert (loaded.rows_read, loaded.rows_loaded) == (2, 2)
    assert await types_and_rows(db, "from_pandas") == (
        {"number": "SMALLINT", "name": "VARCHAR", "kind": "VARCHAR", "at": "TIMESTAMP", "price": "DECIMAL(4,2)"},
        [(None, None, "v", None, None), (3, "z", "u", AT, Decimal("22.22"))],
    )


async def test_polars_frame_becomes_table_with_its_types(db: Connection):
    frame = pl.DataFrame(
        {
            "u": pl.Series([2**64 - 1, None], dtype=pl.UInt64),
            "s": ["x", "y"],
            "e": pl.Series(["m", "n"], dtype=pl.Enum(["m", "n"])),
            "c": pl.Series(["m", None], dtype=pl.Categorical),
            "l": [["q"], [None]],
            "st": [{"z": "w"}, None],
            "day": [dt.date(2024, 1, 2), None],
        }
    )
    await db.imports.load(frame, "duckdb.from_polars")
    assert await types_and_rows(db, "from_polars") == (
        {
            "u": "UBIGINT",
            "s": "VARCHAR",
            "e": "VARCHAR",
            "c": "VARCHAR",
            "l": "VARCHAR",
            "st": "VARCHAR",
            "day": "DATE",
        },
        [
            (2**64 - 1, "x", "m", "m", '["q"]', '{"z":"w"}', dt.date(2024, 1, 2)),
            (None, "y", "n", None, "[null]", None, None),
        ],
    )


async def test_frame_is_previewed_and_loaded_without_rows(db: Connection):
    empty = pa.table({"n": pa.array([], pa.int32())})
    assert (await db.imports.load(empty, "duckdb.from_empty")).rows_loaded == 0
    assert await types_and_rows(db, "from_empty") == ({"n": "INTEGER"}, [])
    preview = await db.imports.preview(pa.table({"n": pa.array([7], pa.int32())}), "duckdb")
    assert ([column.type for column in preview.columns], preview.rows) == (["INTEGER"], (("7",),))


@in_thread
def _load_without_await(url: str, token: str) -> None:
    with connect_sync(url, token=token) as db:
        assert db.imports.load(pl.DataFrame({"n": [1, 2]}), "duckdb.from_sync").rows_loaded == 2


async def test_frame_is_loaded_without_await(server: Server):
    await _load_without_await(server.url, await server.token())


@pytest.mark.parametrize(
    "frame", [pd.DataFrame({"o": [1, "a"]}), pd.DataFrame({"o": [object()]}), pl.DataFrame({"o": [object()]})]
)
async def test_frame_without_arrow_types_is_refused(frame: Any):
    with pytest.raises(ConversionFailed, match="the data frame cannot be converted: "):
        await written(frame)


async def test_large_batches_are_split_and_values_stay_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "_BATCH_BYTES", 1000)
    table = pa.table(
        {
            "n": pa.array(range(100_000)),
            "view": pa.array(["text that is longer than a view"] * 100_000, pa.string_view()),
            "word": pa.array(["a", "b"] * 50_000).dictionary_encode(),
        }
    )
    read = await written(table)
    assert max(batch.nbytes for batch in read.to_batches()) <= 1000
    assert read.to_pydict() == table.to_pydict()


async def test_stream_is_read_once_and_batch_by_batch():
    alive = list[int]()

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(50):
            alive.append(pa.total_allocated_bytes())
            yield pa.record_batch({"x": pa.array([number] * 100_000)})

    reader = pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int64()}), batches())
    assert is_frame(reader)
    assert (await written(reader)).num_rows == 5_000_000
    assert max(alive) - alive[0] < 8 * 800_000
