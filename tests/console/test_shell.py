"""The frame of the console: what the browser loads, and where its links lead (Contract console 1, 2)."""

from urllib.parse import urlsplit

import pytest
from playwright.async_api import BrowserContext, Page, Response
from tests.console.conftest import Photographs, accessible, log_in
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]


@pytest.mark.console(3)
@pytest.mark.console(4)
async def test_first_load_is_small_and_comes_from_this_server(context: BrowserContext):
    page = await context.new_page()
    received: list[Response] = []
    page.on("response", lambda one: received.append(one))  # noqa: PLW0108 Playwright sets attributes on it
    await page.goto("/")
    await log_in(page)
    await page.wait_for_load_state("networkidle")
    own = urlsplit(page.url).netloc
    assert {urlsplit(one.url).netloc for one in received} == {own}
    files = [one for one in received if "/api/" not in one.url]
    sizes = [(await one.request.sizes())["responseBodySize"] for one in files]
    assert 10_000 < sum(sizes) <= 350 * 1024


async def test_every_view_is_reached_by_the_navigation(page: Page):
    views = page.get_by_role("navigation", name="Views")
    for name, path in (("Files", "/files"), ("History", "/history"), ("Operate", "/admin/"), ("Editor", "/editor")):
        await views.get_by_role("link", name=name, exact=True).click()
        await page.wait_for_url(f"**{path}**")
        assert await views.locator("[aria-current=page]").inner_text() == name


async def test_frame_is_accessible_in_both_themes(page: Page, photographs: Photographs):
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        await accessible(page)
    await photographs(page, "shell")
