"""`db.files`: lists, reads and changes files, and uploads and downloads whole files (issue 20, section 3)."""

import asyncio
import fcntl
import gc
import hashlib
import io
import os
import random
import threading
import tracemalloc
from pathlib import Path
from typing import BinaryIO, cast
from unittest.mock import Mock

import anyio
import httpx
import pytest
from tests.client.conftest import QUICK, Server, root, stored
from tests.client.proxies import Cut, proxy

from queryserver_client import (
    Conflict,
    Connection,
    NotFound,
    Retries,
    ServerUnavailable,
    connect,
    connect_sync,
    uploads,
)
from queryserver_client.downloads import ChangedFile, WrongDigest

CONTENT = random.Random(20).randbytes(5_000_000)
PART = 1_000_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "local.bin"
    path.write_bytes(CONTENT)
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def replace_unnoticed(path: Path, content: bytes) -> None:
    """Overwrite a file with content of the same length and keep its timestamps, so that its status does not reveal the
    change.
    """
    facts = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


async def test_files_are_created_listed_read_moved_deleted_and_restored(db: Connection, folder: str):
    files = db.files
    await files.mkdir(f"{folder}/deep/down")
    assert await files.mkdir(f"{folder}/deep", exist_ok=True) == f"{folder}/deep"
    with pytest.raises(Conflict):
        await files.mkdir(f"{folder}/deep")
    uploaded = await files.upload("naïve, ünïcode\n".encode(), f"{folder}/ü &#?.txt")
    assert (uploaded.path, uploaded.size) == (f"{folder}/ü &#?.txt", 18)
    entry = await files.stat(uploaded.path)
    assert (entry.name, entry.size, entry.is_file, entry.kind) == ("ü &#?.txt", 18, True, "file")
    assert entry.modified is not None
    assert entry.modified.tzinfo is not None
    assert [found.name async for found in files.list(folder)] == ["deep", "ü &#?.txt"]
    assert [found.name async for found in files.walk(folder)] == ["deep", "ü &#?.txt", "down"]
    assert (await files.view(uploaded.path)).text == "naïve, ünïcode\n"
    assert await files.write_text(uploaded.path, "new\n") == 4
    assert await files.read(uploaded.path) == b"new\n"
    assert await files.copy(uploaded.path, f"{folder}/deep") == f"{folder}/deep/ü &#?.txt"
    assert await files.rename(uploaded.path, "plain.txt") == f"{folder}/plain.txt"
    assert await files.move(f"{folder}/plain.txt", f"{folder}/deep/down") == f"{folder}/deep/down/plain.txt"
    assert (await files.summary(folder)).files == 2
    removed = await files.remove(f"{folder}/deep/down")
    assert removed.trash_path is not None
    assert not await files.exists(f"{folder}/deep/down")
    assert await files.restore(removed.trash_path) == f"{folder}/deep/down"
    assert await files.read(f"{folder}/deep/down/plain.txt") == b"new\n"
    assert (await files.remove(f"{folder}/deep", skip_trash=True)).trash_path is None
    assert [found async for found in files.list(folder)] == []
    assert await files.touch(f"{folder}/empty") == f"{folder}/empty"
    assert await files.read(f"{folder}/empty") == b""


async def test_long_directory_is_listed_page_by_page(db: Connection, server: Server, folder: str):
    for number in range(2345):
        (root(server) / folder.removeprefix("file:///") / f"{number:05}").touch()
    assert [entry.name async for entry in db.files.list(folder)] == [f"{number:05}" for number in range(2345)]
    assert len([entry async for entry in db.files.list(folder, filter="01")]) < 2345
    newest = [entry.name async for entry in db.files.list(folder, descending=True)]
    assert newest == [f"{number:05}" for number in range(2344, -1, -1)]


async def test_missing_file_is_not_found(db: Connection, folder: str, tmp_path: Path):
    for call in (db.files.stat, db.files.read, db.files.open, db.files.remove):
        with pytest.raises(NotFound) as caught:
            await call(f"{folder}/missing")
        assert caught.value.code == "path_not_found"
    with pytest.raises(NotFound):
        await db.files.download(f"{folder}/missing", tmp_path / "missing")
    assert names(tmp_path) == []


async def test_file_is_uploaded_and_downloaded_whole(
    db: Connection, server: Server, folder: str, local: Path, target: Path
):
    seen: list[tuple[int, int | None]] = []
    uploaded = await db.files.upload(
        local, f"{folder}/", part_bytes=PART, on_bytes=lambda done, size: seen.append((done, size))
    )
    assert (uploaded.path, uploaded.size, uploaded.sha256) == (f"{folder}/local.bin", len(CONTENT), DIGEST)
    assert seen == [(done, len(CONTENT)) for done in range(PART, len(CONTENT) + 1, PART)]
    assert stored(server, folder) == {"local.bin": CONTENT}
    written = await db.files.download(uploaded.path, target, sha256=DIGEST)
    assert written == target / "local.bin"
    assert written.read_bytes() == CONTENT
    with pytest.raises(WrongDigest):
        await db.files.download(uploaded.path, target / "other", sha256="0" * 64)
    assert names(target) == ["local.bin"]


async def test_taken_name_is_kept_unless_overwrite(db: Connection, server: Server, folder: str, local: Path):
    await db.files.upload(b"old", f"{folder}/taken.bin")
    for source in (b"new", local):
        with pytest.raises(Conflict) as caught:
            await db.files.upload(source, f"{folder}/taken.bin", part_bytes=PART)
        assert caught.value.code == "already_exists"
    assert stored(server, folder) == {"taken.bin": b"old"}
    # The same upload is made twice. The second upload must replace the file that was written between them.
    for between in (b"one", b"two"):
        await db.files.upload(between, f"{folder}/taken.bin", overwrite=True)
        await db.files.upload(local, f"{folder}/taken.bin", overwrite=True, part_bytes=PART)
        assert stored(server, folder) == {"taken.bin": CONTENT}


async def test_file_is_uploaded_to_store_root(server: Server):
    async with connect(server.url, token=await server.token(admin=True), retries=QUICK) as db:
        uploaded = await db.files.upload(b"top", "file:///top.txt")
        assert uploaded.path == "file:///top.txt"
        assert (root(server) / "top.txt").read_bytes() == b"top"
        assert {"shared", "top.txt"} <= {entry.name async for entry in db.files.list("file:///")}
        assert (await db.files.filesystems())[0].name == "file"


class Once(io.RawIOBase):
    """A stream that can be read only once, like a pipe."""

    def __init__(self, content: bytes) -> None:
        self._left = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        return self._left.readinto(buffer)


async def test_file_objects_are_uploaded(db: Connection, server: Server, folder: str):
    half = io.BytesIO(CONTENT)
    half.seek(len(CONTENT) // 2)
    await db.files.upload(half, f"{folder}/half", part_bytes=PART)
    await db.files.upload(Once(CONTENT), f"{folder}/once", part_bytes=PART)
    await db.files.upload(b"", f"{folder}/empty")
    assert stored(server, folder) == {"half": CONTENT[len(CONTENT) // 2 :], "once": CONTENT, "empty": b""}


async def test_file_ranges_are_read(db: Connection, folder: str):
    await db.files.upload(CONTENT, f"{folder}/parts")
    path = f"{folder}/parts"
    assert await db.files.read(path, 10, 20) == CONTENT[10:30]
    assert await db.files.read(path, 0, 1) == CONTENT[:1]
    assert await db.files.read(path, len(CONTENT) - 5, 100) == CONTENT[-5:]
    assert await db.files.read(path, len(CONTENT) + 5, 100) == b""
    async with await db.files.open(path) as file:
        assert await file.read(7) == CONTENT[:7]
        assert await file.read(1_000_000) == CONTENT[7:1_000_007]
        await file.seek(-9, io.SEEK_END)
        assert await file.read() == CONTENT[-9:]
        assert await file.read() == b""
        await file.seek(4_000_000)
        assert b"".join([chunk async for chunk in file]) == CONTENT[4_000_000:]


async def test_sent_parts_are_not_kept(db: Connection, folder: str, local: Path):
    gc.disable()
    tracemalloc.start()
    try:
        await db.files.upload(local, f"{folder}/freed.bin", part_bytes=PART)
        read = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, uploads.__file__)])
    finally:
        tracemalloc.stop()
        gc.enable()
    assert sum(trace.size for trace in read.traces) < PART


@pytest.mark.parametrize("cut", [1, 400, 300_000, 1_000_000])
async def test_interrupted_upload_completes(server: Server, folder: str, local: Path, cut: int):
    token = await server.token()
    async with proxy(server.url) as line, connect(line.url, token=token, retries=QUICK) as db:
        line.cuts.extend([Cut(of_requests=cut), Cut(of_answers=cut % 200), Cut(of_requests=cut * 2)])
        uploaded = await db.files.upload(local, f"{folder}/cut.bin", part_bytes=PART)
        assert not line.cuts
    assert uploaded.sha256 == DIGEST
    assert stored(server, folder) == {"cut.bin": CONTENT}


@pytest.mark.parametrize("cut", [1, 400, 70_000, 4_999_999])
async def test_interrupted_download_completes(server: Server, folder: str, target: Path, cut: int):
    (root(server) / folder.removeprefix("file:///") / "cut.bin").write_bytes(CONTENT)
    token = await server.token()
    async with proxy(server.url) as line, connect(line.url, token=token, retries=QUICK) as db:
        line.cuts.extend([Cut(of_answers=cut), Cut(of_requests=10), Cut(of_answers=cut // 2)])
        path = await db.files.download(f"{folder}/cut.bin", target / "cut.bin")
        assert line.connections >= 3
        # Transfers were resumed, not restarted. Only bytes that were in transit when a connection was cut are sent
        # again.
        assert line.answered_bytes < len(CONTENT) + cut // 2 + 400_000
    assert path.read_bytes() == CONTENT
    assert names(target) == ["cut.bin"]


class Ranges(httpx.AsyncHTTPTransport):
    """A transport that records the requested file ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.requested_ranges: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requested_ranges += [request.headers["Range"]] if "Range" in request.headers else []
        return await super().handle_async_request(request)


async def test_later_process_resumes_download(server: Server, folder: str, target: Path):
    (root(server) / folder.removeprefix("file:///") / "a.bin").write_bytes(CONTENT)
    token = await server.token()

    def stop(done: int, size: int | None) -> None:
        if done >= 3 * PART:
            raise ProgramExit

    ranges = Ranges()
    async with connect(server.url, token=token, retries=QUICK, http_transport=ranges) as db:
        with pytest.raises(ProgramExit):
            await db.files.download(f"{folder}/a.bin", target / "a.bin", on_bytes=stop)
        part = target / names(target)[0]
        kept = part.stat().st_size
        assert 3 * PART <= kept < len(CONTENT)
        assert part.read_bytes() == CONTENT[:kept]
        # A partial file is not changed while another process is writing it.
        with part.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            await db.files.download(f"{folder}/a.bin", target / "b.bin", sha256=DIGEST)
            await db.files.download(f"{folder}/a.bin", target / "a.bin", sha256=DIGEST)
        assert part.stat().st_size == kept
        (target / "a.bin").unlink()
        assert ranges.requested_ranges == []
        seen: list[int] = []
        await db.files.download(
            f"{folder}/a.bin", target / "a.bin", sha256=DIGEST, on_bytes=lambda done, _: seen.append(done)
        )
    assert ranges.requested_ranges == [f"bytes={kept}-"]
    assert (seen[0] > kept, seen[-1]) == (True, len(CONTENT))
    assert (target / "a.bin").read_bytes() == CONTENT
    assert names(target) == ["a.bin", "b.bin"]


async def test_download_does_not_resume_with_different_bytes(server: Server, db: Connection, folder: str, target: Path):
    place = root(server) / folder.removeprefix("file:///") / "a.bin"
    place.write_bytes(CONTENT)

    def stop(done: int, size: int | None) -> None:
        if done >= 3 * PART:
            raise ProgramExit

    with pytest.raises(ProgramExit):
        await db.files.download(f"{folder}/a.bin", target / "a.bin", on_bytes=stop)
    with pytest.raises(ProgramExit):
        await db.files.download(f"{folder}/a.bin", target / "none.bin", on_bytes=stop, resume=False)
    assert len(names(target)) == 1
    place.write_bytes(CONTENT[::-1])
    await db.files.download(f"{folder}/a.bin", target / "a.bin")
    assert (target / "a.bin").read_bytes() == CONTENT[::-1]
    with pytest.raises(WrongDigest):
        await db.files.download(f"{folder}/a.bin", target / "wrong.bin", sha256=DIGEST)
    assert not [name for name in names(target) if "wrong" in name]


async def test_replaced_file_keeps_permissions_and_link_its_target(db: Connection, folder: str, target: Path):
    await db.files.upload(b"new", f"{folder}/a.txt")
    kept, link, private = target / "kept.txt", target / "link.txt", target / "private.txt"
    kept.write_text("old")
    kept.chmod(0o640)
    link.symlink_to(kept)
    private.write_text("old")
    private.chmod(0o600)
    for path in (link, private):
        await db.files.download(f"{folder}/a.txt", path)
    assert link.is_symlink()
    assert [path.read_text() for path in (kept, private)] == ["new", "new"]
    assert [path.stat().st_mode & 0o777 for path in (kept, private)] == [0o640, 0o600]
    assert names(target) == ["kept.txt", "link.txt", "private.txt"]


async def test_replaced_file_keeps_its_group(db: Connection, folder: str, target: Path, monkeypatch):
    await db.files.upload(b"new", f"{folder}/a.txt")
    groups = {os.getgid() + 1} if os.geteuid() == 0 else {*os.getgroups()} - {os.getgid()}
    if not groups:
        pytest.skip("only root or a member of two groups can create files of another group")
    group = groups.pop()
    shared = target / "shared.txt"
    for is_allowed, wanted in ((True, (group, 0o640)), (False, (os.getgid(), 0o600))):
        shared.write_text("old")
        os.chown(shared, -1, group)
        shared.chmod(0o640)
        if not is_allowed:
            monkeypatch.setattr(os, "chown", Mock(side_effect=PermissionError))
        await db.files.download(f"{folder}/a.txt", shared)
        facts = shared.stat()
        assert (shared.read_text(), facts.st_gid, facts.st_mode & 0o777) == ("new", *wanted)


async def test_unflushable_file_replaces_nothing(db: Connection, folder: str, target: Path, monkeypatch):
    await db.files.upload(b"new", f"{folder}/a.txt")
    (target / "a.txt").write_text("old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        await db.files.download(f"{folder}/a.txt", target / "a.txt")
    assert (names(target), (target / "a.txt").read_text()) == (["a.txt"], "old")


async def test_pipe_never_receives_two_versions_mixed(server: Server, folder: str, target: Path):
    place = root(server) / folder.removeprefix("file:///") / "a.bin"
    place.write_bytes(CONTENT)
    os.mkfifo(target / "pipe")
    reading = asyncio.create_task(asyncio.to_thread((target / "pipe").read_bytes))

    def change(done: int, size: int | None) -> None:
        (other := place.with_name("other")).write_bytes(CONTENT[::-1])
        other.replace(place)  # a reader that has opened the old file continues to read the old content

    async with proxy(server.url) as line, connect(line.url, token=await server.token(), retries=QUICK) as db:
        line.cuts.append(Cut(of_answers=3_000_000))
        with pytest.raises(ChangedFile):
            await db.files.download(f"{folder}/a.bin", target / "pipe", on_bytes=change)
    assert CONTENT.startswith(await reading)


async def test_bytes_are_written_to_named_pipe_immediately(db: Connection, folder: str, target: Path):
    await db.files.upload(CONTENT, f"{folder}/a.bin")
    os.mkfifo(target / "pipe")
    reading = asyncio.create_task(asyncio.to_thread((target / "pipe").read_bytes))
    await db.files.download(f"{folder}/a.bin", target / "pipe")
    assert await reading == CONTENT
    assert (target / "pipe").is_fifo()
    assert names(target) == ["pipe"]


async def test_one_time_stream_is_uploaded_whole(db: Connection, server: Server, folder: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    writing = asyncio.create_task(asyncio.to_thread((tmp_path / "pipe").write_bytes, CONTENT))
    await db.files.upload(tmp_path / "pipe", f"{folder}/pipe.bin")
    await writing
    await db.files.upload("/proc/version", f"{folder}/version.txt")
    version = await asyncio.to_thread(Path("/proc/version").read_bytes)
    assert stored(server, folder) == {"pipe.bin": CONTENT, "version.txt": version}


async def test_waiting_for_pipe_writer_can_be_canceled(db: Connection, folder: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    uploading = asyncio.create_task(db.files.upload(tmp_path / "pipe", f"{folder}/pipe.bin"))
    await asyncio.sleep(0.1)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(uploading, 30)
    writer = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)  # the thread that is opening the pipe can now end
    # The pipe now has a writer, which sends nothing.
    uploading = asyncio.create_task(db.files.upload(tmp_path / "pipe", f"{folder}/pipe.bin"))
    await asyncio.sleep(0.1)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(uploading, 30)
    os.close(writer)


async def test_file_object_never_receives_truncated_content(db: Connection, server: Server, folder: str):
    await db.files.upload(b"0123456789", f"{folder}/a.txt")
    place = root(server) / folder.removeprefix("file:///") / "a.txt"
    async with await db.files.open(f"{folder}/a.txt") as file:
        place.write_bytes(b"another, longer one")
        with pytest.raises(ChangedFile):
            await file.read()
        place.write_bytes(b"9876543210")
        assert await file.read() == b"9876543210"


class ProgramExit(Exception):
    """Simulates that the program exits in the middle of its work."""


def is_part(request: httpx.Request) -> bool:
    return request.method == "POST" and request.url.path.endswith("/upload/chunks")


class Busy(httpx.AsyncHTTPTransport):
    """A transport that forwards the first parts of an upload, and responds to all later parts with 503."""

    def __init__(self, *, after: int) -> None:
        super().__init__()
        self._left = after

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if is_part(request):
            self._left -= 1
            if self._left < 0:
                return httpx.Response(503, json={"status": -1, "code": "service_unavailable", "message": "Busy."})
        return await super().handle_async_request(request)


class PartCounter(httpx.AsyncHTTPTransport):
    """A transport that counts the parts of uploads that it sends."""

    parts = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.parts += is_part(request)
        return await super().handle_async_request(request)


async def test_later_process_sends_only_the_remaining_parts(server: Server, folder: str, local: Path):
    token, counting = await server.token(), PartCounter()

    def stop(done: int, size: int | None) -> None:
        if done >= 2 * PART:
            raise ProgramExit

    async with connect(server.url, token=token, retries=QUICK) as db:
        with pytest.raises(ProgramExit):
            await db.files.upload(local, f"{folder}/resumed.bin", part_bytes=PART, on_bytes=stop)
    async with connect(server.url, token=token, retries=QUICK, http_transport=counting) as db:
        sent = await db.files.upload(local, f"{folder}/resumed.bin", part_bytes=PART)
    assert 1 <= counting.parts <= 3
    assert sent.sha256 == DIGEST
    assert stored(server, folder) == {"resumed.bin": CONTENT}


async def test_parts_stay_if_server_is_busy_beyond_retries(server: Server, folder: str, local: Path):
    token, busy, counting = await server.token(), Busy(after=4), PartCounter()
    async with connect(server.url, token=token, retries=Retries(total_s=0), http_transport=busy) as db:
        with pytest.raises(ServerUnavailable):
            await db.files.upload(local, f"{folder}/busy.bin", part_bytes=PART)
    async with connect(server.url, token=token, retries=QUICK, http_transport=counting) as db:
        await db.files.upload(local, f"{folder}/busy.bin", part_bytes=PART)
    assert counting.parts < len(CONTENT) / PART
    assert stored(server, folder) == {"busy.bin": CONTENT}


async def test_parts_of_another_file_are_not_reused(server: Server, folder: str, local: Path):
    token = await server.token()

    def stop(done: int, size: int | None) -> None:
        if done >= 2 * PART:
            raise ProgramExit

    async with connect(server.url, token=token, retries=QUICK) as db:
        with pytest.raises(ProgramExit):
            await db.files.upload(local, f"{folder}/resumed.bin", part_bytes=PART, on_bytes=stop)
        replace_unnoticed(local, CONTENT[::-1])
        await db.files.upload(local, f"{folder}/resumed.bin", part_bytes=PART)
    assert stored(server, folder) == {"resumed.bin": CONTENT[::-1]}


async def test_abandoned_upload_leaves_nothing(server: Server, folder: str, local: Path):
    def stop(done: int, size: int | None) -> None:
        raise ProgramExit

    async with connect(server.url, token=await server.token(), retries=QUICK) as db:
        with pytest.raises(ProgramExit):
            await db.files.upload(local, f"{folder}/gone.bin", part_bytes=PART, resume=False, on_bytes=stop)
    assert stored(server, folder) == {}


async def test_long_running_operation_is_followed(
    db: Connection, server: Server, folder: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queryserver_client.files._WAIT_S", 0)
    await db.files.upload(CONTENT, f"{folder}/long.bin")
    seen: list[tuple[int, int | None]] = []
    copied = await db.files.copy(
        f"{folder}/long.bin", f"{folder}/copy.bin", on_items=lambda done, total: seen.append((done, total))
    )
    assert copied == f"{folder}/copy.bin"
    assert seen
    assert await db.files.move(copied, f"{folder}/moved.bin") == f"{folder}/moved.bin"
    assert stored(server, folder) == {"long.bin": CONTENT, "moved.bin": CONTENT}
    with pytest.raises(NotFound) as missing:
        await db.files.copy(f"{folder}/missing", f"{folder}/other")
    with pytest.raises(Conflict) as taken:
        await db.files.move(f"{folder}/long.bin", f"{folder}/moved.bin")
    assert (missing.value.code, taken.value.code) == ("path_not_found", "already_exists")


async def test_sync_client_reads_and_writes_files(server: Server, folder: str, local: Path, target: Path):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            uploaded = db.files.upload(local, f"{folder}/sync.bin", part_bytes=PART)
            assert [entry.path for entry in db.files.list(folder)] == [uploaded.path]
            with db.files.open(uploaded.path) as file:
                assert file.read(10) == CONTENT[:10]
                assert file.seek(-10, io.SEEK_END) == len(CONTENT) - 10
                assert file.read() == CONTENT[-10:]
            assert db.files.download(uploaded.path, target).read_bytes() == CONTENT
            with pytest.raises(NotFound):
                db.files.stat(f"{folder}/missing")

    await asyncio.to_thread(work)


async def test_silent_source_does_not_delay_cancellation():
    entered, released, scope = threading.Event(), threading.Event(), anyio.CancelScope()

    class Silent:
        def read(self, size: int) -> bytes:
            entered.set()
            released.wait(30)
            return b""

    async def read() -> None:
        with scope:
            async with uploads.opened(cast("BinaryIO", Silent())):
                pass

    task = asyncio.create_task(read())
    await asyncio.to_thread(entered.wait)
    scope.cancel()
    try:
        ended, _ = await asyncio.wait([task], timeout=10)
        assert ended
    finally:
        released.set()
        await asyncio.wait([task])
