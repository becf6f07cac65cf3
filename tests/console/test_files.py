"""Files of stores: long lists, uploads through a cut, previews, and changes (Contract console 1, storage 5 to 9)."""

import asyncio
import hashlib
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.async_api import Browser, Dialog, Locator, Page, Route, expect
from tests.console.commands import create_user
from tests.console.conftest import Photographs, accessible, browsing, log_in
from tests.console.editor import log_in_again
from tests.e2e.harness import ServerProcess
from tests.engines.chromium import ENGINE

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(300)]

ENTRIES = 100_000
PART_BYTES = 5 * 1024 * 1024
UPLOAD_BYTES = 200 * 1024 * 1024
_WAIT_MS = 60_000


@pytest.fixture
def shared(console_server: ServerProcess) -> Path:
    """The directory `file:///shared`, which all users may change, on the disk of the server."""
    folder = console_server.stdout_file.parent / "data" / "files" / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def show(page: Page, path: str) -> Locator:
    """Open the view of a directory. Return its grid, which an empty directory does not have."""
    await page.goto(f"/files?path={path}")
    await log_in_again(page)
    await page.get_by_role("region", name="Directory").wait_for()
    return page.get_by_role("grid", name="Files")


def entry(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(ENTRIES):
        (folder / f"f{number:06}.txt").touch()


@pytest.mark.console(100)
async def test_100000_entries_are_scrolled_with_few_rows_in_the_page(page: Page, shared: Path):
    await asyncio.to_thread(fill, shared / "many")
    grid = await show(page, "file:///shared/many")
    await expect(page.get_by_text("100,000 entries")).to_be_visible(timeout=_WAIT_MS)
    await expect(entry(page, "f000000.txt")).to_be_visible()
    await grid.focus()
    await page.keyboard.press("End")
    await expect(entry(page, "f099999.txt")).to_be_visible(timeout=_WAIT_MS)
    await grid.evaluate("box => { box.scrollTop = box.scrollHeight / 2 }")
    await expect(entry(page, "f050000.txt")).to_be_visible(timeout=_WAIT_MS)
    assert await page.get_by_role("row").count() < 100
    await page.get_by_label("Filter by name").fill("99999")
    await expect(page.get_by_text("1 entry")).to_be_visible(timeout=_WAIT_MS)
    await expect(entry(page, "f099999.txt")).to_be_visible()


def large_file(folder: Path) -> tuple[Path, str]:
    """Write a file of 200 MiB whose parts differ. Return it and its SHA-256."""
    file, digest = folder / "large.bin", hashlib.sha256()
    with file.open("wb") as out:
        for number in range(UPLOAD_BYTES // (1024 * 1024)):
            block = number.to_bytes(4, "big") * (256 * 1024)
            digest.update(block)
            out.write(block)
    return file, digest.hexdigest()


async def arrived(progress: Locator, share: float) -> None:
    """Wait until a share of the file has arrived."""
    handle = await progress.element_handle()
    await progress.page.wait_for_function(
        "([bar, share]) => bar.value / bar.max >= share", arg=[handle, share], timeout=120_000
    )


@pytest.mark.console(101)
async def test_file_of_200_mb_goes_on_after_a_cut_and_a_reload(page: Page, shared: Path, tmp_path: Path):
    file, digest = await asyncio.to_thread(large_file, tmp_path)
    target = shared / "uploads"
    target.mkdir(exist_ok=True)

    async def leave(dialog: Dialog) -> None:
        await dialog.accept()

    page.on("dialog", leave)
    await show(page, "file:///shared/uploads")
    await page.get_by_label("Files to upload").set_input_files(file)
    progress = page.get_by_role("progressbar", name="Progress of large.bin")
    await arrived(progress, 0.2)
    await page.context.set_offline(True)
    await expect(page.get_by_text("no connection, goes on by itself")).to_be_visible()
    await page.context.set_offline(False)
    await arrived(progress, 0.4)
    assert not (target / "large.bin").exists()

    await page.get_by_role("button", name="Pause large.bin").click()
    await page.reload()
    await show(page, "file:///shared/uploads")
    await expect(page.get_by_text("choose the file again to go on")).to_be_visible()
    await page.get_by_label("Choose large.bin again").set_input_files(file)
    await arrived(progress, 0.4)
    await expect(entry(page, "large.bin")).to_be_visible(timeout=120_000)
    stored = await asyncio.to_thread((target / "large.bin").read_bytes)
    assert hashlib.sha256(stored).hexdigest() == digest


def small_file(folder: Path) -> bytes:
    """Write `parts.bin`, a file of two and a half parts of an upload; return its content."""
    content = b"".join(number.to_bytes(4, "big") for number in range(PART_BYTES * 5 // 8))
    (folder / "parts.bin").write_bytes(content)
    return content


@pytest.mark.console(101)
async def test_upload_whose_call_stalls_is_paused_and_goes_on(page: Page, shared: Path, tmp_path: Path):
    content = await asyncio.to_thread(small_file, tmp_path)
    (shared / "stalled").mkdir(exist_ok=True)
    held: list[Route] = []

    async def hold_one(route: Route) -> None:
        body = route.request.post_data_buffer or b""
        if held or b'name="qqpartindex"\r\n\r\n1\r\n' not in body:
            await route.continue_()
        else:
            held.append(route)

    await page.route("**/storage/upload/chunks", hold_one)
    await show(page, "file:///shared/stalled")
    await page.get_by_label("Files to upload").set_input_files(tmp_path / "parts.bin")
    await arrived(page.get_by_role("progressbar", name="Progress of parts.bin"), 0.5)
    assert held
    assert not (shared / "stalled" / "parts.bin").exists()
    await page.get_by_role("button", name="Pause parts.bin").click()
    await expect(page.get_by_role("region", name="Transfers")).to_contain_text("paused")
    await page.get_by_role("button", name="Resume parts.bin").click()
    await expect(entry(page, "parts.bin")).to_be_visible(timeout=_WAIT_MS)
    assert await asyncio.to_thread((shared / "stalled" / "parts.bin").read_bytes) == content


@pytest.mark.console(101)
async def test_upload_whose_token_expires_in_its_middle_goes_on_with_a_new_one(
    page: Page, shared: Path, tmp_path: Path
):
    content = await asyncio.to_thread(small_file, tmp_path)
    (shared / "expired").mkdir(exist_ok=True)
    statuses: list[int] = []
    posts = 0

    async def spoil_second(route: Route) -> None:
        nonlocal posts
        posts += route.request.method == "POST"
        if posts == 2:
            await route.continue_(headers=route.request.headers | {"authorization": "Bearer expired"})
        else:
            await route.continue_()

    await page.route("**/storage/upload/chunks", spoil_second)
    page.on("response", lambda answer: statuses.append(answer.status) if "upload/chunks" in answer.url else None)
    await show(page, "file:///shared/expired")
    await page.get_by_label("Files to upload").set_input_files(tmp_path / "parts.bin")
    await expect(entry(page, "parts.bin")).to_be_visible(timeout=_WAIT_MS)
    assert sorted(statuses) == [200, 200, 200, 401]
    assert await asyncio.to_thread((shared / "expired" / "parts.bin").read_bytes) == content


@pytest.mark.console(101)
async def test_folder_that_is_dropped_is_uploaded_with_its_folders(page: Page, shared: Path, tmp_path: Path):
    (shared / "dropped").mkdir(exist_ok=True)
    inner = tmp_path / "reports" / "2024 \N{EURO SIGN}"
    inner.mkdir(parents=True)
    (tmp_path / "reports" / "top.txt").write_text("top")
    (inner / "deep.txt").write_text("deep")
    await show(page, "file:///shared/dropped")
    box = await page.get_by_role("region", name="Directory").bounding_box()
    assert box is not None
    session = await page.context.new_cdp_session(page)
    dragged = {"items": [], "files": [str(tmp_path / "reports")], "dragOperationsMask": 1}
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    for step in ("dragEnter", "dragOver", "drop"):
        await session.send("Input.dispatchDragEvent", {"type": step, **at, "data": dragged})
    await expect(entry(page, "reports")).to_be_visible(timeout=_WAIT_MS)
    await expect(page.get_by_role("region", name="Transfers").get_by_text("complete")).to_have_count(2)
    assert (shared / "dropped" / "reports" / "top.txt").read_text() == "top"
    assert (shared / "dropped" / "reports" / inner.name / "deep.txt").read_text() == "deep"


@pytest.mark.console(102)
async def test_existing_file_is_replaced_only_on_request(page: Page, shared: Path, tmp_path: Path):
    (shared / "replaced").mkdir(exist_ok=True)
    (shared / "replaced" / "a.txt").write_text("old")
    (tmp_path / "a.txt").write_text("new")
    await show(page, "file:///shared/replaced")
    await page.get_by_label("Files to upload").set_input_files(tmp_path / "a.txt")
    transfers = page.get_by_role("region", name="Transfers")
    await expect(transfers.get_by_text("exists")).to_be_visible()
    assert (shared / "replaced" / "a.txt").read_text() == "old"
    await transfers.get_by_role("button", name="Replace").click()
    await expect(transfers.get_by_text("complete")).to_be_visible()
    assert (shared / "replaced" / "a.txt").read_text() == "new"


def png() -> bytes:
    """Return an image of 32 by 32 red pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\x00" + b"\xc0\x20\x20" * 32) * 32
    header = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def samples(shared: Path) -> Path:
    folder = shared / "samples"
    folder.mkdir(exist_ok=True)
    (folder / "sales.csv").write_text("country;amount\nGermany;9007199254740993\nFrance;2\n")
    (folder / "notes.txt").write_text("<script>alert(1)</script>\nsecond line\n")
    (folder / "dot.png").write_bytes(png())
    (folder / "binary.dat").write_bytes(bytes(range(256)))
    table = pa.table({"id": [1, 2], "name": ["blue pen", None], "tags": [["a"], []]})
    pq.write_table(table, folder / "items.parquet")
    return folder


@pytest.mark.console(103)
async def test_files_are_shown_by_their_kind(page: Page, samples: Path, photographs: Photographs):
    await show(page, f"file:///shared/{samples.name}")
    await photographs(page, "files")
    await accessible(page)
    await page.get_by_role("link", name="sales.csv").click()
    await expect(page.get_by_role("columnheader", name="amount")).to_be_visible()
    await expect(page.get_by_role("cell", name="9007199254740993")).to_be_visible()
    await accessible(page)
    await photographs(page, "files-table")
    await page.get_by_role("tab", name="Text").click()
    await expect(page.get_by_text("Germany;9007199254740993")).to_be_visible()

    await page.go_back()
    await page.get_by_role("link", name="items.parquet", exact=True).click()
    await expect(page.get_by_role("cell", name="blue pen")).to_be_visible()
    await expect(page.get_by_role("cell", name='["a"]')).to_be_visible()

    await page.go_back()
    await page.get_by_role("link", name="notes.txt").click()
    await expect(page.get_by_text("<script>alert(1)</script>")).to_be_visible()
    await accessible(page)

    await page.go_back()
    await page.get_by_role("link", name="dot.png").click()
    image = page.get_by_role("img", name="dot.png")
    await expect(image).to_have_js_property("naturalWidth", 32)
    await photographs(page, "files-image")

    await page.go_back()
    await page.get_by_role("link", name="binary.dat").click()
    await expect(page.get_by_text("There is no preview of this file.")).to_be_visible()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download").click()
    stored = await (await download.value).path()
    assert await asyncio.to_thread(Path(stored).read_bytes) == bytes(range(256))


@pytest.mark.console(104)
async def test_entries_are_renamed_moved_deleted_and_restored(page: Page, shared: Path, photographs: Photographs):
    folder = shared / "changes"
    (folder / "into").mkdir(parents=True, exist_ok=True)
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(name)
    grid = await show(page, "file:///shared/changes")
    await entry(page, "a.txt").get_by_role("checkbox").check()
    await grid.focus()
    await page.keyboard.press("F2")
    await page.get_by_label("New name").fill("renamed.txt")
    await page.keyboard.press("Enter")
    await expect(entry(page, "renamed.txt")).to_be_visible()

    await entry(page, "b.txt").get_by_role("checkbox").check()
    await entry(page, "c.txt").get_by_role("checkbox").check()
    await page.get_by_role("button", name="Move").click()
    await page.get_by_role("option", name="into").click()
    await expect(page.get_by_label("To the directory")).to_have_value("file:///shared/changes/into")
    await accessible(page)
    await photographs(page, "files-move")
    await page.get_by_role("button", name="Move here").click()
    await expect(entry(page, "b.txt")).to_have_count(0)
    assert sorted(one.name for one in (folder / "into").iterdir()) == ["b.txt", "c.txt"]

    await entry(page, "renamed.txt").get_by_role("checkbox").check()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Move to the trash").click()
    await expect(entry(page, "renamed.txt")).to_have_count(0)
    await page.get_by_role("button", name="Trash", exact=True).click()
    await expect(page.get_by_role("button", name="Empty trash")).to_be_visible()
    for name in ("Current", "shared", "changes"):
        await page.get_by_role("grid").get_by_role("link", name=name, exact=True).click()
    await entry(page, "renamed.txt").get_by_role("checkbox").check()
    await page.get_by_role("button", name="Restore").click()
    await expect(entry(page, "renamed.txt")).to_have_count(0)
    assert (folder / "renamed.txt").read_text() == "a.txt"


@pytest.mark.console(104)
async def test_new_directory_has_permissions_and_a_size(page: Page, shared: Path):
    (shared / "created").mkdir(exist_ok=True)
    await show(page, "file:///shared/created")
    await page.get_by_role("button", name="New directory").click()
    await page.get_by_label("Name", exact=True).fill("reports")
    await page.get_by_role("button", name="Create").click()
    await entry(page, "reports").get_by_role("checkbox").check()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Permissions").click()
    await page.get_by_role("group", name="Others").get_by_label("Read").uncheck()
    await page.get_by_role("button", name="Change").click()
    await expect(entry(page, "reports")).to_contain_text("drwxr-x--x")
    await entry(page, "reports").get_by_role("checkbox").check()
    await page.get_by_role("button", name="More actions").click()
    await expect(page.get_by_role("menuitem", name="Replication")).to_have_count(0)
    await page.get_by_role("menuitem", name="Total size").click()
    await expect(page.get_by_role("dialog")).to_contain_text("0 files")


@pytest.fixture
async def guest(browser: Browser, console_server: ServerProcess) -> AsyncIterator[Page]:
    """A page of a user who owns nothing."""
    name, password = "guest", "another long word"
    await create_user(console_server, name, password)
    async with browsing(browser, console_server.base_url) as context:
        page = await context.new_page()
        await page.goto("/files")
        await log_in(page, name, password)
        yield page


@pytest.mark.console(105)
async def test_user_without_rights_sees_why(guest: Page, shared: Path):
    (shared.parent / "kept.txt").write_text("kept")
    await show(guest, "file:///user/admin")
    await expect(guest.get_by_role("alert")).to_contain_text("belongs to another user")
    await show(guest, "file:///")
    await entry(guest, "kept.txt").get_by_role("checkbox").check()
    await guest.get_by_role("button", name="Delete").click()
    await guest.get_by_role("button", name="Move to the trash").click()
    await expect(guest.get_by_role("region", name="Transfers")).to_contain_text("file:///kept.txt")
    assert (shared.parent / "kept.txt").exists()
