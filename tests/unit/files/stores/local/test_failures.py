"""The state of the files after a failure of the machine, the disk or the process."""

import asyncio
import errno
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from tests.contract.storage_basis import body, content, names, put
from tests.unit.files.stores.local.descriptors import open_below

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    EntryChanged,
    InvalidPath,
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    SymlinkNotFollowed,
)
from queryserver.files.model import StorageUser
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.local.storage import LocalFileSystem, PrivateStorage
from queryserver.files.stores.local.tree import file_error


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def run_program(program: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return await asyncio.to_thread(subprocess.run, command, timeout=60, capture_output=True, text=True)


async def test_service_files_are_private(private, own):
    await put(private, "a/b/file")
    modes = {path: stat.S_IMODE((own / path).stat().st_mode) for path in ("", "a", "a/b", "a/b/file")}
    assert modes == {"": 0o700, "a": 0o700, "a/b": 0o700, "a/b/file": 0o600}


async def test_concurrent_writers_share_new_directories(private):
    await asyncio.gather(*(put(private, f"a/b/c/{n}") for n in range(50)))
    assert len(await names(private, "a/b/c")) == 50


async def test_concurrent_deletes_of_a_tree_complete(private):
    for n in range(200):
        await put(private, f"tree/{n % 10}/{n}")
    deletes = [private.delete("tree", recursive=True) for _ in range(4)]
    outcomes = await asyncio.gather(*deletes, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), PathNotFound}
    assert await names(private, "") == []


async def test_directory_filled_during_deletion_is_eventually_deleted(private, own):
    for n in range(50):
        (own / "tree" / str(n)).mkdir(parents=True)

    async def fill() -> None:
        for n in range(50):
            with suppress(QueryServerError):
                await put(private, f"tree/{n}/late")

    await asyncio.gather(private.delete("tree", recursive=True), fill())
    with suppress(PathNotFound):
        await private.delete("tree", recursive=True)
    assert await names(private, "") == []


async def test_very_deep_tree_is_deleted(private, own):
    """Renames can make a tree deeper than any limit on path lengths or open descriptors."""

    def dig() -> None:
        bottom = os.open(own, os.O_RDONLY)
        for depth in range(2500):
            name = "tree" if depth == 0 else "d"
            os.mkdir(name, dir_fd=bottom)
            inner = os.open(name, os.O_RDONLY, dir_fd=bottom)
            os.close(bottom)
            bottom = inner
        os.close(bottom)

    await asyncio.to_thread(dig)
    await private.delete("tree", recursive=True)
    assert everything(own) == []


async def test_missing_root_is_an_unavailable_store(private, own):
    own.rename(own.with_name("elsewhere"))
    for call in (private.stat("x"), names(private, ""), put(private, "x", overwrite=True)):
        with pytest.raises(StorageUnavailable):
            await call


async def test_canceled_write_closes_and_removes_its_file(private, own):
    for step in range(40):
        writing = asyncio.create_task(private.write("d/file", body(b"x" * 65536, b"y" * 65536), overwrite=True))
        await asyncio.sleep(step / 40_000)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert set(everything(own)) <= {"d", "d/file"}
        assert not await asyncio.to_thread(open_below, own)
    if (own / "d" / "file").exists():
        assert (own / "d" / "file").stat().st_size == 131072


async def test_canceled_part_closes_and_removes_its_file(alice, root):
    plan = PartPlan("user/alice/file", 131072, 131072, 1)
    staging = await alice.begin_parts(plan)
    for step in range(20):
        writing = asyncio.create_task(alice.write_part(plan, staging, 0, body(b"x" * 65536, b"y" * 65536)))
        await asyncio.sleep(step / 20_000)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert everything(root / "user") == ["alice", f"alice/{staging}"]
        assert not await asyncio.to_thread(open_below, root)
    await alice.discard_parts(plan, staging)
    assert everything(root / "user") == ["alice"]


async def test_abandoned_listings_and_reads_close_their_descriptors(alice, file_system, root):
    for n in range(5):
        await put(alice, f"user/alice/{n}", b"x" * 100)
    for _ in range(20):
        listing = alice.list_directory("user/alice", batch_size=2)
        await anext(listing)
        await listing.aclose()
        reading = alice.read("user/alice/1", length=10)
        await anext(reading)
        await reading.aclose()
    await file_system.close()
    assert not await asyncio.to_thread(open_below, root)


async def test_hanging_file_system_is_an_unavailable_store(tmp_path):
    release = asyncio.Event()

    async with PrivateStorage(tmp_path / "root", max_threads=1, timeout_s=0.05) as slow:
        loop = asyncio.get_running_loop()
        blocked = slow._threads.start(lambda: asyncio.run_coroutine_threadsafe(release.wait(), loop).result())
        with pytest.raises(StorageUnavailable):
            await slow.stat("")
        release.set()
        await asyncio.wrap_future(blocked)
        slow._threads._timeout_s = 60.0
        assert (await slow.stat("")).is_directory


KILLED = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from queryserver.files.stores.local.storage import PrivateStorage

    async def killed():
        yield b"half"
        yield b"way"
        os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        await PrivateStorage(Path(sys.argv[1])).write("a/b/file", killed(), overwrite=True)

    asyncio.run(main())
"""


@pytest.mark.storage(35, 86)
async def test_files_orphaned_by_a_crash_are_hidden_and_swept_once_old(private, own):
    died = await run_program(KILLED, own)
    assert died.returncode == -9
    (leftover,) = [path for path in everything(own) if path not in {"a", "a/b"}]
    assert await names(private, "a/b") == []
    assert (await private.content_summary("a/b")).file_count == 0
    with pytest.raises(InvalidPath):
        await content(private, leftover)

    assert await private.sweep_all_directories(timedelta(hours=1)) == 0
    assert await private.sweep_orphans("a/b", 3600) == 0
    os.utime(own / leftover, (0, 0))
    assert await private.sweep_all_directories(timedelta(hours=1), dry_run=True) == 1
    assert await private.sweep_orphans("a", 3600) == 0
    assert await private.sweep_orphans("a/b", 3600) == 1
    assert everything(own) == ["a", "a/b"]


async def test_all_service_directories_are_swept(private, own):
    for place in ("", "a", "a/b"):
        (own / place).mkdir(parents=True, exist_ok=True)
        (own / place / "._qs_upload_0").touch()
        os.utime(own / place / "._qs_upload_0", (0, 0))
    (own / "._qs_deep_0").mkdir()
    (own / "._qs_deep_0" / "file").touch()
    os.utime(own / "._qs_deep_0", (0, 0))
    assert await private.sweep_all_directories(timedelta(hours=1)) == 4
    assert everything(own) == ["a", "a/b"]


async def test_sweeping_spares_running_writes_and_files(private, own):
    await put(private, "a/file")
    os.utime(own / "a" / "file", (0, 0))

    async def swept_meanwhile() -> AsyncIterator[bytes]:
        yield b"one"
        assert await private.sweep_all_directories(timedelta(minutes=1)) == 0
        yield b"two"

    await private.write("b/file", swept_meanwhile(), overwrite=False)
    assert await content(private, "b/file") == b"onetwo"
    assert await content(private, "a/file") == b"x"


FULL = """
    import asyncio, resource, sys
    from pathlib import Path
    from queryserver.errors import StorageError
    from queryserver.files.model import StorageUser
    from queryserver.files.protocol import PartPlan
    from queryserver.files.stores.local.storage import LocalFileSystem

    async def body():
        for _ in range(10):
            yield b"x" * 65536

    async def main():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        file_system = LocalFileSystem(Path(sys.argv[1]))
        storage = file_system.as_user(StorageUser("alice"))
        for call in (
            storage.write("user/alice/file", body(), overwrite=True),
            storage.begin_parts(PartPlan("user/alice/parts", 655_360, 65_536, 10)),
        ):
            try:
                await call
            except StorageError as error:
                print(error.message)
        await file_system.close()

    asyncio.run(main())
"""


@pytest.mark.storage(59)
async def test_full_disk_is_reported_and_nothing_remains(root):
    """A file-size limit simulates the full disk, because setting this limit requires no privileges."""
    (root / "user" / "alice").mkdir(parents=True)
    (root / "user" / "alice" / "file").write_text("old")
    ran = await run_program(FULL, root)
    assert ran.stdout.splitlines() == ["The file is larger than the store allows."] * 2, ran.stderr
    assert everything(root / "user") == ["alice", "alice/file"]
    assert (root / "user" / "alice" / "file").read_text() == "old"


TEMPORARY = Path(tempfile.gettempdir()).resolve()
READ_ONLY = """
    import asyncio, os, sys
    from pathlib import Path
    from queryserver.errors import QueryServerError
    from queryserver.files.model import StorageUser
    from queryserver.files.stores.local.storage import LocalFileSystem

    async def body():
        yield b"x"

    async def main():
        root = Path(sys.argv[1])
        if os.geteuid() == 0:
            os.setegid(65534)
            os.seteuid(65534)
        file_system = LocalFileSystem(root)
        storage = file_system.as_user(StorageUser("alice"))
        print(b"".join([piece async for piece in storage.read("docs/file")]))
        for call in (
            storage.stat("user/alice"),
            storage.write("shared/new", body(), overwrite=False),
            storage.mkdir("shared/d/e"),
            storage.delete("shared/file", recursive=False),
            storage.rename("shared/file", "shared/other"),
            storage.set_permissions("shared/file", 0o777),
            storage.delete("shared", recursive=True),
            storage.stat("closed/file"),
        ):
            try:
                await call
            except QueryServerError as error:
                print(error.code, error.message)
        await file_system.close()

    asyncio.run(main())
"""


async def test_unwritable_directory_is_rejected(tmp_path):
    """If the tests run as root, this test runs as an unprivileged user, because root may write anywhere."""
    root = tmp_path / "root"
    for directory in ("docs", "shared", "closed"):
        (root / directory).mkdir(parents=True)
        (root / directory / "file").write_text("kept")
    (root / "closed").chmod(0o700 if os.geteuid() == 0 else 0)
    for directory in (root / "shared", root / "docs", root):
        directory.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):
        if TEMPORARY in parent.parents:
            parent.chmod(0o755)
    ran = await run_program(READ_ONLY, root)
    for directory in (root, root / "closed"):
        directory.chmod(0o755)
    lines = ran.stdout.splitlines()
    assert lines[0] == "b'kept'", ran.stderr
    assert lines[1] == "path_not_found user/alice does not exist."
    assert lines[2] == "permission_denied The store denied access to shared/new."
    assert [line.partition(" ")[0] for line in lines[2:]] == ["permission_denied"] * 7
    assert everything(root) == ["closed", "closed/file", "docs", "docs/file", "shared", "shared/file"]


async def test_version_read_fails_if_the_file_changes(alice, root):
    await put(alice, "shared/file", b"x" * 3_000_000)
    version = await alice.stat("shared/file")
    reading = alice.read("shared/file", version=version)
    assert await anext(reading)
    with (root / "shared" / "file").open("ab") as file:
        file.write(b"more")
    with pytest.raises(EntryChanged):
        await anext(reading)


async def test_replaced_file_is_read_to_its_end(alice):
    """Even if no version is specified, all bytes come from the file that was first opened."""
    await put(alice, "shared/file", b"a" * 3_000_000)
    reading = alice.read("shared/file")
    pieces = [await anext(reading)]
    await put(alice, "shared/file", b"b" * 3_000_000, overwrite=True)
    pieces += [piece async for piece in reading]
    assert b"".join(pieces) == b"a" * 3_000_000


@pytest.mark.parametrize(
    "staging", ["", "..", "../secret", "file", "/etc/passwd", "._qs_parts_", "._qs_parts_" + "0" * 31]
)
async def test_foreign_staging_name_is_rejected(staging, alice, root):
    await put(alice, "shared/file", b"kept", overwrite=True)
    plan = PartPlan("shared/new", 1, 1, 1)
    for call in (
        alice.write_part(plan, staging, 0, body(b"x")),
        alice.join_parts(plan, staging, (), overwrite=True),
        alice.discard_parts(plan, staging),
    ):
        with pytest.raises(StorageError):
            await call
    assert everything(root / "shared") == ["file"]


@pytest.mark.storage(10)
@pytest.mark.parametrize(("number", "kind"),
    [(errno.ENOSPC, StorageError), (errno.EDQUOT, StoreQuotaExceeded), (errno.EIO, StorageUnavailable),
    (errno.ETIMEDOUT, StorageUnavailable), (errno.ESTALE, StorageUnavailable), (errno.EROFS, StorageUnavailable),
    (errno.EACCES, PermissionDenied), (errno.EPERM, PermissionDenied), (errno.ELOOP, SymlinkNotFollowed),
    (errno.ENOTDIR, NotADirectory), (errno.EUSERS, StorageError)])  # fmt: skip
def test_system_errors_map_to_storage_errors(number, kind):
    told = file_error("a/file", OSError(number, os.strerror(number), "/secret/place"))
    assert type(told) is kind
    assert "secret" not in told.message


async def test_rename_never_replaces_without_system_support(root, monkeypatch):
    """Some file systems do not support the no-replace flag of a rename, which this test simulates."""
    monkeypatch.setattr("queryserver.files.stores.local.tree._renamed_at_once", lambda *_: False)
    file_system = LocalFileSystem(root)
    admin = file_system.as_user(StorageUser("root", is_admin=True))
    for path in ("a/file", "b/file", "file", "other"):
        await put(admin, path, path.encode())
    for source, target in (("file", "other"), ("file", "a"), ("a", "b"), ("a", "file")):
        with pytest.raises(PathExists):
            await admin.rename(source, target)
    with pytest.raises(PathExists):
        await put(admin, "file")
    await admin.rename("a", "c")
    await admin.rename("file", "renamed")
    assert [await content(admin, path) for path in ("c/file", "renamed")] == [b"a/file", b"file"]
    await file_system.close()
