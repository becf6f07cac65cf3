"""The editor of the console: type, run, see, and find again (Contract console 5)."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.console.conftest import NARROW, PASSWORD, Photographs, accessible, browsing, log_in
from tests.console.editor import WAIT_MS, cell, log_in_again, result_of, text_of, type_over
from tests.e2e.harness import running_server
from tests.engines.chromium import ENGINE
from tests.ports import free_port

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

_STORED = """async () => {
  const stored = () => Object.values(localStorage).join().match(/"operationId":"([^"]+)"/)?.[1];
  for (let turn = 0; !stored() && turn < 200; turn += 1) await new Promise(resolve => setTimeout(resolve, 100));
  if (!stored()) throw new Error("No tab with an operation was stored.");
  return stored();
}"""


async def complete(page: Page, name: str) -> None:
    """Wait until a completion is offered first, and take it."""
    option = page.get_by_role("listbox", name="Completions").get_by_role("option").first
    await expect(option).to_contain_text(name, timeout=WAIT_MS)
    # For 75 ms after a change of the list the editor takes nothing from it.
    await page.wait_for_timeout(150)
    await page.keyboard.press("Enter")


@pytest.fixture
async def editor(page: Page) -> Page:
    """The editor with a tab that runs on DuckDB."""
    await page.get_by_role("combobox", name="Connector").select_option("duckdb")
    return page


@pytest.mark.console(22)
async def test_statement_is_typed_with_completion_and_run(editor: Page, photographs: Photographs):
    await text_of(editor).focus()
    await editor.keyboard.type("sel")
    await complete(editor, "SELECT")
    await editor.keyboard.type(" * FROM orders")
    await expect(editor.get_by_role("option", name="orders")).to_be_visible()
    await photographs(editor, "editor-completion")
    await complete(editor, "orders")
    await editor.keyboard.type(" o WHERE o.cust")
    await complete(editor, "customer_id")
    await editor.keyboard.type(" > 0 LIMIT 5")
    await expect(text_of(editor)).to_have_text("SELECT * FROM orders o WHERE o.customer_id > 0 LIMIT 5")
    await editor.keyboard.press("ControlOrMeta+Enter")
    await expect(result_of(editor).get_by_text("customer_id").first).to_be_visible(timeout=WAIT_MS)
    await accessible(editor)
    await photographs(editor, "editor-rows")


@pytest.mark.console(20)
@pytest.mark.console(21)
async def test_statement_at_the_cursor_runs_and_its_error_is_marked(editor: Page, photographs: Photographs):
    await type_over(editor, "SELECT 'first' AS a;\n\nSELECT nope FROM orders;\nSELECT 'third' AS c;\n")
    await text_of(editor).get_by_text("nope").click()
    await editor.keyboard.press("ControlOrMeta+Enter")
    mark = editor.locator(".cm-lintRange-error")
    await expect(mark).to_have_text("nope", timeout=WAIT_MS)
    await expect(editor.locator(".cm-lint-marker-error")).to_have_count(1)
    await accessible(editor)
    await photographs(editor, "editor-error")
    await text_of(editor).get_by_text("third").click()
    await editor.keyboard.press("ControlOrMeta+Enter")
    await cell(editor, "third")
    await expect(mark).to_have_count(0)


@pytest.mark.console(20)
@pytest.mark.console(21)
async def test_all_statements_run_in_order_and_the_failing_one_is_marked(editor: Page):
    await type_over(editor, "SELECT 'one' AS a;\n\n   SELECT missing_column;\nSELECT 'never' AS c")
    await editor.keyboard.press("ControlOrMeta+Shift+Enter")
    await expect(editor.locator(".cm-lintRange-error")).to_have_text("missing_column", timeout=WAIT_MS)
    await type_over(editor, "CREATE TEMP TABLE t AS SELECT 'kept' AS a; SELECT a FROM t")
    await editor.keyboard.press("ControlOrMeta+Shift+Enter")
    await cell(editor, "kept")


@pytest.mark.console(23)
async def test_parameters_are_fields_that_must_have_a_value(editor: Page, photographs: Photographs):
    await type_over(editor, "SELECT :word AS word, ${number=7} AS number, '${more}' AS more")
    await editor.get_by_label(":word").wait_for()
    await editor.keyboard.press("ControlOrMeta+Enter")
    await expect(editor.get_by_text("needs a value")).to_have_count(2)
    await expect(editor.get_by_label(":word")).to_be_focused()
    await editor.get_by_label(":word").fill("it's")
    await editor.get_by_label("more", exact=True).fill("added")
    await accessible(editor)
    await photographs(editor, "editor-parameters")
    await editor.get_by_label("more", exact=True).press("Enter")
    await cell(editor, "it's")
    await cell(editor, "added")


@pytest.mark.console(24)
async def test_text_is_formatted_as_one_step_that_can_be_undone(editor: Page):
    await type_over(editor, "select id, name from customers where id = 1")
    await editor.get_by_role("button", name="Format").click()
    await expect(text_of(editor)).to_contain_text("SELECT")
    await expect(text_of(editor)).to_contain_text("WHERE")
    await text_of(editor).focus()
    await editor.keyboard.press("ControlOrMeta+Z")
    await expect(text_of(editor)).to_have_text("select id, name from customers where id = 1")


@pytest.mark.console(24)
async def test_plan_is_shown_and_an_error_of_it_is_marked(editor: Page, photographs: Photographs):
    await type_over(editor, "SELECT name FROM customers WHERE id = 1")
    await editor.keyboard.press("ControlOrMeta+Shift+E")
    plan = editor.get_by_role("dialog", name="Plan")
    await expect(plan.locator("pre")).to_contain_text("customers", timeout=WAIT_MS)
    await accessible(editor)
    await photographs(editor, "editor-plan")
    await plan.get_by_role("button", name="Close").click()
    await type_over(editor, "SELECT 1;\nSELECT nope FROM customers")
    await editor.get_by_role("button", name="Explain").click()
    await expect(plan.get_by_role("alert")).to_contain_text("nope", timeout=WAIT_MS)
    await plan.get_by_role("button", name="Close").click()
    await expect(editor.locator(".cm-lintRange-error")).to_have_text("nope")


@pytest.mark.console(25)
async def test_tabs_survive_a_reload_with_their_result(editor: Page, photographs: Photographs):
    await type_over(editor, "SELECT 'of the first tab' AS a")
    await editor.keyboard.press("ControlOrMeta+Enter")
    await cell(editor, "of the first tab")
    await editor.get_by_role("button", name="New tab").click()
    await type_over(editor, "SELECT 'of the second tab' AS b")
    await editor.keyboard.press("ControlOrMeta+Enter")
    await cell(editor, "of the second tab")
    await editor.get_by_role("button", name="Query 2", exact=True).dblclick()
    await editor.get_by_label("Name of the tab").fill("Second")
    await editor.keyboard.press("Enter")
    await editor.reload()
    await log_in_again(editor)
    await expect(text_of(editor)).to_have_text("SELECT 'of the second tab' AS b")
    await cell(editor, "of the second tab")
    await photographs(editor, "editor-tabs")
    await editor.get_by_role("button", name="Query 1", exact=True).click()
    await expect(text_of(editor)).to_have_text("SELECT 'of the first tab' AS a")
    await cell(editor, "of the first tab")
    await editor.get_by_role("button", name="Close Second").click()
    await expect(editor.get_by_role("list", name="Editor tabs").get_by_role("listitem")).to_have_count(1)


@pytest.mark.console(25)
async def test_running_statement_is_found_again_in_a_new_page_and_stopped(editor: Page):
    await editor.get_by_role("combobox", name="Connector").select_option("postgresql")
    await type_over(editor, "SELECT pg_sleep(120)")
    await editor.keyboard.press("ControlOrMeta+Enter")
    stop = editor.get_by_role("toolbar", name="Statement").get_by_role("button", name="Stop")
    await stop.wait_for()
    # The tab is stored shortly after the server has given the statement its id.
    await editor.evaluate(_STORED)
    again = await editor.context.new_page()
    await editor.close()
    await again.goto("/editor")
    await log_in_again(again)
    await expect(text_of(again)).to_have_text("SELECT pg_sleep(120)", timeout=WAIT_MS)
    await again.get_by_role("toolbar", name="Statement").get_by_role("button", name="Stop").click(timeout=WAIT_MS)
    await expect(result_of(again).get_by_text("canceled", exact=False).first).to_be_visible(timeout=WAIT_MS)


@pytest.mark.console(28)
async def test_text_is_saved_as_a_query_and_found_in_the_side_panel(editor: Page, photographs: Photographs):
    await type_over(editor, "SELECT count(*) FROM orders WHERE id > :least")
    await editor.get_by_role("button", name="Save", exact=True).click()
    dialog = editor.get_by_role("dialog", name="Save as a query")
    await dialog.get_by_label("Name", exact=True).fill("Orders above a number")
    await accessible(editor)
    await dialog.get_by_role("button", name="Save", exact=True).click()
    await expect(dialog).to_have_count(0)
    await expect(editor.get_by_role("button", name="Orders above a number", exact=True)).to_be_visible()
    panel = editor.get_by_role("region", name="Side panel")
    await panel.get_by_role("tab", name="History").click()
    await expect(panel.get_by_role("tabpanel", name="History")).to_be_visible()
    await accessible(editor)
    await panel.get_by_role("tab", name="Saved").click()
    await expect(panel.get_by_text("Orders above a number").first).to_be_visible(timeout=WAIT_MS)
    await accessible(editor)
    await photographs(editor, "editor-saved")


@pytest.mark.console(27)
async def test_links_open_a_tab_once(editor: Page):
    await editor.goto("/editor?connector=sqlite&statement=SELECT%20'linked'%20AS%20a")
    await log_in_again(editor)
    await expect(text_of(editor)).to_have_text("SELECT 'linked' AS a", timeout=WAIT_MS)
    await expect(editor.get_by_role("combobox", name="Connector")).to_have_value("sqlite")
    await editor.wait_for_url("**/editor")
    # A link never runs anything by itself.
    await expect(result_of(editor).get_by_text("No result yet")).to_be_visible()
    await editor.reload()
    await log_in_again(editor)
    await expect(editor.get_by_role("list", name="Editor tabs").get_by_role("listitem")).to_have_count(2)


@pytest.mark.console(22)
async def test_typing_never_waits_for_a_call(editor: Page):
    held: list[Route] = []
    await editor.route("**/editor/autocomplete**", lambda route: held.append(route))  # noqa: PLW0108 Playwright reads its signature
    await editor.get_by_role("combobox", name="Connector").select_option("sqlite")
    await text_of(editor).focus()
    statement = "select * from orders o where o.id = 1 "
    await editor.keyboard.type(statement * 5)
    await expect(text_of(editor)).to_have_text((statement * 5).strip(), timeout=1000)
    assert held
    for route in held:
        await route.abort()


async def test_side_panel_covers_the_text_in_a_narrow_window(editor: Page):
    await editor.set_viewport_size(NARROW)
    await expect(editor.get_by_role("region", name="Side panel")).to_have_count(0)
    await editor.get_by_role("button", name="Show the side panel").click()
    await accessible(editor)
    await editor.get_by_role("button", name="Hide the side panel").click()
    await expect(editor.get_by_role("region", name="Side panel")).to_have_count(0)


@pytest.mark.console(27)
async def test_link_of_an_operation_shows_its_text_and_rows(editor: Page):
    await type_over(editor, "SELECT 'linked row' AS a")
    await editor.keyboard.press("ControlOrMeta+Enter")
    await cell(editor, "linked row")
    operation_id: str = await editor.evaluate(_STORED)
    await editor.get_by_role("button", name="Close Query 1").click()
    await editor.goto(f"/editor?operation={operation_id}")
    await log_in_again(editor)
    await expect(text_of(editor)).to_have_text("SELECT 'linked row' AS a", timeout=WAIT_MS)
    await cell(editor, "linked row")


async def test_help_and_empty_editor_are_accessible(editor: Page, photographs: Photographs):
    await accessible(editor)
    await photographs(editor, "editor-empty")
    await text_of(editor).focus()
    await editor.keyboard.press("F1")
    await editor.get_by_role("dialog", name="Editor help").wait_for()
    for scheme in ("light", "dark"):
        await editor.emulate_media(color_scheme=scheme)
        await accessible(editor)
    await photographs(editor, "editor-help")


@pytest.mark.console(26)
async def test_statement_is_found_again_after_the_server_was_killed(browser: Browser, tmp_path: Path):
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
    port = free_port()
    first = running_server(tmp_path / "data", settings=settings, port=port)
    async with first as process, browsing(browser, process.base_url) as context:
        page = await context.new_page()
        await page.goto("/")
        await log_in(page)
        await page.get_by_role("combobox", name="Connector").select_option("postgresql")
        await type_over(page, "SELECT 'before' AS a")
        await page.keyboard.press("ControlOrMeta+Enter")
        await cell(page, "before")
        await process.kill9()
        await type_over(page, "SELECT 'typed while it was away' AS b")
        await page.keyboard.press("ControlOrMeta+Enter")
        async with running_server(tmp_path / "data", settings=settings, port=port):
            await cell(page, "typed while it was away")


@pytest.mark.console(54)
async def test_statement_is_run_and_its_rows_are_read_over_a_slow_network(editor: Page):
    session = await editor.context.new_cdp_session(editor)
    slow = {"offline": False, "latency": 400, "downloadThroughput": 30_000, "uploadThroughput": 30_000}
    await session.send("Network.emulateNetworkConditions", slow)
    await type_over(editor, "SELECT i AS i, repeat('x', 400) AS text FROM range(20000) t(i)")
    await editor.keyboard.press("ControlOrMeta+Enter")
    grid = editor.get_by_role("grid", name="Rows")
    await expect(grid.get_by_role("rowheader", name="1", exact=True)).to_be_visible(timeout=WAIT_MS)
    # The editor stays usable while rows are on their way.
    await type_over(editor, "SELECT 'next' AS a")
    await grid.focus()
    await editor.keyboard.press("ControlOrMeta+End")
    await expect(grid.get_by_role("gridcell", name="19999", exact=True)).to_be_visible(timeout=60_000)
    await text_of(editor).focus()
    await editor.keyboard.press("ControlOrMeta+Enter")
    await cell(editor, "next")
