"""Saved queries, history, and what is shared with colleagues (Contract console 5)."""

from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import Browser, Page, expect
from tests.console.conftest import Photographs, accessible, browsing
from tests.console.editor import WAIT_MS, log_in_again, text_of, type_over
from tests.console.results import calls, run
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

COLLEAGUE = "bea"
SALES = """SELECT c.country, sum(i.quantity * i.unit_price) AS amount
FROM order_items i JOIN orders o ON o.id = i.order_id JOIN customers c ON c.id = o.customer_id
GROUP BY c.country ORDER BY amount DESC"""


async def save(client: httpx.AsyncClient, **document: object) -> str:
    """Save a query; return its uuid."""
    answer = await client.post("/api/v1/documents/save", json={"document": document})
    return answer.raise_for_status().json()["uuid"]


async def empty_lists(client: httpx.AsyncClient) -> None:
    """Delete the saved queries of earlier tests, also those in the trash."""
    for trash in ("false", "true"):
        answer = await client.get(f"/api/v1/documents?trash={trash}")
        for document in answer.raise_for_status().json()["documents"]:
            body = {"uuid": document["uuid"], "skip_trash": True}
            (await client.post("/api/v1/documents/delete", json=body)).raise_for_status()


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Calls of the administrator, without saved queries."""
    async with calls(console_server.base_url) as opened:
        await empty_lists(opened)
        yield opened


async def view(page: Page, name: str) -> None:
    await page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()
    await page.get_by_role("heading", name=name, level=1).wait_for()


async def act(page: Page, query: str, action: str) -> None:
    await page.get_by_role("button", name=f"Actions of {query}").click()
    await page.get_by_role("menuitem", name=action, exact=True).click()


@pytest.mark.console(70)
async def test_saved_query_is_found_renamed_moved_and_brought_back(
    page: Page, client: httpx.AsyncClient, photographs: Photographs
):
    await save(client, name="Sales by country", statement=SALES, connector="duckdb", folder="/reports/sales")
    await save(client, name="Open orders", statement="SELECT * FROM orders", connector="duckdb", description="New ones")
    await view(page, "Queries")
    await accessible(page)
    await photographs(page, "queries")
    queries = page.get_by_role("list", name="Saved queries").get_by_role("listitem")
    await expect(queries).to_have_count(2)
    await page.get_by_label("Search").fill("unit_price")
    await expect(queries).to_have_count(1)
    await act(page, "Sales by country", "Rename")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Sales of countries")
    await dialog.get_by_role("button", name="Rename").click()
    await act(page, "Sales of countries", "Move to a folder")
    await dialog.get_by_label("Folder").fill("/archive")
    await accessible(page)
    await dialog.get_by_role("button", name="Move").click()
    await page.get_by_label("Search").fill("")
    await page.get_by_role("navigation", name="Folders").get_by_role("button", name="archive").click()
    await expect(queries).to_have_count(1)
    await act(page, "Sales of countries", "Move to the trash")
    await page.get_by_role("tab", name="Trash").click()
    await act(page, "Sales of countries", "Restore")
    await expect(page.get_by_text("The trash is empty.")).to_be_visible()
    await page.get_by_role("tab", name="Saved queries").click()
    await expect(queries).to_have_count(2)


@pytest.mark.console(70)
async def test_former_version_is_restored(page: Page, client: httpx.AsyncClient, photographs: Photographs):
    uuid = await save(client, name="Counted", statement="SELECT 1", connector="duckdb")
    await save(client, uuid=uuid, version=1, statement="SELECT 2")
    await view(page, "Queries")
    await act(page, "Counted", "Versions")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Version 1").click()
    await expect(dialog.get_by_text("SELECT 1")).to_be_visible()
    await accessible(page)
    await photographs(page, "query-versions")
    await dialog.get_by_role("button", name="Restore version 1").click()
    await expect(dialog.get_by_text("Version 3, current")).to_be_visible()
    stored = (await client.get(f"/api/v1/documents/{uuid}")).json()["document"]
    assert (stored["version"], stored["statement"]) == (3, "SELECT 1")


@pytest.mark.console(71)
async def test_saved_query_is_opened_and_run_in_the_editor(page: Page, client: httpx.AsyncClient):
    await save(client, name="Answer", statement="SELECT 42 AS answer", connector="duckdb")
    await view(page, "Queries")
    await page.get_by_role("button", name="Answer", exact=True).click()
    await page.wait_for_url("**/editor")
    await expect(page.get_by_text("SELECT 42 AS answer")).to_be_visible()
    await view(page, "Queries")
    await page.get_by_role("button", name="Run Answer").click()
    await page.wait_for_url("**/editor")
    await expect(page.get_by_role("region", name="Result").get_by_text("42", exact=True)).to_be_visible()


@pytest.mark.console(72)
async def test_history_is_searched_and_saved(page: Page, client: httpx.AsyncClient, photographs: Photographs):
    await run(client, "SELECT 'needle' AS hay")
    await run(client, "SELECT 'straw' AS hay")
    await view(page, "History")
    await photographs(page, "history")
    await accessible(page)
    await page.get_by_label("Search").fill("NEEDLE")
    entries = page.get_by_role("list", name="History").get_by_role("listitem")
    await expect(entries).to_have_count(1)
    await act(page, "SELECT 'needle' AS hay", "Save as a query")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Found")
    await accessible(page)
    await photographs(page, "save-query")
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Saved as Found.")).to_be_visible()
    (saved,) = (await client.get("/api/v1/documents")).json()["documents"]
    assert (saved["name"], saved["connector"]) == ("Found", "duckdb")


@pytest.mark.console(70)
async def test_save_over_a_version_of_another_window_is_announced_and_loses_nothing(
    page: Page, client: httpx.AsyncClient, browser: Browser, console_server: ServerProcess
):
    uuid = await save(client, name="Edited twice", statement="SELECT 1", connector="duckdb")
    async with browsing(browser, console_server.base_url) as second_browser:
        other = await second_browser.new_page()
        for window in (page, other):
            await window.goto(f"/editor?document={uuid}")
            await log_in_again(window)
            await expect(text_of(window)).to_have_text("SELECT 1", timeout=WAIT_MS)
        for window, text, notices in ((other, "SELECT 'other'", 0), (page, "SELECT 'mine'", 1)):
            await type_over(window, text)
            await window.get_by_role("button", name="Save", exact=True).click()
            dialog = window.get_by_role("dialog")
            await expect(dialog.get_by_label("Name", exact=True)).to_have_value("Edited twice")
            await expect(dialog.get_by_text("yours becomes the current version")).to_have_count(notices)
            await dialog.get_by_role("button", name="Save", exact=True).click()
            await expect(dialog).to_have_count(0)
    stored = (await client.get(f"/api/v1/documents/{uuid}")).json()["document"]
    assert (stored["version"], stored["statement"]) == (3, "SELECT 'mine'")
    former = (await client.get(f"/api/v1/documents/{uuid}/versions/2")).json()["version"]
    assert former["statement"] == "SELECT 'other'"
