"""File access by statements: user permissions, audit events and atomic writes (Contract editor 4.7)."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from tests.fakes.statement_files import ADMIN, ANA, BOB, GivenFiles, by_token
from tests.fakes.storage import LIKE_HDFS, LIKE_S3, MemoryFileSystem
from tests.fakes.storage_faults import FaultyFileSystem
from tests.refusals import raises_code

from queryserver.engines.external_data import FileSink, StoredFile
from queryserver.errors.base import InvalidParameter, PermissionDenied, TooManyRequests
from queryserver.errors.files import EntryChanged, InvalidPath, NotAFile, PathExists, PathNotFound, StorageError
from queryserver.files import statement_files
from queryserver.files.model import EntryKind, ExtensionRules, FileStatus, PathReader, Scheme, StorageUser
from queryserver.files.protocol import StorageTraits
from queryserver.files.statement_files import MAX_READ_BYTES, SessionFiles
from queryserver.identity.model import Scope, User
from queryserver.statements.external_access import SessionReads

ALL = frozenset(Scope) - {Scope.ADMIN}


def lake(*files: str) -> MemoryFileSystem:
    """Return an S3 store with the bucket `lake`, which contains the given files."""
    traits = StorageTraits(container_levels=1, lists_in_order=True)
    file_system = MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["lake"])
    for file in files:
        file_system.tree.make_container(f"lake/{file}".rpartition("/")[0])
        file_system.tree.put(f"lake/{file}", file.encode())
    return file_system


def hdfs() -> MemoryFileSystem:
    """Return an HDFS with the private home directories of ana and bob, each of which contains a file."""
    private = {"user/ana": "ana", "user/bob": "bob"}
    file_system = MemoryFileSystem(Scheme.HDFS, StorageTraits(acts_as_user=True), LIKE_HDFS, private=private)
    for name in ("ana", "bob"):
        file_system.tree.make_container(f"user/{name}")
        file_system.tree.put(f"user/{name}/own.csv", name.encode())
    return file_system


def paths(files: Sequence[StoredFile]) -> list[str]:
    return [file.path for file in files]


async def content(files: SessionFiles, path: str) -> bytes:
    found = await files.require_readable(path)
    return await files.read(path, offset=0, length=found.size, version=found.version)


async def write(files: SessionFiles, path: str, *pieces: bytes, overwrite: bool = False) -> None:
    async with files.write(path, overwrite=overwrite) as sink:
        for piece in pieces:
            await sink.send(piece)


async def test_each_statement_of_a_session_has_the_permissions_of_its_caller():
    files = GivenFiles(hdfs()).session()
    async with files.acting(ANA):
        assert await content(files, "hdfs:///user/ana/own.csv") == b"ana"
        with pytest.raises(PermissionDenied, match=r"^hdfs:///user/bob/own\.csv"):
            await files.require_readable("hdfs:///user/bob/own.csv")
        with pytest.raises(PermissionDenied):
            await files.glob("hdfs:///user/*/own.csv")
    async with files.acting(BOB):
        assert await content(files, "hdfs:///user/bob/own.csv") == b"bob"
        with pytest.raises(PermissionDenied):
            await files.read("hdfs:///user/ana/own.csv", offset=0, length=1)


async def test_concurrent_sessions_never_read_files_of_the_other_user():
    given = GivenFiles(hdfs())
    refused = 0

    async def reads(user: User, other: User) -> None:
        nonlocal refused
        files = given.session()
        for _ in range(50):
            async with files.acting(user):
                own, foreign = await asyncio.gather(
                    content(files, f"hdfs:///user/{user.username}/own.csv"),
                    content(files, f"hdfs:///user/{other.username}/own.csv"),
                    return_exceptions=True,
                )
                assert own == user.username.encode()
                assert isinstance(foreign, PermissionDenied)
                refused += 1

    await asyncio.gather(*(reads(*pair) for pair in [(ANA, BOB), (BOB, ANA)] * 5))
    assert refused == 500


async def test_calls_outside_a_statement_are_denied():
    files = GivenFiles(lake("a.csv")).session()
    calls = (
        lambda: files.glob("s3a://lake/*"),
        lambda: files.status("s3a://lake/a.csv"),
        lambda: files.list_directory("s3a://lake"),
        lambda: files.read("s3a://lake/a.csv", offset=0, length=1),
        lambda: files.make_directory("s3a://lake/d"),
        lambda: write(files, "s3a://lake/b.csv"),
        lambda: files.remove("s3a://lake/a.csv"),
    )
    for round_trip in range(2):
        for call in calls:
            with pytest.raises(PermissionDenied):
                await call()
        if not round_trip:
            async with files.acting(ANA):
                await files.status("s3a://lake/a.csv")


@pytest.mark.parametrize(("scopes", "may_read", "may_write"), [
    ([Scope.QUERY], False, False), ([Scope.QUERY, Scope.FILES_READ], True, False),
    ([Scope.QUERY, Scope.FILES_WRITE], False, True), (ALL, True, True)])  # fmt: skip
@pytest.mark.parametrize("user", [ANA, ADMIN])
async def test_token_scopes_limit_file_access_of_a_statement(
    scopes: Sequence[Scope], user: User, *, may_read: bool, may_write: bool
):
    files = GivenFiles(lake("a.csv")).session()
    async with files.acting(by_token(user, *scopes)):
        for may, scope, work in (
            (may_read, Scope.FILES_READ, content(files, "s3a://lake/a.csv")),
            (may_read, Scope.FILES_READ, files.glob("s3a://lake/*.csv")),
            (may_read, Scope.FILES_READ, files.list_directory("s3a://lake")),
            (may_write, Scope.FILES_WRITE, write(files, "s3a://lake/b.csv", b"x")),
            (may_write, Scope.FILES_WRITE, files.make_directory("s3a://lake/d")),
        ):
            if may:
                await work
            else:
                with pytest.raises(PermissionDenied, match=rf"^s3a://lake.*lacks the scope {scope}"):
                    await work


async def test_administrator_token_does_not_open_other_homes():
    file_system = hdfs()
    files = GivenFiles(file_system).session()
    async with files.acting(by_token(ADMIN, *ALL)):
        with pytest.raises(PermissionDenied):
            await files.require_readable("hdfs:///user/ana/own.csv")


async def test_store_permission_is_required_and_the_error_names_the_path():
    files = GivenFiles(lake("a.csv")).session()
    async with files.acting(User(7, "eve")):
        with raises_code("permission_denied") as refusal:
            await files.glob("s3a://lake/*.csv")
    assert refusal.value.message == "s3a://lake/*.csv: You do not have access to the store s3a."


async def test_read_only_engine_or_connector_writes_nothing():
    files = GivenFiles(lake("a.csv")).access.of_session(may_write=False, on_read=SessionReads().add_files)
    async with files.acting(ANA):
        assert paths(await files.glob("s3a://lake/*")) == ["s3a://lake/a.csv"]
        for call in (write(files, "s3a://lake/b.csv", b"x"), files.make_directory("s3a://lake/d")):
            with pytest.raises(PermissionDenied, match=r"^s3a://lake/.*read-only"):
                await call


async def test_paths_are_returned_in_the_spelling_of_the_statement():
    reader = PathReader(
        [Scheme.HDFS, Scheme.S3A, Scheme.ABFS, Scheme.OFS, Scheme.FILE],
        name_nodes=frozenset({"nn:8020", "nn"}),
        azure_account="acc.dfs.core.windows.net",
        ozone_services=("om",),
    )
    stores = [MemoryFileSystem(scheme) for scheme in reader.configured]
    for store in stores:
        store.tree.make_container("om/d")
        store.tree.put("om/d/x.csv", b"x")
    files = GivenFiles(*stores, reader=reader).session()
    assert files.schemes == frozenset(["hdfs", "s3a", "s3", "s3n", "abfs", "abfss", "adls", "adl", "ofs", "file"])
    account = "abfss://om@acc.dfs.core.windows.net"
    async with files.acting(ADMIN):
        for pattern, found in (
            ("s3://om/d/*.csv", "s3://om/d/x.csv"),
            ("s3n://om//./d/*", "s3n://om/d/x.csv"),
            ("S3A://om/*/x.csv", "S3A://om/d/x.csv"),
            ("hdfs:///om/d/*", "hdfs:///om/d/x.csv"),
            ("hdfs:/om/d/*", "hdfs:///om/d/x.csv"),
            ("hdfs://nn:8020/om/**", "hdfs://nn:8020/om/d/x.csv"),
            ("hdfs:/nn/om/**", "hdfs:///om/d/x.csv"),
            ("adls://om/d/x.csv", "adls://om/d/x.csv"),
            (f"{account}/d/*", f"{account}/d/x.csv"),
            ("ofs://om/d/*", "ofs://om/d/x.csv"),
            ("ofs:///d/*", "ofs://om/d/x.csv"),
            ("file:///om/d/*", "file:///om/d/x.csv"),
            ("/om/d/*", "hdfs:///om/d/x.csv"),
        ):
            assert paths(await files.glob(pattern)) == [found], pattern
            assert (await files.status(found)).path == found
            assert paths(await files.list_directory(found.removesuffix("/x.csv"))) == [found]
            assert await content(files, found) == b"x"


@pytest.mark.item(100)
@pytest.mark.parametrize(("path", "code"), [
    ("s3a://lake/../x", "invalid_path"), ("s3a://lake/%2e%2e/x", "invalid_path"),
    ("s3a://lake/a\0b", "invalid_path"), ("s3a://lake/" + "n" * 256, "invalid_path"), ("gs://lake/x", "unknown_scheme"),
    ("hdfs:///x", "storage_not_configured"), ("s3a://lake/._qs_upload_x", "invalid_path"), ("", "missing_parameter"),
    ("s3a://lake/nope.csv", "path_not_found"), ("s3a://lake/d", "not_a_file"),
    ("s3a://lake/~/x", "path_not_found")])  # fmt: skip
async def test_invalid_and_missing_paths_fail_as_in_storage_calls_and_are_named(path: str, code: str):
    files = GivenFiles(lake("d/x")).session()
    async with files.acting(ANA):
        for call in (files.require_readable, partial(files.read, offset=0, length=1)):
            with raises_code(code) as failure:
                await call(path)
            assert path in failure.value.message


async def test_unknown_scheme_names_the_stores_of_the_caller():
    files = GivenFiles(lake()).session()
    async with files.acting(ANA):
        with raises_code("unknown_scheme") as failure:
            await files.glob("gs://lake/*")
    assert failure.value.message == "gs://lake/*: No store has the scheme gs. Configured: s3a."


async def test_file_names_with_pattern_characters_match_literally():
    files = GivenFiles(lake("[1].csv", "1.csv", "*.csv", "a?.csv")).session()
    async with files.acting(ANA):
        assert paths(await files.glob("s3a://lake/[2].csv")) == []
        assert paths(await files.glob("s3a://lake/[[]1].csv")) == ["s3a://lake/[1].csv"]
        assert paths(await files.glob("s3a://lake/[1].csv")) == ["s3a://lake/1.csv"]
        assert await content(files, "s3a://lake/*.csv") == b"*.csv"
    files = GivenFiles(lake("[1].csv")).session()
    async with files.acting(ANA):
        assert paths(await files.glob("s3a://lake/[1].csv")) == ["s3a://lake/[1].csv"]


async def test_links_are_rejected_and_omitted_from_listings():
    file_system = lake("a.csv")
    file_system.tree.make_entry("lake/link", EntryKind.LINK)
    files = GivenFiles(file_system).session()
    async with files.acting(ANA):
        assert paths(await files.glob("s3a://lake/*")) == paths(await files.list_directory("s3a://lake"))
        for call in (files.glob, files.status, files.require_readable):
            with pytest.raises(PermissionDenied, match=r"^s3a://lake/link.*symbolic link"):
                await call("s3a://lake/link")


@pytest.mark.item(101)
async def test_reads_use_the_version_that_the_statement_read_first():
    file_system = lake("a.csv")
    files = GivenFiles(file_system).session()
    async with files.acting(ANA):
        (found,) = await files.glob("s3a://lake/a.csv")
        assert (found.size, found.version != "", found.is_directory) == (5, True, False)
        assert await files.read(found.path, offset=2, length=100, version=found.version) == b"csv"
        assert (
            await files.read(found.path, offset=5, length=1) == await files.read(found.path, offset=9, length=1) == b""
        )
        for offset, length in ((-1, 1), (0, -1), (0, MAX_READ_BYTES + 1)):
            with pytest.raises(InvalidParameter):
                await files.read(found.path, offset=offset, length=length)
        with pytest.raises(EntryChanged):
            await files.read(found.path, offset=0, length=1, version='"other"')
        file_system.tree.put("lake/a.csv", b"changed")
        with pytest.raises(EntryChanged, match=r"^s3a://lake/a\.csv"):
            await files.read(found.path, offset=0, length=1)
    async with files.acting(ANA):
        assert await content(files, "s3a://lake/a.csv") == b"changed"


async def test_short_read_of_the_store_is_an_error():
    class Short(MemoryFileSystem):
        def as_user(self, user: StorageUser):
            storage = super().as_user(user)
            whole = storage.read

            async def read(path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None):
                async for piece in whole(path, offset=offset, length=length, version=version):
                    yield piece[:-1]

            storage.read = read
            return storage

    file_system = Short()
    file_system.tree.put("a.csv", b"12345")
    files = GivenFiles(file_system).session()
    async with files.acting(ANA):
        with pytest.raises(StorageError):
            await files.read("file:///a.csv", offset=0, length=5)


async def test_file_is_opened_as_the_caller_only_if_the_store_checks_permissions():
    for inner, path, reads in ((hdfs(), "hdfs:///user/ana/own.csv", 1), (lake("a.csv"), "s3a://lake/a.csv", 0)):
        faulty = FaultyFileSystem(inner)
        files = GivenFiles(faulty).session()
        async with files.acting(ANA):
            await files.require_readable(path)
            await files.require_readable(path)
        assert (faulty.calls["read"], faulty.calls["stat"]) == (reads, 1)
        faulty.failures["read"] = PermissionDenied("Permission denied: user=ana, access=READ")
        async with files.acting(ANA):
            if reads:
                with pytest.raises(PermissionDenied, match=r"^hdfs:///user/ana/own\.csv: Permission denied"):
                    await files.require_readable(path)
            else:
                await files.require_readable(path)


async def test_files_of_a_pattern_open_without_another_call():
    faulty = FaultyFileSystem(lake(*(f"d/{number}.csv" for number in range(20))))
    files = GivenFiles(faulty).session()
    async with files.acting(ANA):
        for found in await files.glob("s3a://lake/d/*.csv"):
            await files.require_readable(found.path)
    assert faulty.calls["stat"] == 0


async def test_written_file_appears_when_its_block_ends():
    file_system = lake()
    given = GivenFiles(file_system)
    files = given.session()
    async with files.acting(ANA, operation_id="op-1"):
        async with files.write("s3a://lake/d/new.csv", overwrite=False) as sink:
            await sink.send(b"ab")
            await sink.send(b"")
            await sink.send(b"c" * 3_000_000)
            await asyncio.sleep(0)
            assert "lake/d/new.csv" not in file_system.tree.entries
            assert len(given.writes.open) == 1
        assert file_system.tree.entries["lake/d/new.csv"].content == b"ab" + b"c" * 3_000_000
        assert (await files.status("s3a://lake/d/new.csv")).size == 3_000_002
    assert not given.writes.open
    assert given.audit.events == [("statement.write", "s3a://lake/d/new.csv", "ok")]
    assert given.audit.details == [{"user": "ana", "effective": "ana", "size": 3_000_002, "operation_id": "op-1"}]


@pytest.mark.item(97)
@pytest.mark.parametrize("failure", [ValueError("of the engine"), asyncio.CancelledError()])
async def test_failed_block_keeps_the_previous_state(failure: BaseException):
    file_system = lake("old.csv")
    given = GivenFiles(file_system)
    files = given.session()

    async def failing(path: str) -> None:
        async with files.write(path, overwrite=True) as sink:
            await sink.send(b"part")
            raise failure

    async with files.acting(ANA):
        for name in ("old.csv", "new.csv"):
            with pytest.raises(type(failure)):
                await failing(f"s3a://lake/{name}")
    assert file_system.tree.entries["lake/old.csv"].content == b"old.csv"
    assert "lake/new.csv" not in file_system.tree.entries
    assert [outcome for _, _, outcome in given.audit.events] == ["interrupted"] * 2


async def test_store_failure_aborts_the_write_at_the_next_chunk_and_at_the_exit():
    faulty = FaultyFileSystem(lake())
    faulty.failures["write"] = StorageError("The disk is full.")
    files = GivenFiles(faulty).session()
    sent = 0

    async def writes() -> None:
        nonlocal sent
        async with files.write("s3a://lake/a.csv", overwrite=False) as sink:
            for sent in range(100):  # noqa: B007 read after the block ends
                await sink.send(b"x" * 1024)

    async with files.acting(ANA):
        with pytest.raises(StorageError, match=r"s3a://lake/a\.csv: The disk is full"):
            await writes()
        assert sent < 20
        with pytest.raises(StorageError):
            await write(files, "s3a://lake/b.csv", b"x")


async def test_chunk_failure_names_the_path_wherever_it_is_raised():
    faulty = FaultyFileSystem(lake())
    faulty.failures["write"] = PermissionDenied("Only administrators may change a.csv.")
    files = GivenFiles(faulty).session()

    async def sends(sink: FileSink) -> None:
        for _ in range(100):
            await sink.send(b"x")

    async def writes() -> None:
        async with files.write("s3://lake/a.csv", overwrite=False) as sink:
            with pytest.raises(PermissionDenied, match=r"^s3://lake/a\.csv: Only administrators"):
                await sends(sink)

    async with files.acting(ANA):
        with pytest.raises(PermissionDenied, match=r"^s3://lake/a\.csv: Only administrators"):
            await writes()


async def test_continuing_after_a_failed_chunk_writes_no_file():
    file_system = lake()
    files = GivenFiles(file_system, max_bytes=10).session()

    async def writes() -> None:
        async with files.write("s3a://lake/a.csv", overwrite=False) as sink:
            await sink.send(b"1234567890")
            with raises_code("file_too_large"):
                await sink.send(b"1")

    async with files.acting(ANA):
        with raises_code("file_too_large"):
            await writes()
    assert "lake/a.csv" not in file_system.tree.entries


async def test_statement_end_aborts_its_open_writes():
    file_system = lake()
    given = GivenFiles(file_system)
    files = given.session()
    begun: asyncio.Future[FileSink] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def writes() -> None:
        async with files.write("s3a://lake/a.csv", overwrite=False) as sink:
            await sink.send(b"part")
            begun.set_result(sink)
            await ended.wait()

    async with files.acting(ANA):
        writing = asyncio.create_task(writes())
        sink = await begun
    with pytest.raises(PermissionDenied, match="ended"):
        await sink.send(b"more")
    ended.set()
    with pytest.raises(PermissionDenied):
        await writing
    assert "lake/a.csv" not in file_system.tree.entries
    assert not given.access.open_writes


@pytest.mark.parametrize(("path", "overwrite", "code"), [("s3a://lake/old.csv", False, "already_exists"),
    ("s3a://lake/d", True, "already_exists"), ("s3a://nope/x.csv", False, "path_not_found"),
    ("s3a://x.csv", False, "root_not_allowed"),
    ("s3a://", False, "already_exists"), ("s3a://lake/x.exe", False, "extension_restricted"),
    ("s3a://lake/a\\b", False, "invalid_name"), ("s3a://lake/ x.csv", False, "invalid_name"),
    ("s3a://lake/a\nb", False, "invalid_name"), ("s3a://lake/../x.csv", False, "invalid_path")])  # fmt: skip
async def test_upload_rules_apply_to_writes(path: str, code: str, *, overwrite: bool):
    file_system = lake("old.csv", "d/x")
    before = dict(file_system.tree.entries)
    files = GivenFiles(file_system, extensions=ExtensionRules(restricted=["exe"])).session()
    async with files.acting(ANA):
        with raises_code(code) as failure:
            await write(files, path, b"x", overwrite=overwrite)
        assert path.rstrip("/") in failure.value.message or "s3a://nope" in failure.value.message
    assert file_system.tree.entries == before


async def test_disabled_uploads_also_disable_statement_writes():
    files = GivenFiles(lake(), may_upload=False).session()
    async with files.acting(ANA):
        with pytest.raises(PermissionDenied, match="disabled"):
            await write(files, "s3a://lake/a.csv", b"x")


async def test_object_store_directories_are_implicit_and_others_are_created():
    s3, file_system = lake(), hdfs()
    files = GivenFiles(file_system, s3).session()
    async with files.acting(ANA):
        await files.make_directory("s3a://lake/t/year=2024")
        assert (await files.status("s3a://lake/t/year=2024")).is_directory
        assert await files.list_directory("s3a://lake/t/year=2024") == []
        assert "lake/t/year=2024" not in s3.tree.entries
        await write(files, "s3a://lake/t/year=2024/data_0.parquet", b"x")
        assert len(await files.list_directory("s3a://lake/t/year=2024")) == 1
        await files.make_directory("hdfs:///user/ana/t/year=2024")
        await files.make_directory("hdfs:///user/ana/t/year=2024")
        assert file_system.tree.entries["user/ana/t/year=2024"].kind is EntryKind.DIRECTORY
        with pytest.raises(PathExists):
            await files.make_directory("hdfs:///user/ana/own.csv")
        with raises_code("invalid_name"):
            await files.make_directory("hdfs:///user/ana/a#b")
        with pytest.raises(PermissionDenied):
            await files.make_directory("hdfs:///user/bob/t")
    async with files.acting(ANA):
        with pytest.raises(PathNotFound):
            await files.status("s3a://lake/other")


async def test_statement_removes_only_its_own_files():
    file_system = lake("old.csv")
    given = GivenFiles(file_system)
    files = given.session()
    async with files.acting(ANA):
        await write(files, "s3a://lake/a.csv", b"x")
        await write(files, "s3a://lake/b.csv", b"x")
        await files.remove("s3a://lake/a.csv")
        for path in ("s3a://lake/old.csv", "s3a://lake/a.csv", "s3a://lake/nope.csv"):
            with pytest.raises(PermissionDenied):
                await files.remove(path)
        file_system.tree.put("lake/b.csv", b"of another")
        with pytest.raises(EntryChanged):
            await files.remove("s3a://lake/b.csv")
    async with files.acting(ANA):
        with pytest.raises(PermissionDenied):
            await files.remove("s3a://lake/b.csv")
    assert set(file_system.tree.entries) >= {"lake/old.csv", "lake/b.csv"}


async def test_open_writes_are_limited_per_statement(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statement_files, "MAX_OPEN_WRITES", 2)
    files = GivenFiles(lake()).session()
    async with files.acting(ANA):
        async with files.write("s3a://lake/1", overwrite=False), files.write("s3a://lake/2", overwrite=False):
            with pytest.raises(TooManyRequests):
                await write(files, "s3a://lake/3", b"x")
        await write(files, "s3a://lake/3", b"x")


async def test_each_opened_file_and_each_denial_is_audited_once():
    given = GivenFiles(hdfs(), lake("a.csv", "b.csv"))
    files = given.session()
    async with files.acting(ANA, operation_id="op-1"):
        for found in await files.glob("s3a://lake/*.csv"):
            await files.require_readable(found.path)
            await files.read(found.path, offset=0, length=1)
            await files.read(found.path, offset=1, length=1)
        for call in (files.require_readable, files.status, files.glob):
            with pytest.raises(PermissionDenied):
                await call("hdfs:///user/bob/own.csv")
        with pytest.raises(PathNotFound):
            await files.require_readable("s3a://lake/nope.csv")
    assert given.audit.events == [
        ("statement.read", "s3a://lake/a.csv", "ok"),
        ("statement.read", "s3a://lake/b.csv", "ok"),
        ("statement.read", "/user/bob/own.csv", "permission_denied"),
        ("statement.list", "/user/bob/own.csv", "permission_denied"),
        ("statement.list", "/user/bob/own.csv", "permission_denied"),
        ("statement.read", "s3a://lake/nope.csv", "path_not_found"),
    ]
    assert all(details["operation_id"] == "op-1" for details in given.audit.details)


async def test_invalid_path_is_rejected_by_every_call():
    files = GivenFiles(lake()).session()
    async with files.acting(ANA):
        for call in (files.glob, files.status, files.list_directory, files.require_readable, files.remove):
            with pytest.raises(InvalidPath):
                await call("s3a://lake/../x")
        for call in (files.make_directory("s3a://lake/../x"), write(files, "s3a://lake/../x")):
            with pytest.raises(InvalidPath):
                await call
        with pytest.raises(NotAFile):
            await files.read("s3a://lake", offset=0, length=1)
