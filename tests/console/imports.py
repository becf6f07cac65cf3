"""The import of a file in the console, as the tests use it."""

from pathlib import Path

from playwright.async_api import FilePayload, Page


def payload(name: str, content: bytes) -> FilePayload:
    return FilePayload(name=name, mimeType="application/octet-stream", buffer=content)


async def choose(page: Page, name: str, file: bytes | Path) -> None:
    """Open the import with a file of this computer, and wait for its first rows."""
    await page.get_by_role("link", name="Import", exact=True).click()
    chosen = file if isinstance(file, Path) else payload(name, file)
    await page.locator("input[type=file]").set_input_files(chosen)
    await page.get_by_role("heading", name=name).wait_for()
    await page.get_by_role("table").wait_for()


async def use_connector(page: Page, connector: str) -> None:
    await page.get_by_label("Data source").select_option(connector)


async def create(page: Page, table: str, *, action: str = "Create the table") -> None:
    await page.get_by_label("Table name").fill(table)
    await page.get_by_role("button", name=action).click()
