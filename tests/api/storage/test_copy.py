"""copy and its bulk form (Contract storage 7.3, 7.4)."""

from typing import Any

import pytest
from tests.api.driving import Caller
from tests.api.storage.worlds import CHUNK_BYTES, Place, World, each_store
from tests.cases import each

from queryserver.errors.files import StorageUnavailable
from queryserver.files.model import Scheme

every_store = each_store(Scheme.FILE, Scheme.HDFS, Scheme.S3A, Scheme.ABFS)


@pytest.fixture
async def ana(world: World) -> Caller:
    return await world.api.user("ana")


async def refused(caller: Caller, call: str, **fields: Any) -> tuple[int, str]:
    answer = await caller.post(f"storage/{call}", **fields)
    return answer.status_code, answer.json()["code"]


@every_store
async def test_a_copy_holds_everything_and_the_source_stays(ana: Caller, place: Place) -> None:
    place.put(d__empty=None, d__sub__x=b"x", d__y=b"", into=None)
    copied = await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("into"))
    assert copied.json() == {
        "status": 0,
        "path": place.at("into/d"),
        "source": place.at("d"),
        "message": f"Copied '{place.at('d')}' to '{place.at('into/d')}' successfully",
    }
    everything = place.all()
    below = {path: content for path, content in everything.items() if path.startswith("d/")}
    assert len(below) == 4
    assert below == {
        path.removeprefix("into/"): content for path, content in everything.items() if path.startswith("into/d/")
    }


@every_store
async def test_a_file_is_copied_to_a_new_path(ana: Caller, place: Place) -> None:
    place.put(x=b"content")
    copied = await ana.post("storage/copy", src_path=place.at("x"), dest_path=place.at("y"))
    assert copied.json()["path"] == place.at("y")
    assert place.all() == {"x": b"content", "y": b"content"}


async def test_modes_of_files_and_directories_are_kept(ana: Caller, world: World) -> None:
    place = world.place(Scheme.HDFS)
    place.put(d__closed__x=b"x")
    assert place.tree is not None
    modes = {"d": 0o750, "d/closed": 0o555, "d/closed/x": 0o640}
    for name, mode in modes.items():
        place.tree.entries[place.inner(name)].permissions = mode
    assert (await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("e"))).status_code == 200
    copied = {name: place.tree.entries[place.inner(f"e{name[1:]}")].permissions for name in modes}
    assert copied == modes


async def test_a_failed_copy_leaves_what_others_made(ana: Caller, world: World) -> None:
    place = world.place(Scheme.HDFS)
    place.put(d__x=b"x", d__y=b"y")

    def intrude(number: int, path: str) -> StorageUnavailable:
        place.put_at("e/foreign", b"foreign")
        return StorageUnavailable("Away.")

    world.fail(Scheme.HDFS, "copy", intrude)
    answer = await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("e"))
    assert (answer.status_code, answer.json()["details"]) == (503, {"rolled_back": True})
    assert place.all() == {"d": None, "d/x": b"x", "d/y": b"y", "e": None, "e/foreign": b"foreign"}


async def test_a_failed_copy_never_removes_what_was_there_before(ana: Caller, world: World) -> None:
    place = world.place(Scheme.HDFS)
    place.put(x=b"new", y=b"old")
    world.fail(Scheme.HDFS, "copy", StorageUnavailable("Away."))
    asked = {"src_path": place.at("x"), "dest_path": place.at("y"), "overwrite": "true"}
    assert await refused(ana, "copy", **asked) == (503, "storage_unavailable")
    assert place.all() == {"x": b"new", "y": b"old"}


async def test_links_in_a_tree_are_left_out_and_told(ana: Caller, world: World) -> None:
    place = world.place(Scheme.FILE)
    place.put(d__x=b"x")
    place.link("d/b")
    place.link("d/a")
    copied = await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("e"))
    assert copied.json()["details"] == {"skipped_links": [place.at("d/a"), place.at("d/b")]}
    assert sorted(path.name for path in (place.directory / "e").iterdir()) == ["x"]
    alone = await refused(ana, "copy", src_path=place.at("d/a"), dest_path=place.at("f"))
    assert alone == (403, "symlink_not_followed")


@pytest.mark.storage(68)
async def test_ozone_answers_with_the_files_above_the_limit_at_any_depth(ana: Caller, world: World) -> None:
    place = world.place(Scheme.OFS)
    exact, above = b"x" * CHUNK_BYTES, b"x" * (CHUNK_BYTES + 1)
    place.put(d__exact=exact, d__zz=above, d__sub__sub__b=above, d__sub__a=b"small")
    copied = await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("e"))
    skipped = f"- {place.at('d/sub/sub/b')}\n- {place.at('d/zz')}"
    assert copied.headers["content-type"] == "application/json"
    assert copied.json() == f"Following files were skipped due to file size limitations:\n{skipped}"
    there = {path for path in place.all() if path.startswith("e")}
    assert there == {"e", "e/exact", "e/sub", "e/sub/sub", "e/sub/a"}
    assert place.all()["d/zz"] == above


@pytest.mark.storage(68)
async def test_ozone_answers_with_an_empty_text_and_in_bulk_with_a_key(ana: Caller, world: World) -> None:
    place = world.place(Scheme.OFS)
    place.put(small=b"x", large=b"x" * (CHUNK_BYTES + 1), into=None)
    copied = await ana.post("storage/copy", src_path=place.at("small"), dest_path=place.at("other"))
    assert (copied.status_code, copied.json()) == (200, "")
    sources = [place.at("small"), place.at("large")]
    bulk = await ana.post("storage/copy/bulk", source_path=sources, destination_path=place.at("into"))
    assert [bulk.json()["results"][source]["skipped_files"] for source in sources] == [
        "",
        f"Following files were skipped due to file size limitations:\n- {place.at('large')}",
    ]
    errors = await refused(ana, "copy", src_path=place.at("none"), dest_path=place.at("y"))
    assert errors == (404, "path_not_found")


async def test_a_copy_from_ozone_to_another_store_has_no_limit(ana: Caller, world: World) -> None:
    place, there = world.place(Scheme.OFS), world.place(Scheme.HDFS)
    place.put(large=b"x" * (CHUNK_BYTES + 1))
    copied = await ana.post("storage/copy", src_path=place.at("large"), dest_path=there.path)
    assert copied.json()["path"] == there.at("large")
    assert there.all() == {"large": b"x" * (CHUNK_BYTES + 1)}


async def test_a_tree_of_many_windows_is_copied_whole(ana: Caller, world: World) -> None:
    place = world.place(Scheme.S3A)
    for number in range(1300):
        place.put_at(f"d/{number % 7}/{number}", str(number).encode())
    assert (await ana.post("storage/copy", src_path=place.at("d"), dest_path=place.at("e"))).status_code == 200
    everything = place.all()
    assert len(everything) == 2 * (1300 + 8)
    assert all(everything[f"e{path[1:]}"] == content for path, content in everything.items() if path[0] == "d")


@each("call", ["move", "copy", "rename"])
async def test_a_store_without_the_right_is_refused_at_both_ends(world: World, call: str) -> None:
    ana = await world.api.user("ana")
    await world.api.database.execute(
        "delete from group_members where user_id = (select id from users where username = $1)", ana.username
    )
    here, there = world.place(Scheme.HDFS), world.place(Scheme.S3A)
    here.put(x=b"x")
    there.put(x=b"x")
    for source, target in ((here, there), (there, here), (there, there)):
        asked = {"src_path": source.at("x"), "dest_path": target.at("y")}
        assert await refused(ana, call, **asked) == (403, "storage_access_denied")
