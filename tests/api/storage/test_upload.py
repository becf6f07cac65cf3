"""File uploads in a single request (Contract storage 9.1)."""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings

CONTENT = b"a,b\n1,2\n"


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


async def upload(
    caller: Caller, folder: str, name: str = "a.csv", content: bytes = CONTENT, *, part: str = "file", **query: Any
) -> httpx.Response:
    query = {"dest": f"file:///{folder}", **query}
    return await caller.send("POST", "storage/upload/file", params=query, files={part: (name, content)})


def raw(disposition: str, content: bytes = CONTENT, more: str = "") -> dict[str, Any]:
    """Return a multipart request with this content disposition and content, which httpx cannot produce."""
    body = f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return {
        "content": body + more.encode() + b"--x--\r\n",
        "headers": {"Content-Type": "multipart/form-data; boundary=x"},
    }


async def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.json()["status"] == -1, answer.text
    return answer.status_code, answer.json()["code"]


class TestFile:
    async def test_unknown_fields_before_and_after_the_file_are_reported(self, ana: Caller, folder: str):
        odd = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n1\r\n'
        body = raw('name="file"; filename="a.csv"', more=odd.format("behind"))
        body["content"] = odd.format("before").encode() + body["content"]
        query = {"dest": f"file:///{folder}", "destt": "x"}
        answer = await ana.send("POST", "storage/upload/file", params=query, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unknown-fields"] == "before,behind,destt"

    @pytest.mark.storage(83, 4)
    @pytest.mark.parametrize("part", ["local_file", "hdfs_file", "file"])
    async def test_every_part_name_for_the_file_is_accepted(self, ana: Caller, files: Files, part: str):
        folder = files.folder()
        answer = await upload(ana, folder, part=part)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["status"], body["path"], body["size"]) == (0, f"file:///{folder}/a.csv", len(CONTENT))
        assert (body["data"], body["next"]) == ("", None)
        assert body["sha256"] == hashlib.sha256(CONTENT).hexdigest()
        assert (body["result"]["name"], body["result"]["type"]) == ("a.csv", "file")
        assert (body["file_stats"]["path"], body["file_stats"]["size"]) == (body["path"], len(CONTENT))
        assert (files.root / folder / "a.csv").read_bytes() == CONTENT
        assert names(files.root / folder) == ["a.csv"]

    @pytest.mark.storage(83)
    async def test_unknown_part_name_is_refused(self, ana: Caller, files: Files, folder: str):
        assert await refused(await upload(ana, folder, part="data")) == (400, "invalid_parameter")
        assert names(files.root / folder) == []

    @pytest.mark.storage(83)
    async def test_second_file_discards_the_first(self, ana: Caller, files: Files, folder: str):
        second = '--x\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\nz\r\n'
        body = raw('name="file"; filename="a"', b"x" * 3_000_000, second)
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", **body)
        assert await refused(answer) == (400, "invalid_parameter")
        assert names(files.root / folder) == []

    async def test_body_without_a_file_is_refused(self, ana: Caller, files: Files, folder: str):
        answer = await ana.send("POST", "storage/upload/file", **raw('name="dest"', f"file:///{folder}".encode()))
        assert await refused(answer) == (400, "missing_parameter")

    async def test_empty_file_is_stored(self, ana: Caller, files: Files, folder: str):
        answer = await upload(ana, folder, content=b"")
        assert (answer.status_code, answer.json()["size"]) == (200, 0)
        assert (files.root / folder / "a.csv").read_bytes() == b""

    @pytest.mark.storage(8)
    @pytest.mark.parametrize("kind", ["text/csv", "application/json", "application/x-www-form-urlencoded", ""])
    async def test_non_multipart_body_is_refused(self, ana: Caller, folder: str, kind: str):
        path = f"storage/upload/file?dest=file:///{folder}"
        answer = await ana.send("POST", path, content=CONTENT, headers={"Content-Type": kind})
        assert await refused(answer) == (415, "unsupported_media_type")

    @pytest.mark.storage(3)
    async def test_unauthenticated_uploads_are_refused(self, files: Files, folder: str):
        assert (await upload(files.api.stranger, folder)).status_code == 401
        bad = Caller(files.api, "", {"Authorization": "Bearer bad"})
        answer = await upload(bad, folder)
        assert (answer.status_code, answer.json()["code"]) == (401, "token_not_valid")
        assert names(files.root / folder) == []

    @pytest.mark.storage(95)
    async def test_uploads_refuse_doas(self, ana: Caller, files: Files, folder: str):
        assert await refused(await upload(ana, folder, doas="bob")) == (400, "invalid_parameter")
        field = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nz\r\n'
        body = raw('name="doas"', b"bob", field)
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", **body)
        assert await refused(answer) == (400, "invalid_parameter")
        # The field doas is also refused if it follows the file.
        parts = [("file", ("a", b"z")), ("doas", (None, "bob"))]
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", files=parts)
        assert await refused(answer) == (400, "invalid_parameter")
        assert names(files.root / folder) == []


class TestDestination:
    @pytest.mark.storage(84, 7)
    @pytest.mark.parametrize("name", ["dest", "destination_path", "dest_path"])
    async def test_destination_is_accepted_in_the_query_or_before_the_file(self, ana: Caller, files: Files, name: str):
        folder = files.folder()
        parts = {"file": ("query.csv", CONTENT)}
        query = await ana.send("POST", "storage/upload/file/", params={name: f"file:///{folder}"}, files=parts)
        assert query.status_code == 200, query.text
        parts = {name: (None, f"file:///{folder}"), "file": ("field.csv", CONTENT)}
        field = await ana.send("POST", "storage/upload/file", files=parts)
        assert field.status_code == 200, field.text
        assert names(files.root / folder) == ["field.csv", "query.csv"]

    @pytest.mark.storage(84)
    async def test_destination_after_the_file_is_refused(self, ana: Caller, files: Files, folder: str):
        parts = {"file": ("a.csv", CONTENT), "dest": (None, f"file:///{folder}")}
        answer = await ana.send("POST", "storage/upload/file", files=parts)
        assert await refused(answer) == (400, "missing_parameter")
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", files=parts)
        assert await refused(answer) == (400, "invalid_parameter")
        assert names(files.root / folder) == []

    @pytest.mark.storage(7)
    async def test_contradicting_destinations_are_refused(self, ana: Caller, folder: str):
        answer = await upload(ana, folder, destination_path="file:///shared")
        assert await refused(answer) == (400, "conflicting_parameters")

    @pytest.mark.storage(92)
    async def test_destination_must_be_a_directory(self, ana: Caller, files: Files, folder: str):
        (files.root / folder / "file").write_bytes(b"")
        assert await refused(await upload(ana, f"{folder}/none")) == (404, "path_not_found")
        assert await refused(await upload(ana, f"{folder}/file")) == (400, "not_a_directory")
        assert names(files.root / folder) == ["file"]

    @pytest.mark.security("S5")
    async def test_destination_links_are_not_followed(self, ana: Caller, files: Files, folder: str):
        (files.root / folder / "target").mkdir()
        (files.root / folder / "link").symlink_to("target")
        query = {
            "qquuid": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
            "qqtotalfilesize": 1,
            "qqfilename": "a",
            "dest": f"file:///{folder}/link",
        }
        parts = await ana.send("POST", "storage/upload/chunks", params=query, files={"file": ("a", b"x")})
        for answer in (await upload(ana, f"{folder}/link"), parts):
            assert await refused(answer) == (403, "symlink_not_followed")
        assert names(files.root / folder / "target") == []

    @pytest.mark.storage(92)
    @pytest.mark.security("S9")
    async def test_uploads_to_another_users_home_are_refused(self, ana: Caller, files: Files):
        bob = await files.api.user("bob")
        (files.root / "user" / bob.username).mkdir(parents=True)
        answer = await upload(ana, f"user/{bob.username}")
        assert answer.status_code == 403
        assert names(files.root / "user" / bob.username) == []

    @pytest.mark.security("S1", "T1")
    @pytest.mark.parametrize("dest", ["file:///a/../b", "file:///a/%2e%2e/b", "file:///a/%252E%252e/b", "file:///a\0"])
    async def test_destination_outside_the_root_is_refused(self, ana: Caller, dest: str):
        answer = await ana.send("POST", f"storage/upload/file?dest={quote(dest)}", files={"file": ("a", b"")})
        assert answer.status_code == 400


class TestName:
    @pytest.mark.storage(17)
    @pytest.mark.parametrize(
        "name", ["a?b#c.csv", "100%.csv", "two words.csv", "é.csv", "日本.csv", "%2e%2f", "a&(b)@'"]
    )
    async def test_unusual_file_names_are_kept(self, ana: Caller, files: Files, folder: str, name: str):
        body = raw(f'name="file"; filename="{name}"')
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", **body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["result"]["name"] == name
        assert (files.root / folder / name).read_bytes() == CONTENT

    @pytest.mark.security("S6", "T2")
    @pytest.mark.storage(56)
    @pytest.mark.parametrize(
        "parameter",
        [
            'filename="../../x"',
            'filename="C:\\x"',
            'filename="a/b"',
            'filename="/etc/passwd"',
            'filename="a\nb"',
            'filename="a\x7fb"',
            'filename="a\x00b"',
            'filename=".."',
            'filename="%2e%2e"',
            'filename=""',
            'filename="  "',
            'filename="._qs_upload_x"',
            "filename*=UTF-8''..%2F..%2Fx",
            "filename*=UTF-8''a%0D%0Ab",
            'filename="=?UTF-8?Q?a=0D=0Ab?="',
            f'filename="{"x" * 256}"',
        ],
    )
    async def test_paths_and_invalid_names_are_refused(self, ana, files, folder, parameter):
        answer = await ana.send(
            "POST", f"storage/upload/file?dest=file:///{folder}", **raw(f'name="file"; {parameter}')
        )
        assert await refused(answer) == (400, "invalid_name")
        assert names(files.root / folder) == []

    @pytest.mark.security("S6")
    async def test_file_name_with_a_carriage_return_is_refused(self, ana: Caller, files: Files, folder: str):
        answer = await ana.send(
            "POST", f"storage/upload/file?dest=file:///{folder}", **raw('name="file"; filename="a\rb"')
        )
        assert answer.status_code == 400
        assert names(files.root / folder) == []

    async def test_blanks_around_file_names_are_stripped(self, ana: Caller, files: Files, folder: str):
        assert (await upload(ana, folder, "  a b.csv ")).json()["result"]["name"] == "a b.csv"


class TestOverwriting:
    @pytest.mark.storage(85)
    async def test_existing_file_is_replaced_only_with_overwrite(self, ana: Caller, files: Files, folder: str):
        await upload(ana, folder)
        assert await refused(await upload(ana, folder, content=b"new")) == (409, "already_exists")
        assert (files.root / folder / "a.csv").read_bytes() == CONTENT
        replaced = await upload(ana, folder, content=b"new", overwrite="true")
        assert (replaced.status_code, replaced.json()["size"]) == (200, 3)
        assert (files.root / folder / "a.csv").read_bytes() == b"new"
        assert names(files.root / folder) == ["a.csv"]

    @pytest.mark.storage(85)
    async def test_directory_is_never_replaced(self, ana: Caller, files: Files, folder: str):
        (files.root / folder / "a.csv").mkdir()
        assert await refused(await upload(ana, folder, overwrite="true")) == (409, "already_exists")

    async def test_overwrite_is_accepted_as_a_form_field(self, ana: Caller, files: Files, folder: str):
        await upload(ana, folder)
        parts = {"overwrite": (None, "yes"), "file": ("a.csv", b"new")}
        answer = await ana.send("POST", f"storage/upload/file?dest=file:///{folder}", files=parts)
        assert answer.status_code == 200
        assert (files.root / folder / "a.csv").read_bytes() == b"new"


class TestDigest:
    @pytest.mark.storage(88)
    async def test_wrong_digest_leaves_no_file(self, ana: Caller, files: Files, folder: str):
        wrong = hashlib.sha256(b"other").hexdigest()
        assert await refused(await upload(ana, folder, sha256=wrong)) == (422, "verification_failed")
        assert names(files.root / folder) == []
        await upload(ana, folder)
        answer = await upload(ana, folder, content=b"new", overwrite="1", sha256=wrong)
        assert await refused(answer) == (422, "verification_failed")
        assert (files.root / folder / "a.csv").read_bytes() == CONTENT

    async def test_matching_digest_is_accepted_in_either_case(self, ana: Caller, folder: str):
        assert (await upload(ana, folder, sha256=hashlib.sha256(CONTENT).hexdigest().upper())).status_code == 200

    @pytest.mark.parametrize("sha256", ["abc", "g" * 64, "a" * 63])
    async def test_malformed_digest_is_refused(self, ana: Caller, files: Files, folder: str, sha256: str):
        assert await refused(await upload(ana, folder, sha256=sha256)) == (400, "invalid_parameter")
        assert names(files.root / folder) == []


class TestSettings:
    @pytest.mark.storage(87)
    async def test_files_above_the_limit_are_refused(self, tmp_path: Path, database_dsn: str):
        settings = storage_settings(tmp_path, database_dsn, max_file_size_upload_limit=20_000)
        async with open_api(settings) as api:
            ana = await api.user("ana")
            fits = await upload(ana, "shared", content=b"x" * 20_000)
            assert fits.status_code == 200, fits.text
            # The size of the body is within the allowance for boundaries and headers. Only counting the file's bytes
            # reveals that it is too large.
            streamed = await upload(ana, "shared", "b.csv", content=b"x" * 20_001)
            assert await refused(streamed) == (413, "file_too_large")
            assert streamed.json()["message"] == "File exceeds maximum allowed size of 20000 bytes."
            space = await ana.get("taskserver/upload/available_space")
            assert space.json()["upload_available_space"] == 20_000
        assert names(tmp_path / "files" / "shared") == ["a.csv"]

    @pytest.mark.storage(87)
    async def test_oversized_body_is_refused_before_it_is_read(self, tmp_path: Path, database_dsn: str):
        settings = storage_settings(tmp_path, database_dsn, max_file_size_upload_limit=20_000)

        async def never_read():
            raise AssertionError("the body was read")
            yield b""

        async with open_api(settings) as api:
            headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "30000"}
            answer = await (await api.user("ana")).send(
                "POST", "storage/upload/file?dest=file:///shared", content=never_read(), headers=headers
            )
        assert await refused(answer) == (413, "file_too_large")

    async def test_disabled_uploads_are_refused(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn, show_upload_button=False)) as api:
            ana = await api.user("ana")
            assert await refused(await upload(ana, "shared")) == (403, "upload_disabled")

    @pytest.mark.storage(58)
    async def test_file_extensions_are_checked(self, tmp_path: Path, database_dsn: str):
        settings = storage_settings(
            tmp_path, database_dsn, allow_file_extensions=(".csv", "gz"), restrict_file_extensions=("gz",)
        )
        async with open_api(settings) as api:
            ana = await api.user("ana")
            assert (await upload(ana, "shared", "a.CSV")).status_code == 200
            assert await refused(await upload(ana, "shared", "a.txt")) == (400, "extension_not_permitted")
            assert await refused(await upload(ana, "shared", "README")) == (400, "extension_not_permitted")
            assert await refused(await upload(ana, "shared", "a.csv.gz")) == (400, "extension_restricted")
        assert names(tmp_path / "files" / "shared") == ["a.CSV"]


class TestSpace:
    @pytest.mark.storage(96)
    async def test_available_space_is_an_integer(self, ana: Caller):
        answer = await ana.get("taskserver/upload/available_space/")
        assert answer.status_code == 200
        assert answer.json()["upload_available_space"] > 0

    @pytest.mark.storage(9)
    async def test_missing_local_root_returns_503(self, tmp_path: Path, database_dsn: str):
        async with open_api(storage_settings(tmp_path, database_dsn)) as api:
            ana = await api.user("ana")
            (tmp_path / "files").rename(tmp_path / "moved")
            answer = await ana.get("taskserver/upload/available_space")
        assert await refused(answer) == (503, "storage_unavailable")
        assert "Retry-After" in answer.headers
