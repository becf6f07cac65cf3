"""Files of S3 in the console: listed, uploaded in parts, shown, renamed and deleted (Contract console 8)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page, expect
from tests.console.conftest import PASSWORD, Photographs, accessible, browsing, log_in
from tests.console.results import calls
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.chromium import ENGINE
from tests.engines.store_tables import s3_tables
from tests.engines.versitygw import S3Address

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.engine("s3"), pytest.mark.timeout(300)]

PART_BYTES = 5 * 1024 * 1024
_WAIT_MS = 60_000


@pytest.fixture
async def s3_console(s3_server: S3Address, tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server whose only store besides the local files is S3."""
    account = s3_tables(s3_server)["aws"]["aws_accounts"]["default"]
    table = [f"{name} = {json.dumps(value)}" for name, value in account.items()]
    (tmp_path / "queryserver.toml").write_text("\n".join(["[aws.aws_accounts.default]", *table]))
    settings = {
        "QUERYSERVER_ADMIN_PASSWORD": PASSWORD,
        "QUERYSERVER_CONFIG": str(tmp_path / "queryserver.toml"),
        "QUERYSERVER__FILEBROWSER__ALLOW_BUCKET_CREATION": "true",
    }
    async with running_server(tmp_path / "data", settings=settings) as process:
        yield process


@pytest.fixture
async def bucket(s3_console: ServerProcess) -> str:
    """The path of a new bucket with a table and a directory."""
    path = f"s3a://console-{uuid4().hex}"
    async with calls(s3_console.base_url) as client:
        (await client.post("/api/v1/storage/mkdir", data={"path": path})).raise_for_status()
        content = {"file": ("sales.csv", b"country;amount\nGermany;9007199254740993\n")}
        form = {"destination_path": path}
        (await client.post("/api/v1/storage/upload/file", data=form, files=content)).raise_for_status()
    return path


@pytest.fixture
async def page(browser: Browser, s3_console: ServerProcess) -> AsyncIterator[Page]:
    async with browsing(browser, s3_console.base_url) as context:
        yield await context.new_page()


def content_of(folder: Path) -> bytes:
    """Write a file of two and a half parts, in which all parts differ; return its content."""
    content = b"".join(number.to_bytes(4, "big") for number in range(PART_BYTES * 5 // 8))
    (folder / "large.bin").write_bytes(content)
    return content


@pytest.mark.console(132)
async def test_files_of_s3_are_listed_uploaded_in_parts_shown_changed_and_downloaded(
    page: Page, bucket: str, tmp_path: Path, photographs: Photographs
):
    content = await asyncio.to_thread(content_of, tmp_path)
    await page.goto(f"/files?path={bucket}")
    await log_in(page)

    def entry(name: str):
        return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))

    await expect(entry("sales.csv")).to_be_visible(timeout=_WAIT_MS)
    await expect(page.get_by_role("navigation", name="Stores").get_by_role("heading", name="S3")).to_be_visible()
    await accessible(page)
    await photographs(page, "files-s3")

    await page.get_by_label("Files to upload").set_input_files(tmp_path / "large.bin")
    await expect(entry("large.bin")).to_be_visible(timeout=_WAIT_MS)
    await entry("large.bin").get_by_role("checkbox").check()
    await page.get_by_role("grid", name="Files").focus()
    await page.keyboard.press("F2")
    await page.get_by_label("New name").fill("renamed.bin")
    await page.keyboard.press("Enter")
    await expect(entry("renamed.bin")).to_be_visible(timeout=_WAIT_MS)
    await expect(entry("large.bin")).to_have_count(0)

    await page.get_by_role("link", name="sales.csv").click()
    await expect(page.get_by_role("cell", name="9007199254740993")).to_be_visible(timeout=_WAIT_MS)
    await page.go_back()
    await page.get_by_role("link", name="renamed.bin").click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download").click()
    stored = await (await download.value).path()
    assert await asyncio.to_thread(Path(stored).read_bytes) == content

    await page.go_back()
    await entry("renamed.bin").get_by_role("checkbox").check()
    await page.get_by_role("button", name="Delete").click()
    # S3 has no trash.
    await page.get_by_role("dialog").get_by_role("button", name="Delete permanently").click()
    await expect(entry("renamed.bin")).to_have_count(0)
    await expect(entry("sales.csv")).to_be_visible()
