"""What users without rights see: each view says what is missing, and works as far as it can (Contract platform 4.3)."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect
from tests.console.commands import command, create_user
from tests.console.conftest import PASSWORD, Photographs, accessible, browsing, log_in
from tests.console.editor import WAIT_MS, cell, result_of, run_text
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

NO_RIGHTS, READER, WORD = "rightless", "reader", "another long word"
SETTINGS = """
[notebook.interpreters.duckdb]
name = "DuckDB"
interface = "duckdb"
groups = ["readers"]
options = { path = "sample.duckdb" }
"""


@pytest.fixture(scope="module")
async def restricted_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server with a user without any right, and one who may use a connector only."""
    folder = tmp_path_factory.mktemp("restricted")
    (folder / "queryserver.toml").write_text(SETTINGS)
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD, "QUERYSERVER_CONFIG": str(folder / "queryserver.toml")}
    async with running_server(folder / "data", settings=settings) as process:
        await command(process, "create-group", "readers")
        for name in (NO_RIGHTS, READER):
            await create_user(process, name, WORD)
            await command(process, "remove-from-group", name, "default")
        await command(process, "add-to-group", READER, "readers")
        yield process


@pytest.fixture
async def opened(
    browser: Browser, restricted_server: ServerProcess, request: pytest.FixtureRequest
) -> AsyncIterator[Page]:
    """The editor of the user whom the test names."""
    async with browsing(browser, restricted_server.base_url) as context:
        page = await context.new_page()
        await page.goto("/")
        await log_in(page, request.param, WORD)
        yield page


async def view(page: Page, name: str) -> None:
    await page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()


@pytest.mark.console(130)
@pytest.mark.parametrize("opened", [NO_RIGHTS], indirect=True)
async def test_user_without_any_right_sees_what_is_missing_in_each_view(opened: Page, photographs: Photographs):
    await expect(opened.get_by_role("combobox", name="Connector")).to_contain_text("No connector")
    await expect(opened.get_by_role("region", name="Side panel")).to_contain_text("No connectors")
    await run_text(opened, "SELECT 1")
    await expect(opened.get_by_text("You have no connectors.").last).to_be_visible()
    for button in ("Explain", "Format"):
        await opened.get_by_role("button", name=button, exact=True).click()
    await accessible(opened)
    await photographs(opened, "rightless-editor")

    await view(opened, "Files")
    await expect(opened.get_by_text("No file store")).to_be_visible()
    await accessible(opened)
    await photographs(opened, "rightless-files")
    await view(opened, "Import")
    await expect(opened.get_by_text("You do not have the right to import files.")).to_be_visible()
    await accessible(opened)
    await view(opened, "Queries")
    await expect(opened.get_by_role("heading", name="Queries", level=1)).to_be_visible()
    await expect(opened.get_by_role("alert")).to_have_count(0)
    await view(opened, "History")
    await expect(opened.get_by_text("You have not run a statement yet.")).to_be_visible()
    await expect(opened.get_by_role("link", name="Operate")).to_have_count(0)


@pytest.mark.console(130)
@pytest.mark.parametrize("opened", [READER], indirect=True)
async def test_user_without_the_right_to_download_reads_results_and_sees_why_no_file_comes(
    opened: Page, photographs: Photographs
):
    await run_text(opened, "SELECT 'shown' AS a", "duckdb")
    await cell(opened, "shown")
    download = opened.get_by_role("button", name="Download", exact=True)
    await download.click()
    await expect(opened.get_by_text("You do not have the right to download results.")).to_be_visible()
    export = result_of(opened).get_by_role("button", name="Export", exact=True)
    await export.click()
    dialog = opened.get_by_role("dialog")
    await expect(dialog.get_by_text("You have no access to a file store.")).to_be_visible(timeout=WAIT_MS)
    await expect(dialog.get_by_role("button", name="Export", exact=True)).to_be_disabled()
    await accessible(opened)
    await photographs(opened, "reader-export")
    await dialog.get_by_role("button", name="Cancel").click()
    await opened.get_by_role("textbox", name="Search tables and columns").fill("customers")
    await expect(opened.get_by_role("treeitem", name="customers", exact=True).first).to_be_visible(timeout=WAIT_MS)
    await view(opened, "Import")
    await expect(opened.get_by_text("You do not have the right to import files.")).to_be_visible()


@pytest.mark.console(130)
@pytest.mark.parametrize("opened", [READER], indirect=True)
async def test_links_to_what_a_user_may_not_use_say_so(opened: Page):
    for address, text in (
        ("/tables/postgresql/public/orders", "The connector postgresql is not configured."),
        ("/files?path=file:///shared", "No file store"),
        ("/import?path=file:///shared/samples/orders.csv", "You do not have the right to import files."),
        ("/results/00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000"),
    ):
        await opened.evaluate(
            "address => { history.pushState(null, '', address); dispatchEvent(new PopStateEvent('popstate')) }", address
        )
        await expect(opened.get_by_role("main").get_by_text(text).first).to_be_visible(timeout=WAIT_MS)
        if address.startswith("/import"):
            # The view takes the path out of its address.
            await opened.wait_for_url("**/import")
    await opened.evaluate(
        "address => { history.pushState(null, '', address); dispatchEvent(new PopStateEvent('popstate')) }",
        "/editor?connector=postgresql&statement=SELECT%201",
    )
    await opened.get_by_role("button", name="Run", exact=True).click(timeout=WAIT_MS)
    await expect(opened.get_by_text("Choose a connector first")).to_be_visible(timeout=WAIT_MS)
