"""Statements whose result is not simply a table: scripts, and results that are cut or gone (Contract console 5)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, Route, expect
from tests.console.commands import command
from tests.console.conftest import PASSWORD, Photographs, accessible, browsing, log_in
from tests.console.editor import WAIT_MS, cell, log_in_again, result_of, run_script, run_text, text_of
from tests.console.results import begin, calls, cancel, open_result, run, submit
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE
from tests.fixtures.database import execute

from queryserver.platform.embedded.postgres import running_resources

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

KEPT_ROWS = 100
SLOW = "SELECT count(*) FROM range(100000000000) t(i) WHERE i % 3 = 1"


@pytest.fixture
async def client(console_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with calls(console_server.base_url) as opened:
        yield opened


@pytest.fixture(scope="module")
async def limited_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server that keeps few rows of a result."""
    settings = {
        "QUERYSERVER_ADMIN_PASSWORD": PASSWORD,
        "QUERYSERVER__EDITOR__RESULT_MAX_ROWS": str(KEPT_ROWS),
        "QUERYSERVER__EDITOR__DEFAULT_LIMIT": str(KEPT_ROWS),
    }
    async with running_server(tmp_path_factory.mktemp("limited") / "data", settings=settings) as process:
        yield process


@pytest.fixture
async def limited(limited_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with calls(limited_server.base_url) as opened:
        yield opened


@pytest.fixture
async def limited_context(browser: Browser, limited_server: ServerProcess) -> AsyncIterator[BrowserContext]:
    async with browsing(browser, limited_server.base_url) as opened:
        yield opened


def statements(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Statements").get_by_role("button")


@pytest.mark.console(127)
async def test_results_of_a_script_are_shown_one_by_one(page: Page, tmp_path: Path, photographs: Photographs):
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    await run_script(page, "SELECT 'one' AS a; CREATE TEMP TABLE s AS SELECT 7 AS n; SELECT 'three' AS c, n FROM s")
    await cell(page, "three")
    await expect(statements(page)).to_have_text(["11 row", "21 row changed", "31 row"])
    await expect(statements(page).nth(1)).to_be_disabled()
    await accessible(page)
    await photographs(page, "script-parts")
    await statements(page).nth(0).click()
    await cell(page, "one")
    await expect(statements(page).nth(0)).to_have_attribute("aria-pressed", "true")
    await page.get_by_role("button", name="Download", exact=True).click()
    async with page.expect_download() as received:
        await page.get_by_role("menuitem", name="CSV", exact=True).click()
    file = tmp_path / "part.csv"
    await (await received.value).save_as(file)
    assert await asyncio.to_thread(file.read_bytes) == b"a\r\none\r\n"
    await statements(page).nth(2).click()
    await cell(page, "three")


@pytest.mark.console(127)
async def test_script_that_fails_in_the_middle_shows_the_error_and_the_rows_before(
    page: Page, photographs: Photographs
):
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    await run_script(page, "SELECT 'kept' AS a;\nSELECT nope;\nSELECT 'never' AS c")
    error = result_of(page).get_by_role("alert")
    await expect(error).to_contain_text("nope", timeout=WAIT_MS)
    await expect(error).to_contain_text("Statement 2, line 2, column 8")
    await expect(statements(page)).to_have_text(["11 row", "2failed"])
    await accessible(page)
    await photographs(page, "script-failed")
    await statements(page).nth(0).click()
    await cell(page, "kept")


@pytest.mark.console(128)
async def test_cut_result_names_its_limit_and_is_read_to_its_end(
    limited_context: BrowserContext, limited: httpx.AsyncClient, tmp_path: Path, photographs: Photographs
):
    page = await open_result(limited_context, await run(limited, "SELECT i AS i, 'x' AS x FROM range(1000) t(i)"))
    await expect(page.get_by_text(f"Only the first {KEPT_ROWS} rows were kept")).to_be_visible()
    grid = page.get_by_role("grid", name="Rows")
    await grid.focus()
    await page.keyboard.press("ControlOrMeta+End")
    await expect(grid.get_by_text(str(KEPT_ROWS - 1), exact=True).first).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await accessible(page)
    await photographs(page, "result-cut")
    await page.get_by_role("button", name="Download", exact=True).click()
    async with page.expect_download() as received:
        await page.get_by_role("menuitem", name="CSV", exact=True).click()
    file = tmp_path / "cut.csv"
    await (await received.value).save_as(file)
    assert len((await asyncio.to_thread(file.read_text)).splitlines()) == KEPT_ROWS + 1
    await expect(page.get_by_text("The file contains only the stored rows")).to_be_visible()

    await page.get_by_role("button", name="Export", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("File name").fill("cut.csv")
    await dialog.get_by_role("button", name="Export", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("rows were kept")
    await dialog.get_by_label("Export the stored rows, although the result is cut").check()
    await dialog.get_by_role("button", name="Export", exact=True).click()
    await expect(dialog.get_by_text(f"{KEPT_ROWS} rows are written to")).to_be_visible(timeout=WAIT_MS)


@pytest.mark.console(128)
@pytest.mark.parametrize("ending", ["expired", "deleted"])
async def test_result_that_is_gone_says_so_and_is_run_again(
    context: BrowserContext,
    client: httpx.AsyncClient,
    console_server: ServerProcess,
    ending: str,
    photographs: Photographs,
):
    page = await context.new_page()
    await page.goto("/")
    await log_in(page)
    await run_text(page, f"SELECT 'back, {ending}' AS a", "duckdb")
    await cell(page, f"back, {ending}")
    history = (await client.get("/api/v1/editor/get_history", params={"limit": 1})).json()["history"]
    operation = history[0]["uuid"]
    if ending == "deleted":
        (await client.post("/api/v1/editor/close_statement", json={"operationId": operation})).raise_for_status()
    else:
        resources = running_resources(console_server.stdout_file.parent / "data")
        assert resources is not None
        past = "update statements set expires_at = now() - interval '1 second' where id ="
        await execute(resources.service_dsn, f"{past} '{operation}'")
        await command(console_server, "cleanup")

    link = await context.new_page()
    await link.goto(f"/results/{operation}")
    await log_in_again(link)
    await expect(link.get_by_role("status").filter(has_text=f"Result {ending}")).to_be_visible(timeout=WAIT_MS)
    await expect(link.get_by_role("alert")).to_be_visible()
    await accessible(link)
    await photographs(link, f"result-{ending}")
    await link.get_by_role("link", name="Open in the editor").click()
    await expect(text_of(link)).to_have_text(f"SELECT 'back, {ending}' AS a", timeout=WAIT_MS)

    await page.reload()
    await log_in_again(page)
    await expect(result_of(page).get_by_text(f"Result {ending}")).to_be_visible(timeout=WAIT_MS)
    await result_of(page).get_by_role("button", name="Run again").click()
    await cell(page, f"back, {ending}")


@pytest.mark.console(129)
async def test_place_in_the_queue_is_shown_and_moves_up(
    context: BrowserContext, client: httpx.AsyncClient, photographs: Photographs
):
    """Statements of one session wait for each other."""
    session = await client.post("/api/v1/editor/create_session", data={"session": '{"type": "duckdb"}'})
    number = session.raise_for_status().json()["session"]["id"]
    first = await begin(client, SLOW, session_id=number)
    second = await submit(client, SLOW, session_id=number)
    third = await submit(client, "SELECT 'my turn' AS a", session_id=number)
    page = await open_result(context, third)
    await expect(page.get_by_role("status").filter(has_text="Waiting, place 2 in the queue")).to_be_visible()
    await accessible(page)
    await photographs(page, "result-waiting")
    await cancel(client, second)
    await expect(page.get_by_role("status").filter(has_text="Waiting, place 1 in the queue")).to_be_visible(
        timeout=WAIT_MS
    )
    await cancel(client, first)
    await expect(page.get_by_role("gridcell", name="my turn")).to_be_visible(timeout=WAIT_MS)


@pytest.mark.console(54)
async def test_held_back_event_stream_is_replaced_by_polling(context: BrowserContext, client: httpx.AsyncClient):
    held: list[Route] = []
    await context.route("**/editor/events/**", lambda route: held.append(route))  # noqa: PLW0108 Playwright reads its signature
    running = await begin(client, SLOW)
    page = await open_result(context, running)
    await page.get_by_role("tab", name="Log").click()
    await expect(page.get_by_role("log").get_by_text("Submitted to duckdb")).to_be_visible(timeout=WAIT_MS)
    await expect(page.get_by_role("status").filter(has_text="Running")).to_be_visible()
    assert held
    await cancel(client, running)
    await expect(page.get_by_role("status").filter(has_text="Canceled")).to_be_visible(timeout=WAIT_MS)
    before = len(held)
    await page.get_by_role("link", name="Editor", exact=True).click()
    await run_text(page, "SELECT count(*) AS n, 'polled' AS a FROM range(300000000) t(i) WHERE i % 3 = 1", "duckdb")
    await cell(page, "polled")
    # A page whose stream was held back does not wait for one again.
    assert len(held) == before


@pytest.mark.console(27)
async def test_link_of_a_saved_query_opens_one_tab_and_runs_nothing(page: Page, client: httpx.AsyncClient):
    document = {
        "name": "Linked query",
        "statement": "SELECT :word AS word",
        "connector": "sqlite",
        "parameters": [{"name": "word", "type": "varchar", "default": "given"}],
    }
    saved = await client.post("/api/v1/documents/save", json={"document": document})
    uuid = saved.raise_for_status().json()["uuid"]
    for _ in range(2):
        await page.goto(f"/editor?document={uuid}")
        await log_in_again(page)
        await expect(text_of(page)).to_have_text("SELECT :word AS word", timeout=WAIT_MS)
        await page.wait_for_url("**/editor")
        await expect(page.get_by_role("list", name="Editor tabs").get_by_text("Linked query")).to_have_count(1)
    await expect(page.get_by_role("combobox", name="Connector")).to_have_value("sqlite")
    await expect(page.get_by_label(":word", exact=True)).to_have_value("given")
    await expect(result_of(page).get_by_text("No result yet")).to_be_visible()
    await page.goto("/editor?document=00000000-0000-0000-0000-000000000000")
    await log_in_again(page)
    await expect(page.get_by_text("does not exist").first).to_be_visible()
    await page.wait_for_url("**/editor")


@pytest.mark.console(54)
async def test_statement_goes_on_without_a_page_and_is_found_in_the_history_of_a_new_browser(
    browser: Browser, console_server: ServerProcess
):
    statement = "SELECT pg_sleep(600), 'left alone' AS a"
    async with browsing(browser, console_server.base_url) as first:
        page = await first.new_page()
        await page.goto("/")
        await log_in(page)
        await run_text(page, statement, "postgresql")
        await expect(result_of(page).get_by_role("status").filter(has_text="Running").first).to_be_visible(
            timeout=WAIT_MS
        )
    async with browsing(browser, console_server.base_url) as second:
        page = await second.new_page()
        await page.goto("/history")
        await log_in(page)
        entries = page.get_by_role("list", name="History").get_by_role("listitem")
        entry = entries.filter(has_text="left alone").first
        await expect(entry).to_contain_text("Running")
        await entry.get_by_role("button", name=statement, exact=True).click()
        await expect(text_of(page)).to_have_text(statement, timeout=WAIT_MS)
        await result_of(page).get_by_role("button", name="Cancel", exact=True).click(timeout=WAIT_MS)
        await expect(result_of(page).get_by_role("status").filter(has_text="Canceled")).to_be_visible(timeout=WAIT_MS)
