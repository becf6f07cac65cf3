"""The console under attack: blocked storage, links of other sites, answers of proxies (Contract console 5)."""

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, BrowserContext, Route, expect
from tests.console.conftest import browsing, log_in
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(120)]

BLOCKED = """for (const name of ["localStorage", "sessionStorage"])
  Object.defineProperty(window, name, { get() { throw new DOMException("Access is denied.", "SecurityError"); } });"""
FULL = """Storage.prototype.setItem = () => { throw new DOMException("Full.", "QuotaExceededError"); };"""
BROKEN = """if (location.protocol === "http:") for (const area of [localStorage, sessionStorage]) {
  for (const key of ["theme", "layout.editor.side", "layout.results", "uploads", "login", "session", "tab.admin."])
    for (const text of ["{", "null", "[1]", '{"content": {"text": {}, "run": {"operationId": 1}, "parameters": [1]}}'])
      area.setItem(`queryserver.${key}${key === "tab.admin." ? text.length : ""}`, text);
}"""
FOREIGN = ["/.//evil.example/x", "/editor/..//evil.example", "//evil.example", "/\\evil.example"]


@pytest.fixture
async def visitor(browser: Browser, console_server: ServerProcess) -> AsyncIterator[BrowserContext]:
    """A browser profile that has not been at the server."""
    async with browsing(browser, console_server.base_url) as opened:
        yield opened


@pytest.mark.console(120)
@pytest.mark.parametrize("script", [BLOCKED, FULL, BROKEN], ids=["blocked", "full", "broken"])
async def test_console_works_without_the_storage_of_the_browser(visitor: BrowserContext, script: str):
    await visitor.add_init_script(script)
    page = await visitor.new_page()
    await page.goto("/")
    await log_in(page)
    await page.get_by_role("textbox", name="Statement").click()
    await page.keyboard.type("SELECT 41 + 1 AS answer")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("gridcell", name="42")).to_be_visible()
    await page.get_by_role("link", name="Files", exact=True).click()
    await expect(page.get_by_role("navigation", name="Path")).to_be_visible()


@pytest.mark.console(121)
@pytest.mark.parametrize("target", FOREIGN)
async def test_login_leads_to_no_other_site(visitor: BrowserContext, target: str):
    page = await visitor.new_page()
    await page.goto(f"/login?next={quote(target, safe='')}")
    await log_in(page)
    await expect(page).to_have_url(f"{page.url.split('/', 3)[0]}//{page.url.split('/', 3)[2]}/editor")


@pytest.mark.console(122)
@pytest.mark.parametrize("status", [200, 502])
async def test_page_of_a_proxy_in_place_of_an_answer_is_one_sentence(visitor: BrowserContext, status: int):
    page = await visitor.new_page()
    await page.goto("/")
    await log_in(page)

    async def answer(route: Route) -> None:
        body = "<html><script>alert(1)</script><h1>Bad Gateway</h1></html>"
        await route.fulfill(status=status, content_type="text/html", body=body)

    await page.route("**/api/v1/storage/**", answer)
    await page.get_by_role("link", name="Files", exact=True).click()
    alert = page.get_by_role("alert").first
    await expect(alert).to_be_visible()
    text = await alert.inner_text()
    assert "<" not in text
    assert "JSON" not in text


@pytest.mark.console(122)
async def test_answers_that_lack_fields_never_leave_an_empty_page(browser: Browser, console_server: ServerProcess):
    # Not by the fixture, because the page reports the errors of views that cannot be shown.
    context = await browser.new_context(base_url=console_server.base_url)
    page = await context.new_page()
    await page.goto("/")
    await log_in(page)

    async def answer(route: Route) -> None:
        response = await route.fetch()
        await route.fulfill(response=response, json={"status": 0})

    await page.route(re.compile("/api/v1/(?!token/)(?!get_config)"), answer)
    await page.route("**/api/v1/get_config", answer)
    for view in ("/files", "/history", "/editor"):
        await page.goto(view)
        await expect(page.locator("body")).to_contain_text(re.compile("[A-Za-z]{4}"))
        await expect(page.get_by_role("alert").first).to_be_visible()
    await page.unroute("**/api/v1/get_config")
    for view in ("/files", "/queries", "/history", "/import", "/tables/duckdb/main/orders", "/editor"):
        await page.goto(view)
        await expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    await context.close()
