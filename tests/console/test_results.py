"""Results in the console: the grid, cells in full, progress, log and downloads (Contract console 5)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openpyxl
import pytest
from playwright.async_api import Browser, BrowserContext, CDPSession, Locator, Page, expect
from pyarrow import csv, feather, ipc, json, parquet
from tests.console.conftest import PASSWORD, Photographs, accessible, browsing
from tests.console.results import begin, calls, open_result, run
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE
from tests.ports import free_port

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

MILLION = "SELECT i AS id, 'row ' || i AS text, i / 7.0 AS ratio, i + 9007199254740993 AS big FROM range(1000000) t(i)"
WIDE = "SELECT " + ", ".join(f"i * {n} AS column_{n}" for n in range(500)) + " FROM range(1000) t(i)"
HOSTILE = """
    SELECT '<script>document.title = ''x''</script><img src=x onerror="document.title = ''x''">' AS markup,
        U&'left \\202E thgir' AS bidi, repeat('long ', 200000) AS long, NULL AS nothing, '' AS empty,
        {'name': 'a', 'list': [1, NULL, 9007199254740993]} AS nested, E'two\\nlines\\tand a tab' AS lines
""".replace("U&'left \\202E thgir'", "'left ' || chr(8238) || ' thgir'").replace(
    "E'two\\nlines\\tand a tab'", "'two' || chr(10) || 'lines' || chr(9) || 'and a tab'"
)
SLOW = "SELECT count(*) FROM range(100000000000) t(i) WHERE i % 3 = 1"

DOWNLOADS = (
    ("CSV", "csv"),
    ("TSV (tab-separated)", "tsv"),
    ("Excel (xlsx)", "xlsx"),
    ("Parquet", "parquet"),
    ("Arrow stream", "arrow"),
    ("Feather (Arrow file)", "feather"),
    ("JSON lines", "ndjson"),
)

_WATCH_FIRST_CELL = """() => {
  const shown = new Map();
  new MutationObserver(() => {
    for (const cell of document.querySelectorAll("[role=gridcell]")) {
      if (!shown.has(cell.textContent)) shown.set(cell.textContent, performance.now());
    }
  }).observe(document.body, { childList: true, characterData: true, subtree: true });
  window.shownAfter = (text) => {
    const calls = performance.getEntriesByType("resource").filter((one) => /editor.(execute|fetch)/.test(one.name));
    const before = calls.filter((one) => one.responseEnd <= shown.get(text));
    return shown.get(text) - Math.max(...before.map((one) => one.responseStart));
  };
}"""
_HEAP = "performance.memory.usedJSHeapSize"


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with calls(console_server.base_url) as opened:
        yield opened


def grid(page: Page) -> Locator:
    return page.get_by_role("grid", name="Rows")


async def scroll_to(page: Page, top: str) -> None:
    await grid(page).evaluate(f"(element) => {{ element.scrollTop = {top}; }}")


async def active(page: Page) -> str:
    """Return the text of the active cell."""
    name = await grid(page).get_attribute("aria-activedescendant")
    assert name is not None
    return await page.locator(f"[id='{name}']").inner_text()


@pytest.mark.console(50)
async def test_grid_scrolls_over_a_million_rows_in_bounded_memory(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    page = await open_result(context, await run(client, MILLION))
    await expect(page.get_by_text("1,000,000 rows", exact=True)).to_be_visible()
    await expect(grid(page).get_by_text("row 0", exact=True)).to_be_visible()
    await accessible(page)
    await photographs(page, "result-rows")
    before: int = await page.evaluate(_HEAP)
    for step in range(60):
        await scroll_to(page, f"(element.scrollHeight - element.clientHeight) * {(step * 37 % 60) / 60}")
        await page.wait_for_timeout(60)
    await scroll_to(page, "element.scrollHeight")
    await expect(grid(page).get_by_text("row 999999", exact=True)).to_be_visible()
    await expect(grid(page).get_by_text(str(999_999 + 9007199254740993), exact=True)).to_be_visible()
    grown = (await page.evaluate(_HEAP)) - before
    print(f"heap grew by {grown / 1e6:.1f} MB")
    assert grown < 60e6


@pytest.mark.console(50)
async def test_scrolling_a_page_of_a_thousand_rows_never_blocks_for_50_ms(
    context: BrowserContext, client: httpx.AsyncClient
):
    page = await open_result(context, await run(client, MILLION.replace("1000000", "1000")))
    await expect(grid(page).get_by_text("row 0", exact=True)).to_be_visible()
    await grid(page).hover()
    await page.wait_for_timeout(500)
    session = await context.new_cdp_session(page)
    # The time of the page's own thread: the tests run beside others, which interrupt the browser for longer than 50 ms.
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    steps: list[float] = []
    busy_s = await _busy_s(session)
    for _ in range(100):
        await page.mouse.wheel(0, 300)
        await page.wait_for_timeout(16)
        before_s, busy_s = busy_s, await _busy_s(session)
        steps.append((busy_s - before_s) * 1000)
    await expect(grid(page).get_by_text("row 999", exact=True)).to_be_attached(timeout=15_000)
    steps.sort()
    print(f"ms of the page for each 300 px: median {steps[50]:.1f}, longest {steps[-3:]}")
    assert steps[-1] < 50


async def _busy_s(session: CDPSession) -> float:
    """Return how long the page's thread has worked, in seconds."""
    metrics: dict[str, Any] = await session.send("Performance.getMetrics")
    return next(one["value"] for one in metrics["metrics"] if one["name"] == "TaskDuration")


@pytest.mark.console(50)
async def test_first_row_is_shown_within_150_ms_after_its_response(page: Page):
    """The response of execute contains the row. The shortest of five runs counts, because the machine is shared."""
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    await page.evaluate(_WATCH_FIRST_CELL)
    times: list[float] = []
    for number in range(5):
        await page.get_by_role("textbox", name="Statement").focus()
        await page.keyboard.press("ControlOrMeta+A")
        await page.keyboard.press("Delete")
        await page.keyboard.insert_text(f"SELECT {4200 + number} AS answer")
        await page.keyboard.press("ControlOrMeta+Enter")
        await expect(grid(page).get_by_text(str(4200 + number), exact=True)).to_be_visible(timeout=15_000)
        times.append(await page.evaluate("(text) => window.shownAfter(text)", str(4200 + number)))
    print(f"ms from the response to the row: {sorted(times)}")
    assert 0 < min(times) <= 150


@pytest.mark.console(50)
async def test_grid_shows_500_columns_and_moves_with_the_keyboard(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    page = await open_result(context, await run(client, WIDE))
    await expect(grid(page).get_by_text("column_3", exact=True)).to_be_visible()
    await expect(grid(page)).to_have_attribute("aria-colcount", "501")
    assert await grid(page).get_by_role("gridcell").count() < 2000
    await grid(page).focus()
    await page.keyboard.press("ControlOrMeta+End")
    await expect(grid(page).get_by_text("column_499", exact=True)).to_be_visible()
    await expect(grid(page).get_by_text(str(999 * 499), exact=True)).to_be_visible()
    assert await active(page) == str(999 * 499)
    await page.keyboard.press("ArrowLeft")
    assert await active(page) == str(999 * 498)
    await page.keyboard.press("ControlOrMeta+Home")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("PageDown")
    assert int(await active(page)) > 5
    await photographs(page, "result-wide")


@pytest.mark.console(51)
async def test_hostile_cells_are_shown_as_text(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    page = await open_result(context, await run(client, HOSTILE))
    await expect(grid(page).get_by_text("<script>", exact=False).first).to_be_visible()
    assert await page.title() == "Query Server"
    assert await page.locator("[role=grid] script, [role=grid] img").count() == 0
    await photographs(page, "result-hostile")
    await grid(page).focus()
    for _ in range(2):
        await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="long")
    await expect(dialog.get_by_text("1,000,000 characters")).to_be_visible()
    assert await dialog.locator("div").count() < 500
    await accessible(page)
    await photographs(page, "result-long-cell")
    await page.keyboard.press("Escape")
    await expect(grid(page)).to_be_focused()
    for _ in range(3):
        await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="nested").get_by_text('"9007199254740993"')).to_be_visible()
    await photographs(page, "result-nested-cell")
    await page.keyboard.press("Escape")


@pytest.mark.console(51)
async def test_selection_is_copied_as_a_table(context: BrowserContext, client: httpx.AsyncClient):
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await open_result(
        context, await run(client, "SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, 'x\"y' ORDER BY a")
    )
    await grid(page).focus()
    await page.keyboard.press("ControlOrMeta+a")
    await page.keyboard.press("ControlOrMeta+c")
    await expect(page.get_by_text("Copied 4 cells.")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == '1\t\n2\t"x""y"'
    await page.get_by_role("button", name="Copy", exact=True).click()
    await page.get_by_role("menuitem", name="Copy with column names").click()
    await expect(page.get_by_text("Copied 4 cells.").nth(1)).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == 'a\tb\n1\t\n2\t"x""y"'


@pytest.mark.console(52)
async def test_result_is_downloaded_in_every_format(context: BrowserContext, client: httpx.AsyncClient, tmp_path: Path):
    page = await open_result(context, await run(client, "SELECT 42 AS answer"))
    for label, ending in DOWNLOADS:
        await page.get_by_role("button", name="Download", exact=True).click()
        async with page.expect_download() as received:
            await page.get_by_role("menuitem", name=label, exact=True).click()
        file = await received.value
        assert file.suggested_filename.endswith(f".{ending}")
        await file.save_as(tmp_path / f"result.{ending}")
    tables = {
        "csv": csv.read_csv(tmp_path / "result.csv"),
        "tsv": csv.read_csv(tmp_path / "result.tsv", parse_options=csv.ParseOptions(delimiter="\t")),
        "parquet": parquet.read_table(tmp_path / "result.parquet"),
        "arrow": ipc.open_stream(tmp_path / "result.arrow").read_all(),
        "feather": feather.read_table(tmp_path / "result.feather"),
        "ndjson": json.read_json(tmp_path / "result.ndjson"),
    }
    assert {ending: table.to_pylist() for ending, table in tables.items()} == {
        ending: [{"answer": 42}] for ending in tables
    }
    (sheet,) = openpyxl.load_workbook(tmp_path / "result.xlsx").worksheets
    assert list(sheet.values) == [("answer",), (42,)]


@pytest.mark.console(51)
async def test_row_above_the_limit_of_a_page_is_named_in_its_place(browser: Browser, tmp_path: Path):
    port = free_port()
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER__EDITOR__BATCH_MAX_BYTES": "65536"}
    rows = "SELECT i AS n, CASE WHEN i IN (0, 700) THEN repeat('x', 100000) ELSE 'row ' || i END AS text"
    async with (
        running_server(tmp_path / "data", port=port, settings=settings) as server,
        calls(server.base_url) as client,
        browsing(browser, server.base_url) as context,
    ):
        page = await open_result(context, await run(client, f"{rows} FROM range(1000) t(i)"))
        refused = grid(page).get_by_text("This row is too large to be shown.")
        await expect(grid(page).get_by_text("row 1", exact=True)).to_be_visible()
        await expect(refused).to_be_visible()
        await scroll_to(page, "695 * 28")
        await expect(grid(page).get_by_text("row 701", exact=True)).to_be_visible()
        await expect(refused).to_be_visible()
        await accessible(page)


@pytest.mark.console(50)
async def test_widths_of_columns_are_changed_with_the_keyboard(context: BrowserContext, client: httpx.AsyncClient):
    page = await open_result(context, await run(client, "SELECT 1 AS first, 2 AS second"))
    header = page.get_by_role("columnheader", name="second")
    before = await header.bounding_box()
    await grid(page).focus()
    for keys in ("ArrowRight", "Alt+Shift+ArrowRight", "Alt+Shift+ArrowRight"):
        await page.keyboard.press(keys)
    after = await header.bounding_box()
    assert before
    assert after
    assert after["width"] == before["width"] + 48
    await page.get_by_role("button", name="Width of the column second").click()
    await page.get_by_role("menuitem", name="Fit the rows in view").click()
    await expect(header).to_have_js_property("offsetWidth", round(before["width"]))


@pytest.mark.console(53)
async def test_running_statement_shows_progress_and_is_canceled(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    operation = await begin(client, SLOW)
    page = await open_result(context, operation)
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    await expect(page.get_by_role("status").filter(has_text="Running").first).to_be_visible()
    await accessible(page)
    await photographs(page, "result-running")
    await page.get_by_role("tab", name="Log").click()
    await expect(page.get_by_role("log").get_by_text("Submitted to duckdb")).to_be_visible()
    await cancel.click()
    await expect(page.get_by_text("Canceled", exact=True)).to_be_visible(timeout=30_000)
    await expect(cancel).to_be_hidden()


@pytest.mark.console(53)
async def test_errors_name_their_line_and_column(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    body = await client.post("/api/v1/editor/execute/duckdb", json={"statement": "SELECT 1,\n  nothing", "wait": 30})
    page = await open_result(context, body.json()["history_uuid"])
    await expect(page.get_by_role("alert").get_by_text("line 2, column 3")).to_be_visible()
    await accessible(page)
    await photographs(page, "result-failed")


@pytest.mark.console(54)
async def test_slow_network_shows_the_rows_of_the_view_only(context: BrowserContext, client: httpx.AsyncClient):
    page = await open_result(context, await run(client, MILLION))
    await expect(grid(page).get_by_text("row 0", exact=True)).to_be_visible()
    session = await context.new_cdp_session(page)
    slow = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
    await session.send("Network.emulateNetworkConditions", slow)
    for step in range(20):
        await scroll_to(page, f"element.scrollHeight * {step / 20}")
        await page.wait_for_timeout(30)
    await scroll_to(page, "element.scrollHeight")
    await expect(grid(page).get_by_text("row 999999", exact=True)).to_be_visible(timeout=20_000)


@pytest.mark.console(54)
async def test_two_pages_show_the_same_statement(context: BrowserContext, client: httpx.AsyncClient):
    operation = await begin(client, SLOW)
    first, second = await open_result(context, operation), await context.new_page()
    await second.goto(f"/results/{operation}")
    await expect(second.get_by_role("button", name="Cancel", exact=True)).to_be_visible(timeout=15_000)
    await first.get_by_role("button", name="Cancel", exact=True).click()
    for page in (first, second):
        await expect(page.get_by_text("Canceled", exact=True)).to_be_visible(timeout=30_000)


@pytest.mark.console(54)
async def test_page_goes_on_after_the_server_was_killed(browser: Browser, tmp_path: Path):
    """The process is killed while the statement runs. The page says that the server is gone, and then what became of
    the statement.
    """
    port, settings = free_port(), {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER__EDITOR__LEASE_TIMEOUT_S": "5"}
    async with (
        running_server(tmp_path / "data", port=port, settings=settings) as server,
        calls(server.base_url) as client,
        browsing(browser, server.base_url) as context,
    ):
        stored, running = await run(client, "SELECT 'kept' AS text"), await begin(client, SLOW)
        page = await open_result(context, running)
        await expect(page.get_by_role("status").filter(has_text="Running").first).to_be_visible()
        await server.kill9()
        await expect(page.get_by_text("The server does not answer.").first).to_be_visible(timeout=15_000)
        async with running_server(tmp_path / "data", port=port, settings=settings):
            await expect(page.get_by_text("outcome_unknown")).to_be_visible(timeout=60_000)
            await page.goto(f"/results/{stored}")
            await expect(grid(page).get_by_text("kept", exact=True)).to_be_visible(timeout=15_000)
