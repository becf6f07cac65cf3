"""Users lose the right to a transfer while it is running (Rule T22)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from starlette.types import Message
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.token.logins import accounts
from tests.api.transport import scope_of

from queryserver.identity.users import Groups
from queryserver.platform.settings.desktop import AuthSettings

_RECHECK_S = 1
_BYTES = 64 * 1024 * 1024
_BOUNDARY = "limit"
Change = Callable[[Api, Caller], Awaitable[object]]


@pytest.fixture
async def api(tmp_path: Path, database_dsn: str) -> AsyncIterator[Api]:
    """An application with a local root. It rechecks the users of long-running calls at a short interval."""
    tables = {"notebook": {"interpreters": {"mysql": {"interface": "fake"}}}}
    recheck = {"auth": {"recheck_s": _RECHECK_S}}
    settings = storage_settings(tmp_path, database_dsn, tables=tables, desktop=recheck)
    async with open_api(settings) as opened:
        yield opened


async def disable(api: Api, user: Caller) -> None:
    await accounts(api).disable(user.username)


async def withdraw(api: Api, user: Caller) -> None:
    """Remove the user from the default group, which grants access to stores, importer and downloads."""
    await Groups(api.database, AuthSettings()).remove(user.username, "default")


CHANGES = pytest.mark.parametrize("change", [disable, withdraw], ids=["disabled", "demoted"])


async def taken(api: Api, user: Caller, path: str, meanwhile: Callable[[], Awaitable[object]]) -> tuple[int, bool]:
    """Send a GET request, await `meanwhile` after the first chunk, and read to the end. Return the number of bytes, and
    whether the response was complete.
    """
    request = httpx.Request("GET", f"http://test/api/v1/{path}", headers=dict(user.headers))
    size, has_ended, body_sent = 0, False, asyncio.Event()

    async def receive() -> Message:
        if not body_sent.is_set():
            body_sent.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal size, has_ended
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            return
        is_first = size == 0
        size += len(message.get("body", b""))
        has_ended = not message.get("more_body", False)
        if is_first:
            await meanwhile()

    await api.app(scope_of(request), receive, send)
    return size, has_ended


@CHANGES
async def test_file_download_is_aborted(api: Api, tmp_path: Path, change: Change) -> None:
    ana, bob = await api.user("ana"), await api.user("bob")
    (tmp_path / "files" / "shared" / "large.bin").write_bytes(bytes(_BYTES))

    async def meanwhile() -> None:
        await change(api, ana)
        await asyncio.sleep(_RECHECK_S + 0.1)

    size, has_ended = await taken(api, ana, "storage/download=/shared/large.bin", meanwhile)
    assert (size < _BYTES, has_ended) == (True, False)
    assert await taken(api, bob, "storage/download=/shared/large.bin", lambda: asyncio.sleep(_RECHECK_S + 0.1)) == (
        _BYTES,
        True,
    )


@CHANGES
async def test_result_download_is_aborted(api: Api, change: Change) -> None:
    ana = await api.user("ana")
    operation = (await ana.run("mysql", "rows 200000 wide 50", limit=200_000))["history_uuid"]

    async def meanwhile() -> None:
        await change(api, ana)
        await asyncio.sleep(_RECHECK_S + 0.1)

    size, has_ended = await taken(api, ana, f"editor/download/{operation}?format=csv", meanwhile)
    assert (size < 50 * 200_000, has_ended) == (True, False)


@CHANGES
@pytest.mark.parametrize("path", ["storage/upload/file", "importer/upload/file", "storage/upload/chunks"])
async def test_upload_is_refused_and_leaves_no_file(api: Api, tmp_path: Path, change: Change, path: str) -> None:
    ana = await api.user("ana")

    async def body() -> AsyncGenerator[bytes]:
        fields = {
            "dest": "/shared",
            "qquuid": "5c6b8a5e-0d1f-4c8e-9c7a-6f1f7c5b2a11",
            "qqfilename": "a.csv",
            "qqpartindex": "0",
            "qqpartbyteoffset": "0",
            "qqtotalfilesize": str(9 * 64 * 1024),
            "qqtotalparts": "1",
            "qqchunksize": str(9 * 64 * 1024),
        }
        for name, value in {} if path.startswith("importer") else fields.items():
            yield f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
        yield head.encode() + bytes(64 * 1024)
        await change(api, ana)
        await asyncio.sleep(_RECHECK_S + 0.1)
        for _ in range(8):
            yield bytes(64 * 1024)
        yield f"\r\n--{_BOUNDARY}--\r\n".encode()

    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    answer = await ana.send("POST", path, content=body(), headers=headers)
    assert answer.status_code == (401 if change is disable else 403), answer.text
    # Hidden files are not counted, because the parts of a multipart upload are kept until it is discarded or expires,
    # as after any interrupted call.
    assert not [one.name for one in (tmp_path / "files").rglob("[!.]*") if one.is_file()]
    assert await api.database.value("select count(*) from import_uploads") == 0
