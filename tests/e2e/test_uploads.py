"""A server is killed during uploads, and their files are cleaned up afterward."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.e2e.installation import Installation, Node, installed
from tests.fixtures.database import execute
from tests.fixtures.program import run

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PART = 100_000


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    (tmp_path / "files" / "shared").mkdir(parents=True)
    async with installed(postgres, migrated_template, tmp_path, {}) as place:
        yield place


def temporary(directory: Path) -> list[Path]:
    return [entry for entry in directory.iterdir() if entry.name.startswith("._qs_")]


async def uploading(node: Node, sent: asyncio.Event) -> None:
    """Send an upload that takes longer than the test. Sets `sent` when part of it has been sent."""

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
        for number in range(10_000):
            yield os.urandom(256 * 1024)
            if number == 20:
                sent.set()
            await asyncio.sleep(0.01 if number < 20 else 0.2)

    headers = {**node.headers(), "Content-Type": "multipart/form-data; boundary=x"}
    with suppress(httpx.TransportError):
        await node.http.post("/api/v1/storage/upload/file?dest=file:///shared", content=body(), headers=headers)


async def part(node: Node, uuid: str, index: int) -> httpx.Response:
    query = {
        "qquuid": uuid,
        "qqpartindex": index,
        "qqpartbyteoffset": PART * index,
        "qqtotalfilesize": 2 * PART,
        "qqtotalparts": 2,
        "qqchunksize": PART,
        "qqfilename": "parts.bin",
        "dest": "file:///shared",
    }
    return await node.http.post(
        "/api/v1/storage/upload/chunks",
        params=query,
        files={"file": ("x", bytes([index]) * PART)},
        headers=node.headers(),
    )


async def cleaned_up(place: Installation, **environment: str) -> str:
    """Run `queryserver cleanup`; return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUERYSERVER")}
    given = {
        "QUERYSERVER__DESKTOP__DATA_DIR": str(place.directory / "data"),
        "QUERYSERVER__DESKTOP__DATABASE__URL": place.database_dsn,
        **place.settings(**environment),
    }
    config = str(place.directory / "queryserver.toml")
    ended = await run("cleanup", "--config", config, cwd=place.directory, env=inherited | given)
    assert ended.code == 0, ended
    return ended.out + ended.err


async def importing(node: Node, sent: asyncio.Event) -> None:
    """Send an import file whose upload takes longer than the test. Sets `sent` when part of it has been sent."""

    async def body() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
        for number in range(10_000):
            yield b"1,2,3\n" * 40_000
            if number == 20:
                sent.set()
            await asyncio.sleep(0.01 if number < 20 else 0.2)

    headers = {**node.headers(), "Content-Type": "multipart/form-data; boundary=x"}
    with suppress(httpx.TransportError):
        await node.http.post("/api/v1/importer/upload/file", content=body(), headers=headers)


async def grown(directory: Path) -> None:
    """Wait until one megabyte of unfinished uploads is on disk."""
    async with asyncio.timeout(60):
        while sum(entry.stat().st_size for entry in temporary(directory)) < 1_000_000:  # noqa: ASYNC110 another process
            await asyncio.sleep(0.05)


async def gone(*files: Path) -> None:
    async with asyncio.timeout(240):
        while any(file.exists() for file in files):  # noqa: ASYNC110 another process
            await asyncio.sleep(0.2)


@pytest.mark.timeout(600)
@pytest.mark.storage(103)
async def test_next_server_removes_exactly_the_orphaned_files_of_killed_server(place: Installation) -> None:
    shared, root = place.directory / "files" / "shared", str(place.directory / "files")
    live, uploads = shared / "live", place.directory / "data" / "uploads"
    live.mkdir()
    async with place.server(FILEBROWSER__LOCAL_ROOT=root) as living:
        release, started = asyncio.Event(), asyncio.Event()

        async def slow_body() -> AsyncIterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="whole.bin"\r\n\r\n'
            yield b"a" * 2_000_000
            started.set()
            while not release.is_set():
                await asyncio.sleep(0.5)
                yield b"b" * 1024
            yield b"\r\n--x--\r\n"

        headers = {**living.headers(), "Content-Type": "multipart/form-data; boundary=x"}
        target = "/api/v1/storage/upload/file?dest=file:///shared/live"
        whole = asyncio.create_task(living.http.post(target, content=slow_body(), headers=headers))
        async with place.server(FILEBROWSER__LOCAL_ROOT=root) as victim:
            sent = asyncio.Event(), asyncio.Event()
            clients = [asyncio.create_task(uploading(victim, sent[0])), asyncio.create_task(importing(victim, sent[1]))]
            await asyncio.gather(grown(shared), grown(uploads), started.wait())
            await victim.process.kill9()
            await asyncio.gather(*clients)
        orphans = [*temporary(shared), *temporary(uploads)]
        assert len(orphans) == 2
        # Simulate that minutes have passed. Within that time, a live server would have sent heartbeats, and an active
        # write would have changed its file.
        await execute(
            place.database_dsn,
            """update instances
            set heartbeat_at = now() - interval '5 minutes', alive_until = now() - interval '4 minutes'
            where id in (select owner from unfinished_writes where directory = 'shared')""",
        )
        for orphan in orphans:
            os.utime(orphan, (time.time() - 11 * 60,) * 2)
        async with place.server(FILEBROWSER__LOCAL_ROOT=root):
            await gone(*orphans)
            assert len(temporary(live)) == 1
        release.set()
        answer = await whole
        assert answer.json()["size"] == (live / "whole.bin").stat().st_size > 2_000_000, answer.text


@pytest.mark.storage(86)
@pytest.mark.storage(90)
async def test_kill_during_upload_keeps_finished_parts_only(place: Installation) -> None:
    shared, root = place.directory / "files" / "shared", str(place.directory / "files")
    uuid = str(uuid4())
    async with place.server(FILEBROWSER__LOCAL_ROOT=root) as victim:
        assert (await part(victim, uuid, 1)).status_code == 200
        sent = asyncio.Event()
        client = asyncio.create_task(uploading(victim, sent))
        await asyncio.wait_for(sent.wait(), 30)
        while sum(entry.stat().st_size for entry in temporary(shared)) < 1_000_000:  # noqa: ASYNC110 another process
            await asyncio.sleep(0.05)
        await victim.process.kill9()
        await client
    assert [entry.name for entry in shared.iterdir() if entry not in temporary(shared)] == []
    async with place.server(FILEBROWSER__LOCAL_ROOT=root) as server:
        listed = await server.http.get("/api/v1/storage/list?path=file:///shared", headers=server.headers())
        assert listed.json()["files"] == []
        assert (await part(server, uuid, 0)).json()["received"] == [[0, 2 * PART]]
        completed = await server.post("storage/upload/complete", qquuid=uuid)
        assert completed.status_code == 200, completed.text
    assert (shared / "parts.bin").read_bytes() == b"\0" * PART + b"\1" * PART

    assert "interrupted uploads: 0 deleted" in await cleaned_up(place, FILEBROWSER__LOCAL_ROOT=root)
    assert len(temporary(shared)) == 1
    await execute(place.database_dsn, "update unfinished_writes set touched_at = now() - interval '25 hours'")
    for entry in temporary(shared):
        os.utime(entry, (time.time() - 25 * 3600,) * 2)
    assert "interrupted uploads: 1 deleted" in await cleaned_up(place, FILEBROWSER__LOCAL_ROOT=root)
    assert [entry.name for entry in shared.iterdir()] == ["parts.bin"]
