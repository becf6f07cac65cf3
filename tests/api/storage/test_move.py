"""Moves and bulk moves (Contract storage 7.3 to 7.5, 7.8)."""

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import StoreFolder, World, each_store
from tests.engines.store_tables import s3_tables
from tests.engines.versitygw import S3Address
from tests.fakes.storage_faults import FaultyFileSystem, FaultyStorage

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageError, StorageUnavailable
from queryserver.files.model import FileStatus, Scheme, StorageUser

every_store = each_store(Scheme.FILE, Scheme.HDFS, Scheme.S3A, Scheme.ABFS, Scheme.OFS)


@pytest.fixture
def folder(world: World, request: pytest.FixtureRequest) -> StoreFolder:
    """A new directory on the store under test."""
    return world.folder(request.param)


async def refused(caller: Caller, call: str, **fields: Any) -> tuple[int, str]:
    answer = await caller.post(f"storage/{call}", **fields)
    return answer.status_code, answer.json()["code"]


def nth(number: int, error: QueryServerError) -> Callable[[int, str], QueryServerError | None]:
    return lambda call, _path: error if call == number else None


@pytest.mark.storage(63)
@every_store
async def test_move_keeps_the_name_in_a_directory_and_changes_it_for_a_new_path(
    eva: Caller, folder: StoreFolder
) -> None:
    folder.put(x=b"x", tree__y=b"y", d=None)
    into = await eva.post("storage/move", src_path=folder.at("x"), dest_path=folder.at("d/"))
    assert into.json() == {
        "status": 0,
        "path": folder.at("d/x"),
        "source": folder.at("x"),
        "message": f"Moved '{folder.at('x')}' to '{folder.at('d/x')}' successfully",
    }
    anew = await eva.post("storage/move", src_path=folder.at("tree/"), dest_path=folder.at("d/other"))
    assert anew.json()["path"] == folder.at("d/other")
    assert folder.all() == {"d": None, "d/x": b"x", "d/other": None, "d/other/y": b"y"}


@pytest.mark.storage(56)
async def test_only_new_names_are_validated(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(**{"x": b"x", "a\\b": b"y", "d": None})
    assert await refused(eva, "move", src_path=folder.at("x"), dest_path=folder.at("d/a\\b")) == (400, "invalid_name")
    assert (await eva.post("storage/move", src_path=folder.at("a\\b"), dest_path=folder.at("d/"))).status_code == 200
    assert folder.all() == {"x": b"x", "d": None, "d/a\\b": b"y"}


@pytest.mark.storage(63)
@pytest.mark.parametrize("call", ["move", "copy"])
@every_store
async def test_move_onto_itself_or_into_its_parent_is_refused(eva: Caller, folder: StoreFolder, call: str) -> None:
    folder.put(d__x=b"x")
    for target in (folder.at("d/x"), folder.at("d//x"), folder.at("d"), folder.at("d/"), folder.at("d/x ")):
        for overwrite in ("false", "true"):
            asked = {"src_path": folder.at("d/x"), "dest_path": target, "overwrite": overwrite}
            assert await refused(eva, call, **asked) == (400, "same_path")
    assert folder.all() == {"d": None, "d/x": b"x"}


@pytest.mark.parametrize("call", ["move", "copy"])
@every_store
async def test_trailing_slash_requires_a_directory(eva: Caller, folder: StoreFolder, call: str) -> None:
    folder.put(x=b"x", f=b"f")
    answer = await eva.post(f"storage/{call}", src_path=folder.at("x"), dest_path=folder.at("none/"))
    assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found")
    assert answer.json()["details"] == {"path": folder.at("none")}
    assert await refused(eva, call, src_path=folder.at("x"), dest_path=folder.at("f/")) == (400, "not_a_directory")
    assert await refused(eva, call, src_path=folder.at("x"), dest_path=folder.at("f")) == (409, "already_exists")


@every_store
async def test_directories_are_never_merged(eva: Caller, folder: StoreFolder) -> None:
    folder.put(a__d__x=b"new", b__d__y=b"old")
    moved = await refused(eva, "move", src_path=folder.at("a/d"), dest_path=folder.at("b"), overwrite="true")
    assert moved == (409, "already_exists")
    assert folder.all()["b/d/y"] == b"old"


def tree(folder: StoreFolder) -> None:
    """Create a tree that contains empty directories, and more files than are copied concurrently."""
    folder.put(d__empty=None, d__sub__deep__empty=None)
    for number in range(12):
        folder.put_at(f"d/sub/{number}.txt", str(number).encode() * number)


@pytest.mark.parametrize("call", ["rename", "move"])
async def test_tree_moves_completely_including_empty_directories(eva: Caller, world: World, call: str) -> None:
    folder = world.folder(Scheme.S3A)
    tree(folder)
    before = {path.removeprefix("d"): content for path, content in folder.all().items()}
    moved = await eva.post(f"storage/{call}", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert moved.status_code == 200, moved.text
    assert {path.removeprefix("e"): content for path, content in folder.all().items()} == before


@pytest.mark.storage(65)
@pytest.mark.parametrize("call", ["rename", "move", "copy"])
async def test_failed_copy_keeps_the_source_and_leaves_no_target(eva, world, call):
    folder = world.folder(Scheme.S3A)
    tree(folder)
    before = folder.all()
    world.fail(Scheme.S3A, "copy", nth(3, StorageError("The disk is on fire.")))
    answer = await eva.post(f"storage/{call}", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert (answer.status_code, answer.json()["code"]) == (502, "storage_error")
    assert answer.json()["message"] == "The disk is on fire."
    assert answer.json()["details"] == {"rolled_back": True}
    assert folder.all() == before
    world.heal()
    again = await eva.post(f"storage/{call}", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert again.status_code == 200, again.text


@pytest.mark.storage(65)
@pytest.mark.parametrize("scheme", [Scheme.S3A, Scheme.HDFS])
async def test_rollback_keeps_files_that_others_have_stored_meanwhile(eva: Caller, world: World, scheme: Scheme):
    source, target = world.folder(Scheme.S3A), world.folder(scheme)
    tree(source)
    before = source.all()
    replaced: list[str] = []

    def replace(number: int, path: str) -> QueryServerError | None:
        """Simulate a client that replaces a copied file by one of the same size, just before the next copy fails."""
        copied = [name for name, content in target.all().items() if name.startswith("e/") and content]
        if path.startswith(source.inner("d")) and copied and not replaced:
            replaced.append(copied[0])
            target.put_at(copied[0], b"x" * len(target.all()[copied[0]] or b""))
            return StorageError("The disk is on fire.")
        return None

    # Within a store, files are copied; between stores, they are read and written.
    world.fail(Scheme.S3A, "copy" if scheme is Scheme.S3A else "read", replace)
    answer = await eva.post("storage/copy", src_path=source.at("d"), dest_path=target.at("e"))
    assert (answer.status_code, answer.json()["details"]) == (502, {"rolled_back": True})
    assert source.all() == before
    (name,) = replaced
    left = {path: content for path, content in target.all().items() if content is not None}
    assert left == {name: b"x" * len(left[name])}


@pytest.mark.storage(66)
@pytest.mark.parametrize("call", ["rename", "move"])
async def test_repeated_call_completes_a_move_after_failed_deletion(eva, world, call):
    folder = world.folder(Scheme.S3A)
    tree(folder)
    before = {path.removeprefix("d"): content for path, content in folder.all().items()}
    world.fail(Scheme.S3A, "delete", lambda number, _: StorageError("No deletions today.") if number > 2 else None)
    call_again = {"src_path": folder.at("d"), "dest_path": folder.at("e")}
    answer = await eva.post(f"storage/{call}", **call_again)
    assert (answer.status_code, answer.json()["code"]) == (502, "storage_error")
    assert answer.json()["details"]["state"] == "deleting"
    # Two files have been deleted, of five directories and twelve files in total.
    assert answer.json()["details"]["remaining"] == 15
    there = {path[1:]: content for path, content in folder.all().items() if path[0] == "e"}
    assert there == before
    world.heal()
    if call == "rename":
        # For another user, this is a new call and not a repetition. Its target directory exists.
        bob = await world.api.user("bob")
        assert await refused(bob, call, **call_again) == (409, "already_exists")
    again = await eva.post(f"storage/{call}", **call_again)
    assert (again.status_code, again.json()["path"]) == (200, folder.at("e"))
    assert {path.removeprefix("e"): content for path, content in folder.all().items()} == before
    assert await refused(eva, call, **call_again) == (404, "path_not_found")


async def test_repeated_call_completes_a_move_into_a_directory(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.S3A)
    folder.put(d__x=b"x", into=None)
    world.fail(Scheme.S3A, "delete", StorageUnavailable("Away."))
    call_again = {"src_path": folder.at("d"), "dest_path": folder.at("into")}
    assert await refused(eva, "move", **call_again) == (502, "storage_error")
    world.heal()
    assert (await eva.post("storage/move", **call_again)).json()["path"] == folder.at("into/d")
    assert folder.all() == {"into": None, "into/d": None, "into/d/x": b"x"}


async def test_source_changed_since_its_copy_is_kept(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.S3A)
    folder.put(d__x=b"old", d__y=b"y")

    def change(number: int, path: str) -> QueryServerError | None:
        """Simulate a client that overwrites `d/x` just before this file is checked for deletion."""
        if path.endswith("/x") and world.calls(Scheme.S3A)["copy"] == 2:
            folder.put_at("d/x", b"new")
        return None

    world.fail(Scheme.S3A, "stat", change)
    answer = await eva.post("storage/rename", src_path=folder.at("d"), dest_path="e")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert folder.all()["d/x"] == b"new"
    assert folder.all()["e/x"] == b"old"


async def test_file_added_to_the_source_during_the_move_is_kept(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.S3A)
    folder.put(d__x=b"x")

    def add(number: int, path: str) -> QueryServerError | None:
        folder.put_at("d/late", b"late")
        return None

    world.fail(Scheme.S3A, "copy", add)
    answer = await eva.post("storage/rename", src_path=folder.at("d"), dest_path="e")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert folder.all() == {"d": None, "d/late": b"late", "e": None, "e/x": b"x"}


async def test_moves_between_ozone_buckets_have_no_size_limit(eva: Caller, world: World) -> None:
    here, there = world.folder(Scheme.OFS), world.folder(Scheme.OFS, parent="ofs://service/volume/other/area")
    here.put(d__large=b"x" * 101, d__empty=None)
    moved = await eva.post("storage/move", src_path=here.at("d"), dest_path=there.path)
    assert moved.json()["path"] == there.at("d")
    assert (here.all(), there.all()) == ({}, {"d": None, "d/large": b"x" * 101, "d/empty": None})


@pytest.mark.storage(69)
@pytest.mark.parametrize(
    ("here", "there"),
    [
        (Scheme.HDFS, Scheme.S3A),
        (Scheme.HDFS, Scheme.FILE),
        (Scheme.FILE, Scheme.S3A),
        (Scheme.S3A, Scheme.HDFS),
        (Scheme.ABFS, Scheme.OFS),
    ],
    ids=str,
)
async def test_move_between_stores_transfers_content_and_empty_directories(eva, world, here, there):
    source, target = world.folder(here), world.folder(there)
    source.put(d__empty=None, d__large=bytes(range(256)) * 20_000, d__nothing=b"")
    before = source.all()
    moved = await eva.post("storage/move", src_path=source.at("d"), dest_path=target.path)
    assert moved.status_code == 200, moved.text
    assert moved.json()["path"] == target.at("d")
    assert (source.all(), target.all()) == ({}, before)


@dataclass
class Corrupting(FaultyFileSystem):
    """A store that corrupts the bytes that are written to it, without changing their number."""

    def as_user(self, user: StorageUser) -> FaultyStorage:
        return CorruptingStorage(self.inner.as_user(user))


class CorruptingStorage(FaultyStorage):
    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        async def broken() -> AsyncIterator[bytes]:
            async for piece in body:
                yield piece[:-1] + b"?"

        return await self.inner.write(path, broken(), overwrite=overwrite, size_bytes=size_bytes)


@pytest.mark.storage(69)
async def test_corrupted_target_is_detected_and_the_source_is_kept(eva: Caller, world: World) -> None:
    source, target = world.folder(Scheme.HDFS), world.folder(Scheme.S3A)
    source.put(d__x=b"good", d__y=b"good", f=b"good")
    store = world.faulty[Scheme.S3A]
    honest, store.inner = store.inner, Corrupting(store.inner)
    try:
        for item in ("d", "f"):
            answer = await eva.post("storage/move", src_path=source.at(item), dest_path=target.path)
            assert (answer.status_code, answer.json()["code"]) == (422, "verification_failed")
            assert answer.json()["details"] == {"rolled_back": True}
    finally:
        store.inner = honest
    assert source.all() == {"d": None, "d/x": b"good", "d/y": b"good", "f": b"good"}
    assert target.all() == {}


async def test_undeletable_source_is_reported_and_the_target_is_complete(eva: Caller, world: World) -> None:
    source, target = world.folder(Scheme.HDFS), world.folder(Scheme.S3A)
    source.put(f=b"f")
    world.fail(Scheme.HDFS, "delete", PermissionDenied("Not yours."))
    answer = await eva.post("storage/move", src_path=source.at("f"), dest_path=target.path)
    assert (answer.status_code, answer.json()["details"]) == (502, {"state": "deleting", "remaining": 1})
    assert (source.all(), target.all()) == ({"f": b"f"}, {"f": b"f"})


async def test_links_are_skipped_and_stay_in_the_source(eva: Caller, world: World) -> None:
    source, target = world.folder(Scheme.FILE), world.folder(Scheme.S3A)
    source.put(d__sub__x=b"x", d__y=b"y")
    source.link("d/sub/link")
    moved = await eva.post("storage/move", src_path=source.at("d"), dest_path=target.path)
    assert moved.json()["details"] == {"skipped_links": [source.at("d/sub/link")]}
    assert target.all() == {"d": None, "d/sub": None, "d/sub/x": b"x", "d/y": b"y"}
    assert (source.directory / "d" / "sub" / "link").is_symlink()
    assert not (source.directory / "d" / "y").exists()


@pytest.mark.storage(71)
@pytest.mark.parametrize("call", ["move", "copy"])
@pytest.mark.parametrize("route", ["", "/bulk"])
@every_store
async def test_bulk_call_continues_after_a_failure(eva, folder, call, route):
    folder.put(a=b"a", c=b"c", into=None)
    sources = [folder.at(name) for name in ("a", "b", "c")]
    answer = await eva.post(f"storage/{call}{route}", source_path=sources, destination_path=folder.at("into"))
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (404, -1, "partial_failure")
    assert [body["results"][source]["status"] for source in sources] == [0, -1, 0]
    assert body["results"][sources[0]]["path"] == folder.at("into/a")
    assert body["results"][sources[1]]["code"] == "path_not_found"
    assert {name: content for name, content in folder.all().items() if name.startswith("into/")} == {
        "into/a": b"a",
        "into/c": b"c",
    }


@pytest.mark.storage(71)
@every_store
async def test_bulk_call_returns_the_highest_status(eva: Caller, folder: StoreFolder) -> None:
    folder.put(a=b"a", b=b"b", c=b"c", into__c=b"there")
    sources = [folder.at(name) for name in ("a", "none", "c")]
    answer = await eva.post_json("storage/move", source_path=sources, destination_path=folder.at("into"))
    assert (answer.status_code, answer.json()["results"][sources[2]]["code"]) == (409, "already_exists")
    fine = await eva.post_json("storage/move/bulk", source_path=folder.at("b"), destination_path=folder.at("into"))
    assert (fine.status_code, fine.json()["status"]) == (200, 0)
    assert fine.json()["results"][folder.at("b")]["path"] == folder.at("into/b")


@pytest.mark.parametrize("call", ["move", "copy"])
@every_store
async def test_several_sources_require_a_target_directory(eva: Caller, folder: StoreFolder, call: str) -> None:
    folder.put(a=b"a", b=b"b", f=b"f")
    for target in ("none", "f"):
        asked = {"source_path": [folder.at("a"), folder.at("b")], "destination_path": folder.at(target)}
        assert await refused(eva, call, **asked) == (400, "not_a_directory")
    assert folder.all() == {"a": b"a", "b": b"b", "f": b"f"}


@pytest.mark.parametrize("call", ["move/bulk", "copy/bulk"])
async def test_bulk_calls_accept_one_to_a_thousand_items(eva: Caller, world: World, call: str) -> None:
    folder = world.folder(Scheme.HDFS)
    assert await refused(eva, call, destination_path=folder.path) == (400, "missing_parameter")
    many = [folder.at(str(number)) for number in range(1001)]
    assert await refused(eva, call, source_path=many, destination_path=folder.path) == (413, "too_many_entries")


@pytest.mark.parametrize("call", ["rename", "move", "copy"])
async def test_links_are_never_followed(eva: Caller, world: World, call: str) -> None:
    folder = world.folder(Scheme.FILE)
    folder.put(a=b"a", b=b"b")
    folder.link("link")
    targets = (folder.at("link/new"),) if call == "rename" else (folder.at("link/new"), folder.at("link/"))
    for target in targets:
        asked = {"src_path": folder.at("a"), "dest_path": target}
        assert await refused(eva, call, **asked) == (403, "symlink_not_followed")
    if call != "rename":
        several = {"src_path": [folder.at("a"), folder.at("b")], "dest_path": folder.at("link")}
        assert await refused(eva, call, **several) == (403, "symlink_not_followed")
    assert {name for name in folder.all() if "link" not in name} == {"a", "b"}


async def test_special_files_are_refused_by_name(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.FILE)
    folder.put(d=None)
    os.mkfifo(folder.directory / "d" / "pipe")
    answer = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert (answer.status_code, answer.json()["code"]) == (400, "not_a_file")
    assert f"{folder.at('d/pipe')} is neither" in answer.json()["message"]
    assert not (folder.directory / "e").exists()


FILES = {f"sub{number % 3}/{number}": bytes([number]) * (number * 4096) for number in range(40)}


@pytest.fixture
async def mover(s3_server: S3Address, tmp_path: Path, shared_database_dsn: str) -> AsyncIterator[Caller]:
    """A user of an application with a local root and an S3 store. The store has the bucket `moving`."""
    settings = storage_settings(tmp_path, shared_database_dsn, tables=s3_tables(s3_server), allow_bucket_creation=True)
    async with open_api(settings) as api:
        admin, user = await api.user("admin"), await api.user("ana")
        assert (await admin.post("storage/mkdir", path="s3a://moving")).status_code in {201, 409}
        yield user


def local_tree(root: Path) -> None:
    for name, content in FILES.items():
        folder = root / "shared" / "tree" / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_bytes(content)
    (root / "shared" / "tree" / "empty").mkdir()


async def sizes(caller: Caller, path: str) -> dict[str, int | None]:
    """Return the size in bytes of each path below a directory. The size of a directory is None."""
    found: dict[str, int | None] = {}
    pending = [path]
    while pending:
        directory = pending.pop()
        listed = (await caller.get("storage/list", path=directory, pagesize=1000)).json()
        for entry in listed["files"]:
            is_directory = entry["type"] == "dir"
            found[entry["path"].removeprefix(f"{path}/")] = None if is_directory else entry["size"]
            pending += [entry["path"]] if is_directory else []
    return found


@pytest.mark.engine("s3")
@pytest.mark.storage(69, 65)
async def test_tree_moves_to_the_store_within_it_and_back(mover: Caller, tmp_path: Path) -> None:
    root = tmp_path / "files"
    local_tree(root)
    expected = {name: len(content) for name, content in FILES.items()}
    expected |= {"sub0": None, "sub1": None, "sub2": None, "empty": None}
    base = f"s3a://moving/{mover.username}"
    assert (await mover.post("storage/mkdir", path=base)).status_code == 201

    out = await mover.post("storage/move", src_path="file:///shared/tree", dest_path=base)
    assert (out.status_code, out.json()["path"]) == (200, f"{base}/tree"), out.text
    assert not (root / "shared" / "tree").exists()
    assert await sizes(mover, f"{base}/tree") == expected

    renamed = await mover.post("storage/rename", src_path=f"{base}/tree/", dest_path="other")
    assert (renamed.status_code, renamed.json()["path"]) == (200, f"{base}/other"), renamed.text
    assert (await mover.get("storage/stat", path=f"{base}/tree")).status_code == 404
    assert await sizes(mover, f"{base}/other") == expected

    copied = await mover.post("storage/copy", src_path=f"{base}/other", dest_path=f"{base}/copy")
    assert copied.status_code == 200, copied.text
    assert await sizes(mover, f"{base}/copy") == await sizes(mover, f"{base}/other")

    back = await mover.post("storage/move", src_path=f"{base}/other", dest_path="file:///shared/tree")
    assert back.status_code == 200, back.text
    there = {name: (root / "shared" / "tree" / name).read_bytes() for name in FILES}
    assert there == FILES
    assert (root / "shared" / "tree" / "empty").is_dir()
    assert (await mover.get("storage/stat", path=f"{base}/other")).status_code == 404
