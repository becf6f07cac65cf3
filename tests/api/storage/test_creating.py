"""mkdir, touch, save (Contract storage 6)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.cases import each
from tests.fakes.storage import MemoryFileSystem, MemoryStorage

from queryserver.files.model import FileStatus, Scheme, StorageUser
from queryserver.files.protocol import PIECE_BYTES


@pytest.fixture
async def ana(files: Files):
    return await files.api.user("ana")


@pytest.fixture
def place(files: Files) -> str:
    return files.place()


class TestDirectories:
    @pytest.mark.storage(55)
    async def test_a_directory_is_made_once(self, ana, files, place):
        made = await ana.post("storage/mkdir", path=f"file:///{place}", name="new")
        assert (made.status_code, made.json()) == (201, {"status": 0, "path": f"file:///{place}/new"})
        again = await ana.post("storage/mkdir", path=f"file:///{place}", name="new")
        assert (again.status_code, again.json()["code"], again.json()["status"]) == (409, "already_exists", -1)
        assert (files.root / place / "new").is_dir()

    @pytest.mark.storage(55)
    async def test_a_full_path_alone_is_enough_for_mkdir_and_makes_parents(self, ana, files, place):
        made = await ana.post("storage/mkdir", path=f"file:///{place}/a/b/c")
        assert (made.status_code, made.json()["path"]) == (201, f"file:///{place}/a/b/c")
        assert (files.root / place / "a" / "b" / "c").is_dir()

    @pytest.mark.storage(56)
    @each("parent", ["a#b", "a\\b", "a\nb"])
    async def test_parents_that_are_made_have_names_for_new_directories(self, ana, files, parent):
        place = files.place()
        path = f"file:///{place}/{parent}/x/y"
        refused = await ana.post("storage/mkdir", path=path)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name")
        assert not list((files.root / place).iterdir())
        (files.root / place / parent).mkdir()
        assert (await ana.post("storage/mkdir", path=path)).status_code == 201

    @pytest.mark.storage(55)
    async def test_create_directory_needs_a_name(self, ana, place):
        refused = await ana.post("storage/create/directory", path=f"file:///{place}")
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")
        made = await ana.post("storage/create/directory", path=f"file:///{place}", name="x")
        assert made.status_code == 201

    @pytest.mark.storage(6)
    async def test_json_and_form_make_the_same(self, ana, place):
        form = await ana.post("storage/mkdir", path=f"file:///{place}", name="one")
        json = await ana.post_json("storage/mkdir", path=f"file:///{place}", name="two")
        multipart = await ana.send(
            "POST", "storage/mkdir", files={"path": (None, f"file:///{place}"), "name": (None, "three")}
        )
        assert [answer.status_code for answer in (form, json, multipart)] == [201, 201, 201]
        assert json.json()["path"] == f"file:///{place}/two"

    @pytest.mark.storage(8)
    async def test_odd_bodies_are_refused(self, ana):
        text = await ana.send("POST", "storage/mkdir", content=b"path=/x", headers={"Content-Type": "text/plain"})
        assert (text.status_code, text.json()["code"]) == (415, "unsupported_media_type")
        json = {"Content-Type": "application/json"}
        array = await ana.send("POST", "storage/mkdir", content=b"[1]", headers=json)
        assert (array.status_code, array.json()["code"]) == (400, "invalid_body")
        broken = await ana.send("POST", "storage/mkdir", content=b"{", headers=json)
        assert (broken.status_code, broken.json()["code"]) == (400, "invalid_json")
        large = await ana.send("POST", "storage/mkdir", content=b"path=" + b"x" * 1024 * 1024)
        assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")

    @pytest.mark.storage(56)
    @each("name", ["a/b", "a\\b", "a\nb", "a\x7fb", "..", ".", " ", "._qs_x", "x" * 256, "%2e%2e"])
    async def test_a_name_that_is_none_is_refused(self, ana, files, place, name):
        for call in ("mkdir", "touch", "create/directory", "create/file"):
            refused = await ana.post(f"storage/{call}", path=f"file:///{place}", name=name)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name"), call
        assert list((files.root / place).iterdir()) == []

    @pytest.mark.storage(56)
    async def test_a_hash_is_for_files_only(self, ana, place):
        directory = await ana.post("storage/mkdir", path=f"file:///{place}", name="a#b")
        assert (directory.status_code, directory.json()["code"]) == (400, "invalid_name")
        file = await ana.post("storage/touch", path=f"file:///{place}", name="a#b")
        assert (file.status_code, file.json()["path"]) == (201, f"file:///{place}/a#b")

    @pytest.mark.storage(56)
    async def test_blanks_around_a_name_do_not_count(self, ana, place):
        made = await ana.post("storage/mkdir", path=f"file:///{place}", name="  new  ")
        assert made.json()["path"] == f"file:///{place}/new"


class TestFiles:
    @pytest.mark.storage(57)
    async def test_a_file_is_made_once(self, ana, files, place):
        made = await ana.post("storage/touch", path=f"file:///{place}", name="a.txt")
        assert (made.status_code, made.json()) == (201, {"status": 0, "path": f"file:///{place}/a.txt"})
        again = await ana.post("storage/create/file", path=f"file:///{place}", name="a.txt")
        assert (again.status_code, again.json()["code"]) == (409, "already_exists")
        assert (files.root / place / "a.txt").read_bytes() == b""

    @pytest.mark.storage(57)
    async def test_of_many_touches_at_once_one_makes_the_file(self, ana, place):
        calls = [ana.post("storage/touch", path=f"file:///{place}/same") for _ in range(8)]
        statuses = [answer.status_code for answer in await asyncio.gather(*calls)]
        assert sorted(statuses) == [201] + [409] * 7

    async def test_a_missing_parent_is_named(self, ana, place):
        refused = await ana.post("storage/touch", path=f"file:///{place}/no/where")
        body = refused.json()
        assert (refused.status_code, body["code"]) == (404, "path_not_found")
        assert body["details"] == {"path": f"file:///{place}/no"}

    async def test_a_file_is_no_parent(self, ana, files, place):
        (files.root / place / "file").write_bytes(b"x")
        refused = await ana.post("storage/touch", path=f"file:///{place}/file/inner")
        assert (refused.status_code, refused.json()["code"]) == (400, "not_a_directory")


@pytest.mark.storage(58)
async def test_extensions_are_permitted_before_they_are_restricted(tmp_path: Path, shared_database_dsn: str) -> None:
    settings = storage_settings(
        tmp_path, shared_database_dsn, allow_file_extensions=".txt,GZ", restrict_file_extensions="exe,.txt"
    )
    async with open_api(settings) as api:
        ana = await api.user("ana")

        async def touched(name: str) -> tuple[int, str | None]:
            answer = await ana.post("storage/touch", path="file:///shared", name=name)
            return answer.status_code, answer.json().get("code")

        assert await touched("a.exe") == (400, "extension_not_permitted")
        assert await touched("a.TXT") == (400, "extension_restricted")
        assert await touched("a.tar.gz") == (201, None)
        assert await touched("plain") == (400, "extension_not_permitted")
        refused = await ana.post("storage/touch", path="file:///shared", name="a.EXE")
        assert refused.json()["message"] == (
            'File type ".exe" is not permitted. Modify file extension settings to allow this type.'
        )


class TestSaving:
    @pytest.mark.storage(59)
    async def test_text_is_replaced(self, ana, files, place):
        file = files.root / place / "text"
        file.write_text("old")
        file.chmod(0o640)
        saved = await ana.post("storage/save", path=f"file:///{place}/text", contents="é new")
        assert (saved.status_code, saved.json()) == (200, {"status": 0, "path": f"file:///{place}/text", "size": 6})
        assert file.read_text() == "é new"
        assert file.stat().st_mode & 0o777 == 0o640
        assert [entry.name for entry in file.parent.iterdir()] == ["text"]

    @pytest.mark.storage(59)
    async def test_what_is_missing_is_not_saved(self, ana, place):
        refused = await ana.post("storage/save", path=f"file:///{place}/no", contents="x")
        assert (refused.status_code, refused.json()["code"]) == (404, "path_not_found")

    async def test_nothing_is_made_or_saved_through_a_link(self, ana, files, place):
        target = files.root / place / "target"
        target.mkdir()
        (target / "text").write_text("old")
        (files.root / place / "link").symlink_to(target)
        (files.root / place / "text").symlink_to(target / "text")
        path = f"file:///{place}"
        for call, fields in (
            ("mkdir", {"path": f"{path}/link", "name": "new"}),
            ("touch", {"path": f"{path}/link", "name": "new"}),
            ("save", {"path": f"{path}/text", "contents": "x"}),
        ):
            refused = await ana.post(f"storage/{call}", **fields)
            assert (refused.status_code, refused.json()["code"]) == (403, "symlink_not_followed"), call
        assert [entry.read_text() for entry in target.iterdir()] == ["old"]

    async def test_a_directory_is_no_text(self, ana, place):
        refused = await ana.post("storage/save", path=f"file:///{place}", contents="x")
        assert (refused.status_code, refused.json()["code"]) == (400, "not_a_file")

    async def test_text_is_written_in_its_encoding_or_not_at_all(self, ana, files, place):
        file = files.root / place / "text"
        file.write_bytes(b"old")
        refused = await ana.post("storage/save", path=f"file:///{place}/text", contents="日本", encoding="iso-8859-1")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")
        assert file.read_bytes() == b"old"
        unknown = await ana.post("storage/save", path=f"file:///{place}/text", contents="x", encoding="rot13")
        assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_parameter")
        saved = await ana.post("storage/save", path=f"file:///{place}/text", contents="日本", encoding="SHIFT_JIS")
        assert saved.status_code == 200
        assert file.read_bytes() == "日本".encode("shift_jis")

    async def test_more_than_ten_mebibytes_are_too_much(self, ana, files, place):
        (files.root / place / "text").write_bytes(b"old")
        contents = "x" * (10 * 1024 * 1024 + 1)
        refused = await ana.post_json("storage/save", path=f"file:///{place}/text", contents=contents)
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        saved = await ana.post_json("storage/save", path=f"file:///{place}/text", contents=contents[:-1])
        assert saved.json()["size"] == 10 * 1024 * 1024


@pytest.mark.security("S1")
@each("path", ["/a/../b", "/a/%2e%2e/b", "/a/%252E%252e/b", "..", "a/.."])
async def test_no_change_takes_dots(ana, path):
    calls = {
        "mkdir": {"path": path},
        "touch": {"path": path},
        "save": {"path": path, "contents": "x"},
        "rmtree": {"path": path},
        "chmod": {"path": path, "mode": "755"},
        "chown": {"path": path, "user": "x"},
        "set_replication": {"path": path, "replication_factor": "2"},
        "trash/restore": {"path": path},
        "trash/purge": {"path": path},
    }
    for call, fields in calls.items():
        refused = await ana.post(f"storage/{call}", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_path"), call
    seen = await ana.get("storage/trash/path", path=path)
    assert (seen.status_code, seen.json()["code"]) == (400, "invalid_path")


class _Measured(MemoryFileSystem):
    """Remembers the pieces that writes got."""

    def __init__(self) -> None:
        super().__init__(Scheme.FILE, containers=["area"])
        self.pieces: list[int] = []

    def as_user(self, user: StorageUser) -> MemoryStorage:
        return _MeasuredStorage(self, user)


class _MeasuredStorage(MemoryStorage):
    def __init__(self, store: _Measured, user: StorageUser) -> None:
        super().__init__(store.tree, user, store.traits)
        self._pieces = store.pieces

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        async def measured() -> AsyncIterator[bytes]:
            async for piece in body:
                self._pieces.append(len(piece))
                yield piece

        return await super().write(path, measured(), overwrite=overwrite, size_bytes=size_bytes)


@pytest.mark.storage(59)
async def test_long_text_reaches_the_store_in_the_pieces_of_streams(tmp_path: Path, database_dsn: str):
    store = _Measured()
    store.tree.put("area/text", b"old")
    async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
        ana = await api.user("ana")
        saved = await ana.post_json("storage/save", path="file:///area/text", contents="x" * (2 * PIECE_BYTES + 1))
        assert saved.status_code == 200
    assert store.pieces == [PIECE_BYTES, PIECE_BYTES, 1]
