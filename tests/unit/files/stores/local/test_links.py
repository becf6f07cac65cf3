"""Links, pipes and other special entries in the local root (Contract storage 10.5, S5)."""

import asyncio
import ctypes
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.contract.storage_basis import body, content, entries, is_there, names, put

from queryserver.errors.files import InvalidPath, NotADirectory, NotAFile, PathExists, PathNotFound, SymlinkNotFollowed
from queryserver.files.model import EntryKind
from queryserver.files.protocol import PartPlan

LINKS = ("to_directory", "to_file", "to_itself", "to_inside", "to_nothing", "to_root", "relative")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    return outside


@pytest.fixture
def shared(root: Path) -> Path:
    """Provide the shared directory with a subdirectory and a regular file."""
    shared = root / "shared"
    (shared / "inside").mkdir(parents=True)
    (shared / "file").write_text("own")
    return shared


@pytest.fixture(params=LINKS)
def link(request: pytest.FixtureRequest, shared: Path, outside: Path) -> str:
    """Create a link in `/shared` that is named after its target; return its path."""
    name = request.param
    targets = {
        "to_directory": outside,
        "to_file": outside / "secret",
        "to_itself": shared / "to_itself",
        "to_inside": shared / "inside",
        "to_nothing": outside / "missing",
        "to_root": "/",
        "relative": "../../outside",
    }
    (shared / name).symlink_to(targets[name])
    return f"shared/{name}"


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.security("S5")
@pytest.mark.storage(97)
async def test_link_is_listed_as_a_link(alice, link):
    name = link.rpartition("/")[2]
    (found,) = [entry for entry in await entries(alice, "shared") if entry.name == name]
    assert (found.kind, found.size_bytes) == (EntryKind.LINK, 0)
    assert found == await alice.stat(link)


@pytest.mark.security("S5")
@pytest.mark.storage(97)
async def test_links_are_never_followed(alice, admin, link, shared, outside):
    before = everything(shared)
    for storage in (alice, admin):
        for call in (
            lambda s: content(s, link),
            lambda s: names(s, link),
            lambda s: s.content_summary(link),
            lambda s: s.set_permissions(link, 0o777),
            lambda s: put(s, link, overwrite=True),
            lambda s: s.copy(link, "shared/copy"),
            lambda s: s.copy("shared/file", link, overwrite=True),
            lambda s: s.rename("shared/file", link, overwrite=True),
            lambda s: s.sweep_orphans(link, 0),
            lambda s: s.stat(f"{link}/secret"),
            lambda s: content(s, f"{link}/secret"),
            lambda s: names(s, f"{link}/secret"),
            lambda s: put(s, f"{link}/new"),
            lambda s: s.mkdir(f"{link}/new"),
            lambda s: s.mkdir(f"{link}/new/deep"),
            lambda s: s.copy("shared/file", f"{link}/new"),
            lambda s: s.delete(f"{link}/secret", recursive=True),
            lambda s: s.rename(f"{link}/secret", "shared/taken"),
            lambda s: s.rename("shared/file", f"{link}/new"),
            lambda s: s.begin_parts(PartPlan(f"{link}/new", 1, 1, 1)),
            lambda s: s.set_permissions(f"{link}/secret", 0o777),
        ):
            with pytest.raises(SymlinkNotFollowed) as told:
                await call(storage)
            assert "outside" not in told.value.message
    assert everything(shared) == before
    assert everything(outside) == ["secret"]
    assert (shared / "file").read_text() == "own"
    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0o644


@pytest.mark.security("S5")
async def test_delete_and_rename_act_on_the_link_itself(alice, link, shared, outside):
    target = (shared.parent / link).readlink()
    await alice.rename(link, "shared/renamed")
    assert (shared / "renamed").readlink() == target
    with pytest.raises(PathExists):
        await alice.rename("shared/file", "shared/renamed")
    await alice.delete("shared/renamed", recursive=True)
    assert await names(alice, "shared") == ["file", "inside"]
    assert everything(outside) == ["secret"]


@pytest.mark.security("S5")
async def test_existing_link_occupies_its_name(alice, link):
    for call in (put(alice, link), alice.mkdir(link), alice.copy("shared/file", link)):
        with pytest.raises(PathExists):
            await call


@pytest.mark.security("S5")
async def test_deleting_a_tree_spares_link_targets(alice, shared, outside):
    (shared / "tree" / "deep").mkdir(parents=True)
    for place in ("tree", "tree/deep"):
        (shared / place / "to_directory").symlink_to(outside)
        (shared / place / "to_file").symlink_to(outside / "secret")
    await alice.delete("shared/tree", recursive=True)
    assert not await is_there(alice, "shared/tree")
    assert everything(outside) == ["secret"]


@pytest.mark.security("S5")
async def test_summary_excludes_link_targets(alice, shared, outside):
    (shared / "link").symlink_to(outside)
    (shared / "loop").symlink_to(shared)
    summary = await alice.content_summary("shared")
    assert (summary.directory_count, summary.file_count, summary.length_bytes) == (2, 1, 3)


@contextmanager
def exchanging(directory: Path, link: Path) -> Iterator[None]:
    """Exchange the names of a directory and a link in a loop, as fast as possible, until the block ends."""
    stop = threading.Event()
    exchange = ctypes.CDLL(None, use_errno=True).renameat2

    def keep_exchanging() -> None:
        while not stop.is_set():
            # linux/fcntl.h: AT_FDCWD; linux/fs.h: RENAME_EXCHANGE
            assert exchange(-100, os.fsencode(directory), -100, os.fsencode(link), ctypes.c_uint(2)) == 0

    thread = threading.Thread(target=keep_exchanging)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.security("S5")
@pytest.mark.storage(97)
async def test_directory_swapped_with_a_link_is_not_followed(alice, shared, outside):
    (shared / "door" / "deep").mkdir(parents=True)
    (shared / "door" / "secret").write_text("harmless")
    (shared / "link").symlink_to(outside)
    read, went_well, refused = set(), 0, 0
    with exchanging(shared / "door", shared / "link"):
        for number in range(120):
            for call in (
                content(alice, "shared/door/secret"),
                names(alice, "shared/door"),
                put(alice, f"shared/door/new{number}", b"x"),
                alice.mkdir(f"shared/door/d{number}/d"),
                alice.rename("shared/file", f"shared/door/file{number}"),
                alice.set_permissions("shared/door/secret", 0o600),
                alice.delete("shared/door/deep", recursive=True),
                alice.delete("shared/door/secret", recursive=False) if number > 100 else alice.stat("shared/door"),
            ):
                try:
                    answer = await call
                except (SymlinkNotFollowed, NotADirectory):  # the entry is a link, or a directory again
                    refused += 1
                except (PathNotFound, PathExists):
                    pass
                else:
                    went_well += 1
                    if isinstance(answer, bytes):
                        read.add(answer)
    assert read == {b"harmless"}
    assert min(went_well, refused) > 20, "the race must have been run from both sides"
    assert everything(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0o644


@pytest.mark.security("S5")
async def test_tree_swapped_with_a_link_is_deleted_without_the_link_target(alice, shared, outside):
    """The names are also exchanged inside the tree that is being deleted."""
    for number in range(60):
        (shared / "tree" / "door" / str(number)).mkdir(parents=True)
    (shared / "tree" / "link").symlink_to(outside)
    with exchanging(shared / "tree" / "door", shared / "tree" / "link"):
        for number in range(50):
            for call in (
                alice.delete(f"shared/tree/door/{number}", recursive=True),
                alice.content_summary("shared/tree"),
                alice.sweep_orphans("shared/tree/door", 0),
            ):
                with suppress(SymlinkNotFollowed, PathNotFound, NotADirectory):
                    await call
    await alice.delete("shared/tree", recursive=True)
    assert everything(outside) == ["secret"]


@pytest.fixture(params=["pipe", "socket", "device"])
def stranger(request: pytest.FixtureRequest, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create an entry that is not a file, a directory or a link, such as a pipe; yield its path."""
    path = shared / "stranger"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root can create devices")
    listening = socket.socket(socket.AF_UNIX)
    if request.param == "socket":
        monkeypatch.chdir(shared)  # the path of a socket must be short
        listening.bind("stranger")
    yield "shared/stranger"
    listening.close()


@pytest.mark.security("T1")
async def test_devices_pipes_and_sockets_are_listed_but_never_opened(alice, stranger):
    async with asyncio.timeout(20):
        found = {entry.name: entry.kind for entry in await entries(alice, "shared")}
        assert found["stranger"] is EntryKind.UNKNOWN
        assert (await alice.stat(stranger)).kind is EntryKind.UNKNOWN
        for call in (
            content(alice, stranger),
            alice.copy(stranger, "shared/copy"),
            alice.set_permissions(stranger, 0o777),
        ):
            with pytest.raises(NotAFile):
                await call
        for call in (
            put(alice, stranger, overwrite=True),
            put(alice, stranger),
            alice.mkdir(stranger),
            alice.copy("shared/file", stranger, overwrite=True),
            alice.rename("shared/file", stranger, overwrite=True),
        ):
            with pytest.raises(PathExists):
                await call
        with pytest.raises(NotADirectory):
            await names(alice, stranger)
        summary = await alice.content_summary("shared")
        assert summary.file_count == 1
        await alice.rename(stranger, "shared/renamed")
        await alice.delete("shared/renamed", recursive=False)
    assert await names(alice, "shared") == ["file", "inside"]


async def test_undecodable_names_are_listed_as_hex_and_deleted_with_their_directory(alice, shared):
    (shared / "d").mkdir()
    (shared / "d" / os.fsdecode(b"\xff")).touch()
    assert await names(alice, "shared/d") == ["._qs_name_ff"]
    await alice.delete("shared/d", recursive=True)
    assert not (shared / "d").exists()


@pytest.mark.security("S3")
async def test_backslash_is_an_ordinary_character(alice, shared):
    (shared / "inside" / "x").touch()
    await put(alice, "shared/inside\\x", b"back")
    assert await content(alice, "shared/inside\\x") == b"back"
    assert (shared / "inside\\x").read_bytes() == b"back"
    await alice.delete("shared/inside\\x", recursive=False)
    assert (shared / "inside" / "x").exists()


@pytest.mark.security("S4")
@pytest.mark.parametrize("path", ["../outside/secret", "shared/../../outside/secret", "/etc/passwd", "shared//file"])
async def test_no_path_leaves_the_root(alice, admin, path, outside, shared):
    for storage in (alice, admin):
        for call in (storage.stat(path), content(storage, path), put(storage, path, overwrite=True)):
            with pytest.raises(InvalidPath):
                await call
    assert (outside / "secret").read_text() == "secret"


@pytest.mark.storage(18)
async def test_name_is_limited_to_255_bytes(alice, shared):
    for longest, too_long in (("x" * 255, "x" * 256), ("é" * 127, "é" * 128)):
        await put(alice, f"shared/{longest}")
        assert longest in await names(alice, "shared")
        with pytest.raises(InvalidPath):
            await put(alice, f"shared/{too_long}")


async def test_name_taken_during_a_write_is_not_replaced(alice, shared):
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"late"
        (shared / "new").write_text("first")

    with pytest.raises(PathExists):
        await alice.write("shared/new", overtaken(), overwrite=False)
    assert (shared / "new").read_text() == "first"
    assert everything(shared) == ["file", "inside", "new"]


@pytest.mark.security("S5")
async def test_link_created_during_a_write_is_not_written_through(alice, shared, outside):
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"late"
        (shared / "new").symlink_to(outside / "secret")

    with pytest.raises(SymlinkNotFollowed):
        await alice.write("shared/new", overtaken(), overwrite=True)
    assert (outside / "secret").read_text() == "secret"
    assert everything(shared) == ["file", "inside", "new"]


@pytest.mark.security("S5")
async def test_directory_replaced_by_a_link_during_a_write_keeps_the_file(alice, shared, outside):
    """The bytes are written to the directory that was opened first, not to the target of the link."""

    async def moved() -> AsyncIterator[bytes]:
        yield b"one"
        (shared / "inside").rename(shared / "elsewhere")
        (shared / "inside").symlink_to(outside)
        yield b"two"

    await alice.write("shared/inside/new", moved(), overwrite=False)
    assert everything(outside) == ["secret"]
    assert (shared / "elsewhere" / "new").read_bytes() == b"onetwo"
    await alice.write("shared/other", body(b"x"), overwrite=False)
