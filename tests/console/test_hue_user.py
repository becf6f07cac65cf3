"""The whole way of a new user: find, ask, chart, export, share, import, cancel (Contract console 5)."""

import io
import re

import openpyxl
import pytest
from playwright.async_api import Browser, FilePayload, Locator, Page, expect
from tests.console.commands import create_user
from tests.console.conftest import Photographs, browsing, log_in
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(600)]

COLLEAGUE, PASSWORD = "carla", "a third long word"
SALES = """SELECT c.country, sum(i.quantity * i.unit_price) AS amount
FROM order_items i JOIN orders o ON o.id = i.order_id JOIN customers c ON c.id = o.customer_id
GROUP BY c.country ORDER BY amount DESC"""
_WAIT_MS = 30_000


@pytest.fixture
async def colleague(console_server: ServerProcess) -> str:
    """The name of a second user, who is no administrator."""
    await create_user(console_server, COLLEAGUE, PASSWORD)
    return COLLEAGUE


def result_of(page: Page) -> Locator:
    return page.get_by_role("region", name="Result")


async def run(page: Page, statement: str) -> None:
    """Replace the text of the tab and run it with the keyboard."""
    await page.get_by_role("textbox", name="Statement").focus()
    await page.keyboard.press("ControlOrMeta+A")
    # Text that replaces a selection gets the selection's style inline, which the policy blocks.
    await page.keyboard.press("Delete")
    await page.keyboard.insert_text(statement)
    await page.keyboard.press("ControlOrMeta+Enter")


async def sees(page: Page, text: str) -> None:
    await expect(page.get_by_text(text, exact=True).first).to_be_visible(timeout=_WAIT_MS)


async def find_orders(page: Page) -> None:
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    await page.get_by_role("textbox", name="Search tables and columns").fill("orders")
    await expect(page.get_by_role("treeitem", name="orders", exact=True).first).to_be_visible(timeout=_WAIT_MS)


async def chart_sales(page: Page, photographs: Photographs) -> None:
    await page.get_by_role("tab", name="Chart").click()
    await page.get_by_role("application").wait_for()
    await page.get_by_role("combobox", name="Chart", exact=True).select_option(label="Bar")
    await page.get_by_role("combobox", name="X axis", exact=True).select_option(label="country")
    await photographs(page, "hue-user-chart")
    await page.get_by_role("tab", name="Rows").click()


async def export_sales(page: Page) -> None:
    await page.get_by_role("button", name="Export", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("File name").fill("sales of a new user.csv")
    await dialog.get_by_role("button", name="Export").click()
    await expect(dialog.get_by_text(re.compile("rows are written to"))).to_be_visible(timeout=_WAIT_MS)
    await dialog.get_by_role("button", name="Done").click()


async def share_sales(page: Page, colleague: str) -> str:
    """Share the result; return its link."""
    await page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog")
    link = await dialog.get_by_label("Link", exact=True).input_value()
    await dialog.get_by_label("User name").fill(colleague)
    await dialog.get_by_role("button", name="Share", exact=True).click()
    await expect(dialog.get_by_role("listitem").filter(has_text=colleague)).to_have_count(1)
    await dialog.get_by_role("button", name="Done").click()
    return link


async def import_workbook(page: Page) -> None:
    book, buffer = openpyxl.Workbook(), io.BytesIO()
    for row in (["country", "target"], ["DE", 1000], ["TR", 4711]):
        book.worksheets[0].append(row)
    book.save(buffer)
    await page.get_by_role("link", name="Import", exact=True).click()
    workbook = FilePayload(name="targets.xlsx", mimeType="application/octet-stream", buffer=buffer.getvalue())
    await page.locator("input[type=file]").set_input_files(workbook)
    await page.get_by_label("Data source").select_option("duckdb")
    await page.get_by_role("button", name="Create the table").click()
    await page.wait_for_url("**/editor")
    await sees(page, "4711")


async def cancel_long_statement(page: Page) -> None:
    await page.get_by_role("combobox", name="Connector").select_option("postgresql")
    await run(page, "SELECT pg_sleep(600)")
    await result_of(page).get_by_role("button", name="Cancel", exact=True).click(timeout=_WAIT_MS)
    await expect(result_of(page).get_by_role("status").first).to_contain_text(
        re.compile("cancel", re.IGNORECASE), timeout=_WAIT_MS
    )
    await expect(result_of(page).get_by_role("button", name="Cancel", exact=True)).to_have_count(0, timeout=_WAIT_MS)


@pytest.mark.console(92)
async def test_new_user_finds_asks_charts_keeps_shares_imports_and_cancels(
    page: Page, browser: Browser, console_server: ServerProcess, colleague: str, photographs: Photographs
):
    await find_orders(page)
    await run(page, SALES)
    await sees(page, "TR")
    await photographs(page, "hue-user-rows")
    await chart_sales(page, photographs)
    await export_sales(page)
    link = await share_sales(page, colleague)
    async with browsing(browser, console_server.base_url) as other:
        theirs = await other.new_page()
        await theirs.goto(link)
        await log_in(theirs, colleague, PASSWORD)
        await sees(theirs, "TR")
    await import_workbook(page)
    await photographs(page, "hue-user-import")
    await cancel_long_statement(page)
