"""Loading tables through Trino: the SQL statements, and fallbacks for connectors that lack features."""

import datetime as dt
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.loading_basis import MemoryLedger, stream
from tests.contract.loading_facts import TEXTS
from tests.engines.scripted_trino import Reply, ScriptedTrino, column, error, page, scripted_trino

from queryserver.engines.protocol import LoadColumn, TableLoad, TableLoader, TableName
from queryserver.engines.trino.engine import TrinoEngine, TrinoLoader
from queryserver.engines.trino.protocol import TrinoAddress
from queryserver.errors.statements import EngineError, StatementRejected
from queryserver.formats.arrow import BaseType, ColumnType

STRING, DATETIME = ColumnType(BaseType.STRING), ColumnType(BaseType.DATETIME)
TARGET, STAGING = TableName(None, "t"), TableName(None, "_qs_import_1")
LOAD = TableLoad(TARGET, STAGING, (LoadColumn("s", STRING, "VARCHAR"),))
HERE = '"c"."d".'

FOUND = page(rows=[[1]], columns=(column("_col0", "integer"),), state="FINISHED")
MISSING = page(rows=[], columns=(column("_col0", "integer"),), state="FINISHED")
DONE = page(state="FINISHED")
NOT_SUPPORTED = page(state="FAILED", error=error("This connector does not support it", "NOT_SUPPORTED"))
DISK_FULL = page(state="FAILED", error=error("No space left", "GENERIC_INTERNAL_ERROR"))
TAKEN = page(state="FAILED", error=error("Table 'c.d.t' already exists", "TABLE_ALREADY_EXISTS"))

CONSTANT = re.compile(r"json_parse\('((?:[^']|'')*)'\)")


@asynccontextmanager
async def loader_at(server: ScriptedTrino) -> AsyncGenerator[TableLoader]:
    engine = TrinoEngine(TrinoAddress(server.url, catalog="c", schema="d"))
    try:
        async with engine.loader(USER, NO_OPTIONS) as loader:
            yield loader
    finally:
        await engine.close()


def batches(*texts: str | None) -> AsyncIterator[pa.RecordBatch]:
    return stream(pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["s"]))


def statements(server: ScriptedTrino) -> list[str]:
    return [request.body.decode() for request in server.requests if request.method == "POST"]


def steps(server: ScriptedTrino) -> list[str]:
    """Return the statements, shortened to their first words."""
    return [re.sub(r"(TABLE|INTO) (IF EXISTS )?(\S+).*", r"\1 \3", sql).replace(HERE, "") for sql in statements(server)]


async def loaded(load: TableLoad, rows: AsyncIterator[pa.RecordBatch], *script: Reply) -> tuple[list[str], object]:
    """Run a load and check that its ledger is empty afterward; return its steps, and the number of rows or
    the error.
    """
    ledger = MemoryLedger()
    async with scripted_trino(*script) as server, loader_at(server) as loader:
        try:
            end: object = await loader.load(load, rows, ledger)
        except EngineError as failure:
            end = failure
        assert not ledger.open
        return steps(server)[1:], end


def text_of(*rows: tuple[str | None, ...]) -> str:
    """Return the statement that inserts rows of strings."""
    columns = tuple(LoadColumn(f"c{qualified_name}", STRING, "VARCHAR") for qualified_name in range(len(rows[0])))
    load = TableLoad(TARGET, STAGING, columns)
    loader = TrinoLoader(None, None, catalog="c", schema="d")  # type: ignore[arg-type]
    types = ["VARCHAR"] * len(columns)
    arrays = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[one.name for one in columns])
    return loader.insert(load, types, loader.writer(columns, types)(batch))


def rows_of(statement: str) -> list[list[str | None]]:
    """Return the rows as Trino reads them. A literal ends at the first quote that is not doubled."""
    (constant,) = CONSTANT.findall(statement)
    assert "'" not in CONSTANT.sub("", statement)
    return orjson.loads(constant.replace("''", "'"))


@pytest.mark.importer(57)
@pytest.mark.security("T23")
@pytest.mark.parametrize(
    "text", [*TEXTS, None, "\0", "${x}", "\\u0027", "']') --", "\\'", "é" * 300_000, "'" * 300_000]
)
def test_hostile_text_is_data_in_the_statement(text: str | None) -> None:
    assert rows_of(text_of((text, "next"), ("", text))) == [[text, "next"], ["", text]]


@given(st.lists(st.tuples(st.none() | st.text(st.characters(exclude_categories=("Cs",)))), min_size=1))
def test_arbitrary_texts_round_trip(rows: list[tuple[str | None]]) -> None:
    assert rows_of(text_of(*rows)) == [list(row) for row in rows]


def test_names_in_statements_are_quoted() -> None:
    load = TableLoad(TableName('x"y', "t"), TableName('x"y', "a'b"), (LoadColumn('c"d', STRING, "VARCHAR"),))
    loader = TrinoLoader(None, None, catalog="c", schema="d")  # type: ignore[arg-type]
    assert loader.insert(load, ["VARCHAR"], [b'["1"]']) == (
        'INSERT INTO "c"."x""y"."a\'b" ("c""d") SELECT CAST(r[1] AS VARCHAR)'
        " FROM UNNEST(CAST(json_parse('[[\"1\"]]') AS ARRAY(ARRAY(VARCHAR)))) AS rows (r)"
    )


async def test_load_ends_by_renaming_the_staging_table() -> None:
    done = await loaded(LOAD, batches("a"), MISSING, DONE, DONE, DONE)
    assert done == (['CREATE TABLE "_qs_import_1"', 'INSERT INTO "_qs_import_1"', 'ALTER TABLE "_qs_import_1"'], 1)


FALLBACK = [
    'CREATE TABLE "_qs_import_1"',
    'INSERT INTO "_qs_import_1"',
    'ALTER TABLE "_qs_import_1"',
    'CREATE TABLE "t"',
    'INSERT INTO "t"',
]


@pytest.mark.importer(55)
async def test_without_rename_table_is_filled_by_one_statement() -> None:
    done = await loaded(LOAD, batches("a", "b"), MISSING, DONE, DONE, NOT_SUPPORTED, DONE, DONE, DONE)
    assert done == ([*FALLBACK, 'DROP TABLE "_qs_import_1"'], 2)


async def test_without_rename_columns_are_copied_by_name() -> None:
    async with scripted_trino(MISSING, DONE, DONE, NOT_SUPPORTED, DONE) as server, loader_at(server) as loader:
        assert await loader.load(LOAD, batches("a"), MemoryLedger()) == 1
        assert 'INSERT INTO "c"."d"."t" ("s") SELECT "s" FROM "c"."d"."_qs_import_1"' in statements(server)


@pytest.mark.importer(55)
async def test_without_rename_failed_copy_drops_both_tables() -> None:
    script = (MISSING, DONE, DONE, NOT_SUPPORTED, DONE, DISK_FULL, DONE)
    done, end = await loaded(LOAD, batches("a"), *script)
    assert isinstance(end, EngineError)
    assert "No space left" in end.message
    assert done == [*FALLBACK, 'DROP TABLE "t"', 'DROP TABLE "_qs_import_1"']


@pytest.mark.importer(55)
async def test_without_rename_concurrently_created_table_is_kept() -> None:
    done, end = await loaded(LOAD, batches("a"), MISSING, DONE, DONE, NOT_SUPPORTED, TAKEN, DONE)
    assert isinstance(end, StatementRejected)
    assert "already exists" in end.message
    assert done == [*FALLBACK[:4], 'DROP TABLE "_qs_import_1"']


async def test_copy_that_cannot_be_dropped_stays_in_ledger() -> None:
    ledger = MemoryLedger()
    script = (MISSING, DONE, DONE, NOT_SUPPORTED, DONE, DISK_FULL)
    async with scripted_trino(*script) as server, loader_at(server) as loader:
        with pytest.raises(EngineError, match="No space left"):
            await loader.load(LOAD, batches("a"), ledger)
    assert ledger.open == {TARGET, STAGING}


async def test_other_rename_failure_is_an_error() -> None:
    done, end = await loaded(LOAD, batches("a"), MISSING, DONE, DONE, TAKEN, DONE)
    assert isinstance(end, StatementRejected)
    assert done == [*FALLBACK[:3], 'DROP TABLE "_qs_import_1"']


@pytest.mark.importer(55)
async def test_failed_append_drops_only_the_staging_table() -> None:
    more = TableLoad(TARGET, STAGING, LOAD.columns, append=True)
    done, end = await loaded(more, batches("a"), FOUND, DONE, DONE, DISK_FULL, DONE)
    assert isinstance(end, EngineError)
    assert done == [*FALLBACK[:2], 'INSERT INTO "t"', 'DROP TABLE "_qs_import_1"']


def wishes(server: ScriptedTrino) -> list[str]:
    """Return the column list of each CREATE TABLE statement."""
    return [sql.partition("(")[2][:-1] for sql in statements(server) if sql.startswith("CREATE")]


STRICT = TableLoad(
    TARGET, STAGING, (LoadColumn("s", STRING, "VARCHAR", nullable=False), LoadColumn("t", DATETIME, "TIMESTAMP"))
)


async def moments(microsecond: int) -> AsyncIterator[pa.RecordBatch]:
    moment = dt.datetime.fromisoformat("2024-02-29 10:20:30").replace(microsecond=microsecond)
    arrays = [pa.array(["a"]), pa.array([moment], pa.timestamp("us"))]
    yield pa.RecordBatch.from_arrays(arrays, names=["s", "t"])


async def test_table_definition_falls_back_to_supported_features() -> None:
    """The catalog in this test supports neither microseconds nor NOT NULL."""
    script = (MISSING, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, DONE)
    async with scripted_trino(*script) as server, loader_at(server) as loader:
        assert await loader.load(STRICT, moments(5000), MemoryLedger()) == 1
        assert wishes(server) == [
            '"s" VARCHAR NOT NULL, "t" TIMESTAMP(6)',
            '"s" VARCHAR, "t" TIMESTAMP(6)',
            '"s" VARCHAR NOT NULL, "t" TIMESTAMP',
            '"s" VARCHAR, "t" TIMESTAMP',
        ]
        (insert,) = [sql for sql in statements(server) if sql.startswith("INSERT")]
        assert "CAST(r[2] AS TIMESTAMP)" in insert
        assert '"2024-02-29 10:20:30.005' in insert


async def test_unsupported_microseconds_are_refused_rather_than_rounded() -> None:
    script = (MISSING, NOT_SUPPORTED, NOT_SUPPORTED, DONE, DONE)
    done, end = await loaded(STRICT, moments(5), *script)
    assert isinstance(end, StatementRejected)
    assert "milliseconds" in end.message
    assert done == ['CREATE TABLE "_qs_import_1"'] * 3 + ['DROP TABLE "_qs_import_1"']


async def test_catalog_that_cannot_create_tables_is_reported() -> None:
    ledger = MemoryLedger()
    async with scripted_trino(MISSING, NOT_SUPPORTED, DONE) as server, loader_at(server) as loader:
        with pytest.raises(StatementRejected, match="does not support"):
            await loader.load(LOAD, batches("a"), ledger)
        assert steps(server)[1:] == ['CREATE TABLE "_qs_import_1"', 'DROP TABLE "_qs_import_1"']
    assert not ledger.open
