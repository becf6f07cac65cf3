"""Import in the console: a file becomes a table (Contract importer 3 to 7, 13)."""

import io
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.async_api import Page, Response, expect
from tests.console.conftest import ADMIN, PASSWORD, Photographs, accessible
from tests.console.imports import choose, create, payload, use_connector
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE
from tests.timing import until

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

EDITOR = re.compile(r"/editor")
SALES = b"region;amount;day\nNorth;1,50;15/01/2024\nSouth;2,25;28/02/2024\n"


@pytest.fixture
async def http(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the same server, as the same user, that looks at what the console did."""
    async with httpx.AsyncClient(base_url=f"{console_server.base_url}/api/v1", timeout=60) as client:
        login = await client.post("/token/auth", json={"username": ADMIN, "password": PASSWORD})
        client.headers["Authorization"] = f"Bearer {login.json()['access']}"
        yield client


async def rows(http: httpx.AsyncClient, statement: str) -> list[list[Any]]:
    """Run a statement on DuckDB; return its rows, if it has any."""
    answer = await http.post("/editor/execute/duckdb", json={"statement": statement, "wait": 30, "rows": 100})
    body = answer.json()
    assert (body["status"], body["query_status"]["status"]) == (0, "available"), answer.text
    return body["result"]["data"] if "result" in body else []


@pytest.mark.console(90)
async def test_text_with_an_odd_separator_becomes_a_table_and_lands_in_select(
    page: Page, http: httpx.AsyncClient, photographs: Photographs
):
    await choose(page, "Sales 2024.csv", SALES)
    await use_connector(page, "duckdb")
    await expect(page.get_by_label("Separator")).to_have_value(";")
    await expect(page.get_by_label("The first row has the column names")).to_be_checked()
    await expect(page.get_by_label("Table name")).to_have_value("sales_2024")
    await expect(page.get_by_label("Type of column 2")).to_have_value("DOUBLE")
    await expect(page.get_by_text("%d/%m/%Y", exact=True)).to_be_visible()
    await page.get_by_label("Name of column 1").fill("Land")
    await page.get_by_label("Import column 3").uncheck()
    await create(page, "ui_sales")
    await page.wait_for_url(EDITOR)
    await expect(page.get_by_role("button", name="ui_sales", exact=True)).to_be_visible()
    await expect(page.get_by_role("gridcell", name="South")).to_be_visible()
    await photographs(page, "import-landed")
    assert await rows(http, "SELECT * FROM ui_sales") == [["North", 1.5], ["South", 2.25]]
    assert await rows(http, "SELECT column_name FROM information_schema.columns WHERE table_name = 'ui_sales'") == [
        ["Land"],
        ["amount"],
    ]


async def test_other_separator_reads_the_file_again(page: Page):
    await choose(page, "x.csv", b"a,b;c\n1,2;3\n")
    await page.get_by_label("Separator").select_option(";")
    await expect(page.get_by_label("Name of column 1")).to_have_value("a,b")
    await expect(page.get_by_role("heading", name="2 columns")).to_be_visible()
    await page.get_by_label("The first row has the column names").uncheck()
    await expect(page.get_by_label("Name of column 2")).to_have_value("column_2")


@pytest.mark.console(90)
async def test_sheet_of_a_workbook_becomes_a_table(page: Page, http: httpx.AsyncClient):
    book, buffer = openpyxl.Workbook(), io.BytesIO()
    book.worksheets[0].append(["text"])
    stock = book.create_sheet("Stock")
    for row in (["item", "pieces"], ["pen", 3], ["ink", 12]):
        stock.append(row)
    book.save(buffer)
    await choose(page, "stock.xlsx", buffer.getvalue())
    await use_connector(page, "duckdb")
    await page.get_by_label("Sheet", exact=True).select_option("Stock")
    await expect(page.get_by_label("Name of column 2")).to_have_value("pieces")
    await create(page, "ui_stock")
    await page.wait_for_url(EDITOR)
    assert await rows(http, "SELECT * FROM ui_stock ORDER BY pieces") == [["pen", 3], ["ink", 12]]


@pytest.mark.console(90)
async def test_parquet_file_that_is_dropped_on_another_view_is_imported(page: Page, http: httpx.AsyncClient):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "price": pa.array([1.5, None])}), buffer)
    await page.get_by_role("link", name="History", exact=True).click()
    transfer = await page.evaluate_handle(
        """bytes => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "prices.parquet"));
          return transfer;
        }""",
        list(buffer.getvalue()),
    )
    await page.dispatch_event("main", "dragover", {"dataTransfer": transfer})
    await expect(page.get_by_text("Drop the file to import it")).to_be_visible()
    await page.dispatch_event("main", "drop", {"dataTransfer": transfer})
    await page.wait_for_url("**/import")
    await expect(page.get_by_role("heading", name="prices.parquet")).to_be_visible()
    await use_connector(page, "duckdb")
    await expect(page.get_by_label("Type of column 1")).to_have_value("BIGINT")
    await expect(page.get_by_label("Separator")).to_have_count(0)
    await create(page, "ui_prices")
    await page.wait_for_url(EDITOR)
    assert await rows(http, "SELECT * FROM ui_prices ORDER BY id") == [[1, 1.5], [2, None]]


@pytest.mark.importer(77)
@pytest.mark.console(91)
async def test_refused_type_is_shown_at_its_column(page: Page, http: httpx.AsyncClient):
    await choose(page, "t.csv", b"id,text,n\n1,a,2\n")
    await use_connector(page, "duckdb")
    await page.get_by_label("Import column 1").uncheck()
    await page.get_by_label("Type of column 3").select_option("DECIMAL")
    await page.get_by_label("Size of column 3").fill("99,2")
    await create(page, "ui_refused")
    alert = page.get_by_role("columnheader").filter(has=page.get_by_label("Name of column 3")).get_by_role("alert")
    await expect(alert).to_contain_text("requires a precision from 1 to 38")
    await page.get_by_label("Size of column 3").fill("10,2")
    await expect(alert).to_have_count(0)
    await create(page, "ui_refused")
    await page.wait_for_url(EDITOR)
    types = "SELECT data_type FROM information_schema.columns WHERE table_name = 'ui_refused' ORDER BY ordinal_position"
    assert await rows(http, types) == [["VARCHAR"], ["DECIMAL(10,2)"]]


async def test_name_that_occurs_twice_is_shown_before_anything_is_sent(page: Page):
    await choose(page, "t.csv", b"id,text\n1,a\n")
    await page.get_by_label("Name of column 2").fill("ID")
    await create(page, "ui_twice")
    await expect(page.get_by_role("alert")).to_have_text("Another column has this name.")


@pytest.mark.console(91)
async def test_existing_table_is_kept_extended_or_replaced_as_chosen(page: Page, http: httpx.AsyncClient):
    await rows(http, "CREATE OR REPLACE TABLE ui_kept AS SELECT 7 AS id")
    await choose(page, "t.csv", b"id\n8\n")
    await use_connector(page, "duckdb")
    await create(page, "ui_kept")
    await expect(page.get_by_role("alert")).to_contain_text("already exists")
    await page.get_by_role("radio", name="Add the rows").check()
    await create(page, "ui_kept", action="Add the rows")
    await page.wait_for_url(EDITOR)
    assert await rows(http, "SELECT id FROM ui_kept ORDER BY id") == [[7], [8]]
    await choose(page, "t.csv", b"id\n9\n")
    await page.get_by_role("radio", name="Replace the table").check()
    await create(page, "ui_kept", action="Replace the table")
    await page.wait_for_url(EDITOR)
    assert await rows(http, "SELECT id FROM ui_kept") == [[9]]


@pytest.mark.console(91)
async def test_rejected_rows_are_listed_before_the_table_is_shown(
    page: Page, http: httpx.AsyncClient, photographs: Photographs
):
    await choose(page, "t.csv", b"id\n" + b"".join(b"%d\n" % n for n in range(40)) + b"x\n")
    await use_connector(page, "duckdb")
    await page.get_by_label("Type of column 1").select_option("INTEGER")
    await create(page, "ui_some")
    await expect(page.get_by_role("status")).to_have_text("Loaded 40 rows of 41; 1 row rejected")
    await expect(page.get_by_role("region", name="Rejected rows").get_by_role("listitem")).to_contain_text("id")
    await accessible(page)
    await photographs(page, "import-rejected")
    await page.get_by_role("button", name="Show the rows").click()
    await page.wait_for_url(EDITOR)
    assert await rows(http, "SELECT count(*) FROM ui_some") == [[40]]


@pytest.mark.console(91)
async def test_too_many_rejected_rows_fail_the_import_and_lead_back_to_the_form(page: Page):
    await choose(page, "t.csv", b"id\n1\nx\ny\n")
    await use_connector(page, "duckdb")
    await page.get_by_label("Type of column 1").select_option("INTEGER")
    await create(page, "ui_failed")
    await expect(page.get_by_role("alert")).to_contain_text("2 of 3 rows are bad")
    await page.get_by_role("button", name="Back to the form").click()
    await expect(page.get_by_label("Type of column 1")).to_have_value("INTEGER")


@pytest.mark.console(91)
async def test_running_import_is_followed_from_another_view_and_canceled(
    page: Page, http: httpx.AsyncClient, tmp_path: Path, photographs: Photographs
):
    file = tmp_path / "large.csv"
    file.write_bytes(b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"x" * 60) for n in range(900_000)))
    await choose(page, "large.csv", file)
    await use_connector(page, "duckdb")
    await create(page, "ui_canceled")
    cancel = page.get_by_role("button", name="Cancel the import")
    await cancel.wait_for()
    await page.get_by_role("link", name="History", exact=True).click()
    await page.get_by_role("link", name="Import", exact=True).click()
    await cancel.click()
    await expect(page.get_by_role("status")).to_have_text("Canceled; the table was not changed")
    await photographs(page, "import-canceled")
    assert await rows(http, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'ui_canceled'") == [[0]]


@pytest.mark.console(90)
async def test_file_of_a_store_is_imported(page: Page, http: httpx.AsyncClient):
    await page.get_by_role("link", name="Import", exact=True).click()
    await page.get_by_role("button", name="Choose from a store").click()
    await page.get_by_role("dialog").get_by_label("File", exact=True).fill("file:///shared/samples/products.csv")
    await page.get_by_role("button", name="Choose", exact=True).click()
    await expect(page.get_by_role("heading", name="products.csv")).to_be_visible()
    await use_connector(page, "duckdb")
    await create(page, "ui_products")
    await page.wait_for_url(EDITOR)
    counts = await rows(http, "SELECT (SELECT count(*) FROM ui_products), (SELECT count(*) FROM products)")
    assert counts[0][0] == counts[0][1] > 0


@pytest.mark.console(90)
async def test_link_with_a_path_begins_with_that_file(page: Page):
    await page.evaluate("history.pushState(null, '', '/import?path=file:///shared/samples/orders.csv')")
    await page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    await expect(page.get_by_role("heading", name="orders.csv")).to_be_visible()
    assert page.url.endswith("/import")


async def test_file_that_is_no_table_is_refused_with_the_text_of_the_server(page: Page):
    await page.get_by_role("link", name="Import", exact=True).click()
    await page.locator("input[type=file]").set_input_files(payload("empty.csv", b"\n\n"))
    await expect(page.get_by_role("alert")).to_contain_text("File is empty")


async def test_content_of_files_is_text(page: Page):
    hostile = "<script>document.title = 'hacked'</script>"
    await choose(page, "<b>x</b>.csv", f'name,note\n"{hostile}",\u202eabc\n'.encode())
    await expect(page.get_by_role("cell", name=hostile)).to_be_visible()
    assert await page.title() != "hacked"


async def test_form_with_two_thousand_columns_stays_small(page: Page):
    names = [f"c{n}" for n in range(1, 2001)]
    await choose(page, "wide.csv", "\n".join([",".join(names), ",".join("1" for _ in names)]).encode())
    await expect(page.get_by_role("heading", name="2,000 columns")).to_be_visible()
    assert await page.get_by_role("columnheader").count() < 30
    await page.get_by_role("region", name="First rows", exact=True).evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    await expect(page.get_by_label("Name of column 2000")).to_have_value("c2000")


async def test_every_step_is_accessible(page: Page, photographs: Photographs):
    await page.get_by_role("link", name="Import", exact=True).click()
    await page.get_by_role("heading", name="Import a file as a table").wait_for()
    await accessible(page)
    await photographs(page, "import-choose")
    wide = b"id;name;price;day;note\n" + b"".join(b"%d;Item %d;%d,50;15/01/2024;\n" % (n, n, n) for n in range(60))
    await choose(page, "stock.csv", b"Stock of all shops\n\n" + wide)
    await page.get_by_text("More options").click()
    await accessible(page)
    await page.emulate_media(color_scheme="dark")
    await accessible(page)
    await photographs(page, "import-form")
    await page.get_by_label("Format of column 4").click()
    await page.get_by_role("dialog").wait_for()
    await accessible(page)
    await photographs(page, "import-column")


async def test_uploads_are_discarded_when_their_import_succeeded_or_was_given_up(page: Page, http: httpx.AsyncClient):
    async def upload_is_kept(path: str) -> bool:
        query = {"file_path": path, "import_type": "local"}
        return (await http.get("/importer/file/guess_metadata", params=query)).status_code == 200

    uploads: list[str] = []

    async def note(response: Response) -> None:
        if "upload/file" in response.url:
            uploads.append((await response.json())["file_path"])

    page.on("response", note)
    await choose(page, "first.csv", SALES)
    await choose_again(page, "second.csv")
    await use_connector(page, "duckdb")
    await create(page, "ui_discarded")
    await page.wait_for_url(EDITOR)
    await choose(page, "third.csv", SALES)
    await page.get_by_role("button", name="Choose another file").click()
    await choose(page, "fourth.csv", SALES)
    assert len(uploads) == 4
    assert await upload_is_kept(uploads[3])
    await page.close()
    for path in uploads:
        await until(lambda path=path: _is_gone(upload_is_kept(path)))


async def choose_again(page: Page, name: str) -> None:
    """Drop a file on the form of another one."""
    await page.evaluate(
        """name => {
          const files = new DataTransfer();
          files.items.add(new File(["a,b\\n1,2\\n"], name));
          for (const type of ["dragenter", "dragover", "drop"]) {
            document.body.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: files }));
          }
        }""",
        name,
    )
    await page.get_by_role("heading", name=name).wait_for()
    await page.get_by_role("table").wait_for()


async def _is_gone(kept: Awaitable[bool]) -> bool:
    return not await kept
