"""The calls mkdir, touch, save, delete and trash (Contract storage 6, 7.7, 7.8, 8)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.driving import open_api
from tests.api.storage.conftest import storage_settings
from tests.fakes.storage import MemoryFileSystem, MemoryStorage

from queryserver.files.model import FileStatus, Scheme, StorageUser
from queryserver.files.protocol import PIECE_BYTES


class TestDirectories:
    @pytest.mark.storage(55)
    async def test_mkdir_creates_a_directory_only_once(self, ana, files, folder):
        made = await ana.post("storage/mkdir", path=f"file:///{folder}", name="new")
        assert (made.status_code, made.json()) == (201, {"status": 0, "path": f"file:///{folder}/new"})
        again = await ana.post("storage/mkdir", path=f"file:///{folder}", name="new")
        assert (again.status_code, again.json()["code"], again.json()["status"]) == (409, "already_exists", -1)
        assert (files.root / folder / "new").is_dir()

    @pytest.mark.storage(55)
    async def test_mkdir_accepts_a_full_path_and_creates_parents(self, ana, files, folder):
        made = await ana.post("storage/mkdir", path=f"file:///{folder}/a/b/c")
        assert (made.status_code, made.json()["path"]) == (201, f"file:///{folder}/a/b/c")
        assert (files.root / folder / "a" / "b" / "c").is_dir()

    @pytest.mark.storage(56)
    @pytest.mark.parametrize("parent", ["a#b", "a\\b", "a\nb"])
    async def test_mkdir_validates_names_of_missing_parents(self, ana, files, parent):
        folder = files.folder()
        path = f"file:///{folder}/{parent}/x/y"
        refused = await ana.post("storage/mkdir", path=path)
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name")
        assert not list((files.root / folder).iterdir())
        (files.root / folder / parent).mkdir()
        assert (await ana.post("storage/mkdir", path=path)).status_code == 201

    @pytest.mark.storage(55)
    async def test_create_directory_requires_a_name(self, ana, folder):
        refused = await ana.post("storage/create/directory", path=f"file:///{folder}")
        assert (refused.status_code, refused.json()["code"]) == (400, "missing_parameter")
        made = await ana.post("storage/create/directory", path=f"file:///{folder}", name="x")
        assert made.status_code == 201

    @pytest.mark.storage(6)
    async def test_json_form_and_multipart_bodies_are_equivalent(self, ana, folder):
        form = await ana.post("storage/mkdir", path=f"file:///{folder}", name="one")
        json = await ana.post_json("storage/mkdir", path=f"file:///{folder}", name="two")
        multipart = await ana.send(
            "POST", "storage/mkdir", files={"path": (None, f"file:///{folder}"), "name": (None, "three")}
        )
        assert [answer.status_code for answer in (form, json, multipart)] == [201, 201, 201]
        assert json.json()["path"] == f"file:///{folder}/two"

    @pytest.mark.storage(8)
    async def test_malformed_bodies_are_refused(self, ana):
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
    @pytest.mark.parametrize("name", ["a/b", "a\\b", "a\nb", "a\x7fb", "..", ".", " ", "._qs_x", "x" * 256, "%2e%2e"])
    async def test_invalid_names_are_refused(self, ana, files, folder, name):
        for call in ("mkdir", "touch", "create/directory", "create/file"):
            refused = await ana.post(f"storage/{call}", path=f"file:///{folder}", name=name)
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid_name"), call
        assert list((files.root / folder).iterdir()) == []

    @pytest.mark.storage(56)
    async def test_hash_signs_are_allowed_only_in_file_names(self, ana, folder):
        directory = await ana.post("storage/mkdir", path=f"file:///{folder}", name="a#b")
        assert (directory.status_code, directory.json()["code"]) == (400, "invalid_name")
        file = await ana.post("storage/touch", path=f"file:///{folder}", name="a#b")
        assert (file.status_code, file.json()["path"]) == (201, f"file:///{folder}/a#b")

    @pytest.mark.storage(56)
    async def test_blanks_around_names_are_stripped(self, ana, folder):
        made = await ana.post("storage/mkdir", path=f"file:///{folder}", name="  new  ")
        assert made.json()["path"] == f"file:///{folder}/new"


class TestFiles:
    @pytest.mark.storage(57)
    async def test_touch_creates_a_file_only_once(self, ana, files, folder):
        made = await ana.post("storage/touch", path=f"file:///{folder}", name="a.txt")
        assert (made.status_code, made.json()) == (201, {"status": 0, "path": f"file:///{folder}/a.txt"})
        again = await ana.post("storage/create/file", path=f"file:///{folder}", name="a.txt")
        assert (again.status_code, again.json()["code"]) == (409, "already_exists")
        assert (files.root / folder / "a.txt").read_bytes() == b""

    @pytest.mark.storage(57)
    async def test_concurrent_touches_create_one_file(self, ana, folder):
        calls = [ana.post("storage/touch", path=f"file:///{folder}/same") for _ in range(8)]
        statuses = [answer.status_code for answer in await asyncio.gather(*calls)]
        assert sorted(statuses) == [201] + [409] * 7

    async def test_errors_name_the_missing_parent(self, ana, folder):
        refused = await ana.post("storage/touch", path=f"file:///{folder}/no/where")
        body = refused.json()
        assert (refused.status_code, body["code"]) == (404, "path_not_found")
        assert body["details"] == {"path": f"file:///{folder}/no"}

    async def test_files_cannot_be_parents(self, ana, files, folder):
        (files.root / folder / "file").write_bytes(b"x")
        refused = await ana.post("storage/touch", path=f"file:///{folder}/file/inner")
        assert (refused.status_code, refused.json()["code"]) == (400, "not_a_directory")


@pytest.mark.storage(58)
async def test_allowed_extensions_are_checked_before_restricted_extensions(
    tmp_path: Path, shared_database_dsn: str
) -> None:
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
    async def test_save_replaces_text(self, ana, files, folder):
        file = files.root / folder / "text"
        file.write_text("old")
        file.chmod(0o640)
        saved = await ana.post("storage/save", path=f"file:///{folder}/text", contents="é new")
        assert (saved.status_code, saved.json()) == (200, {"status": 0, "path": f"file:///{folder}/text", "size": 6})
        assert file.read_text() == "é new"
        assert file.stat().st_mode & 0o777 == 0o640
        assert [entry.name for entry in file.parent.iterdir()] == ["text"]

    @pytest.mark.storage(59)
    async def test_saving_a_missing_file_is_refused(self, ana, folder):
        refused = await ana.post("storage/save", path=f"file:///{folder}/no", contents="x")
        assert (refused.status_code, refused.json()["code"]) == (404, "path_not_found")

    async def test_links_are_not_followed_when_creating_or_saving(self, ana, files, folder):
        target = files.root / folder / "target"
        target.mkdir()
        (target / "text").write_text("old")
        (files.root / folder / "link").symlink_to(target)
        (files.root / folder / "text").symlink_to(target / "text")
        path = f"file:///{folder}"
        for call, fields in (
            ("mkdir", {"path": f"{path}/link", "name": "new"}),
            ("touch", {"path": f"{path}/link", "name": "new"}),
            ("save", {"path": f"{path}/text", "contents": "x"}),
        ):
            refused = await ana.post(f"storage/{call}", **fields)
            assert (refused.status_code, refused.json()["code"]) == (403, "symlink_not_followed"), call
        assert [entry.read_text() for entry in target.iterdir()] == ["old"]

    async def test_saving_to_a_directory_is_refused(self, ana, folder):
        refused = await ana.post("storage/save", path=f"file:///{folder}", contents="x")
        assert (refused.status_code, refused.json()["code"]) == (400, "not_a_file")

    async def test_unencodable_text_is_refused_and_the_file_stays_unchanged(self, ana, files, folder):
        file = files.root / folder / "text"
        file.write_bytes(b"old")
        refused = await ana.post("storage/save", path=f"file:///{folder}/text", contents="日本", encoding="iso-8859-1")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_parameter")
        assert file.read_bytes() == b"old"
        unknown = await ana.post("storage/save", path=f"file:///{folder}/text", contents="x", encoding="rot13")
        assert (unknown.status_code, unknown.json()["code"]) == (400, "invalid_parameter")
        saved = await ana.post("storage/save", path=f"file:///{folder}/text", contents="日本", encoding="SHIFT_JIS")
        assert saved.status_code == 200
        assert file.read_bytes() == "日本".encode("shift_jis")

    async def test_texts_above_ten_mebibytes_are_refused(self, ana, files, folder):
        (files.root / folder / "text").write_bytes(b"old")
        contents = "x" * (10 * 1024 * 1024 + 1)
        refused = await ana.post_json("storage/save", path=f"file:///{folder}/text", contents=contents)
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        saved = await ana.post_json("storage/save", path=f"file:///{folder}/text", contents=contents[:-1])
        assert saved.json()["size"] == 10 * 1024 * 1024


@pytest.mark.security("S1")
@pytest.mark.parametrize("path", ["/a/../b", "/a/%2e%2e/b", "/a/%252E%252e/b", "..", "a/.."])
async def test_changing_calls_refuse_dot_segments(ana, path):
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
    """A store that records the size of each chunk that is written to it."""

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
async def test_long_texts_reach_the_store_in_chunks(tmp_path: Path, database_dsn: str):
    store = _Measured()
    store.tree.put("area/text", b"old")
    async with open_api(storage_settings(tmp_path, database_dsn), stores={Scheme.FILE: lambda _: store}) as api:
        ana = await api.user("ana")
        saved = await ana.post_json("storage/save", path="file:///area/text", contents="x" * (2 * PIECE_BYTES + 1))
        assert saved.status_code == 200
    assert store.pieces == [PIECE_BYTES, PIECE_BYTES, 1]


async def test_deleted_entries_keep_their_full_path_in_the_trash(ana, files, folder):
    (files.root / folder / "d").mkdir()
    (files.root / folder / "d" / "x").write_bytes(b"x")
    deleted = await ana.post("storage/rmtree", path=f"file:///{folder}/d")
    trash = f"user/{ana.username}/.Trash/Current/{folder}/d"
    assert deleted.json() == {
        "status": 0,
        "path": f"file:///{folder}/d",
        "trashed": True,
        "trash_path": f"file:///{trash}",
    }
    assert not (files.root / folder / "d").exists()
    assert (files.root / trash / "x").read_bytes() == b"x"
    assert (files.root / "user" / ana.username / ".Trash").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("form", [{"skip_trash": "true"}, {"skip_trash": "Yes"}])
async def test_skip_trash_deletes_permanently(ana, files, folder, form):
    (files.root / folder / "x").write_bytes(b"x")
    deleted = await ana.post("storage/delete", path=f"file:///{folder}/x", **form)
    assert (deleted.json()["trashed"], deleted.json()["trash_path"]) == (False, None)
    assert not (files.root / folder / "x").exists()
    assert not (files.root / "user" / ana.username / ".Trash" / "Current" / folder).exists()


@pytest.mark.storage(72)
async def test_skip_trash_is_accepted_in_the_query(ana, files, folder):
    for value, trashed in (("true", False), ("false", True)):
        (files.root / folder / "x").write_bytes(b"x")
        deleted = await ana.post(f"storage/rmtree?skip_trash={value}", path=f"file:///{folder}/x")
        assert deleted.json()["trashed"] is trashed


@pytest.mark.storage(7)
async def test_contradicting_query_and_body_are_refused(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"x")
    refused = await ana.post("storage/rmtree?skip_trash=true", path=f"file:///{folder}/x", skip_trash="false")
    assert (refused.status_code, refused.json()["code"]) == (400, "conflicting_parameters")
    assert (files.root / folder / "x").exists()


@pytest.mark.storage(74)
async def test_trash_keeps_every_deletion_of_the_same_path(ana, files, folder):
    paths = []
    for content in (b"one", b"two", b"three"):
        (files.root / folder / "x").write_bytes(content)
        paths.append((await ana.post("storage/rmtree", path=f"file:///{folder}/x")).json()["trash_path"])
    kept = [(files.root / path.removeprefix("file:///")).read_bytes() for path in paths]
    assert kept == [b"one", b"two", b"three"]


async def test_trashed_file_does_not_block_a_directory_of_the_same_name(ana, files, folder):
    (files.root / folder / "a").write_bytes(b"file")
    await ana.post("storage/rmtree", path=f"file:///{folder}/a")
    (files.root / folder / "a").mkdir()
    (files.root / folder / "a" / "b").write_bytes(b"inner")
    deleted = await ana.post("storage/rmtree", path=f"file:///{folder}/a/b")
    assert deleted.status_code == 200, deleted.text
    assert (files.root / deleted.json()["trash_path"].removeprefix("file:///")).read_bytes() == b"inner"


@pytest.mark.storage(75)
async def test_restore_recreates_missing_parents(ana, files, folder):
    (files.root / folder / "a").mkdir()
    (files.root / folder / "a" / "x").write_bytes(b"x")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{folder}/a/x")).json()["trash_path"]
    await ana.post("storage/rmtree", path=f"file:///{folder}/a", skip_trash="true")
    restored = await ana.post("storage/trash/restore", path=trashed)
    assert restored.json() == {"status": 0, "path": f"file:///{folder}/a/x", "source": trashed}
    assert (files.root / folder / "a" / "x").read_bytes() == b"x"
    missing = await ana.post("storage/trash/restore", path=trashed)
    assert (missing.status_code, missing.json()["code"]) == (404, "path_not_found")


@pytest.mark.storage(75)
async def test_restore_does_not_replace_existing_entries(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"old")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{folder}/x")).json()["trash_path"]
    (files.root / folder / "x").write_bytes(b"new")
    refused = await ana.post("storage/trash/restore", path=trashed)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
    assert (files.root / folder / "x").read_bytes() == b"new"
    assert (files.root / trashed.removeprefix("file:///")).read_bytes() == b"old"


@pytest.mark.storage(75)
@pytest.mark.parametrize("path", [".Trash", ".Trash/Current", ".TrashX/Current/a", ".Trash/other/a", "a", ""])
async def test_restore_accepts_only_trash_entries(ana, path):
    refused = await ana.post("storage/trash/restore", path=f"file:///user/{ana.username}/{path}")
    assert (refused.status_code, refused.json()["code"]) == (400, "not_in_trash")


@pytest.mark.storage(76)
async def test_purge_empties_only_the_callers_trash(ana, files, folder):
    ben = await files.api.user("ben")
    for user, name in ((ana, "a"), (ana, "b"), (ben, "c")):
        (files.root / folder / name).write_bytes(b"x")
        await user.post("storage/rmtree", path=f"file:///{folder}/{name}")
    purged = await ana.post("storage/trash/purge")
    assert purged.json() == {"status": 0, "path": f"file:///user/{ana.username}/.Trash", "purged": 1}
    assert list((files.root / "user" / ana.username / ".Trash").iterdir()) == []
    assert (files.root / "user" / ben.username / ".Trash" / "Current" / folder / "c").exists()


@pytest.mark.storage(76)
async def test_purge_without_a_trash_succeeds(ana):
    purged = await ana.post("storage/trash/purge", path="file:///shared")
    assert (purged.status_code, purged.json()["purged"]) == (200, 0)


@pytest.mark.storage(77)
@pytest.mark.parametrize("path", ["file:///", "file:///user", "file:///user/"])
async def test_roots_cannot_be_deleted(files, path):
    admin = await files.api.user("admin", admin=True)
    for skip in ("true", "false"):
        refused = await admin.post("storage/rmtree", path=path, skip_trash=skip)
        assert (refused.status_code, refused.json()["code"]) == (400, "root_not_allowed")


@pytest.mark.storage(78)
async def test_trash_path_is_returned_once_the_trash_exists(ana, files, folder):
    home = f"file:///user/{ana.username}"
    assert (await ana.get("storage/trash/path", path=home)).json() == {"status": 0, "path": home, "trash_path": None}
    (files.root / folder / "x").write_bytes(b"x")
    await ana.post("storage/rmtree", path=f"file:///{folder}/x")
    assert (await ana.get("storage/trash/path", path=home)).json()["trash_path"] == f"{home}/.Trash"
    await ana.post("storage/mkdir", path=f"{home}/x")
    await ana.post("storage/rmtree", path=f"{home}/x")
    told = (await ana.get("storage/trash/path", path=home)).json()["trash_path"]
    assert told == f"{home}/.Trash/Current/user/{ana.username}"


async def test_trash_cannot_be_moved_to_the_trash(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"x")
    trashed = (await ana.post("storage/rmtree", path=f"file:///{folder}/x")).json()["trash_path"]
    again = await ana.post("storage/rmtree", path=trashed)
    assert (again.status_code, again.json()["code"]) == (409, "already_in_trash")
    for path in (f"file:///user/{ana.username}", f"file:///user/{ana.username}/.Trash"):
        whole = await ana.post("storage/rmtree", path=path)
        assert (whole.status_code, whole.json()["code"]) == (409, "contains_trash")
    assert (await ana.post("storage/rmtree", path=trashed, skip_trash="true")).status_code == 200


async def test_deleting_a_missing_entry_is_refused(ana, folder):
    for skip in ("true", "false"):
        refused = await ana.post("storage/rmtree", path=f"file:///{folder}/no", skip_trash=skip)
        assert (refused.status_code, refused.json()["code"]) == (404, "path_not_found")


@pytest.mark.storage(71)
async def test_bulk_delete_continues_after_a_failure(ana, files, folder):
    for name in ("a", "c"):
        (files.root / folder / name).write_bytes(b"x")
    paths = [f"file:///{folder}/{name}" for name in "abc"]
    for call in ("storage/delete/bulk", "storage/rmtree"):
        answer = await ana.send("POST", call, data={"path": paths, "skip_trash": "true"})
        body = answer.json()
        assert (answer.status_code, body["status"], body["code"]) == (404, -1, "partial_failure")
        assert list(body["results"]) == paths
        assert body["results"][paths[1]]["code"] == "path_not_found"
        assert [body["results"][path]["status"] for path in (paths[0], paths[2])] == [0, 0]
        assert list((files.root / folder).iterdir()) == []
        for name in ("a", "c"):
            (files.root / folder / name).write_bytes(b"x")
    good = await ana.post_json("storage/delete/bulk", path=[paths[0], paths[2]])
    assert (good.status_code, good.json()["status"]) == (200, 0)


@pytest.mark.storage(71)
async def test_bulk_delete_continues_after_an_invalid_path_in_any_position(ana, files, folder):
    good = f"file:///{folder}/a"
    for paths in ([good, "gs://b"], ["gs://b", good]):
        (files.root / folder / "a").write_bytes(b"x")
        answer = await ana.send("POST", "storage/delete/bulk", data={"path": paths, "skip_trash": "true"})
        body = answer.json()
        assert (answer.status_code, body["code"]) == (400, "partial_failure")
        assert body["results"]["gs://b"]["code"] == "unknown_scheme"
        assert body["results"][good]["status"] == 0
        assert list((files.root / folder).iterdir()) == []


@pytest.mark.storage(70)
async def test_delete_without_waiting_may_still_be_running(ana, files, folder):
    (files.root / folder / "x").write_bytes(b"x")
    answer = await ana.post("storage/rmtree", path=f"file:///{folder}/x", wait="0")
    body = answer.json()
    if answer.status_code == 202:
        assert (body["path"], body["state"]) == (f"file:///{folder}/x", "running")
        while (seen := (await ana.get("storage/operation", id=body["operation_id"])).json())["state"] == "running":
            pass
        body = seen["result"]
    assert body["trashed"] is True
    stranger = await files.api.user("ben")
    hidden = await stranger.get("storage/operation", id="00000000-0000-4000-8000-000000000000")
    assert (hidden.status_code, hidden.json()["code"]) == (404, "operation_not_found")


@pytest.mark.storage(1)
async def test_archive_calls_are_not_supported(ana):
    for call in ("extract_archive", "compress"):
        refused = await ana.post(f"storage/{call}")
        assert (refused.status_code, refused.json()["code"], refused.json()["status"]) == (501, "not_supported", -1)


@pytest.mark.parametrize("call", ["rmtree", "delete/bulk", "chmod/bulk", "trash/restore/bulk"])
async def test_bulk_calls_accept_at_most_a_thousand_items(ana, folder, call):
    paths = [f"file:///{folder}/{number}" for number in range(1001)]
    for send in (ana.post, ana.post_json):
        refused = await send(f"storage/{call}", path=paths, mode="644")
        assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")


@pytest.mark.storage(74)
async def test_trash_keeps_both_deletions_of_a_long_name(ana, files, folder):
    file = files.root / folder / ("é" * 127)
    for content in ("first", "second"):
        file.write_text(content)
        deleted = await ana.post("storage/rmtree", path=f"file:///{folder}/{file.name}")
        assert deleted.status_code == 200, deleted.text
    trash = files.root / "user" / ana.username / ".Trash" / "Current" / folder
    assert sorted(entry.read_text() for entry in trash.iterdir()) == ["first", "second"]
