"""A real Chromium on the console of a real server."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, async_playwright
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import browser_program

ADMIN = "admin"
PASSWORD = "a long enough word"
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)
_AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
_AXE_RUN = """async () => {
  // In the middle of a transition, such as one to the dark scheme, colors have a low contrast.
  const transitions = document.getAnimations().filter(one => one instanceof CSSTransition);
  await Promise.allSettled(transitions.map(one => one.finished));
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map(one => `${one.id}: ${one.help}: ${one.nodes.map(node => node.html).join(" ")}`);
}"""

_TRANSITIONS_END = """async () => {
  const ending = document.getAnimations().filter(one => one.effect?.getComputedTiming().endTime !== Infinity);
  await Promise.allSettled(ending.map(one => one.finished));
}"""

OpenPage = Callable[..., Awaitable[Page]]
Photographs = Callable[[Page, str], Awaitable[None]]


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Run a headless browser that reaches only this machine."""
    arguments = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-dev-shm-usage"]
    async with async_playwright() as playwright:
        # As root in a container, the sandbox cannot create its namespaces. Only our own pages are opened.
        started = await playwright.chromium.launch(
            executable_path=str(browser_program()), args=arguments, chromium_sandbox=False
        )
        try:
            yield started
        finally:
            await started.close()


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser of all tests."""
    async with running_browser() as running:
        yield running


@pytest.fixture(scope="session")
async def console_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server with the sample data, for all tests that change nothing that other tests see."""
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
    async with running_server(tmp_path_factory.mktemp("console") / "data", settings=settings) as process:
        yield process


@asynccontextmanager
async def browsing(browser: Browser, base_url: str) -> AsyncIterator[BrowserContext]:
    """Open a browser profile. Fails at its end if a page reported an error or a blocked resource."""
    context = await browser.new_context(base_url=base_url, viewport=WIDE, accept_downloads=True)
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # The browser reports each response with an error status; the console handles those.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    context.on("console", note)
    context.on("weberror", lambda problem: complaints.append(str(problem.error)))
    try:
        yield context
    finally:
        await context.close()
    assert complaints == []


@pytest.fixture
async def context(browser: Browser, console_server: ServerProcess) -> AsyncIterator[BrowserContext]:
    """A new browser profile on the shared server."""
    async with browsing(browser, console_server.base_url) as opened:
        yield opened


async def log_in(page: Page, username: str = ADMIN, password: str = PASSWORD) -> None:
    """Log in with the form that the page shows."""
    await page.get_by_label("User name").fill(username)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in", exact=True).click()
    await page.get_by_role("navigation", name="Views").wait_for()


@pytest.fixture
async def page(context: BrowserContext) -> Page:
    """A page of the console with the administrator logged in."""
    opened = await context.new_page()
    await opened.goto("/")
    await log_in(opened)
    return opened


async def accessible(page: Page) -> None:
    """Fail if axe finds a violation in the page as it is shown now."""
    # Colors that are still changing have no valid contrast.
    await page.evaluate(_TRANSITIONS_END)
    if not await page.evaluate("typeof axe === 'object'"):
        # A script that DevTools evaluates is not subject to the page's policy.
        await page.evaluate(_AXE.read_text("utf-8") + "\n; undefined")
    violations: list[str] = await page.evaluate(_AXE_RUN)
    assert violations == [], json.dumps(violations, indent=2)


@pytest.fixture
def photographs(tmp_path: Path, request: pytest.FixtureRequest) -> Photographs:
    """A function that saves screenshots of the page as it is shown: at both widths, light and dark.

    It fails if the page is wider than the window. `--photographs=DIR` selects the folder.
    """
    chosen: str | None = request.config.getoption("--photographs")
    folder = Path(chosen) if chosen else tmp_path

    async def save(page: Page, name: str) -> None:
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        folder.mkdir(parents=True, exist_ok=True)
        for size in (WIDE, NARROW):
            await page.set_viewport_size(size)
            for scheme in schemes:
                await page.emulate_media(color_scheme=scheme)
                await page.screenshot(path=folder / f"{name}-{size['width']}-{scheme}.png", animations="disabled")
            width: int = await page.evaluate("document.scrollingElement.scrollWidth")
            assert width <= size["width"], f"{name} is {width} px wide"
        await page.set_viewport_size(WIDE)
        await page.emulate_media(color_scheme="light")

    return save
