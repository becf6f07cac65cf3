"""Uploads of files for imports (Contract importer 3, 14; checklist 1 to 11)."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message, Scope
from tests.api.driving import Api, Caller
from tests.api.importer.conftest import CONTENT, ImporterOpener, refusal, upload, uploaded
from tests.refusals import raises_code

from queryserver.api.dependencies import ReceivedCall
from queryserver.errors.base import InvalidRequest
from queryserver.identity.model import User

MIB = 1024 * 1024
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
END = b"\r\n--x--\r\n"
_MODE = 0o777


def area(api: Api) -> Path:
    return api.services.settings.uploads_dir


def files_in(api: Api) -> list[Path]:
    """Return all files in the upload area, including those with reserved names."""
    return sorted(path for path in area(api).rglob("*") if path.is_file())


async def user_of(api: Api, caller: Caller) -> User:
    headers = [(b"authorization", caller.headers["Authorization"].encode())]
    request = Request({"type": "http", "headers": headers})
    return await api.services.accounts.authenticator.authenticate(ReceivedCall(request, ()))


async def read_back(api: Api, caller: Caller, file_path: str) -> bytes:
    found = await api.services.importing.uploads.find(await user_of(api, caller), file_path)
    return b"".join([piece async for piece in found.read()])


async def is_found(api: Api, caller: Caller, file_path: str) -> bool:
    user = await user_of(api, caller)
    try:
        await api.services.importing.uploads.find(user, file_path)
    except InvalidRequest as error:
        if error.code != "file_not_found":
            raise
        return False
    return True


_OWN = "user_id = (select id from users where username = $1)"


async def turn_clock(caller: Caller, by: timedelta) -> None:
    """Simulate that this interval has passed: all uploads of the caller expire that much earlier."""
    change = f"update import_uploads set expires_at = expires_at - $2::interval where {_OWN}"
    await caller.api.database.execute(change, caller.username, by)


async def discarded(caller: Caller, file_path: str) -> bool:
    """Discard a file. Return whether this call removed it."""
    body = (await caller.post_json("importer/upload/discard/", file_path=file_path)).json()
    assert body["status"] == 0
    return body["discarded"]


async def send_body(caller: Caller, *pieces: bytes, **headers: str) -> tuple[int, str]:
    answer = await caller.send(
        "POST", "importer/upload/file", content=b"".join(pieces), headers={**MULTIPART, **headers}
    )
    return refusal(answer)


def upload_scope(caller: Caller) -> Scope:
    """Return the ASGI scope of an upload, as an HTTP server passes it to the application."""
    path = "/api/v1/importer/upload/file"
    headers = [*caller.headers.items(), *MULTIPART.items()]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "server": ("test", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }


def part(name: str, content: bytes, file_name: str | None = None) -> bytes:
    names = f'name="{name}"' + ("" if file_name is None else f'; filename="{file_name}"')
    return f"--x\r\nContent-Disposition: form-data; {names}\r\n\r\n".encode() + content + b"\r\n"


KEPT_NAMES = {
    "test file (with) [special] {chars} & symbols!.csv": "test_file__with___special___chars____symbols_.csv",
    "../../x.csv": "x.csv",
    "..\\..\\x.csv": "x.csv",
    "/etc/passwd": "passwd",
    "C:\\data\\x.csv": "x.csv",
    "..": "file",
    "Größe 1.csv": "Größe_1.csv",
    "a\u200eb\u202e.csv": "a_b_.csv",
    "x" * 300: "x" * 100,
}


class TestArrival:
    @pytest.mark.importer(3)
    async def test_reference_leads_to_the_uploaded_bytes(self, api: Api, ana: Caller):
        answer = await upload(ana, CONTENT, "test_file.csv")
        body = answer.json()
        assert answer.status_code == 201
        assert re.fullmatch(r"upload/[A-Za-z0-9_-]{43}/test_file\.csv", body["file_path"])
        assert body["size"] == len(CONTENT)
        expires = datetime.strptime(body["expires_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert timedelta(hours=23, minutes=59) < expires - datetime.now(UTC) <= timedelta(hours=24)
        assert await read_back(api, ana, body["file_path"]) == CONTENT

    @pytest.mark.importer(3)
    async def test_file_of_many_chunks_is_stored_completely(self, api: Api, ana: Caller):
        content = bytes(range(256)) * (12 * 1024)
        assert await read_back(api, ana, await uploaded(ana, content)) == content

    @pytest.mark.importer(1)
    async def test_trailing_slash_is_optional(self, ana: Caller):
        for path in ("importer/upload/file", "importer/upload/file/"):
            assert (await ana.send("POST", path, files={"file": ("a.csv", CONTENT)})).status_code == 201

    async def test_identical_files_have_different_references(self, ana: Caller):
        assert await uploaded(ana) != await uploaded(ana)

    @pytest.mark.security("T3")
    async def test_files_and_their_directory_are_private(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            await uploaded(await api.user("ana"))
            (file,) = files_in(api)
            assert file.stat().st_mode & _MODE == 0o600
            assert area(api).stat().st_mode & _MODE == 0o700
            assert re.fullmatch(r"[0-9a-f]{64}", file.name)

    @pytest.mark.security("T21")
    async def test_disk_and_database_never_contain_the_reference(self, api: Api, ana: Caller):
        secret = (await uploaded(ana)).split("/")[1]
        rows = await api.database.fetch("select import_uploads::text as row from import_uploads")
        assert rows
        assert not [row for row in rows if secret in row["row"]]
        assert not [path for path in files_in(api) if secret in path.name]

    @pytest.mark.importer(11)
    async def test_second_instance_finds_the_file(self, small_importer: ImporterOpener):
        async with small_importer() as first, small_importer() as second:
            ana = await first.user("ana")
            file_path = await uploaded(ana)
            assert await read_back(second, Caller(second, ana.username, ana.headers), file_path) == CONTENT


class TestName:
    @pytest.mark.importer(4, 61)
    async def test_reference_keeps_a_sanitized_file_name(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            outside = sorted(area(api).parent.parent.rglob("*"))
            for number, (name, kept) in enumerate(KEPT_NAMES.items(), 1):
                file_path = await uploaded(ana, CONTENT, name)
                assert file_path.split("/", 2)[2] == kept
                assert await read_back(api, ana, file_path) == CONTENT
                assert len(files_in(api)) == number
                inside = set(area(api).rglob("*"))
                assert sorted(set(area(api).parent.parent.rglob("*")) - inside) == outside

    async def test_file_name_may_be_absent(self, ana: Caller):
        answer = await ana.send("POST", "importer/upload/file", content=HEAD.replace(b"a.bin", b"") + b"1" + END,
                                headers=MULTIPART)  # fmt: skip
        assert answer.json()["file_path"].endswith("/file")


class TestRefusal:
    @pytest.mark.importer(5, 2)
    async def test_requests_without_a_file_are_refused(self, ana: Caller):
        missing = await ana.send("POST", "importer/upload/file", files={"other": ("a.csv", CONTENT)})
        assert refusal(missing) == (400, "missing_parameter")
        assert missing.json()["error"] == "No file was submitted."
        nothing = await ana.send("POST", "importer/upload/file", content=b"", headers=MULTIPART)
        assert (refusal(nothing), nothing.json()["error"]) == ((400, "missing_parameter"), "No file was submitted.")
        assert await send_body(ana, part("file", b"text"), END[2:]) == (400, "missing_parameter")
        empty = await upload(ana, b"")
        assert refusal(empty) == (400, "file_empty")
        assert empty.json()["error"] == "The submitted file is empty."
        assert refusal(await ana.post_json("importer/upload/file", file="a")) == (400, "not_multipart")
        assert refusal(await ana.post("importer/upload/file", file="a")) == (400, "not_multipart")
        assert refusal(await ana.send("POST", "importer/upload/file")) == (400, "not_multipart")

    @pytest.mark.importer(5)
    async def test_second_file_discards_the_first(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            for second in ("file", "other"):
                body = (part("file", b"x" * 3 * MIB, "a"), part(second, b"y", "b"), END[2:])
                assert await send_body(ana, *body) == (400, "invalid_parameter")
            assert files_in(api) == []

    @pytest.mark.importer(5)
    async def test_text_parts_beside_the_file_are_ignored(self, ana: Caller):
        body = part("note", b"1") + part("file", CONTENT, "a.csv") + part("note", b"2") + END[2:]
        answer = await ana.send("POST", "importer/upload/file", content=body, headers=MULTIPART)
        assert (answer.status_code, answer.json()["size"]) == (201, len(CONTENT))

    @pytest.mark.importer(6)
    async def test_restricted_extensions_are_refused_in_any_spelling(self, small_importer: ImporterOpener):
        async with small_importer(restrict_local_file_extensions=".exe,bat") as api:
            ana = await api.user("ana")
            for name in ("x.exe", "x.EXE", "x.bat", "a.b.Bat", "x.exe. ", "d\\x.bat"):
                answer = await upload(ana, CONTENT, name)
                assert refusal(answer) == (400, "extension_not_allowed")
                assert "not allowed" in answer.json()["error"]
            assert (await upload(ana, CONTENT, "x.exe")).json()["error"] == (
                'Uploading files with type ".exe" is not allowed.'
            )
            assert (await upload(ana, CONTENT, "exe")).status_code == 201
            assert (await upload(ana, CONTENT, "x.csv")).status_code == 201
            assert len(files_in(api)) == 2

    @pytest.mark.importer(61)
    @pytest.mark.security("S11")
    async def test_excessive_parts_are_refused_early(self, ana: Caller):
        read = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            for _ in range(10_000):
                read += 1
                yield part("a", b"b")

        answer = await ana.send("POST", "importer/upload/file", content=body(), headers=MULTIPART)
        assert refusal(answer) == (400, "too_many_parts")
        assert read < 40

    @pytest.mark.importer(61)
    async def test_malformed_bodies_are_refused(self, ana: Caller):
        assert await send_body(ana, b"nothing of that kind") == (400, "invalid_parameter")
        answer = await ana.send(
            "POST", "importer/upload/file", content=HEAD, headers={"Content-Type": "multipart/form-data"}
        )
        assert refusal(answer) == (400, "invalid_parameter")
        assert await send_body(ana, part("a", b"x" * 70_000), END[2:]) == (400, "payload_too_large")


class TestSize:
    @pytest.mark.importer(7)
    async def test_file_one_byte_above_a_hundred_mebibytes_is_refused(self, api: Api, ana: Caller):
        before = files_in(api)

        async def body() -> AsyncIterator[bytes]:
            piece = bytes(MIB)
            yield HEAD
            for _ in range(100):
                yield piece
            yield b"1"
            yield END

        answer = await ana.send("POST", "importer/upload/file", content=body(), headers=MULTIPART)
        assert refusal(answer) == (400, "file_too_large")
        assert answer.json()["error"] == "File too large. Maximum file size is 100 MiB."
        assert files_in(api) == before

    @pytest.mark.importer(7)
    async def test_error_states_the_configured_size_limit(self, small_importer: ImporterOpener):
        async with small_importer(max_local_file_size_upload_limit=5 * MIB) as api:
            ana = await api.user("ana")
            assert (await upload(ana, bytes(5 * MIB))).status_code == 201
            answer = await upload(ana, bytes(5 * MIB + 1))
            assert refusal(answer) == (400, "file_too_large")
            assert "Maximum file size is 5 MiB" in answer.json()["error"]
            assert len(files_in(api)) == 1

    @pytest.mark.importer(8)
    async def test_length_above_the_limit_is_refused_before_the_body_is_read(self, small_importer: ImporterOpener):
        read: list[int] = []

        async def body(size: int) -> AsyncIterator[bytes]:
            read.append(size)
            yield HEAD
            yield bytes(size)
            yield END

        async with small_importer(max_local_file_size_upload_limit=10) as api:
            ana = await api.user("ana")

            async def code(length: int, size: int) -> tuple[int, str]:
                headers = {**MULTIPART, "Content-Length": str(length)}
                return refusal(await ana.send("POST", "importer/upload/file", content=body(size), headers=headers))

            assert await code(10 + MIB + 1, 1) == (400, "file_too_large")
            assert await code(10**30, 1) == (400, "file_too_large")
            assert read == []
            # Even if Content-Length is wrong, the number of bytes read does not exceed the limit.
            assert await code(10 + MIB, 11) == (400, "file_too_large")
            assert read == [11]
            assert files_in(api) == []

    @pytest.mark.importer(8)
    async def test_truncated_body_leaves_no_file(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            assert await send_body(ana, HEAD, bytes(3 * MIB)) == (400, "invalid_body")
            assert files_in(api) == []
            count = f"select count(*) from import_uploads where {_OWN}"
            assert await api.database.value(count, ana.username) == 0

    @pytest.mark.importer(8)
    async def test_disconnected_client_leaves_no_file(self, small_importer: ImporterOpener):
        arrived = asyncio.Event()
        gone = asyncio.Event()
        pieces = [HEAD, bytes(3 * MIB)]
        answers: list[Message] = []

        async def receive() -> Message:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": True}
            arrived.set()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answers.append(message)

        async with small_importer() as api:
            serving = asyncio.create_task(api.app(upload_scope(await api.user("ana")), receive, send))
            await arrived.wait()
            assert [path.name.startswith("._qs_") for path in files_in(api)] == [True]
            gone.set()
            await serving
            assert answers[0]["status"] == 400
            assert files_in(api) == []


class TestDiscard:
    @pytest.mark.importer(78)
    async def test_discarded_file_is_gone_and_frees_its_place(self, small_importer: ImporterOpener):
        async with small_importer(max_files_per_user=1) as api:
            ana = await api.user("ana")
            path = await uploaded(ana)
            assert refusal(await upload(ana)) == (400, "quota_exceeded")
            assert await discarded(ana, path)
            assert files_in(api) == []
            assert not await is_found(api, ana, path)
            await uploaded(ana)
            assert not await discarded(ana, path)

    @pytest.mark.importer(79)
    @pytest.mark.security("T20")
    async def test_only_the_owner_discards_a_file(self, api: Api, ana: Caller):
        path, bob = await uploaded(ana), await api.user("bob")
        for text in (path, f"{path}x", f"{path}/x", "/etc/passwd", "upload/../../x", "upload", "é\u202e" * 5000):
            assert not await discarded(bob, text)
        assert not await discarded(ana, f"{path}x")
        assert await read_back(api, ana, path) == CONTENT

    @pytest.mark.importer(79)
    async def test_expired_file_is_not_discarded(self, ana: Caller):
        path = await uploaded(ana)
        await turn_clock(ana, timedelta(days=1))
        assert not await discarded(ana, path)

    @pytest.mark.importer(78)
    async def test_parallel_calls_discard_a_file_once(self, ana: Caller):
        path = await uploaded(ana)
        assert sorted(await asyncio.gather(*[discarded(ana, path) for _ in range(5)])) == [False] * 4 + [True]

    async def test_reference_is_required(self, ana: Caller):
        for fields in ({}, {"file_path": ""}):
            assert refusal(await ana.post("importer/upload/discard", **fields)) == (400, "missing_parameter")


class TestQuota:
    @pytest.mark.security("T30")
    @pytest.mark.importer(2)
    async def test_files_per_user_are_limited(self, small_importer: ImporterOpener):
        async with small_importer(max_files_per_user=2) as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            await uploaded(ana)
            await uploaded(ana)
            assert refusal(await upload(ana)) == (400, "quota_exceeded")
            await uploaded(bob)
            await turn_clock(ana, timedelta(days=1))
            # Expired files do not count toward the limit, even if the cleanup has not removed them yet.
            await uploaded(ana)

    @pytest.mark.security("T30")
    async def test_bytes_per_user_are_limited(self, small_importer: ImporterOpener):
        async with small_importer(max_bytes_per_user=100) as api:
            ana = await api.user("ana")
            await uploaded(ana, bytes(60))
            answer = await upload(ana, bytes(41))
            assert refusal(answer) == (400, "quota_exceeded")
            assert "(`importer.max_bytes_per_user`)" in answer.json()["error"]
            await uploaded(ana, bytes(40))
            assert refusal(await upload(ana, b"1")) == (400, "quota_exceeded")
            assert len(files_in(api)) == 2

    @pytest.mark.security("T30")
    async def test_exhausted_quota_is_reported_before_the_body_is_read(self, small_importer: ImporterOpener):
        read = False

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            read = True
            yield HEAD + b"1" + END

        async with small_importer(max_files_per_user=1) as api:
            ana = await api.user("ana")
            await uploaded(ana)
            answer = await ana.send("POST", "importer/upload/file", content=body(), headers=MULTIPART)
            assert refusal(answer) == (400, "quota_exceeded")
            assert not read

    @pytest.mark.security("T30")
    async def test_concurrent_uploads_cannot_exceed_the_quota(self, small_importer: ImporterOpener):
        async with small_importer(max_files_per_user=2) as first, small_importer(max_files_per_user=2) as second:
            ana = await first.user("ana")
            there = Caller(second, ana.username, ana.headers)
            answers = await asyncio.gather(*[upload(caller) for caller in (ana, there) for _ in range(4)])
            assert sorted(answer.status_code for answer in answers) == [201] * 2 + [400] * 6
            assert {refusal(answer)[1] for answer in answers if answer.status_code == 400} == {"quota_exceeded"}
            assert len(files_in(first)) == 2

    @pytest.mark.security("T30")
    async def test_concurrent_uploads_per_user_are_limited(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            most = api.services.settings.editor.max_streams_per_user
            started, end = asyncio.Semaphore(0), asyncio.Event()

            async def body() -> AsyncIterator[bytes]:
                yield HEAD
                started.release()
                await end.wait()
                yield b"1" + END

            sending = [
                asyncio.create_task(ana.send("POST", "importer/upload/file", content=body(), headers=MULTIPART))
                for _ in range(most)
            ]
            for _ in range(most):
                await started.acquire()
            answer = await upload(ana)
            assert refusal(answer) == (429, "too_many_requests")
            assert int(answer.headers["retry-after"]) >= 1
            end.set()
            assert {answer.status_code for answer in await asyncio.gather(*sending)} == {201}


class TestReference:
    @pytest.mark.importer(10, 61)
    @pytest.mark.security("T3", "T20")
    async def test_only_the_owner_finds_the_file_and_only_by_the_full_reference(self, api, ana, bob):
        file_path = await uploaded(ana)
        assert await is_found(api, ana, file_path)
        assert not await is_found(api, bob, file_path)
        upload_word, secret, name = file_path.split("/")
        other = "A" if secret[0] != "A" else "B"
        for changed in (
            f"upload/{other}{secret[1:]}/{name}",
            f"upload/{secret.swapcase()}/{name}",
            f"upload/{secret}/other.csv",
            f"upload/{secret}/{name}/",
            f"upload/{secret}/{name}/x",
            f"upload/{secret}/{name}\n",
            f"upload/{secret}",
            f"/{file_path}",
            f"./{file_path}",
            f"x/../{file_path}",
            f" {file_path}",
            f"Upload/{secret}/{name}",
            f"{upload_word}//{secret}/{name}",
            "",
        ):
            assert not await is_found(api, ana, changed), changed
        assert await read_back(api, ana, file_path) == CONTENT

    @pytest.mark.importer(10, 61)
    @pytest.mark.security("T3")
    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "upload/../../x", "file:///etc/passwd", "upload/\0/x", "%2e%2e/x", "é" * 43]
    )
    async def test_paths_are_not_references(self, api: Api, ana: Caller, path: str):
        before = files_in(api)
        assert not await is_found(api, ana, path)
        assert files_in(api) == before

    @pytest.mark.security("T3")
    async def test_file_name_on_disk_is_not_a_reference(self, small_importer: ImporterOpener):
        async with small_importer() as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            (file,) = files_in(api)
            for path in (str(file), file.name, f"upload/{file.name}/sales.csv", f"upload/{file.name[:43]}/sales.csv"):
                assert not await is_found(api, ana, path)
            assert await is_found(api, ana, file_path)


class TestExpiry:
    @pytest.mark.importer(9)
    async def test_upload_expires_after_the_configured_time(self, small_importer: ImporterOpener):
        async with small_importer(upload_expiry_seconds=3600) as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            await turn_clock(ana, timedelta(minutes=59))
            assert await is_found(api, ana, file_path)
            await turn_clock(ana, timedelta(minutes=61))
            assert not await is_found(api, ana, file_path)

    @pytest.mark.importer(9)
    async def test_use_extends_the_expiry(self, small_importer: ImporterOpener):
        async with small_importer(upload_expiry_seconds=3600) as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            for _ in range(3):
                await turn_clock(ana, timedelta(minutes=40))
                assert await is_found(api, ana, file_path)
            assert not await is_found(api, await api.user("bob"), file_path)

    @pytest.mark.importer(9)
    async def test_use_by_another_user_does_not_extend_the_expiry(self, small_importer: ImporterOpener):
        async with small_importer(upload_expiry_seconds=3600) as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            file_path = await uploaded(ana)
            await turn_clock(ana, timedelta(minutes=40))
            assert not await is_found(api, bob, file_path)
            await turn_clock(ana, timedelta(minutes=21))
            assert not await is_found(api, ana, file_path)

    async def test_use_within_the_same_minute_does_not_update_the_record(self, api: Api, ana: Caller):
        file_path = await uploaded(ana)
        version = f"select xmin::text from import_uploads where {_OWN}"
        before = await api.database.value(version, ana.username)
        assert await is_found(api, ana, file_path)
        assert await api.database.value(version, ana.username) == before

    @pytest.mark.importer(61)
    async def test_running_import_keeps_the_upload(self, small_importer: ImporterOpener):
        async with small_importer(upload_expiry_seconds=3600) as api:
            ana = await api.user("ana")
            file_path = await uploaded(ana)
            uploads, user = api.services.importing.uploads, await user_of(api, ana)
            await turn_clock(ana, timedelta(minutes=59))
            await uploads.find(user, file_path)
            await turn_clock(ana, timedelta(minutes=59))
            assert await is_found(api, ana, file_path)
            await turn_clock(ana, timedelta(minutes=61))
            with raises_code("file_not_found"):
                await uploads.find(user, file_path)
