"""The editor of the console, as the tests use it: its text, its result, and the keys that run statements."""

from playwright.async_api import Locator, Page, expect
from tests.console.conftest import log_in

WAIT_MS = 20_000


def text_of(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Statement")


def result_of(page: Page) -> Locator:
    return page.get_by_role("region", name="Result")


async def type_over(page: Page, text: str) -> None:
    """Replace the text of the tab, as one paste. Typing would close brackets and quotes."""
    await text_of(page).focus()
    await page.keyboard.press("ControlOrMeta+A")
    # Text that replaces a selection gets the selection's style inline, which the policy blocks.
    await page.keyboard.press("Delete")
    await page.keyboard.insert_text(text)


async def run_text(page: Page, text: str, connector: str | None = None) -> None:
    """Replace the text of the tab by one statement, and run it with the keyboard."""
    if connector is not None:
        await page.get_by_role("combobox", name="Connector").select_option(connector)
    await type_over(page, text)
    await page.keyboard.press("ControlOrMeta+Enter")


async def run_script(page: Page, text: str) -> None:
    """Replace the text of the tab, and run all its statements with the keyboard."""
    await type_over(page, text)
    await page.keyboard.press("ControlOrMeta+Shift+Enter")


async def cell(page: Page, text: str) -> None:
    """Wait until the result shows a text."""
    await expect(result_of(page).get_by_text(text, exact=True).first).to_be_visible(timeout=WAIT_MS)


async def log_in_again(page: Page, username: str | None = None, password: str | None = None) -> None:
    """Log in if the page shows the form: sessions in memory end with a load of the page."""
    views = page.get_by_role("navigation", name="Views")
    await expect(views.or_(page.get_by_label("User name"))).to_be_visible(timeout=WAIT_MS)
    if not await page.get_by_label("User name").is_visible():
        return
    if username is None or password is None:
        await log_in(page)
    else:
        await log_in(page, username, password)
