"""The Storage contract over memory and over a directory, and what only a directory can do wrong."""

import asyncio
import errno
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.contract.storage_contract import StorageContract, body, content, listing
from tests.fakes.storage import FaultyStorage, MemoryStorage

from queryserver.domain.errors import (
    InvalidPath,
    PathExists,
    PathNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from queryserver.storages.local import LocalStorage
from queryserver.storages.local.errors import file_errors


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    async def storage(self):
        return MemoryStorage()


class TestFaultyStorage(StorageContract):
    """Without failures it behaves as what it wraps."""

    @pytest.fixture
    async def storage(self):
        return FaultyStorage(MemoryStorage())


class TestLocalStorage(StorageContract):
    @pytest.fixture
    async def storage(self, tmp_path: Path):
        async with LocalStorage(tmp_path / "new" / "root") as storage:
            yield storage
        assert not await asyncio.to_thread(_open_below, tmp_path)


def _open_below(directory: Path) -> list[str]:
    """Descriptors of this process that still point below a directory."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(directory))]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[LocalStorage]:
    async with LocalStorage(tmp_path / "root") as storage:
        yield storage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def test_files_and_directories_are_the_owners_alone(storage, root):
    await storage.write("a/b/file", body(b"x"), overwrite=False)
    modes = {path: stat.S_IMODE((root / path).stat().st_mode) for path in ("a", "a/b", "a/b/file")}
    assert modes == {"a": 0o700, "a/b": 0o700, "a/b/file": 0o600}
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.security("T1")
@pytest.mark.parametrize("name", ["to_directory", "to_file", "to_itself", "to_inside", "to_nothing"])
async def test_links_are_never_followed(storage, root, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "inside").mkdir()
    targets = {
        "to_directory": outside,
        "to_file": outside / "secret",
        "to_itself": root / "to_itself",
        "to_inside": root / "inside",
        "to_nothing": outside / "missing",
    }
    (root / name).symlink_to(targets[name])
    for path in (name, f"{name}/secret"):
        for call in (storage.stat(path), content(storage, path), listing(storage, path), storage.copy(path, "copy")):
            with pytest.raises(InvalidPath):
                await call
    with pytest.raises(InvalidPath):
        await storage.write(f"{name}/new", body(b"x"), overwrite=True)
    with pytest.raises(InvalidPath):
        await storage.rename("inside", f"{name}/new")
    assert await listing(storage) == ["inside"]
    assert everything(outside) == ["secret"]


@pytest.mark.security("T1")
async def test_deleting_a_tree_leaves_alone_what_its_links_point_to(storage, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (root / "tree").mkdir()
    (root / "tree" / "link").symlink_to(outside)
    await storage.delete("tree", recursive=True)
    assert everything(tmp_path) == ["outside", "outside/kept", "root"]


@pytest.mark.security("T1")
async def test_writing_over_a_link_replaces_the_link_itself(storage, root, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (root / "link").symlink_to(outside)
    await storage.write("link", body(b"new"), overwrite=True)
    assert await content(storage, "link") == b"new"
    assert outside.read_text() == "kept"


@pytest.mark.security("T1")
async def test_a_directory_that_keeps_turning_into_a_link_leads_nowhere(storage, root, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (root / "real").mkdir()
    (root / "real" / "secret").write_text("harmless")
    stop = asyncio.Event()

    def swap() -> None:
        (root / "link").symlink_to(tmp_path / "outside")
        while not stop.is_set():
            (root / "link").rename(root / "door")
            (root / "door").rename(root / "link")
            (root / "real").rename(root / "door")
            (root / "door").rename(root / "real")

    swapping = asyncio.create_task(asyncio.to_thread(swap))
    read = set()
    for _ in range(500):
        try:
            read.add(await content(storage, "door/secret"))
        except (InvalidPath, PathNotFound):
            continue
    stop.set()
    await swapping
    assert read <= {b"harmless"}


@pytest.mark.security("T1")
async def test_pipes_are_not_opened_and_not_listed(storage, root):
    os.mkfifo(root / "pipe")
    async with asyncio.timeout(5):
        with pytest.raises(InvalidPath):
            await content(storage, "pipe")
    assert await listing(storage) == []


async def test_names_that_are_no_text_are_not_listed(storage, root):
    (root / os.fsdecode(b"\xff")).touch()
    (root / "back\\slash").touch()
    assert await listing(storage) == []


async def test_many_writers_of_new_directories_do_not_disturb_each_other(storage):
    await asyncio.gather(*(storage.write(f"a/b/c/{n}", body(b"x"), overwrite=False) for n in range(50)))
    assert len(await listing(storage, "a/b/c")) == 50


async def test_two_deletes_of_one_tree_help_each_other(storage):
    for n in range(200):
        await storage.write(f"tree/{n % 10}/{n}", body(b"x"), overwrite=False)
    deletes = [storage.delete("tree", recursive=True) for _ in range(4)]
    outcomes = await asyncio.gather(*deletes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), PathNotFound}
    assert await listing(storage) == []


async def test_a_root_that_is_gone_is_an_unavailable_store(storage, root):
    root.rename(root.with_name("elsewhere"))
    for call in (storage.stat("x"), listing(storage), storage.write("x", body(b"x"), overwrite=True)):
        with pytest.raises(StorageUnavailable):
            await call


async def test_a_cancelled_write_closes_its_file_and_removes_it(storage, root):
    for step in range(40):
        writing = asyncio.create_task(storage.write("d/file", body(b"x" * 65536, b"y" * 65536), overwrite=True))
        await asyncio.sleep(step / 40_000)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert set(everything(root)) <= {"d", "d/file"}
        assert not _open_below(root)
    if (root / "d" / "file").exists():
        assert (root / "d" / "file").stat().st_size == 131072


async def test_a_hanging_file_system_is_an_unavailable_store(tmp_path):
    release = asyncio.Event()

    async with LocalStorage(tmp_path / "root", max_threads=1, timeout_s=0.05) as slow:
        loop = asyncio.get_running_loop()
        blocked = loop.run_in_executor(
            slow._threads, lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        )
        with pytest.raises(StorageUnavailable):
            await slow.stat("")
        release.set()
        await blocked
        assert (await slow.stat("")).is_directory


async def test_leftovers_of_a_crash_are_swept_once_they_are_old(storage, root):
    crash = textwrap.dedent("""
        import asyncio, os, signal, sys
        from pathlib import Path
        from queryserver.storages.local import LocalStorage

        async def killed():
            yield b"half"
            yield b"way"
            os.kill(os.getpid(), signal.SIGKILL)

        async def main():
            await LocalStorage(Path(sys.argv[1])).write("a/b/file", killed(), overwrite=True)

        asyncio.run(main())
    """)
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", crash, root], timeout=60)
    assert died.returncode == -9
    leftovers = [path for path in everything(root) if path not in ("a", "a/b")]
    assert len(leftovers) == 1
    assert await listing(storage, "a/b") == []

    assert await storage.sweep_leftovers(timedelta(hours=1)) == 0
    os.utime(root / leftovers[0], (0, 0))
    assert await storage.sweep_leftovers(timedelta(hours=1)) == 1
    assert everything(root) == ["a", "a/b"]


async def test_sweeping_leaves_uploads_under_way_and_files_alone(storage, root):
    await storage.write("a/file", body(b"x"), overwrite=False)
    os.utime(root / "a" / "file", (0, 0))

    async def swept_meanwhile() -> AsyncIterator[bytes]:
        yield b"one"
        assert await storage.sweep_leftovers(timedelta(minutes=1)) == 0
        yield b"two"

    await storage.write("b/file", swept_meanwhile(), overwrite=False)
    assert await content(storage, "b/file") == b"onetwo"
    assert await content(storage, "a/file") == b"x"


async def test_a_full_disk_is_told_and_nothing_is_left(tmp_path):
    """A limit on the size of files stands for the disk: no rights are needed to set it."""
    root = tmp_path / "root"
    fill = textwrap.dedent("""
        import asyncio, resource, sys
        from pathlib import Path
        from queryserver.domain.errors import StorageFull
        from queryserver.storages.local import LocalStorage

        async def body():
            for _ in range(10):
                yield b"x" * 65536

        async def main():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            async with LocalStorage(Path(sys.argv[1])) as storage:
                try:
                    await storage.write("a/file", body(), overwrite=True)
                except StorageFull as error:
                    print(error.message)

        asyncio.run(main())
    """)
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", fill, root], timeout=60, capture_output=True, text=True
    )
    assert run.stdout == "The file is larger than the store allows.\n", run.stderr
    assert everything(root) == ["a"]


async def test_a_store_without_rights_says_so(storage, root):
    root.chmod(0o500)
    try:
        if os.access(root, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(StorageError, match="refuses access"):
            await storage.write("file", body(b"x"), overwrite=False)
    finally:
        root.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EIO, StorageUnavailable),
        (errno.ETIMEDOUT, StorageUnavailable),
        (errno.ESTALE, StorageUnavailable),
        (errno.EROFS, StorageError),
        (errno.EACCES, StorageError),
        (errno.EUSERS, StorageError),
    ],
)
def test_errors_of_the_system_have_their_kinds(number, kind):
    with pytest.raises(kind) as told, file_errors("a/file"):
        raise OSError(number, os.strerror(number), "/secret/place")
    assert type(told.value) is kind
    assert "secret" not in told.value.message


async def test_a_name_taken_while_the_bytes_arrive_is_not_replaced(storage, root):
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"late"
        (root / "file").write_text("first")

    with pytest.raises(PathExists):
        await storage.write("file", overtaken(), overwrite=False)
    assert everything(root) == ["file"]
    assert (root / "file").read_text() == "first"
