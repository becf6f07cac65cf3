"""Read-only statements and estimates of DuckDB on the files of a store."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.engines.duckdb.test_files import Setting, closed, opened, rows

from queryserver.engines.blocking_drivers import DriverAnswer
from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.protocol import StatementContext
from queryserver.errors.statements import EngineError, StatementRejected

READ_ONLY = StatementContext(read_only=True)
LONG = "x" * 500


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    found = opened(tmp_path)
    for year in (2023, 2024):
        directory = found.store / f"sales/year={year}"
        directory.mkdir(parents=True)
        table = pa.table({"amount": range(1_000), "note": [f"{one}{LONG}" for one in range(1_000)]})
        pq.write_table(table, directory / "part.parquet", compression="none", use_dictionary=False)
    (found.store / "names.csv").write_text("id,name\n1,Ana\n2,Bob\n")
    yield found
    closed(found)


def read(answer: DriverAnswer) -> list[tuple[Any, ...]]:
    found = list[tuple[Any, ...]]()
    while answer.columns is not None and (batches := answer.next_batches()):
        for batch in batches:
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    answer.close()
    return found


@pytest.mark.parametrize("statement", [
    "COPY (SELECT 1) TO 's3a://new.csv'",
    "copy (FROM 's3a://names.csv') to 's3a://new.parquet' (FORMAT parquet)",
    "/* SELECT */ COPY (SELECT 1 AS a, 2 AS b) TO 's3a://new' (FORMAT csv, PARTITION_BY (a))",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 's3a://new.csv'",
    "COPY (PIVOT 's3a://names.csv' ON name) TO 's3a://new.csv'",
    "PREPARE gone AS COPY (SELECT 1) TO 's3a://new.csv'",
    "EXPORT DATABASE 's3a://new'",
    "COPY kept FROM 's3a://names.csv'",
])  # fmt: skip
def test_read_only_statement_writes_no_file(setting: Setting, statement: str) -> None:
    connection = setting.connect()
    rows(connection, "CREATE TABLE kept (id INT, name VARCHAR)")
    written = setting.written
    with pytest.raises(EngineError):
        connection.run(statement, READ_ONLY)
    assert setting.written == written
    assert rows(connection, "SELECT count(*) FROM kept") == [(0,)]
    assert setting.claims.is_empty


@pytest.mark.parametrize(("statement", "expected"), [
    ("SELECT count(*) FROM 's3a://sales/**/*.parquet'", [(2_000,)]),
    ("FROM 's3a://names.csv' ORDER BY id", [(1, "Ana"), (2, "Bob")]),
    ("SELECT content FROM read_text('s3a://names.csv')", [("id,name\n1,Ana\n2,Bob\n",)]),
    ("FROM glob('s3a://*.csv')", [("s3a://names.csv",)]),
    ("SELECT count(*) FROM (PIVOT 's3a://names.csv' ON name USING count(*))", [(2,)]),
])  # fmt: skip
def test_read_only_statement_reads_files(setting: Setting, statement: str, expected: list[tuple[Any, ...]]) -> None:
    assert read(setting.connect().run(statement, READ_ONLY)) == expected
    assert setting.claims.is_empty


def test_connection_may_write_after_a_read_only_statement_that_was_interrupted(setting: Setting) -> None:
    connection = setting.connect()
    answer = connection.run("SELECT a.range FROM range(100000) a, range(100000) b", READ_ONLY)
    connection.interrupt()
    with suppress(StatementRejected):
        answer.next_batches()
    answer.close()
    assert connection.is_usable
    rows(connection, "CREATE TABLE made AS SELECT 1 AS a")
    assert rows(connection, "FROM made") == [(1,)]


def estimated(connection: DuckdbConnection, statement: str) -> int | None:
    estimate = connection.estimate(statement)
    return None if estimate is None else estimate.scanned_bytes


class TestEstimates:
    def test_files_count_with_their_sizes(self, setting: Setting) -> None:
        connection = setting.connect()
        size = (setting.store / "names.csv").stat().st_size
        assert estimated(connection, "FROM 's3a://names.csv'") == size
        assert estimated(connection, "FROM read_csv('s3a://names.csv') a, read_csv('s3a://names.csv') b") == 2 * size
        assert estimated(connection, "SELECT content FROM read_text('s3a://names.csv')") == size
        assert setting.claims.is_empty

    def test_parquet_files_count_with_the_columns_that_are_read(self, setting: Setting) -> None:
        connection = setting.connect()
        total = sum(one.stat().st_size for one in setting.store.rglob("*.parquet"))
        assert estimated(connection, "FROM 's3a://sales/**/*.parquet'") == total
        few = estimated(connection, "SELECT amount FROM 's3a://sales/**/*.parquet'")
        assert few is not None
        assert 0 < few < total / 10
        filtered = estimated(connection, "SELECT amount FROM 's3a://sales/**/*.parquet' WHERE note > 'x'")
        assert filtered == total
        assert estimated(connection, "SELECT count(*) FROM 's3a://sales/**/*.parquet'") == 0

    def test_excluded_partitions_do_not_count(self, setting: Setting) -> None:
        total = sum(one.stat().st_size for one in setting.store.rglob("*.parquet"))
        half = estimated(setting.connect(), "FROM 's3a://sales/**/*.parquet' WHERE year = 2024")
        assert half == round(total / 2)

    def test_every_path_of_a_list_counts(self, setting: Setting) -> None:
        sizes = [one.stat().st_size for one in setting.store.rglob("*.parquet")]
        paths = "['s3a://sales/year=2023/*.parquet', 's3a://sales/year=2024/*.parquet']"
        assert estimated(setting.connect(), f"FROM read_parquet({paths})") == sum(sizes)

    def test_copy_counts_what_it_reads_and_writes_nothing(self, setting: Setting) -> None:
        connection = setting.connect()
        size = (setting.store / "names.csv").stat().st_size
        written = setting.written
        assert estimated(connection, "COPY (FROM 's3a://names.csv') TO 's3a://new.csv'") == size
        rows(connection, "CREATE TABLE kept (id INT, name VARCHAR)")
        assert estimated(connection, "COPY kept FROM 's3a://names.csv'") == size
        assert setting.written == written
        assert rows(connection, "SELECT count(*) FROM kept") == [(0,)]

    def test_prepared_scan_of_files_counts(self, setting: Setting) -> None:
        connection = setting.connect()
        rows(connection, "PREPARE p AS FROM 's3a://names.csv'")
        assert estimated(connection, "EXECUTE p") == (setting.store / "names.csv").stat().st_size

    @pytest.mark.parametrize("statement", [
        "FROM 's3a://missing.csv'", "SELECT nope FROM 's3a://names.csv'", "nonsense", "", "SELECT 1; SELECT 2",
        "PIVOT 's3a://names.csv' ON name USING count(*)", "CALL pragma_version()", "SET schema = 'main'",
    ])  # fmt: skip
    def test_statement_that_cannot_be_planned_has_no_estimate(self, setting: Setting, statement: str) -> None:
        connection = setting.connect()
        assert connection.estimate(statement) is None
        assert setting.claims.is_empty
        assert rows(connection, "SELECT 1") == [(1,)]

    def test_failed_estimate_leaves_the_transaction_open(self, setting: Setting) -> None:
        connection = setting.connect()
        rows(connection, "BEGIN")
        rows(connection, "CREATE TABLE made AS FROM range(10)")
        assert estimated(connection, "FROM made") == 0
        assert estimated(connection, "SELECT nope FROM made") is None
        assert estimated(connection, "FROM 's3a://missing.csv'") is None
        rows(connection, "COMMIT")
        assert rows(connection, "SELECT count(*) FROM made") == [(10,)]

    def test_tables_count_with_the_blocks_of_the_columns_that_are_read(self, setting: Setting) -> None:
        connection = setting.connect()
        rows(connection, f"CREATE TABLE wide AS SELECT range AS a, range || '{LONG}' AS b FROM range(200_000)")
        rows(connection, "CHECKPOINT")
        whole, narrow = estimated(connection, "FROM wide"), estimated(connection, "SELECT a FROM wide")
        assert whole is not None
        assert narrow is not None
        assert 0 < narrow < whole / 2
        assert estimated(connection, "SELECT a FROM wide WHERE b > '5'") == whole
        assert estimated(connection, "SELECT count(*) FROM wide") == 0
        assert estimated(connection, "INSERT INTO wide SELECT * FROM wide") == whole
        assert estimated(connection, "EXPLAIN FROM wide") == 0
        assert estimated(connection, "EXPLAIN ANALYZE FROM wide") == whole
        assert rows(connection, "SELECT count(*) FROM wide") == [(200_000,)]
