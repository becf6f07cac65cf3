"""What axe finds in each state of the console, and how it fits small and enlarged windows (Contract console 5)."""

import re
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import FilePayload, Page, ViewportSize, expect
from tests.console.conftest import NARROW, WIDE, accessible
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

Open = Callable[[Page], Awaitable[None]]
# 1280 x 800 pixels at a zoom of 200 %.
ZOOMED = ViewportSize(width=640, height=400)
ADMIN_PAGES = ("statements", "connectors", "users", "groups", "tokens")
VIEWS = ("editor", "queries", "history", "files", "import", "tables/duckdb/main/orders")
SAMPLE = "/files?path=file:///shared/samples"
_WAIT_MS = 30_000
_LONG_LINE = "SELECT *, [1, 2] AS nested, NULL AS missing, repeat('long ', 100) AS long FROM orders WHERE id < 100"
_DROP = """() => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["a"], "a.csv"));
  for (const type of ["dragenter", "dragover"])
    document.body.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
}"""


async def run(page: Page, statement: str = _LONG_LINE, connector: str = "duckdb") -> None:
    await page.get_by_role("combobox", name="Connector").select_option(connector)
    await page.get_by_role("textbox", name="Statement").focus()
    await page.keyboard.insert_text(statement)
    await page.keyboard.press("ControlOrMeta+Enter")


async def ran(page: Page) -> None:
    await run(page)
    await page.get_by_text("99 rows", exact=True).wait_for()


async def failed(page: Page) -> None:
    await run(page, "SELECT *\nFROM missing_table")
    await page.get_by_role("alert").wait_for()


async def running(page: Page) -> None:
    await run(page, "SELECT pg_sleep(20)", "postgresql")
    await page.get_by_role("progressbar", name="Progress").wait_for()


async def chart(page: Page) -> None:
    await ran(page)
    await page.get_by_role("tab", name="Chart").click()
    await page.get_by_role("application").wait_for()


async def log(page: Page) -> None:
    await ran(page)
    await page.get_by_role("tab", name="Log").click()
    await page.get_by_role("log").wait_for()


async def cell(page: Page) -> None:
    await ran(page)
    await page.get_by_role("button", name="Show cell").click()
    await page.get_by_role("dialog").wait_for()


def result_button(name: str) -> Open:
    async def click(page: Page) -> None:
        await ran(page)
        await page.get_by_role("region", name="Result").get_by_role("button", name=name, exact=True).click()
        await page.get_by_role("dialog").or_(page.get_by_role("menu")).first.wait_for()

    return click


def editor_button(name: str) -> Open:
    async def click(page: Page) -> None:
        await page.get_by_role("textbox", name="Statement").focus()
        await page.keyboard.insert_text("SELECT * FROM orders")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=name, exact=True).click()
        await page.get_by_role("dialog").or_(page.get_by_role("menu")).first.wait_for()

    return click


def side_tab(name: str) -> Open:
    async def click(page: Page) -> None:
        await page.get_by_role("tab", name=name, exact=True).click()
        await page.get_by_role("tabpanel", name=name).wait_for()

    return click


async def found(page: Page) -> None:
    await page.get_by_role("textbox", name="Search tables and columns").fill("customer")
    await page.get_by_role("region", name="Found in all connectors").get_by_role("listitem").first.wait_for()


async def missing_table(page: Page) -> None:
    await page.goto("/tables/duckdb/main/missing")
    await page.get_by_role("alert").wait_for()


async def missing_result(page: Page) -> None:
    await page.goto("/results/00000000-0000-0000-0000-000000000000")
    await page.get_by_role("alert").wait_for()


async def new_directory(page: Page) -> None:
    await page.goto(SAMPLE)
    await page.get_by_role("button", name="New directory").click()
    await page.get_by_role("dialog").wait_for()


def file_action(name: str) -> Open:
    async def choose(page: Page) -> None:
        await page.goto(SAMPLE)
        await page.get_by_role("checkbox", name="Select orders.csv").check()
        await page.get_by_role("button", name="More actions").click()
        await page.get_by_role("menuitem", name=name, exact=True).click()
        await page.get_by_role("dialog").wait_for()

    return choose


async def file_preview(page: Page) -> None:
    await page.goto(f"{SAMPLE}/orders.csv")
    await page.get_by_role("table").wait_for()


async def import_form(page: Page) -> None:
    await page.goto("/import")
    content = b"region;amount\nNorth;1,50\nSouth;2,25\n"
    file = FilePayload(name="sales.csv", mimeType="text/csv", buffer=content)
    await page.locator("input[type=file]").set_input_files(file)
    await page.get_by_role("table").wait_for()


async def import_refused(page: Page) -> None:
    await page.goto("/import")
    file = FilePayload(name="sales.xlsx", mimeType="application/octet-stream", buffer=b"PK\x03\x04 damaged")
    await page.locator("input[type=file]").set_input_files(file)
    await page.get_by_role("alert").wait_for()


async def dragged(page: Page) -> None:
    await page.goto("/history")
    await page.get_by_role("heading", name="History").wait_for()
    await page.evaluate(_DROP)
    await page.get_by_text("Drop the file to import it as a table").wait_for()


STATES: dict[str, Open] = {
    "rows": ran,
    "failed": failed,
    "running": running,
    "chart": chart,
    "log": log,
    "cell": cell,
    "download menu": result_button("Download"),
    "export": result_button("Export"),
    "share": result_button("Share"),
    "help": editor_button("Help (F1)"),
    "plan": editor_button("Explain"),
    "save": editor_button("Save"),
    "tab menu": editor_button("Tab actions"),
    "history beside the editor": side_tab("History"),
    "queries beside the editor": side_tab("Saved"),
    "search": found,
    "missing table": missing_table,
    "missing result": missing_result,
    "new directory": new_directory,
    "permissions": file_action("Permissions"),
    "copy": file_action("Copy"),
    "file preview": file_preview,
    "import": import_form,
    "refused import": import_refused,
    "dragged file": dragged,
}


@pytest.mark.console(123)
@pytest.mark.parametrize("state", STATES)
async def test_state_is_accessible_at_both_widths(page: Page, state: str):
    page.set_default_timeout(_WAIT_MS)
    await STATES[state](page)
    for size in (WIDE, NARROW):
        await page.set_viewport_size(size)
        await accessible(page)
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]


@pytest.mark.console(124)
@pytest.mark.parametrize("view", [*VIEWS, *(f"admin/{page}" for page in ADMIN_PAGES)])
async def test_view_fits_a_window_at_200_percent(page: Page, view: str):
    await page.set_viewport_size(ZOOMED)
    await page.goto(f"/{view}")
    await page.get_by_role("heading", level=1).wait_for(state="attached")
    await accessible(page)
    assert await page.evaluate("document.scrollingElement.scrollWidth") <= ZOOMED["width"]


@pytest.mark.console(125)
@pytest.mark.parametrize("name", ["Export", "Share", "Download"])
async def test_escape_returns_the_focus_to_the_button_that_opened(page: Page, name: str):
    page.set_default_timeout(_WAIT_MS)
    await result_button(name)(page)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog").or_(page.get_by_role("menu"))).to_have_count(0)
    await expect(page.get_by_role("region", name="Result").get_by_role("button", name=name, exact=True)).to_be_focused()


@pytest.mark.console(126)
async def test_tree_is_reached_from_the_page_of_a_table_on_a_phone(page: Page):
    await page.set_viewport_size(NARROW)
    await page.goto("/tables/duckdb/main/orders")
    await page.get_by_role("button", name="All tables").click()
    await expect(page.get_by_role("tree")).to_be_visible()
    await accessible(page)
    await page.get_by_role("button", name=re.compile("Back")).click()
    await expect(page.get_by_role("heading", name="orders")).to_be_visible()
