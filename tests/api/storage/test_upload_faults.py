"""Failed uploads and their cleanup (Contract storage 9.1.2 to 9.1.5, 9.2.6; platform 12.2; S10, T30)."""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import psutil
import pytest
from starlette.types import Message
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem, MemoryStorage
from tests.fakes.storage_faults import FaultyFileSystem

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import StorageUnavailable
from queryserver.files import uploads
from queryserver.files.access import Caller as Acting
from queryserver.files.model import EntryKind, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import PIECE_BYTES, PartPlan, StorageTraits
from queryserver.identity.model import User

DAY_S = 24 * 3600


async def send_part(
    caller: Caller, dest: str, *, index: int = 0, uuid: str | None = None
) -> tuple[str, httpx.Response]:
    uuid = uuid or str(uuid4())
    query = {
        "qquuid": uuid,
        "qqpartindex": index,
        "qqpartbyteoffset": 10 * index,
        "qqtotalfilesize": 20,
        "qqtotalparts": 2,
        "qqchunksize": 10,
        "qqfilename": "a.bin",
        "dest": dest,
    }
    answer = await caller.send("POST", "storage/upload/chunks", params=query, files={"file": ("x", b"x" * 10)})
    return uuid, answer


async def turn_clock(api: Api, hours: int = 25) -> None:
    """Simulate that this many hours have passed for all uploads and unfinished writes."""
    await api.database.execute(f"update part_uploads set expires_at = expires_at - interval '{hours} hours'")
    await api.database.execute(f"update unfinished_writes set touched_at = touched_at - interval '{hours} hours'")


def everything(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def age(directory: Path, seconds: float) -> None:
    for entry in directory.iterdir():
        os.utime(entry, (time.time() - seconds,) * 2)


class TestExpiry:
    async def test_upload_expires_a_day_after_its_last_chunk(self, tmp_path: Path, database_dsn: str):
        shared = tmp_path / "files" / "shared"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, first = await send_part(ana, "file:///shared")
            assert first.status_code == 200, first.text
            await turn_clock(api, 23)
            await send_part(ana, "file:///shared", index=1, uuid=uuid)
            await turn_clock(api, 23)
            counts = await api.services.statements.retention.clean_up()
            assert counts["expired uploads"] == 0
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).json()["offset"] == 20
            await turn_clock(api, 2)
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).status_code == 404
            announced = await api.services.statements.retention.clean_up(dry_run=True)
            assert announced["expired uploads"] == 1
            assert everything(shared) != []
            counts = await api.services.statements.retention.clean_up()
            assert (counts["expired uploads"], counts["interrupted uploads"]) == (1, 1)
            assert everything(shared) == []
            assert await api.database.value("select count(*) from part_uploads") == 0
            assert await api.database.value("select count(*) from unfinished_writes") == 0

    async def test_chunks_of_deleted_users_are_removed_immediately(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await send_part(ana, "file:///shared")
            await api.database.execute("delete from users where username = $1", ana.username)
            assert (await api.services.statements.retention.clean_up())["expired uploads"] == 1
        assert everything(tmp_path / "files" / "shared") == []

    async def test_expired_upload_restarts_under_the_same_id(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, _ = await send_part(ana, "file:///shared")
            await turn_clock(api)
            _, answer = await send_part(ana, "file:///shared", index=1, uuid=uuid)
            assert answer.json()["received"] == [[10, 20]]
            assert (await api.services.statements.retention.clean_up())["expired uploads"] == 1
            assert (await ana.get("storage/upload/chunks", qquuid=uuid)).json()["received"] == [[10, 20]]
            _, answer = await send_part(ana, "file:///shared", uuid=uuid)
            assert answer.json()["offset"] == 20
            assert (await ana.post("storage/upload/complete", qquuid=uuid)).status_code == 200


class TestSweeping:
    async def test_sweep_removes_only_old_temporary_files_of_interrupted_writes(
        self, tmp_path: Path, database_dsn: str
    ):
        shared = tmp_path / "files" / "shared"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            await ana.send("POST", "storage/upload/file?dest=file:///shared", files={"file": ("kept", b"x")})
            (shared / f"._qs_upload_{'0' * 32}").write_bytes(b"old")
            age(shared, DAY_S + 10)
            (shared / f"._qs_upload_{'1' * 32}").write_bytes(b"young")
            await self._interrupted(api, ana)
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 0
            await turn_clock(api)
            assert (await api.services.statements.retention.clean_up(dry_run=True))["interrupted uploads"] == 1
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 1
            assert everything(shared) == [f"._qs_upload_{'1' * 32}", "kept"]
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 0

    @pytest.mark.parametrize("error", [None, PermissionDenied("No."), StorageUnavailable("It is away.")])
    async def test_record_of_a_write_counts_from_its_end(
        self, tmp_path: Path, database_dsn: str, error: Exception | None
    ):
        """If the record were older than the files of the write, the files would never be removed."""
        state = "select touched_at = 'infinity' from unfinished_writes"
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            orphans, stores = api.services.storage.orphans, api.services.storage.stores
            with pytest.raises(type(error)) if error else nullcontext():
                async with orphans.recorded_write(Acting.of(User(1, "ana")), stores.path("file:///shared/a")):
                    assert await api.database.value(state) is True
                    assert await orphans.clean_up(older_than=timedelta(0)) == {
                        "expired uploads": 0,
                        "interrupted uploads": 0,
                    }
                    if error:
                        raise error
            remains = isinstance(error, StorageUnavailable)
            assert await api.database.value("select count(*) from unfinished_writes") == remains
            assert await api.database.value(state) is (False if remains else None)

    async def test_sweep_skips_directories_with_an_open_upload(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            uuid, _ = await send_part(ana, "file:///shared")
            await self._interrupted(api, ana)
            await api.database.execute("update unfinished_writes set touched_at = now() - interval '3 days'")
            age(tmp_path / "files" / "shared", 3 * DAY_S)
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 0
            await send_part(ana, "file:///shared", index=1, uuid=uuid)
            assert (await ana.post("storage/upload/complete", qquuid=uuid)).status_code == 200
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 1

    @pytest.mark.parametrize(
        ("error", "left"), [(StorageUnavailable("It is away."), 1), (PermissionDenied("Not any more."), 0)]
    )
    async def test_sweep_retries_unavailable_stores(self, tmp_path, database_dsn, error, left):
        store = _Unsweepable(error)
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
            ana = await api.user("ana")
            await send_part(ana, "file:///shared")
            await turn_clock(api)
            store.fails = True
            await api.services.statements.retention.clean_up()
            for table in ("part_uploads", "unfinished_writes"):
                assert await api.database.value(f"select count(*) from {table}") == left
            store.fails = False
            await api.services.statements.retention.clean_up()
            for table in ("part_uploads", "unfinished_writes"):
                assert await api.database.value(f"select count(*) from {table}") == 0

    async def test_sweep_aborts_only_old_recorded_uploads(self, tmp_path: Path, database_dsn: str):
        """An upload that is not recorded may belong to another program that uses the object store."""
        store = MemoryFileSystem(Scheme.S3A, StorageTraits(container_levels=1), LIKE_S3, containers=["lake"])
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            now = datetime.now(UTC)
            store.tree.unseen += [("lake/mine", now), ("lake/mine", now - timedelta(hours=25))]
            store.tree.unseen += [("lake/other", now - timedelta(days=9))]
            await api.database.execute(
                """insert into unfinished_writes (id, scheme, directory, name, username)
                values ($1, 's3a', 'lake', 'mine', $2)""",
                uuid4(),
                ana.username,
            )
            await turn_clock(api)
            assert (await api.services.statements.retention.clean_up())["interrupted uploads"] == 1
            assert store.tree.unseen == [("lake/mine", now), ("lake/other", now - timedelta(days=9))]

    async def _interrupted(self, api: Api, caller: Caller) -> None:
        """Record an unfinished write, as a crashed server leaves it."""
        await api.database.execute(
            "insert into unfinished_writes (id, scheme, directory, username) values ($1, 'file', 'shared', $2)",
            uuid4(),
            caller.username,
        )


NOTED = [
    ("mkdir", {"path": "/area", "name": "new"}, "mkdir", "new"),
    ("touch", {"path": "/area", "name": "new"}, "write", "new"),
    ("save", {"path": "/area/old", "contents": "text"}, "write", "old"),
    ("copy", {"src_path": "/area/old", "dest_path": "/area/copy"}, "copy", "copy"),
    ("rename", {"src_path": "/area/new_one", "dest_path": "old", "overwrite": "true"}, "rename", "old"),
]


class TestNotes:
    async def test_failed_tree_copy_records_each_interrupted_file(self, tmp_path: Path, database_dsn: str):
        """The record of the tree copy names only the directory, but an object store keeps incomplete uploads for each
        file.
        """
        traits = StorageTraits(lists_in_order=True, container_levels=1)
        store = FaultyFileSystem(MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["lake"]))
        inner = store.as_user(StorageUser("hdfs"))
        await inner.write("lake/d/whole", _body(b"x"), overwrite=False)
        await inner.write("lake/d/broken", _body(b"x"), overwrite=False)
        store.failures["copy"] = lambda _, path: StorageUnavailable("It is away.") if "broken" in path else None
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            copied = await ana.post("storage/copy", src_path="s3a://lake/d", dest_path="s3a://lake/e")
            assert (copied.status_code, copied.json()["details"]) == (503, {"rolled_back": True})
            noted = await api.database.fetch("select directory || '/' || name as path from unfinished_writes")
            assert {row["path"] for row in noted} == {"lake/e", "lake/e/broken"}

    @pytest.mark.storage(59)
    @pytest.mark.parametrize(("call", "fields", "step", "name"), NOTED)
    async def test_writes_are_recorded_until_they_complete(self, tmp_path, database_dsn, call, fields, step, name):
        """The cleanup uses these records to find the files that a crash leaves behind. They include the previous
        version, which a write moves aside.
        """
        traits = StorageTraits(lists_in_order=True, acts_as_user=True)
        store = FaultyFileSystem(MemoryFileSystem(Scheme.HDFS, traits, LIKE_HDFS, containers=["area"]))
        inner = store.as_user(StorageUser("hdfs"))
        for old in ("old", "new_one"):
            await inner.write(f"area/{old}", _body(b"x"), overwrite=False)
        store.failures[step] = StorageUnavailable("It is away.")
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.HDFS: lambda _: store}) as api:
            ana = await api.user("ana")
            noted = "select directory || '/' || name from unfinished_writes"
            assert (await ana.post(f"storage/{call}", **fields)).status_code == 503
            assert await api.database.value(noted) == f"area/{name}"
            await api.database.execute("delete from unfinished_writes")
            store.failures.clear()
            assert (await ana.post(f"storage/{call}", **fields)).status_code in {200, 201}
            assert await api.database.value(noted) is None


async def _body(content: bytes) -> AsyncIterator[bytes]:
    yield content


class _Unsweepable(MemoryFileSystem):
    """A store whose cleanup calls fail while `fails` is set."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Scheme.FILE, containers=["shared"])
        self.error = error
        self.fails = False

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _UnsweepableStorage(self, user)


class _UnsweepableStorage(MemoryStorage):
    def __init__(self, store: _Unsweepable, user: StorageUser) -> None:
        super().__init__(store.tree, user, store.traits)
        self._store = store

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        if self._store.fails:
            raise self._store.error
        await super().discard_parts(plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        if self._store.fails:
            raise self._store.error
        return await super().sweep_orphans(path, older_than_s)


HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
END = b"\r\n--x--\r\n"
PIECE = os.urandom(64 * 1024)


@dataclass
class Connection:
    """An ASGI client of one upload. It controls when its bytes arrive and when it disconnects."""

    caller: Caller
    dest: str
    sent: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    """The chunks of the request body. None stands for a disconnect."""
    answers: list[Message] = field(default_factory=list)
    is_waited_for: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the application has received all chunks sent so far and is waiting for more."""

    async def serve(self, path: str = "upload/file", **query: Any) -> tuple[int, dict[str, Any]]:
        """Send the upload request; return the status and body of the response."""
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
    @pytest.mark.parametrize("old", [None, b"old"])
    async def test_disconnected_client_leaves_no_file(self, ana: Caller, files: Files, folder: str, old: bytes | None):
        target = files.root / folder / "a.bin"
        if old is not None:
            target.write_bytes(old)
        client = Connection(ana, f"file:///{folder}")
        for piece in (HEAD, *[PIECE] * 50):
            client.sent.put_nowait(piece)
        serving = asyncio.create_task(client.serve(overwrite="true"))
        await client.is_waited_for.wait()
        listed = await ana.get("storage/list", path=f"file:///{folder}")
        assert [entry["name"] for entry in listed.json()["files"]] == ([] if old is None else ["a.bin"])
        assert (target.read_bytes() if target.exists() else None) == old
        assert await unfinished(files.api, ana) == 1
        client.sent.put_nowait(None)
        status, body = await serving
        assert (status, body["code"], body["status"]) == (400, "upload_aborted", -1)
        assert [entry.name for entry in (files.root / folder).iterdir()] == ([] if old is None else ["a.bin"])
        assert (target.read_bytes() if target.exists() else None) == old
        assert await unfinished(files.api, ana) == 0

    @pytest.mark.storage(86)
    async def test_truncated_body_leaves_no_file(self, ana: Caller, files: Files, folder: str):
        content = {"content": HEAD + PIECE * 40, "headers": {"Content-Type": "multipart/form-data; boundary=x"}}
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", **content)
        assert (answer.status_code, answer.json()["code"]) == (400, "upload_aborted")
        assert list((files.root / folder).iterdir()) == []

    async def test_interrupted_chunk_can_be_sent_again(self, ana: Caller, files: Files, folder: str):
        client = Connection(ana, f"file:///{folder}")
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
    """A store that fails or becomes unavailable at the third chunk that is written."""

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _FailingStorage(self.tree, user, self.traits)


class _FailingStorage(MemoryStorage):
    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        del path, overwrite, size_bytes
        for _ in range(3):
            await anext(body)
        raise StorageUnavailable("The store is not responding.")


class CountingFileSystem(MemoryFileSystem):
    """A store that discards the bytes that are written to it, and counts them."""

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
    async def test_store_failure_during_an_upload_is_reported_and_recorded(self, tmp_path: Path, database_dsn: str):
        store = FailingFileSystem(containers=["d"])
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
            ana = await api.user("ana")
            answer = await ana.send(
                "POST", "storage/upload/file?dest=file:///d", files={"file": ("a", b"x" * 4 * PIECE_BYTES)}
            )
            assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
            # The store could not remove the file, so it remains recorded for a later cleanup.
            assert await unfinished(api, ana) == 1

    @pytest.mark.security("S10")
    @pytest.mark.slow
    async def test_two_gibibytes_upload_in_bounded_memory(self, tmp_path: Path, database_dsn: str):
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
        assert (answer.status_code, answer.json()["size"]) == (200, total)
        assert store.largest <= PIECE_BYTES
        assert store.peak_rss - before < 48 * 1024**2

    async def test_event_loop_stays_responsive_while_hashing(self, tmp_path, database_dsn, monkeypatch):
        hashed: list[tuple[int, int]] = []

        class Watched:
            """A SHA-256 hash that records the thread and the number of bytes of each update."""

            def __init__(self) -> None:
                self._hash = hashlib.sha256()
                self.digest = self._hash.digest

            def update(self, piece: bytes) -> None:
                hashed.append((get_ident(), len(piece)))
                self._hash.update(piece)

        monkeypatch.setattr(uploads, "hashlib", SimpleNamespace(sha256=Watched))
        store = CountingFileSystem()
        async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.S3A: lambda _: store}) as api:
            ana = await api.user("ana")
            client = Connection(ana, "s3a://lake")
            for piece in (HEAD, *[PIECE] * 160, END):
                client.sent.put_nowait(piece)
            status, body = await client.serve()
        assert (status, body["sha256"]) == (200, hashlib.sha256(PIECE * 160).hexdigest())
        assert sum(size for _, size in hashed) == 160 * len(PIECE)
        # Only large chunks are worth hashing in a worker thread.
        assert max((size for thread, size in hashed if thread == get_ident()), default=0) < len(PIECE)


class TestLimits:
    @pytest.mark.security("T30")
    async def test_concurrent_uploads_per_user_are_limited(self, tmp_path: Path, database_dsn: str):
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
            assert other.status_code == 200
            for client in clients:
                client.sent.put_nowait(END)
            assert {status for status, _ in await asyncio.gather(*serving)} == {200}

    @pytest.mark.security("S11", "T6")
    async def test_ten_thousand_parts_are_refused_early(self, ana: Caller, files: Files, folder: str):
        read = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(10_000):
                read += 1
                yield b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        for path in ("storage/upload/file", "storage/upload/chunks"):
            read = 0
            answer = await ana.send("POST", f"{path}?dest=file:///{folder}", content=body(), headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_many_parts")
            assert read < 40
        assert list((files.root / folder).iterdir()) == []
