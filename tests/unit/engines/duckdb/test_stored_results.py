"""DuckDB scans of stored result chunks: column types, column names and sizes (Contract editor 6.5)."""

import gc
import os
import weakref
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from queryserver import errors
from queryserver.engines.duckdb.stored_results import StoredResultTable
from queryserver.engines.external_data import ResultPiece
from queryserver.engines.process.calls import FILES_AT_ONCE
from queryserver.formats.arrow import Column, ResultType, text_union
from queryserver.results.segments import encode


class StoredPieces:
    """A replacement for `RemoteResult` whose chunks are in memory or, if `directory` is given, in files."""

    def __init__(self, tables: Sequence[pa.Table], kinds: Sequence[ResultType], directory: Path | None = None) -> None:
        names = tables[0].column_names
        self.columns = tuple(Column(name, kind, kind.value) for name, kind in zip(names, kinds, strict=True))
        self.contents = [encode(table) for table in tables]
        self.pieces = tuple(
            ResultPiece(table.num_rows, len(content)) for table, content in zip(tables, self.contents, strict=True)
        )
        self.directory = directory
        self.calls = list[str]()
        self.failure: Exception | None = None
        if directory is not None:
            for number, content in enumerate(self.contents):
                (directory / str(number)).write_bytes(content)

    def files(self, first: int) -> Sequence[int]:
        self.calls.append("files")
        if self.directory is None:
            return ()
        numbers = range(len(self.pieces))[first : first + FILES_AT_ONCE]
        return [os.open(self.directory / str(number), os.O_RDONLY) for number in numbers]

    def read(self, piece: int, start: int, stop: int) -> bytes:
        self.calls.append("read")
        if self.failure is not None:
            raise self.failure
        return self.contents[piece][start:stop]

    def close(self) -> None:
        self.calls.append("close")


def opened(result: StoredPieces) -> StoredResultTable:
    return StoredResultTable(result)  # pyright: ignore[reportArgumentType]


def scanned(result: StoredPieces, sql: str = "FROM r") -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("r", opened(result).dataset)
        return connection.execute(sql).fetchall()


def types_of(result: StoredPieces) -> list[str]:
    return [row[1] for row in scanned(result, "DESCRIBE FROM r")]


def numbered(start: int, rows: int) -> pa.Table:
    texts = pa.array([f"text {n % 100}" for n in range(start, start + rows)])
    return pa.table({"n": pa.array(range(start, start + rows), pa.int64()), "t": texts})


NUMBERED = (ResultType.BIGINT, ResultType.STRING)


@pytest.mark.parametrize("in_files", [True, False])
@pytest.mark.parametrize("pieces", [1, 3, 200])
def test_all_rows_are_scanned_from_files_and_memory(tmp_path: Path, in_files: bool, pieces: int) -> None:
    directory = tmp_path / str(in_files)
    directory.mkdir()
    tables = [numbered(1000 * number, 1000) for number in range(pieces)]
    result = StoredPieces(tables, NUMBERED, directory if in_files else None)
    rows = 1000 * pieces
    assert scanned(result, "SELECT count(*), sum(n), count(DISTINCT t) FROM r") == [(rows, rows * (rows - 1) // 2, 100)]
    assert scanned(result, "SELECT t FROM r WHERE n = 501") == [("text 1",)]
    twice = "SELECT count(*) FROM r AS a JOIN r AS b USING (n) WHERE a.t = 'text 7'"
    assert scanned(result, twice) == [(rows // 100,)]
    assert ("read" in result.calls) != in_files


def test_result_files_are_closed(tmp_path: Path) -> None:
    before = open_files()
    table = opened(StoredPieces([numbered(n, 1) for n in range(300)], NUMBERED, tmp_path))
    with duckdb.connect() as connection:
        connection.register("r", table.dataset)
        assert connection.execute("SELECT count(*), sum(n) FROM r").fetchall() == [(300, 44850)]
        assert open_files() < before + 250
        connection.unregister("r")
        table.close()
        assert open_files() < before + 20


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_closed_table_is_garbage_collected() -> None:
    table = opened(StoredPieces([numbered(0, 10)], NUMBERED))
    left = weakref.ref(table)
    table.close()
    del table
    gc.collect()
    assert left() is None


def test_empty_result_keeps_column_types() -> None:
    result = StoredPieces([pa.table({"a": pa.array([], pa.int32()), "b": pa.array([], pa.string())})],
                          (ResultType.INT, ResultType.STRING))  # fmt: skip
    assert types_of(result) == ["INTEGER", "VARCHAR"]
    nothing = StoredPieces([pa.table({"a": pa.nulls(0), "b": pa.nulls(0)})], (ResultType.INT, ResultType.DATE))
    assert types_of(nothing) == ["INTEGER", "DATE"]
    nothing.pieces = ()
    assert (types_of(nothing), scanned(nothing)) == (["INTEGER", "DATE"], [])


def test_duplicate_column_names_become_unique_ignoring_case() -> None:
    table = pa.table([pa.array([n]) for n in range(5)], names=["a", "A", "a_2", "b", "a"])
    result = StoredPieces([table], [ResultType.BIGINT] * 5)
    names = [row[0] for row in scanned(result, "DESCRIBE FROM r")]
    assert names[0] == "a"
    assert len({name.lower() for name in names}) == 5
    assert scanned(result) == [(0, 1, 2, 3, 4)]
    assert scanned(result, f'SELECT "{names[4]}", "{names[1]}" FROM r') == [(4, 1)]


def test_result_without_columns_is_refused() -> None:
    result = StoredPieces([pa.table({"a": [1]})], [ResultType.INT])
    result.columns = ()
    with pytest.raises(errors.ResultRefused):
        opened(result)


@pytest.mark.parametrize(("array", "kind", "expected"),
    [(pa.array([True, None]), ResultType.BOOLEAN, "BOOLEAN"),
    (pa.array([1, None], pa.uint64()), ResultType.DECIMAL, "UBIGINT"),
    (pa.array([1.5, None], pa.float16()), ResultType.FLOAT, "FLOAT"),
    (pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)), ResultType.DECIMAL, "DECIMAL(38,2)"),
    (pa.array([Decimal("1.50"), None], pa.decimal256(60, 2)), ResultType.DECIMAL, "VARCHAR"),
    (pa.array(["x", None], pa.large_string()), ResultType.STRING, "VARCHAR"),
    (pa.array(["x", None], pa.string_view()), ResultType.STRING, "VARCHAR"),
    (pa.array([b"x", None]), ResultType.BINARY, "BLOB"),
    (pa.array([1, None], pa.timestamp("ns")), ResultType.TIMESTAMP, "TIMESTAMP_NS"),
    (pa.array([1, None], pa.timestamp("us", "UTC")), ResultType.TIMESTAMP_TZ, "TIMESTAMP WITH TIME ZONE"),
    (pa.array([1, None], pa.time64("us")), ResultType.STRING, "TIME"),
    (pa.array([[1], None], pa.list_(pa.int32())), ResultType.ARRAY, "INTEGER[]"),
    (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), ResultType.ARRAY, "INTEGER[]"),
    (pa.array([{"a": 1}, None]), ResultType.STRUCT, 'STRUCT(a BIGINT)'),
    (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), ResultType.MAP, "MAP(VARCHAR, BIGINT)"),
    (pa.array(["a", None]).dictionary_encode(), ResultType.STRING, "VARCHAR"),
    (pa.nulls(2), ResultType.NULL, "VARCHAR")],
)  # fmt: skip
def test_arrow_types_map_to_duckdb_types(array: pa.Array, kind: ResultType, expected: str) -> None:
    result = StoredPieces([pa.table({"v": array})], [kind])
    assert types_of(result) == [expected]
    first, second = scanned(result, "SELECT v IS NULL FROM r")
    assert (first[0], second[0]) == (types_null(array), True)


def types_null(array: pa.Array) -> bool:
    return array[0].as_py() is None


def test_special_values_are_preserved() -> None:
    days = text_union(pa.array([1, None, None], pa.date32()), pa.array([None, "infinity", "0044-03-15 BC"]))
    result = StoredPieces([pa.table({"d": days})], [ResultType.DATE])
    assert types_of(result) == ["DATE"]
    found = scanned(result, "SELECT d::VARCHAR FROM r ORDER BY d")
    assert found == [("0044-03-15 (BC)",), ("1970-01-02",), ("infinity",)]
    numbers = text_union(pa.array([Decimal("1.5"), None], pa.decimal128(10, 2)), pa.array([None, "NaN"]))
    result = StoredPieces([pa.table({"n": numbers})], [ResultType.DECIMAL])
    assert (types_of(result), scanned(result)) == (["VARCHAR"], [("1.50",), ("NaN",)])


def test_chunks_of_different_types_share_a_common_type() -> None:
    """A column may start with NULLs, and later chunks may need a wider integer type. Only columns whose types differ
    are converted.
    """
    tables = [
        pa.table({"a": pa.nulls(2), "b": pa.array([1, 2], pa.int32())}),
        pa.table({"a": pa.array(["x", "y"]), "b": pa.array([3, 2**40], pa.int64())}),
        pa.table({"a": pa.array(["x", "z"]), "b": pa.array([3, 4], pa.int64())}),
    ]
    result = StoredPieces(tables, (ResultType.STRING, ResultType.BIGINT))
    assert types_of(result) == ["VARCHAR", "BIGINT"]
    assert scanned(result, "SELECT max(b), count(a), count(*) FROM r") == [(2**40, 4, 6)]
    assert scanned(result, "SELECT b FROM r WHERE a = 'z'") == [(4,)]


def test_unions_become_text() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([7, 8]), pa.array(["x", "y"])])
    result = StoredPieces([pa.table({"u": union})], [ResultType.UNION])
    assert scanned(result) == [("7",), ("y",)]


def test_store_failure_during_scan_becomes_table_failure() -> None:
    result = StoredPieces([numbered(0, 40_000), numbered(40_000, 40_000)], NUMBERED)
    table = opened(result)
    assert len(result.calls) == 3, "nothing but the heads is read before a scan"
    result.failure = errors.ServiceUnavailable("The result store cannot be reached.")
    with duckdb.connect() as connection:
        connection.register("r", table.dataset)
        with pytest.raises((duckdb.Error, OSError), match="cannot be reached"):
            connection.execute("SELECT sum(n) FROM r").fetchall()
    assert table.failure is result.failure


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_damaged_chunk_is_an_error(damage: str) -> None:
    result = StoredPieces([numbered(0, 40_000)], NUMBERED)
    (whole,) = result.contents
    damaged = {"cut": whole[:-300_0], "changed": whole[:2000] + bytes(8000) + whole[10_000:], "empty": b""}[damage]
    result.contents = [damaged]
    with pytest.raises((duckdb.Error, OSError, errors.StorageError, pa.ArrowException)):
        scanned(result, "SELECT sum(n), max(t) FROM r")
