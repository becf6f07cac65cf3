"""The access rules of the local root, one test per rule (Contract storage 10.5)."""

import stat
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tests.contract.storage_basis import body, content, is_there, names, put
from tests.unit.files.stores.local.descriptors import file_system_of

from queryserver.errors.base import PermissionDenied
from queryserver.errors.files import InvalidPath, PathExists, PathNotFound, StorageUnavailable
from queryserver.files.model import Scheme, StorageUser
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.local.storage import LocalFileSystem

ALICE, BOB, ADMIN = StorageUser("alice"), StorageUser("bob"), StorageUser("root", is_admin=True)


CHANGES = {
    "write": lambda s, p: s.write(f"{p}/new", body(b"x"), overwrite=False),
    "overwrite": lambda s, p: s.write(f"{p}/file", body(b"x"), overwrite=True),
    "mkdir": lambda s, p: s.mkdir(f"{p}/d"),
    "delete": lambda s, p: s.delete(f"{p}/file", recursive=True),
    "rename away": lambda s, p: s.rename(f"{p}/file", f"{p}/renamed"),
    "take": lambda s, p: s.rename(f"{p}/file", f"user/{s._access.user.name}/taken"),
    "bring": lambda s, p: s.rename(f"user/{s._access.user.name}/own", f"{p}/brought"),
    "copy": lambda s, p: s.copy(f"user/{s._access.user.name}/own", f"{p}/copied"),
    "chmod": lambda s, p: s.set_permissions(f"{p}/file", 0o777),
    "parts": lambda s, p: s.begin_parts(PartPlan(f"{p}/parts", 1, 1, 1)),
}


@asynccontextmanager
async def new_root(tmp_path):
    """Create a root for each case, with storages for alice, bob and an administrator."""
    root = Path(mkdtemp(dir=tmp_path))
    async with file_system_of(root) as file_system:
        yield root, *(file_system.as_user(user) for user in (ALICE, BOB, ADMIN))


READS = {
    "stat": lambda s, p: s.stat(f"{p}/file"),
    "list": names,
    "read": lambda s, p: content(s, f"{p}/file"),
    "summary": lambda s, p: s.content_summary(p),
    "copy": lambda s, p: s.copy(f"{p}/file", f"user/{s._access.user.name}/copied"),
    "sweep": lambda s, p: s.sweep_orphans(p, 0),
}


@pytest.mark.security("S9")
@pytest.mark.parametrize("call", [*CHANGES, *READS])
async def test_home_is_closed_to_other_users(call, tmp_path):
    async with new_root(tmp_path) as (_, alice, bob, _):
        await put(alice, "user/alice/file", b"hers")
        await put(bob, "user/bob/own")
        with pytest.raises(PermissionDenied):
            await {**CHANGES, **READS}[call](bob, "user/alice")
        assert await content(alice, "user/alice/file") == b"hers"
        assert await names(alice, "user/alice") == ["file"]


@pytest.mark.parametrize("call", [*CHANGES, *READS])
async def test_home_is_open_to_its_user_and_administrators(call, tmp_path):
    for is_admin in (False, True):
        async with new_root(tmp_path) as (_, alice, _, admin):
            storage = admin if is_admin else alice
            await put(storage, "user/alice/file", b"hers")
            await put(storage, "user/root/own" if is_admin else "user/alice/own")
            await {**CHANGES, **READS}[call](storage, "user/alice")


@pytest.mark.parametrize("call", [*CHANGES, *READS])
async def test_shared_directory_is_open_to_all_users(call, tmp_path):
    async with new_root(tmp_path) as (_, alice, bob, _):
        await put(alice, "shared/file", b"hers")
        await put(bob, "user/bob/own")
        await {**CHANGES, **READS}[call](bob, "shared")


@pytest.mark.parametrize("call", CHANGES)
@pytest.mark.parametrize("place", ["", "docs", "docs/deep"])
async def test_only_administrators_change_other_directories(call, place, tmp_path):
    async with new_root(tmp_path) as (root, alice, _, admin):
        (root / "docs" / "deep").mkdir(parents=True)
        (root / place / "file").write_text("kept")
        await put(alice, "user/alice/own")
        with pytest.raises((PermissionDenied, InvalidPath)):
            await CHANGES[call](alice, place or ".")
        assert (root / place / "file").read_text() == "kept"
        if place:
            await put(admin, "user/root/own")
            await CHANGES[call](admin, place)


@pytest.mark.parametrize("call", READS)
async def test_all_users_can_read_other_directories(call, alice, root):
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "file").write_text("read me")
    await READS[call](alice, "docs")


@pytest.mark.parametrize("path", ["user", "shared", "docs", "new"])
async def test_only_administrators_change_top_level_directories(path, alice, admin, root):
    (root / "docs").mkdir(exist_ok=True)
    await alice.stat("user")
    for change in (
        alice.delete(path, recursive=True),
        alice.rename(path, "shared/taken"),
        alice.rename("user/alice", path),
        alice.set_permissions(path, 0o777),
        alice.mkdir(path),
        put(alice, path),
    ):
        with pytest.raises(PermissionDenied):
            await change
    await admin.mkdir("made")
    await admin.rename("made", "renamed")
    await admin.delete("renamed", recursive=True)


@pytest.mark.security("S9")
async def test_home_listing_shows_accessible_homes_only(alice, bob, admin):
    await bob.stat("user/bob")
    assert await names(alice, "user") == ["alice"]
    assert await names(bob, "user") == ["bob"]
    assert await names(admin, "user") == ["alice", "bob", "root"]


@pytest.mark.security("S9")
async def test_summary_excludes_other_homes(alice, bob):
    await put(bob, "user/bob/file", b"x" * 1000)
    await put(alice, "user/alice/file", b"x" * 10)
    for path in ("", "user"):
        summary = await alice.content_summary(path)
        assert (summary.file_count, summary.length_bytes) == (1, 10)


@pytest.mark.security("S9")
async def test_existence_of_another_home_is_not_revealed(alice, bob):
    await bob.stat("user/bob")
    for path in ("user/bob", "user/bob/x", "user/nobody", "user/nobody/x"):
        with pytest.raises(PermissionDenied):
            await alice.stat(path)
        with pytest.raises(PermissionDenied):
            await alice.mkdir(path)


@pytest.mark.security("S9")
@pytest.mark.parametrize("name", ["USER", "User", "uſer", "ｕｓｅｒ"])
async def test_names_resembling_the_home_parent_are_inaccessible(name, alice, admin):
    """If a file system folds case or normalizes names, these names may refer to the directory of the homes."""
    await put(admin, f"{name}/bob/file")
    for path in (f"{name}/bob", f"{name}/alice", f"{name}/bob/file"):
        with pytest.raises(PermissionDenied):
            await alice.stat(path)
    assert await names(alice, name) == []


async def test_home_is_created_at_first_access(file_system, root):
    for user, path in (("a", "user/a"), ("b", "user"), ("c", ""), ("d", "user/d/x")):
        storage = file_system.as_user(StorageUser(user))
        try:
            await storage.stat(path)
        except PathNotFound:
            assert path == "user/d/x"
        assert stat.S_IMODE((root / "user" / user).stat().st_mode) == 0o700
    assert (root / "shared").is_dir()


async def test_deleted_home_is_recreated(file_system):
    await file_system.as_user(ALICE).delete("user/alice", recursive=True)
    assert await names(file_system.as_user(ALICE), "user") == ["alice"]


@pytest.mark.parametrize("name", ["..", "a/b", "", "x" * 300, "._qs_x", "a\0b"])
async def test_user_without_a_valid_file_name_has_no_home(name, file_system, root):
    storage = file_system.as_user(StorageUser(name))
    assert (await storage.stat("")).is_directory
    assert await names(storage, "user") == []
    with pytest.raises((PermissionDenied, InvalidPath, PathExists)):
        await put(storage, f"user/{name}")
    assert sorted(path.name for path in root.iterdir()) == ["shared", "user"]


async def test_umask_determines_the_modes_of_new_entries(root):
    for umask, expected in ((0o022, (0o755, 0o644)), (0o027, (0o750, 0o640)), (0o077, (0o700, 0o600))):
        file_system = LocalFileSystem(root, umask=umask)
        alice = file_system.as_user(ALICE)
        await put(alice, f"user/alice/{umask}/file")
        found = [await alice.stat(f"user/alice/{umask}"), await alice.stat(f"user/alice/{umask}/file")]
        assert tuple(status.permissions for status in found) == expected
        await file_system.close()


async def test_trash_is_private_to_its_user(alice, bob, root):
    assert await alice.trash_root("shared/x") == "user/alice/.Trash"
    assert await bob.trash_root("shared/x") == "user/bob/.Trash"
    await put(alice, "shared/file")
    await alice.mkdir("user/alice/.Trash/Current/shared")
    await alice.rename("shared/file", "user/alice/.Trash/Current/shared/file")
    for path in ("user/alice", "user/alice/.Trash", "user/alice/.Trash/Current/shared"):
        assert stat.S_IMODE((root / path).stat().st_mode) == 0o700
    with pytest.raises(PermissionDenied):
        await bob.stat("user/alice/.Trash/Current/shared/file")


async def test_local_store_has_its_traits(file_system):
    assert file_system.scheme is Scheme.FILE
    traits = file_system.traits
    assert (traits.deletes_to_trash, traits.changes_modes_of_trees, traits.acts_as_user) == (True, True, False)
    assert (traits.home_parent, traits.container_levels, traits.lists_in_order) == ("user", 0, False)


async def test_missing_root_is_an_unavailable_store(tmp_path):
    file_system = LocalFileSystem(tmp_path / "missing")
    alice = file_system.as_user(ALICE)
    for call in (alice.stat(""), names(alice, "user"), put(alice, "user/alice/x")):
        with pytest.raises(StorageUnavailable):
            await call
    assert not (tmp_path / "missing").exists()
    await file_system.close()
    await file_system.close()


async def test_copying_from_another_home_creates_nothing(alice, bob):
    """An operation such as copying must reveal no more about an inaccessible path than reading does."""
    await put(alice, "user/alice/file")
    assert not await is_there(bob, "shared/file")
    with pytest.raises(PermissionDenied):
        await bob.copy("user/alice/file", "shared/file")
    assert not await is_there(bob, "shared/file")
