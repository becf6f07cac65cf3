"""Renames and copies (Contract storage 7.1 to 7.4)."""

from pathlib import Path
from typing import Any

import pytest
from tests.api.driving import Caller
from tests.api.storage.conftest import storage_settings
from tests.api.storage.worlds import CHUNK_BYTES, StoreFolder, World, each_store, open_world

from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import Scheme

every_store = each_store(Scheme.FILE, Scheme.HDFS, Scheme.S3A, Scheme.ABFS, Scheme.OFS)


@pytest.fixture
def folder(world: World, request: pytest.FixtureRequest) -> StoreFolder:
    """A new directory on the store under test."""
    return world.folder(request.param)


async def refused(caller: Caller, call: str, **fields: Any) -> tuple[int, str]:
    answer = await caller.post(f"storage/{call}", **fields)
    return answer.status_code, answer.json()["code"]


@pytest.mark.storage(60)
@every_store
async def test_name_without_a_slash_stays_in_its_directory(eva: Caller, folder: StoreFolder) -> None:
    folder.put(x=b"content")
    renamed = await eva.post("storage/rename", src_path=folder.at("x"), dest_path=" y z ")
    assert renamed.json() == {
        "status": 0,
        "path": folder.at("y z"),
        "source": folder.at("x"),
        "message": f"Renamed '{folder.at('x')}' to '{folder.at('y z')}' successfully",
    }
    assert folder.all() == {"y z": b"content"}


@pytest.mark.storage(60)
@every_store
async def test_existing_target_and_missing_source_are_refused(eva: Caller, folder: StoreFolder) -> None:
    folder.put(x=b"x", y=b"y", d=None)
    assert await refused(eva, "rename", src_path=folder.at("x"), dest_path="y") == (409, "already_exists")
    assert await refused(eva, "rename", src_path=folder.at("x"), dest_path=folder.at("d")) == (409, "already_exists")
    assert await refused(eva, "rename", src_path=folder.at("none"), dest_path="y") == (404, "path_not_found")
    assert folder.all() == {"x": b"x", "y": b"y", "d": None}


@pytest.mark.storage(61)
@every_store
async def test_trailing_slash_on_a_directory_is_ignored(eva: Caller, folder: StoreFolder) -> None:
    folder.put(d__x=b"x", d__empty=None)
    renamed = await eva.post("storage/rename", src_path=folder.at("d/"), dest_path="new")
    assert renamed.json()["path"] == folder.at("new")
    assert folder.all() == {"new": None, "new/x": b"x", "new/empty": None}


@pytest.mark.storage(62)
@pytest.mark.parametrize("call", ["rename", "move", "copy"])
@every_store
async def test_target_inside_the_source_is_refused_but_name_prefixes_are_not(
    eva: Caller, folder: StoreFolder, call: str
) -> None:
    folder.put(a__x=b"x")
    for target in ("a/b", "a/b/c", "a/x/c"):
        inside = await refused(eva, call, src_path=folder.at("a"), dest_path=folder.at(target))
        assert inside == (400, "target_inside_source")
    assert (await eva.post(f"storage/{call}", src_path=folder.at("a"), dest_path=folder.at("ab"))).status_code == 200
    assert folder.all()["ab/x"] == b"x"
    assert ("a/x" in folder.all()) is (call == "copy")


@pytest.mark.storage(64)
@pytest.mark.parametrize("call", ["rename", "move", "copy"])
@every_store
async def test_overwrite_replaces_a_file_by_a_file_only(eva: Caller, folder: StoreFolder, call: str) -> None:
    folder.put(x=b"new", y=b"old", d=None, e=None)
    onto_directory = {"src_path": folder.at("d"), "dest_path": folder.at("y"), "overwrite": "true"}
    assert await refused(eva, call, **onto_directory) == (409, "already_exists")
    if call == "rename":
        directories = {"src_path": folder.at("x"), "dest_path": folder.at("e"), "overwrite": "true"}
        assert await refused(eva, call, **directories) == (409, "already_exists")
    sent = await eva.post(f"storage/{call}?overwrite=true", src_path=folder.at("x"), dest_path=folder.at("y"))
    assert sent.status_code == 200, sent.text
    assert folder.all()["y"] == b"new"


@pytest.mark.storage(58)
async def test_changed_extension_must_be_allowed(tmp_path: Path, database_dsn: str) -> None:
    settings = storage_settings(
        tmp_path, database_dsn, allow_file_extensions=[".txt", "gz"], restrict_file_extensions=["GZ"]
    )
    async with open_world(settings, tmp_path / "files") as world:
        eva, folder = await world.api.user("ana"), world.folder(Scheme.HDFS)
        for call in ("rename", "move", "copy"):
            folder.put_at(f"{call}/a.txt", b"x")
            folder.put_at(f"{call}/d.d", None)
            for name, code in (("a.exe", "extension_not_permitted"), ("a.tar.gz", "extension_restricted")):
                asked = {"src_path": folder.at(f"{call}/a.txt"), "dest_path": folder.at(f"{call}/{name}")}
                assert await refused(eva, call, **asked) == (400, code)
            for old, new in (("a.txt", "b.TXT"), ("d.d", "d.e")):
                asked = {"src_path": folder.at(f"{call}/{old}"), "dest_path": folder.at(f"{call}/{new}")}
                assert (await eva.post(f"storage/{call}", **asked)).status_code == 200


@pytest.mark.parametrize("name", ["..", ".", "a\\b", "a\nb", "x" * 256, "._qs_x", " "])
@pytest.mark.storage(56)
async def test_new_names_are_validated(eva: Caller, world: World, name: str) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(x=b"x", d=None)
    status, code = await refused(eva, "rename", src_path=folder.at("x"), dest_path=name)
    assert (status, code in {"invalid_name", "missing_parameter"}) == (400, True)
    assert await refused(eva, "rename", src_path=folder.at("d"), dest_path="a#b") == (400, "invalid_name")
    assert (await eva.post("storage/rename", src_path=folder.at("x"), dest_path="a#b")).status_code == 200


@pytest.mark.parametrize("call", ["rename", "move", "copy"])
@every_store
async def test_missing_parent_is_named_and_files_cannot_be_parents(eva: Caller, folder: StoreFolder, call: str) -> None:
    folder.put(x=b"x", f=b"f")
    answer = await eva.post(f"storage/{call}", src_path=folder.at("x"), dest_path=folder.at("none/y"))
    assert (answer.status_code, answer.json()["code"]) == (404, "path_not_found")
    assert answer.json()["details"] == {"path": folder.at("none")}
    below_file = await refused(eva, call, src_path=folder.at("x"), dest_path=folder.at("f/y"))
    assert below_file == (400, "not_a_directory")
    assert folder.all() == {"x": b"x", "f": b"f"}


@pytest.mark.parametrize("root", ["/", "s3a://", "s3a://lake", "ofs://service/volume/bucket", "file:///"])
async def test_roots_and_buckets_cannot_be_renamed_or_copied(eva: Caller, root: str) -> None:
    elsewhere = "/elsewhere" if root == "/" else f"{root.rstrip('/')}/elsewhere"
    for call in ("rename", "move"):
        assert await refused(eva, call, src_path=root, dest_path=elsewhere) == (400, "root_not_allowed")
    assert await refused(eva, "copy", src_path=root, dest_path=elsewhere) == (501, "not_supported")


@pytest.mark.storage(70)
async def test_rename_across_stores_is_not_supported(eva: Caller, world: World) -> None:
    here, there = world.folder(Scheme.HDFS), world.folder(Scheme.S3A)
    here.put(x=b"x")
    assert await refused(eva, "rename", src_path=here.at("x"), dest_path=there.at("x")) == (501, "not_supported")
    assert here.all() == {"x": b"x"}


@pytest.mark.storage(6, 7)
@pytest.mark.parametrize("call", ["rename", "move", "copy"])
async def test_both_encodings_and_vocabularies_are_equivalent(eva: Caller, world: World, call: str) -> None:
    bodies = []
    for send in (eva.post, eva.post_json):
        for source, target in (("src_path", "dest_path"), ("source_path", "destination_path")):
            folder = world.folder(Scheme.HDFS)
            folder.put(x=b"x")
            answer = await send(f"storage/{call}", **{source: folder.at("x"), target: folder.at("y")})
            assert folder.all()["y"] == b"x"
            bodies.append(answer.text.replace(folder.path, ""))
    assert len(set(bodies)) == 1


@pytest.mark.storage(7)
@pytest.mark.parametrize("call", ["rename", "move", "copy"])
async def test_contradicting_values_are_refused(eva: Caller, world: World, call: str) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(x=b"x", y=b"y")
    both = {"src_path": folder.at("x"), "source_path": folder.at("y"), "dest_path": folder.at("z")}
    assert await refused(eva, call, **both) == (400, "conflicting_parameters")
    both = {"src_path": folder.at("x"), "dest_path": folder.at("z"), "destination_path": folder.at("y")}
    assert await refused(eva, call, **both) == (400, "conflicting_parameters")


@pytest.mark.parametrize("call", ["rename", "move", "copy"])
async def test_missing_and_invalid_parameters_are_refused(eva: Caller, world: World, call: str) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(x=b"x")
    assert await refused(eva, call, src_path=folder.at("x")) == (400, "missing_parameter")
    assert await refused(eva, call, dest_path=folder.at("x")) == (400, "missing_parameter")
    asked = {"src_path": folder.at("x"), "dest_path": folder.at("y")}
    assert await refused(eva, call, **asked, wait="601") == (400, "invalid_parameter")
    assert await refused(eva, call, **asked, overwrite="perhaps") == (400, "invalid_parameter")
    assert await refused(eva, call, src_path=folder.at("x"), dest_path=folder.at("../y")) == (400, "invalid_path")


every_copying_store = each_store(Scheme.FILE, Scheme.HDFS, Scheme.S3A, Scheme.ABFS)


@every_copying_store
async def test_copy_includes_everything_and_keeps_the_source(eva: Caller, folder: StoreFolder) -> None:
    folder.put(d__empty=None, d__sub__x=b"x", d__y=b"", into=None)
    copied = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("into"))
    assert copied.json() == {
        "status": 0,
        "path": folder.at("into/d"),
        "source": folder.at("d"),
        "message": f"Copied '{folder.at('d')}' to '{folder.at('into/d')}' successfully",
    }
    everything = folder.all()
    below = {path: content for path, content in everything.items() if path.startswith("d/")}
    assert len(below) == 4
    assert below == {
        path.removeprefix("into/"): content for path, content in everything.items() if path.startswith("into/d/")
    }


@every_copying_store
async def test_file_is_copied_to_a_new_path(eva: Caller, folder: StoreFolder) -> None:
    folder.put(x=b"content")
    copied = await eva.post("storage/copy", src_path=folder.at("x"), dest_path=folder.at("y"))
    assert copied.json()["path"] == folder.at("y")
    assert folder.all() == {"x": b"content", "y": b"content"}


async def test_modes_of_files_and_directories_are_kept(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(d__closed__x=b"x")
    assert folder.tree is not None
    modes = {"d": 0o750, "d/closed": 0o555, "d/closed/x": 0o640}
    for name, mode in modes.items():
        folder.tree.entries[folder.inner(name)].permissions = mode
    assert (await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))).status_code == 200
    copied = {name: folder.tree.entries[folder.inner(f"e{name[1:]}")].permissions for name in modes}
    assert copied == modes


async def test_failed_copy_keeps_entries_created_by_others(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(d__x=b"x", d__y=b"y")

    def intrude(number: int, path: str) -> StorageUnavailable:
        folder.put_at("e/foreign", b"foreign")
        return StorageUnavailable("Away.")

    world.fail(Scheme.HDFS, "copy", intrude)
    answer = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert (answer.status_code, answer.json()["details"]) == (503, {"rolled_back": True})
    assert folder.all() == {"d": None, "d/x": b"x", "d/y": b"y", "e": None, "e/foreign": b"foreign"}


async def test_failed_copy_never_removes_existing_entries(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.HDFS)
    folder.put(x=b"new", y=b"old")
    world.fail(Scheme.HDFS, "copy", StorageUnavailable("Away."))
    asked = {"src_path": folder.at("x"), "dest_path": folder.at("y"), "overwrite": "true"}
    assert await refused(eva, "copy", **asked) == (503, "storage_unavailable")
    assert folder.all() == {"x": b"new", "y": b"old"}


async def test_links_in_a_tree_are_skipped_and_reported(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.FILE)
    folder.put(d__x=b"x")
    folder.link("d/b")
    folder.link("d/a")
    copied = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))
    assert copied.json()["details"] == {"skipped_links": [folder.at("d/a"), folder.at("d/b")]}
    assert sorted(path.name for path in (folder.directory / "e").iterdir()) == ["x"]
    alone = await refused(eva, "copy", src_path=folder.at("d/a"), dest_path=folder.at("f"))
    assert alone == (403, "symlink_not_followed")


@pytest.mark.storage(68)
async def test_ozone_copy_lists_skipped_large_files_at_any_depth(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.OFS)
    exact, above = b"x" * CHUNK_BYTES, b"x" * (CHUNK_BYTES + 1)
    folder.put(d__exact=exact, d__zz=above, d__sub__sub__b=above, d__sub__a=b"small")
    copied = await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))
    skipped = f"- {folder.at('d/sub/sub/b')}\n- {folder.at('d/zz')}"
    assert copied.headers["content-type"] == "application/json"
    assert copied.json() == f"Following files were skipped due to file size limitations:\n{skipped}"
    there = {path for path in folder.all() if path.startswith("e")}
    assert there == {"e", "e/exact", "e/sub", "e/sub/sub", "e/sub/a"}
    assert folder.all()["d/zz"] == above


@pytest.mark.storage(68)
async def test_ozone_copy_returns_empty_text_and_bulk_copy_returns_a_key(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.OFS)
    folder.put(small=b"x", large=b"x" * (CHUNK_BYTES + 1), into=None)
    copied = await eva.post("storage/copy", src_path=folder.at("small"), dest_path=folder.at("other"))
    assert (copied.status_code, copied.json()) == (200, "")
    sources = [folder.at("small"), folder.at("large")]
    bulk = await eva.post("storage/copy/bulk", source_path=sources, destination_path=folder.at("into"))
    seen = [bulk.json()["results"][source]["skipped_files"] for source in sources]
    assert seen == ["", f"Following files were skipped due to file size limitations:\n- {folder.at('large')}"]
    errors = await refused(eva, "copy", src_path=folder.at("none"), dest_path=folder.at("y"))
    assert errors == (404, "path_not_found")


async def test_copy_from_ozone_to_another_store_has_no_size_limit(eva: Caller, world: World) -> None:
    folder, there = world.folder(Scheme.OFS), world.folder(Scheme.HDFS)
    folder.put(large=b"x" * (CHUNK_BYTES + 1))
    copied = await eva.post("storage/copy", src_path=folder.at("large"), dest_path=there.path)
    assert copied.json()["path"] == there.at("large")
    assert there.all() == {"large": b"x" * (CHUNK_BYTES + 1)}


async def test_tree_of_many_windows_is_copied_completely(eva: Caller, world: World) -> None:
    folder = world.folder(Scheme.S3A)
    for number in range(1300):
        folder.put_at(f"d/{number % 7}/{number}", str(number).encode())
    assert (await eva.post("storage/copy", src_path=folder.at("d"), dest_path=folder.at("e"))).status_code == 200
    everything = folder.all()
    assert len(everything) == 2 * (1300 + 8)
    assert all(everything[f"e{path[1:]}"] == content for path, content in everything.items() if path[0] == "d")


@pytest.mark.parametrize("call", ["move", "copy", "rename"])
async def test_copy_requires_the_rights_for_both_stores(world: World, call: str) -> None:
    eva = await world.api.user("ana")
    await world.api.database.execute(
        "delete from group_members where user_id = (select id from users where username = $1)", eva.username
    )
    here, there = world.folder(Scheme.HDFS), world.folder(Scheme.S3A)
    here.put(x=b"x")
    there.put(x=b"x")
    for source, target in ((here, there), (there, here), (there, there)):
        asked = {"src_path": source.at("x"), "dest_path": target.at("y")}
        assert await refused(eva, call, **asked) == (403, "storage_access_denied")
