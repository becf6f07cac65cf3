"""Exports of results, and shares of results and saved queries with colleagues (Contract console 5)."""

import pytest
from playwright.async_api import Browser, BrowserContext, expect
from tests.console.commands import create_user
from tests.console.conftest import Photographs, accessible, browsing, log_in
from tests.console.results import calls, open_result, run
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

COLLEAGUE, PASSWORD = "bea", "another long word"
SALES = """SELECT c.country, sum(i.quantity * i.unit_price) AS amount
FROM order_items i JOIN orders o ON o.id = i.order_id JOIN customers c ON c.id = o.customer_id
GROUP BY c.country ORDER BY amount DESC"""


@pytest.fixture(scope="session")
async def colleague(console_server: ServerProcess) -> str:
    """The name of a second user, who is no administrator."""
    await create_user(console_server, COLLEAGUE, PASSWORD)
    return COLLEAGUE


@pytest.mark.console(66)
async def test_result_is_exported_to_a_file_that_the_link_opens(
    context: BrowserContext, console_server: ServerProcess, photographs: Photographs
):
    async with calls(console_server.base_url) as client:
        page = await open_result(context, await run(client, SALES))
        await page.get_by_role("button", name="Export", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("File name").fill("sales.csv")
        await dialog.get_by_label("Format").select_option(label="TSV")
        await dialog.get_by_label("Compression").select_option(label="gzip")
        await expect(dialog.get_by_label("File name")).to_have_value("sales.tsv.gz")
        await photographs(page, "export-file")
        await dialog.get_by_role("button", name="Export").click()
        await expect(dialog.get_by_text("10 rows are written to")).to_be_visible()
        path = await dialog.get_by_role("link").inner_text()
        assert path.endswith("/sales.tsv.gz")
        await accessible(page)
        await dialog.get_by_role("button", name="Done").click()
        await page.get_by_role("button", name="Export", exact=True).click()
        await expect(dialog.get_by_text("sales.tsv.gz", exact=True)).to_be_visible()
        await accessible(page)
        await dialog.get_by_label("File name").fill("sales.tsv.gz")
        await dialog.get_by_role("button", name="Export").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("exists")
        answer = await client.get("/api/v1/storage/stat", params={"path": path})
        assert answer.raise_for_status().json()["size"] > 50


@pytest.mark.console(66)
async def test_result_is_exported_to_a_table_and_selected(
    context: BrowserContext, console_server: ServerProcess, photographs: Photographs
):
    async with calls(console_server.base_url) as client:
        await run(client, "DROP TABLE IF EXISTS sales_by_country")
        page = await open_result(context, await run(client, SALES))
        await page.get_by_role("button", name="Export", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("tab", name="To a table").click()
        await dialog.get_by_label("Connector").select_option(label="DuckDB")
        await dialog.get_by_label("Table", exact=True).fill("sales_by_country")
        await dialog.get_by_label("If the table exists").select_option(label="Replace the table")
        await accessible(page)
        await photographs(page, "export-table")
        await dialog.get_by_role("button", name="Export").click()
        await dialog.get_by_role("button", name="Open the table in the editor").click()
        await page.wait_for_url("**/editor")
        await expect(page.get_by_role("textbox", name="Statement")).to_contain_text("sales_by_country")
        answer = await client.post(
            "/api/v1/editor/execute/duckdb",
            json={"statement": "SELECT count(*) FROM sales_by_country", "wait": 60, "rows": 1},
        )
        assert answer.json()["result"]["data"] == [[10]]


@pytest.mark.console(67)
async def test_colleague_opens_the_link_of_a_result_until_the_share_ends(
    context: BrowserContext, console_server: ServerProcess, browser: Browser, colleague: str, photographs: Photographs
):
    async with calls(console_server.base_url) as client:
        operation_id = await run(client, SALES)
    page = await open_result(context, operation_id)
    await page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog")
    link = await dialog.get_by_label("Link", exact=True).input_value()
    assert link == f"{console_server.base_url}/results/{operation_id}"
    await dialog.get_by_label("User name").fill(colleague[:2])
    await expect(dialog.locator(f"datalist option[value={colleague}]")).to_have_count(1)
    await dialog.get_by_label("User name").fill(colleague)
    await dialog.get_by_label("Title").fill("Sales by country")
    await dialog.get_by_role("button", name="Share", exact=True).click()
    shares = dialog.get_by_role("listitem").filter(has_text=colleague)
    await expect(shares).to_have_count(1)
    await accessible(page)
    await photographs(page, "share-result")
    async with browsing(browser, console_server.base_url) as other:
        theirs = await open_result(other, operation_id, colleague, PASSWORD)
        await expect(theirs.get_by_text("TR", exact=True)).to_be_visible()
        await theirs.get_by_role("navigation", name="Views").get_by_role("link", name="Queries").click()
        await theirs.get_by_role("tab", name="Shared results").click()
        await accessible(theirs)
        await photographs(theirs, "shared-results")
        await theirs.get_by_role("link", name="Sales by country").click()
        await expect(theirs.get_by_text("TR", exact=True)).to_be_visible()
    await shares.get_by_role("button", name="End").click()
    await expect(dialog.get_by_text("Not shared yet")).to_be_visible()
    async with calls(console_server.base_url, colleague, PASSWORD) as client:
        answer = await client.get(f"/api/v1/editor/results/{operation_id}")
    assert answer.status_code == 404


@pytest.mark.console(73)
async def test_saved_query_is_shared_with_a_user_who_runs_it(
    context: BrowserContext, console_server: ServerProcess, browser: Browser, colleague: str, photographs: Photographs
):
    document = {"name": "Shared answer", "statement": "SELECT 4242 AS answer", "connector": "duckdb"}
    async with calls(console_server.base_url) as client:
        await client.post("/api/v1/documents/save", json={"document": document})
    page = await context.new_page()
    await page.goto("/queries")
    await log_in(page)
    await page.get_by_role("button", name="Actions of Shared answer").click()
    await page.get_by_role("menuitem", name="Share").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("User name").fill(colleague)
    await dialog.get_by_role("button", name="Share", exact=True).click()
    await expect(dialog.get_by_label(f"Permission of {colleague}")).to_have_value("run")
    await accessible(page)
    await photographs(page, "share-query")
    async with browsing(browser, console_server.base_url) as other:
        theirs = await other.new_page()
        await theirs.goto("/queries")
        await log_in(theirs, colleague, PASSWORD)
        await theirs.get_by_role("button", name="Actions of Shared answer").click()
        await expect(theirs.get_by_role("menuitem", name="Rename")).to_be_disabled()
        await theirs.keyboard.press("Escape")
        await theirs.get_by_role("button", name="Run Shared answer").click()
        await theirs.wait_for_url("**/editor")
        await expect(theirs.get_by_role("region", name="Result").get_by_text("4242", exact=True)).to_be_visible()
