"""What goes wrong while a file is on its way (Contract storage 9.1.2 to 9.1.5; security S10, T30)."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psutil
import pytest
from starlette.types import Message
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.cases import each
from tests.fakes.storage import LIKE_S3, MemoryFileSystem, MemoryStorage

from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import EntryKind, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import PIECE_BYTES

HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
END = b"\r\n--x--\r\n"
PIECE = os.urandom(64 * 1024)


@pytest.fixture
async def ana(files: Files) -> Caller:
    return await files.api.user("ana")


@pytest.fixture
def place(files: Files) -> str:
    return files.place()


@dataclass
class Connection:
    """A client at the door of the application, who decides when its bytes come and when it leaves."""

    caller: Caller
    dest: str
    sent: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    """Bytes, then None: the client is gone."""
    answers: list[Message] = field(default_factory=list)
    is_waited_for: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when all that was sent is read, and the application wants more."""

    async def serve(self, path: str = "upload/file", **query: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer."""
        raw = f"/api/v1/storage/{path}"
        words = "&".join(f"{name}={quote(str(value))}" for name, value in {"dest": self.dest, **query}.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": words.encode(),
            "headers": [
                (b"host", b"test"),
                (b"authorization", self.caller.headers["Authorization"].encode()),
                (b"content-type", b"multipart/form-data; boundary=x"),
            ],
            "server": ("test", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        await self.caller.api.app(scope, self._receive, self._send)
        body = b"".join(message.get("body", b"") for message in self.answers[1:])
        return self.answers[0]["status"], json.loads(body)

    async def _receive(self) -> Message:
        if self.sent.empty():
            self.is_waited_for.set()
        piece = await self.sent.get()
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": not piece.endswith(END)}

    async def _send(self, message: Message) -> None:
        self.answers.append(message)


async def unfinished(api: Api, caller: Caller) -> int:
    return await api.database.value("select count(*) from unfinished_writes where username = $1", caller.username)


class TestLeaving:
    @pytest.mark.storage(86)
    @each("old", [None, b"old"])
    async def test_a_client_that_leaves_leaves_nothing(self, ana: Caller, files: Files, place: str, old: bytes | None):
        target = files.root / place / "a.bin"
        if old is not None:
            target.write_bytes(old)
        client = Connection(ana, f"file:///{place}")
        for piece in (HEAD, *[PIECE] * 50):
            client.sent.put_nowait(piece)
        serving = asyncio.create_task(client.serve(overwrite="true"))
        await client.is_waited_for.wait()
        listed = await ana.get("storage/list", path=f"file:///{place}")
        assert [entry["name"] for entry in listed.json()["files"]] == ([] if old is None else ["a.bin"])
        assert (target.read_bytes() if target.exists() else None) == old
        assert await unfinished(files.api, ana) == 1
        client.sent.put_nowait(None)
        status, body = await serving
        assert (status, body["code"], body["status"]) == (400, "upload_aborted", -1)
        assert [entry.name for entry in (files.root / place).iterdir()] == ([] if old is None else ["a.bin"])
        assert (target.read_bytes() if target.exists() else None) == old
        assert await unfinished(files.api, ana) == 0

    @pytest.mark.storage(86)
    async def test_a_body_that_is_cut_leaves_nothing(self, ana: Caller, files: Files, place: str):
        content = {"content": HEAD + PIECE * 40, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{place}", **content)
        assert (answer.status_code, answer.json()["code"]) == (400, "upload_aborted")
        assert list((files.root / place).iterdir()) == []

    async def test_a_part_that_is_cut_can_be_sent_again(self, ana: Caller, files: Files, place: str):
        client = Connection(ana, f"file:///{place}")
        query = {
            "qquuid": uuid4(),
            "qqtotalfilesize": 10 * len(PIECE),
            "qqtotalparts": 2,
            "qqchunksize": 5 * len(PIECE),
            "qqfilename": "a.bin",
        }
        for piece in (HEAD, PIECE, None):
            client.sent.put_nowait(piece)
        status, body = await client.serve("upload/chunks", **query)
        assert (status, body["code"]) == (400, "upload_aborted")
        again = Connection(ana, client.dest)
        for piece in (HEAD, *[PIECE] * 5, END):
            again.sent.put_nowait(piece)
        status, body = await again.serve("upload/chunks", **query)
        assert (status, body["received"]) == (200, [[0, 5 * len(PIECE)]])


class FailingFileSystem(MemoryFileSystem):
    """A store that fails, or is not reached any more, at the third piece."""

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _FailingStorage(self.tree, user, self.traits)


class _FailingStorage(MemoryStorage):
    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        del path, overwrite, size_bytes
        for _ in range(3):
            await anext(body)
        raise StorageUnavailable("The store does not answer.")


class CountingFileSystem(MemoryFileSystem):
    """A store that forgets what it is given, and counts."""

    def __init__(self) -> None:
        super().__init__(Scheme.S3A, powers=LIKE_S3, containers=["lake"])
        self.received = 0
        self.largest = 0
        self.peak_rss = 0

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _CountingStorage(self, user)


class _CountingStorage(MemoryStorage):
    def __init__(self, counts: CountingFileSystem, user: StorageUser) -> None:
        super().__init__(counts.tree, user, counts.traits)
        self._counts = counts

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        del overwrite, size_bytes
        counts = self._counts
        async for piece in body:
            counts.received += len(piece)
            counts.largest = max(counts.largest, len(piece))
            if counts.received % (64 * PIECE_BYTES) < len(piece):
                counts.peak_rss = max(counts.peak_rss, psutil.Process().memory_info().rss)
        return FileStatus(path, EntryKind.FILE, counts.received, None)


class TestStore:
    @pytest.mark.storage(9)
    async def test_a_store_that_fails_in_between_is_told_and_remembered(self, tmp_path: Path, database_dsn: str):
        store = FailingFileSystem(containers=["d"])
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
            ana = await api.user("ana")
            answer = await ana.send(
                "POST", "storage/upload/file?dest=file:///d", files={"file": ("a", b"x" * 4 * PIECE_BYTES)}
            )
            assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
            # What the store could not remove any more is looked for later.
            assert await unfinished(api, ana) == 1

    @pytest.mark.security("S10")
    @pytest.mark.slow
    async def test_two_gibibytes_pass_in_bounded_memory(self, tmp_path: Path, database_dsn: str):
        total = 2 * 1024**3
        store = CountingFileSystem()

        piece = PIECE * 4

        async def body() -> AsyncIterator[bytes]:
            yield HEAD
            for _ in range(total // len(piece)):
                yield piece
            yield END

        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            before = psutil.Process().memory_info().rss
            headers = {"Content-Type": "multipart/form-data; boundary=x"}
            answer = await ana.send("POST", "storage/upload/file?dest=s3a://lake", content=body(), headers=headers)
        assert (answer.status_code, answer.json()["size"]) == (201, total)
        assert store.largest <= PIECE_BYTES
        assert store.peak_rss - before < 48 * 1024**2

    async def test_the_event_loop_runs_on_while_bytes_are_hashed(self, tmp_path: Path, database_dsn: str):
        store = CountingFileSystem()
        spent: list[float] = []

        async def ticking() -> None:
            while True:
                began, used = time.monotonic(), time.thread_time()
                await asyncio.sleep(0)
                # Time that this thread did not get is the machine's affair.
                spent.append(min(time.monotonic() - began, time.thread_time() - used))

        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            client = Connection(ana, "s3a://lake")
            for piece in (HEAD, *[PIECE] * 1600, END):
                client.sent.put_nowait(piece)
            ticker = asyncio.create_task(ticking())
            status, _ = await client.serve()
            ticker.cancel()
        assert status == 201
        assert max(spent) < 0.05


class TestLimits:
    @pytest.mark.security("T30")
    async def test_a_user_has_so_many_uploads_at_a_time(self, tmp_path: Path, database_dsn: str):
        settings = storage_settings(tmp_path, database_dsn)
        async with open_api(settings) as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            limit = settings.editor.max_streams_per_user
            clients = [Connection(ana, "file:///shared") for _ in range(limit)]
            for client in clients:
                client.sent.put_nowait(HEAD.replace(b"a.bin", f"{id(client)}".encode()))
            serving = [asyncio.create_task(client.serve()) for client in clients]
            for client in clients:
                await client.is_waited_for.wait()
            refused = await ana.send("POST", "storage/upload/file?dest=file:///shared", files={"file": ("b", b"")})
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
            other = await bob.send("POST", "storage/upload/file?dest=file:///shared", files={"file": ("b", b"")})
            assert other.status_code == 201
            for client in clients:
                client.sent.put_nowait(END)
            assert {status for status, _ in await asyncio.gather(*serving)} == {201}

    @pytest.mark.security("S11", "T6")
    async def test_ten_thousand_parts_are_refused_early(self, ana: Caller, files: Files, place: str):
        read = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(10_000):
                read += 1
                yield b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        for path in ("storage/upload/file", "storage/upload/chunks"):
            read = 0
            answer = await ana.send("POST", f"{path}?dest=file:///{place}", content=body(), headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_many_parts")
            assert read < 40
        assert list((files.root / place).iterdir()) == []
