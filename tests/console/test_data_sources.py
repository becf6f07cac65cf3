"""The console on PostgreSQL and SQLite: imports, exports and names that need quotes (Contract console 1.4, 5)."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.async_api import Browser, BrowserContext, Page, expect
from tests.console.conftest import PASSWORD, accessible, browsing, log_in
from tests.console.editor import WAIT_MS, cell
from tests.console.imports import choose, create, use_connector
from tests.console.results import calls, open_result, run
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE
from tests.ports import free_port

from queryserver.platform.embedded.postgres import running_resources

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

ROWS = [[1, "Ünal, Bo", 1.5], [2, 'say "hi"', 2.25]]
HEADER = ["id", "first name", "price"]
FORMATS = ("csv", "tsv", "ndjson", "xlsx", "parquet", "arrow", "feather")
LABELS = ("CSV", "TSV", "JSON Lines", "Excel", "Parquet", "Arrow", "Feather")


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with calls(console_server.base_url) as opened:
        yield opened


async def rows(client: httpx.AsyncClient, statement: str, connector: str) -> list[list[Any]]:
    answer = await client.post(
        f"/api/v1/editor/execute/{connector}", json={"statement": statement, "wait": 60, "rows": 100}
    )
    body = answer.raise_for_status().json()
    assert body["status"] == 0, body
    return body["result"]["data"]


def workbook() -> bytes:
    book, buffer = openpyxl.Workbook(), io.BytesIO()
    book.worksheets[0].append(["nothing of interest"])
    sheet = book.create_sheet("People")
    for row in (HEADER, *ROWS):
        sheet.append(row)
    book.save(buffer)
    return buffer.getvalue()


def parquet() -> bytes:
    buffer = io.BytesIO()
    columns = dict(zip(HEADER, (list(column) for column in zip(*ROWS, strict=True)), strict=True))
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


FILES = {
    "people.csv": b'id,first name,price\n1,"\xc3\x9cnal, Bo",1.5\n2,"say ""hi""",2.25\n',
    "people.tsv": b'id\tfirst name\tprice\n1\t\xc3\x9cnal, Bo\t1.5\n2\t"say ""hi"""\t2.25\n',
    "people.txt": b'id~first name~price\n1~\xc3\x9cnal, Bo~1.5\n2~"say ""hi"""~2.25\n',
    "people.xlsx": workbook(),
    "people.parquet": parquet(),
}


@pytest.mark.console(131)
@pytest.mark.parametrize("connector", ["postgresql", "sqlite"])
async def test_each_kind_of_file_becomes_a_table_whose_name_needs_quotes(
    page: Page, client: httpx.AsyncClient, connector: str
):
    for name, content in FILES.items():
        await choose(page, name, content)
        await use_connector(page, connector)
        if name.endswith(".txt"):
            await page.get_by_label("Separator", exact=True).select_option(label="Other")
            await page.get_by_label("Other separator").fill("~")
        if name.endswith(".xlsx"):
            await page.get_by_label("Sheet", exact=True).select_option("People")
        await expect(page.get_by_label("Name of column 2")).to_have_value("first name", timeout=WAIT_MS)
        await expect(page.get_by_label("Name of column 3")).to_have_value("price")
        table = f'From "{name}"'
        await create(page, table)
        await page.wait_for_url("**/editor")
        await expect(page.get_by_role("gridcell", name="Ünal, Bo")).to_be_visible(timeout=WAIT_MS)
        quoted = table.replace('"', '""')
        statement = f'SELECT id, "first name", price FROM "{quoted}" ORDER BY id'
        assert await rows(client, statement, connector) == ROWS, name


@pytest.mark.console(131)
async def test_result_is_exported_in_every_format(
    context: BrowserContext, client: httpx.AsyncClient, console_server: ServerProcess
):
    folder = console_server.stdout_file.parent / "data" / "files" / "shared" / "exported"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    page = await open_result(context, await run(client, "SELECT 42 AS answer", "postgresql"))
    for label, ending in zip(LABELS, FORMATS, strict=True):
        await page.get_by_role("button", name="Export", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Directory", exact=True).fill("file:///shared/exported")
        await dialog.get_by_label("Format").select_option(label=label)
        await expect(dialog.get_by_label("File name")).to_have_value(f"result.{ending}")
        await dialog.get_by_role("button", name="Export", exact=True).click()
        await expect(dialog.get_by_text("1 row is written to")).to_be_visible(timeout=WAIT_MS)
        await dialog.get_by_role("button", name="Done").click()
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"result.{ending}" for ending in FORMATS)
    assert (folder / "result.csv").read_bytes() == b"answer\r\n42\r\n"
    assert pq.read_table(folder / "result.parquet").to_pylist() == [{"answer": 42}]


@pytest.mark.console(131)
@pytest.mark.parametrize(("source", "target"), [("sqlite", "PostgreSQL"), ("postgresql", "SQLite")])
async def test_result_is_exported_to_a_table_of_another_data_source(
    context: BrowserContext, client: httpx.AsyncClient, source: str, target: str
):
    page = await open_result(context, await run(client, "SELECT 7 AS \"a b\", 'it''s' AS t", source))
    await page.get_by_role("button", name="Export", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("tab", name="To a table").click()
    await dialog.get_by_label("Connector").select_option(label=target)
    await dialog.get_by_label("Table", exact=True).fill('Exported "rows"')
    await dialog.get_by_role("button", name="Export", exact=True).click()
    await dialog.get_by_role("button", name="Open the table in the editor").click(timeout=WAIT_MS)
    await page.wait_for_url("**/editor")
    await page.get_by_role("button", name="Run", exact=True).click()
    await cell(page, "it's")
    found = await rows(client, 'SELECT "a b", t FROM "Exported ""rows"""', target.lower())
    assert found == [[7, "it's"]]


@pytest.mark.console(34)
@pytest.mark.parametrize(("connector", "title"), [("postgresql", "PostgreSQL"), ("sqlite", "SQLite")])
async def test_tree_shows_names_that_need_quotes_and_opens_their_rows(
    page: Page, client: httpx.AsyncClient, connector: str, title: str
):
    table, column = 'Odd "table" 1', 'a "b" c'
    quoted = [name.replace('"', '""') for name in (table, column)]
    await run(client, f'CREATE TABLE "{quoted[0]}" ("{quoted[1]}" TEXT)', connector)
    await run(client, f"INSERT INTO \"{quoted[0]}\" VALUES ('found')", connector)
    await page.get_by_role("combobox", name="Connector").select_option(connector)
    tree = page.get_by_role("tree")
    item = tree.get_by_role("treeitem", name=table, exact=True)
    await expect(tree.get_by_role("treeitem", name=title)).to_be_visible()
    await expect(item).to_be_visible(timeout=WAIT_MS)
    await item.click()
    await expect(tree.get_by_role("treeitem", name=re.compile(f"^{re.escape(column)}"))).to_be_visible()
    await tree.get_by_role("button", name=f"Actions for {table}").click()
    await page.get_by_role("menuitem", name="Select the first rows").click()
    await page.get_by_role("button", name="Run", exact=True).click()
    await cell(page, "found")
    await tree.get_by_role("button", name=f"Actions for {table}").click()
    await page.get_by_role("menuitem", name="Details", exact=True).click()
    await expect(page.get_by_role("heading", name=table)).to_be_visible(timeout=WAIT_MS)
    await expect(page.get_by_role("region", name="Columns")).to_contain_text(column)
    await accessible(page)


@asynccontextmanager
async def locked_table(server: ServerProcess, table: str) -> AsyncIterator[None]:
    """Create a table in the sample PostgreSQL, and lock it, so that an import into it waits."""
    resources = running_resources(server.stdout_file.parent / "data")
    assert resources is not None
    connection = await asyncpg.connect(resources.sample_dsn, timeout=60)
    try:
        await connection.execute(f"CREATE TABLE {table} (id bigint, word text)")
        await connection.execute(f"BEGIN; LOCK TABLE {table}")
        yield
    finally:
        connection.terminate()


@pytest.mark.console(131)
async def test_import_is_followed_over_the_death_of_the_server_and_is_repeated(browser: Browser, tmp_path: Path):
    port = free_port()
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER__EDITOR__LEASE_TIMEOUT_S": "5"}
    async with (
        running_server(tmp_path / "data", port=port, settings=settings) as server,
        browsing(browser, server.base_url) as context,
    ):
        page = await context.new_page()
        await page.goto("/")
        await log_in(page)
        await choose(page, "words.csv", b"id,word\n1,a\n2,b\n3,c\n")
        await use_connector(page, "postgresql")
        async with locked_table(server, "words"):
            await page.get_by_role("radio", name="Add the rows to the table").check()
            await page.get_by_role("button", name="Add the rows").click()
            await expect(page.get_by_role("status").filter(has_text="Loading the rows")).to_be_visible(timeout=WAIT_MS)
            await server.kill9()
        await expect(page.get_by_text("The server does not answer").first).to_be_visible(timeout=WAIT_MS)
        async with running_server(tmp_path / "data", port=port, settings=settings):
            await expect(page.get_by_text("Not imported")).to_be_visible(timeout=90_000)
            await page.get_by_role("button", name="Back to the form").click()
            await page.get_by_role("button", name="Add the rows").click()
            await page.wait_for_url("**/editor", timeout=90_000)
            async with calls(server.base_url) as client:
                assert await rows(client, "SELECT count(*) FROM words", "postgresql") == [[3]]
