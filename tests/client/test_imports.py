"""`db.imports`: imports a file into a table (issue 20, section 3)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.client.conftest import QUICK, Server
from tests.client.proxies import Cut, proxy

from queryserver.imports import session
from queryserver_client import ApiError, Connection, StatementError, connect, connect_sync
from queryserver_client.imports import FileOptions, ImportColumn

SALES = "id,day,price\n1,2025-01-15,1.50\n2,2025-01-16,2.25\n"


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    path = tmp_path / "sales.csv"
    path.write_text(SALES)
    return path


async def rows(db: Connection, table: str) -> list[tuple[object, ...]]:
    return await (await db.query("duckdb", f"SELECT * FROM {table} ORDER BY 1")).rows()


async def test_local_file_becomes_table_in_one_call(db: Connection, sales: Path):
    lines: list[str] = []
    loaded = await db.imports.load(sales, "duckdb.sales_local", on_log=lines.append)
    assert (loaded.rows_read, loaded.rows_loaded, loaded.rows_bad) == (2, 2, 0)
    assert loaded.table == "sales_local"
    assert lines
    table = await db.metadata.table("duckdb", "main", "sales_local", refresh=True)
    assert [column.name for column in table.columns] == ["id", "day", "price"]
    assert [row[0] for row in await rows(db, "sales_local")] == [1, 2]
    with pytest.raises(ApiError) as caught:
        await db.imports.load(sales, "duckdb.sales_local")
    assert (caught.value.code, caught.value.status) == ("table_exists", 400)
    assert "sales_local" in caught.value.message
    await db.imports.load(sales, "duckdb.main.sales_local", if_exists="append")
    assert len(await rows(db, "sales_local")) == 4
    await db.imports.load(SALES.encode(), ("duckdb", "main", "sales_local"), if_exists="replace")
    assert len(await rows(db, "sales_local")) == 2


async def test_uploads_of_a_call_are_discarded_and_others_kept(server: Server, db: Connection, sales: Path):
    async def uploads() -> int:
        return await server.api.database.value("select count(*) from import_uploads")

    before = await uploads()
    await db.imports.load(sales, "duckdb.sales_discarded")
    await db.imports.preview(sales, "duckdb")
    await db.imports.options(sales)
    await db.imports.guess(sales)
    with pytest.raises(ApiError):
        await db.imports.load(sales, "duckdb.sales_discarded")
    assert await uploads() == before
    file = await db.imports.upload(sales)
    await db.imports.load(file, "duckdb.sales_discarded", if_exists="append")
    assert await uploads() == before + 1
    assert await db.imports.discard(file)
    assert not await db.imports.discard(file)
    assert await uploads() == before


async def test_store_file_becomes_table(db: Connection, folder: str):
    await db.files.upload(SALES.replace(",", ";").encode(), f"{folder}/sales.txt")
    loaded = await db.imports.load(f"{folder}/sales.txt", "duckdb.sales_remote")
    assert loaded.rows_loaded == 2
    assert len((await rows(db, "sales_remote"))[0]) == 3


async def test_preview_columns_can_be_changed_and_submitted(db: Connection, sales: Path):
    file = await db.imports.upload(sales)
    assert (file.import_type, file.size) == ("local", len(SALES))
    assert (await db.imports.guess(file)).options.file_type == "csv"
    preview = await db.imports.preview(file, "duckdb")
    assert preview.rows[0] == ("1", "2025-01-15", "1.50")
    assert preview.options.has_header is True
    number, _, price = preview.columns
    assert price.name == "price"
    columns = [replace(price, name="euro", type="DECIMAL(9,2)"), ImportColumn(number.source, "number", "VARCHAR")]
    await db.imports.load(file, "duckdb.sales_columns", columns=columns)
    result = await db.query("duckdb", "SELECT * FROM sales_columns ORDER BY number")
    assert [(column.name, column.native_type) for column in result.columns] == [
        ("euro", "DECIMAL(9,2)"),
        ("number", "VARCHAR"),
    ]
    assert "VARCHAR" in await db.imports.types("duckdb")


async def test_options_override_detection(db: Connection):
    options = FileOptions(file_type="delimiter_format", field_separator="|", has_header=False)
    await db.imports.load(b"1|a,b\n2|c,d\n", "duckdb.piped", options=options)
    assert await rows(db, "piped") == [(1, "a,b"), (2, "c,d")]


async def test_explicit_encoding_applies_to_separator_detection(db: Connection):
    content = "姓名;城市\n张三;北京\n李四;上海\n".encode("utf-16-le")
    with pytest.raises(ApiError) as caught:
        await db.imports.options(content)
    assert caught.value.code == "unsupported_format"
    found = await db.imports.options(content, FileOptions(encoding="utf-16-le"))
    assert (found.field_separator, found.encoding, found.has_header) == (";", "utf-16-le", True)


async def test_preceding_lines_and_null_words_are_detected_or_given(db: Connection):
    content = b"Report\n\nid;n\n1;NA\n2;5\n3;7\n"
    preview = await db.imports.preview(content, "duckdb")
    assert (preview.options.skip_rows, preview.columns[1].null_words) == (2, ["NA"])
    await db.imports.load(content, "duckdb.titled", columns=preview.columns, options=preview.options)
    assert await rows(db, "titled") == [(1, None), (2, 5), (3, 7)]
    options = FileOptions(file_type="csv", skip_rows=1, comment="%", has_header=False, null_words=["x"])
    assert (await db.imports.preview(b"a,b\n1,x\n%,\n", "duckdb", options=options)).rows == (("1", "x"),)
    await db.imports.load(b"a,b\n1,x\n%,\n", "duckdb.given_lines", options=options)
    assert await rows(db, "given_lines") == [(1, None)]


async def test_invalid_row_leaves_no_table(db: Connection):
    column, options = ImportColumn(1, type="INTEGER"), FileOptions(file_type="csv", has_header=True)
    with pytest.raises(StatementError) as caught:
        await db.imports.load(b"n\n1\nx\n", "duckdb.unfit", columns=[column], options=options)
    assert caught.value.state == "failed"
    with pytest.raises(StatementError):
        await rows(db, "unfit")
    loaded = await db.imports.load(b"n\n1\nx\n", "duckdb.unfit", columns=[column], options=options, max_bad_rows=1)
    assert (loaded.rows_loaded, loaded.rows_bad) == (1, 1)
    assert any("x" in line for line in (await db.statement(loaded.operation_id).logs()).lines)


@pytest.mark.parametrize("cut", [10, 600])
async def test_interrupted_import_loads_rows_once(server: Server, sales: Path, cut: int):
    token = await server.token()
    table = f"sales_cut_{cut}"
    async with connect(server.url, token=token, retries=QUICK) as plain:
        await plain.imports.load(sales, f"duckdb.{table}")
        file = await plain.imports.upload(sales)
        options = await plain.imports.options(file)
    async with proxy(server.url) as line, connect(line.url, token=token, retries=QUICK) as db:
        line.cuts.extend([Cut(of_answers=cut % 300), Cut(of_answers=5), Cut(of_requests=cut)])
        await db.imports.load(file, f"duckdb.{table}", if_exists="append", options=options)
        assert line.connections >= 3
    async with connect(server.url, token=token, retries=QUICK) as plain:
        assert len(await rows(plain, table)) == 4


class ProgramExit(Exception):
    """Simulates that the program exits in the middle of its work."""


async def test_abandoned_load_is_canceled_and_leaves_no_table(db: Connection, monkeypatch: pytest.MonkeyPatch):
    scratch_batches = session._Import._scratch_batches

    async def never_all(self: session._Import, counted: session.ImportCounts) -> AsyncGenerator[pa.RecordBatch]:
        async with aclosing(scratch_batches(self, counted)) as batches:
            yield await anext(batches)
            await asyncio.Event().wait()

    def stop(line: str) -> None:
        raise ProgramExit

    monkeypatch.setattr(session._Import, "_scratch_batches", never_all)
    many = b"n\n" + b"".join(b"%d\n" % number for number in range(300_000))
    with pytest.raises(ProgramExit):
        await db.imports.load(many, "duckdb.left", on_log=stop)
    entry = await anext(db.history.search())
    assert (await db.statement(entry.operation_id).wait()).state == "canceled"
    with pytest.raises(StatementError):
        await rows(db, '"left"')


async def test_sync_client_imports(server: Server, sales: Path):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            assert db.imports.load(sales, "duckdb.sales_sync").rows_loaded == 2
            assert [column.name for column in db.metadata.columns("duckdb", "main", "sales_sync")] == [
                "id",
                "day",
                "price",
            ]

    await asyncio.to_thread(work)
