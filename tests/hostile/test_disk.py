"""Attacks on the server's disks: an endless series of long statements, and files on an almost full disk."""

import errno
import io
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.storage.conftest import storage_settings

from queryserver.errors.files import InsufficientStorage, StoreQuotaExceeded
from queryserver.files.model import StorageUser
from queryserver.files.protocol import PartPlan
from queryserver.files.stores.local.access import AccessRules, UserQuotas
from queryserver.files.stores.local.storage import LocalFileSystem
from queryserver.files.stores.local.tree import LocalTree
from queryserver.imports.session import COLUMNS, ScratchRows
from queryserver.platform.machine_limits import DiskFloor
from queryserver.sql.statements import statement_hash
from queryserver.statements.job_session import JobReport, JobSession

_NO_DATABASE = "postgresql://api_tests:planted-secret@127.0.0.1:1/none"
KIB, MIB = 1024, 1024 * 1024
LONG = 200 * KIB
EXPIRED = (409, -1, "statement_text_expired")
FULL = (429, -1, "quota_exceeded")


class Usage(NamedTuple):
    """The total and free bytes of a disk, with the names that `shutil.disk_usage` uses."""

    total: int
    free: int


@pytest.fixture
async def api(tmp_path: Path, database_dsn: str) -> AsyncIterator[Api]:
    """An application with small quotas for statement text."""
    async with opened(tmp_path, database_dsn, statement_text_max_bytes_per_user=MIB) as api:
        yield api


@asynccontextmanager
async def opened(
    directory: Path, database_dsn: str, desktop: dict[str, Any] | None = None, **editor: Any
) -> AsyncIterator[Api]:
    async with open_api(make_settings(directory, database_dsn, _NO_DATABASE, desktop=desktop, **editor)) as api:
        yield api


def comment(size_bytes: int) -> str:
    """Return a comment of random digits, which databases cannot compress well."""
    return f"/* {secrets.token_hex(size_bytes // 2)} */"


async def stored_bytes(api: Api) -> int:
    """Return the size of the tables that store statement text, including the space of deleted rows."""
    await api.database.execute("vacuum statements")
    size = "select pg_total_relation_size('statements') + pg_total_relation_size('scripts')"
    return await api.database.value(size)


async def a_day_passes(api: Api) -> None:
    """Simulate that 25 hours have passed: backdate the ends of statements and the expiry of results, then clean up."""
    await api.database.execute(
        "update statements set ended_at = ended_at - interval '25 h', expires_at = expires_at - interval '25 h'"
    )
    await api.services.statements.retention.clean_up()


class TestTexts:
    async def test_statement_texts_count_against_user_quota(self, api: Api):
        ana, bob = await api.user(), await api.user()
        for _ in range(5):
            assert (await ana.run("sqlite", f"select 1 as one {comment(LONG)}"))["status"] == 0
        before = await stored_bytes(api)
        for _ in range(20):
            refused = await ana.post("editor/execute/sqlite", statement=f"select 1 as one {comment(LONG)}")
            assert verdict(refused) == FULL
            script = f"select 1; select 2 {comment(LONG)}"
            assert await ana.refused("editor/execute/sqlite", statement=script) == FULL
        assert int(refused.headers["Retry-After"]) > 0
        assert "editor.statement_text_max_bytes_per_user" in refused.json()["message"]
        assert (await ana.history())["count"] == 5
        assert await stored_bytes(api) < before + LONG
        assert (await ana.run("sqlite", "select 1"))["status"] == 0
        assert (await bob.run("sqlite", f"select 1 as one {comment(LONG)}"))["status"] == 0

    async def test_statement_text_is_written_once_whatever_its_outcome(self, api: Api):
        ana = await api.user()
        before = await stored_bytes(api)
        # SQLite names the column after the text of the expression, including the comment.
        body = await ana.run("sqlite", f"select 1 {comment(800 * KIB)}")
        assert body["status"] == 0
        # The size includes the first pages of each index. A second copy of the text would increase it to 1.6 MiB.
        assert await stored_bytes(api) < before + MIB + MIB // 4
        (column,) = (await ana.page(body["history_uuid"]))["meta"]
        assert column["name"].startswith("1 /* ")
        assert len(column["name"]) == 1000

    async def test_repeatedly_sent_script_is_stored_once(self, api: Api):
        ana, bob = await api.user(), await api.user()
        script = f"select 1; select 2; {comment(LONG)} select 3"
        for _ in range(20):
            assert (await ana.run("sqlite", script))["status"] == 0
        assert await api.database.value("select count(*) from scripts") == 1
        assert (await bob.run("sqlite", script))["status"] == 0
        assert await api.database.value("select count(*) from scripts") == 2

    async def test_column_descriptions_count_as_text(self, api: Api):
        ana = await api.user()
        wide = ", ".join(f"{number} as c{number:0>900}" for number in range(400))
        codes = [(await ana.post("editor/execute/sqlite", statement=f"select {wide}", wait=60)).json()]
        while "code" not in codes[-1]:
            assert len(codes) < 5
            codes.append((await ana.post("editor/execute/sqlite", statement=f"select {wide}", wait=60)).json())
        assert codes[-1]["code"] == "quota_exceeded"

    @pytest.mark.slow
    async def test_data_stored_with_statement_text_is_limited_or_counted(self, api: Api):
        ana = await api.user()
        long_name = await ana.refused("editor/execute/sqlite", statement="select 1", database="d" * 1001)
        assert long_name == (400, -1, "invalid_parameter")
        body = await ana.run("sqlite", f"select unknown_{'x' * 40 * KIB}")
        assert body["code"] == "engine_error"
        counted = await api.database.value("select text_bytes from statements")
        assert counted > 80 * KIB
        await a_day_passes(api)
        row = await api.database.row("select length(message) as message, text_bytes from statements")
        assert (row["message"], row["text_bytes"]) == (4000, 0)

    async def test_long_script_continues_only_while_its_text_is_complete(self, api: Api):
        ana = await api.user()
        first = (await ana.run("sqlite", f"select 1; select 2 {comment(LONG)}; select 3"))["history_uuid"]
        second = await ana.post_ok("editor/execute/sqlite", operationId=first, wait=60)
        assert second["status"] == 0
        single = (await ana.run("sqlite", f"select 4 {comment(LONG)}"))["history_uuid"]
        await a_day_passes(api)
        assert await ana.refused("editor/execute/sqlite", operationId=second["history_uuid"]) == EXPIRED
        assert await ana.refused("editor/execute/sqlite", operationId=single) == EXPIRED

    async def test_long_text_keeps_only_beginning_and_hash(self, api: Api):
        ana = await api.user()
        text = f"select 1 as one {comment(LONG)}"
        operation = (await ana.run("sqlite", text))["history_uuid"]
        short = (await ana.run("sqlite", f"select 2 as two {comment(10 * KIB)}"))["history_uuid"]
        await a_day_passes(api)
        failure = await ana.on(operation, "check_status")
        assert failure["code"] == "expired"
        handle = failure["handle"]
        assert handle["statement"].startswith(text[:4000])
        assert handle["statement"].endswith(" … [the rest of this text is no longer stored]")
        assert len(handle["statement"]) < 5000
        assert handle["previous_statement_hash"] == statement_hash(text)
        assert (await ana.on(operation, "get_logs"))["status"] == 0
        newest, oldest = (await ana.history())["history"]
        assert newest["data"]["statement"].startswith("select 2 as two")
        assert oldest["data"]["statement"].startswith(text[:900])
        kept = (await ana.on(short, "check_status"))["handle"]["statement"]
        assert "no longer stored" not in kept
        assert len(kept) > 10 * KIB

    async def test_trimmed_texts_free_the_quota(self, api: Api):
        ana = await api.user()
        while (await ana.post("editor/execute/sqlite", statement=f"select 1 {comment(LONG)}", wait=60)).is_success:
            pass
        await a_day_passes(api)
        assert (await ana.run("sqlite", f"select 1 {comment(LONG)}"))["status"] == 0

    async def test_running_and_readable_statements_keep_their_text(self, api: Api):
        ana = await api.user()
        await ana.run("sqlite", f"select 1 as one {comment(LONG)}")
        await api.database.execute("update statements set ended_at = ended_at - interval '25 h'")
        await api.services.statements.retention.clean_up()
        assert await api.database.value("select bool_or(text_is_cut) from statements") is False


@dataclass(frozen=True, slots=True)
class Files:
    """An application, and the directory that serves as its local root."""

    api: Api
    root: Path

    @property
    def shared(self) -> Path:
        return self.root / "shared"


@asynccontextmanager
async def files_on(directory: Path, database_dsn: str, *, is_full: bool = False, **filebrowser: Any):
    """Open an application with a local root. If `is_full` is set, its disk has less free space than the reserve
    requires.
    """
    desktop = {"min_free_bytes": 2**60} if is_full else {"min_free_bytes": 0, "min_free_percent": 0}
    settings = storage_settings(directory, database_dsn, desktop=desktop, **filebrowser)
    async with open_api(settings) as api:
        yield Files(api, directory / "files")


async def upload(caller: Caller, dest: str, name: str, content: bytes) -> httpx.Response:
    return await caller.send("POST", "storage/upload/file", params={"dest": dest}, files={"file": (name, content)})


def part(name: str, size: int, parts: int = 2, *, uuid: str | None = None) -> dict[str, Any]:
    return {
        "qquuid": uuid or str(uuid4()),
        "qqtotalfilesize": size,
        "qqtotalparts": parts,
        "qqchunksize": -(-size // parts),
        "qqfilename": name,
        "dest": "file:///shared",
    }


def status_and_errno(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


class TestFloor:
    NO_ROOM = (507, "insufficient_storage")

    async def test_full_disk_refuses_writes_but_allows_reads_and_deletes(self, tmp_path: Path, database_dsn: str):
        async with files_on(tmp_path, database_dsn, is_full=True) as files:
            ana = await files.api.user()
            (files.shared / "old.csv").write_bytes(b"id\n1\n")
            (files.shared / "gone.csv").write_bytes(b"id\n1\n")
            before = sorted(files.shared.iterdir())
            refused = [
                await upload(ana, "file:///shared", "new.csv", b"x"),
                await ana.send(
                    "POST", "storage/upload/chunks", params=part("big", 10), files={"qqfile": ("blob", b"12345")}
                ),
                await ana.post("storage/touch", path="file:///shared", name="new"),
                await ana.post("storage/mkdir", path="file:///shared", name="new"),
                await ana.post("storage/save", path="file:///shared/old.csv", contents="text"),
                await ana.post(
                    "storage/copy", source_path="file:///shared/old.csv", dest_path="file:///shared/two.csv"
                ),
            ]
            assert [status_and_errno(answer) for answer in refused] == [self.NO_ROOM] * len(refused)
            assert sorted(files.shared.iterdir()) == before
            assert (await ana.get("taskserver/upload/available_space")).json()["upload_available_space"] == 0
            assert (await ana.get("storage/display", path="file:///shared/old.csv")).json()["contents"] == "id\n1\n"
            moved = await ana.post("storage/delete", path="file:///shared/gone.csv")
            assert moved.status_code == 200, moved.text
            for_good = await ana.post("storage/delete", path="file:///shared/old.csv", skip_trash="true")
            assert for_good.status_code == 200
            assert list(files.shared.iterdir()) == []

    async def test_full_disk_fails_large_results_and_imports_with_own_code(
        self, tmp_path: Path, database_dsn: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("queryserver.administration.readiness._LIMIT_S", 60.0)
        async with opened(tmp_path, database_dsn, desktop={"min_free_bytes": 2**60}) as api:
            ana = await api.user()
            assert (await ana.run("sqlite", "select 1"))["status"] == 0
            body = await ana.run("sqlite", f"select hex(randomblob({100 * KIB}))")
            assert (body["status"], body["code"]) == (1, "insufficient_storage")
            assert "almost full" in body["message"]
            answer = await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"id\n1\n")})
            assert status_and_errno(answer) == (500, "insufficient_storage")
            assert (await api.stranger.get("/desktop/debug/is_ready")).status_code == 200

    async def test_import_on_full_disk_keeps_no_rows_and_reports_why(self):
        floor = DiskFloor(min_bytes=1000, usage=lambda _: Usage(5000, 1500), clock=count().__next__)
        batch = pa.RecordBatch.from_pydict({"n": list(range(1000))})
        with ThreadPoolExecutor(1) as threads:

            async def work(_statement: object, _context: object, _report: JobReport) -> None:
                require_room = partial(floor.require, Path("/"))
                async with ScratchRows.opened(io.BytesIO, threads, require_room=require_room) as kept:
                    await kept.add(batch)
                raise AssertionError

            async with JobSession.opened(COLUMNS, work) as session:
                status = await session.poll(await session.submit(""), wait_s=30)
        assert status.error is not None
        assert status.error.code == "insufficient_storage"

    async def test_disk_filling_up_during_upload_aborts_it_and_leaves_nothing(self, tmp_path: Path):
        free = [10 * MIB]
        (tmp_path / "shared").mkdir()
        floor = DiskFloor(min_bytes=5 * MIB, usage=lambda _: Usage(100 * MIB, free[0]), clock=count().__next__)
        file_system = LocalFileSystem(tmp_path, floor=floor)
        storage = file_system.as_user(StorageUser("ana"))

        async def filling() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * MIB
                free[0] -= 3 * MIB

        with pytest.raises(InsufficientStorage):
            await storage.write("shared/file", filling(), overwrite=False)
        with pytest.raises(InsufficientStorage):
            await storage.write("shared/file", filling(), overwrite=False, size_bytes=6 * MIB)
        free[0] = 10 * MIB
        with pytest.raises(InsufficientStorage):
            await storage.begin_parts(PartPlan("shared/file", 6 * MIB, MIB, 6))
        assert list((tmp_path / "shared").iterdir()) == []
        await file_system.close()

    async def test_space_for_one_multipart_file_is_not_granted_twice(self, tmp_path: Path):
        (tmp_path / "shared").mkdir()

        def usage(_: Path) -> Usage:
            taken = sum(file.stat().st_size for file in (tmp_path / "shared").iterdir())
            return Usage(100 * MIB, 10 * MIB - taken)

        # The clock stands still, so the disk usage is never measured again.
        floor = DiskFloor(min_bytes=5 * MIB, usage=usage, clock=lambda: 0.0)
        file_system = LocalFileSystem(tmp_path, floor=floor)
        storage = file_system.as_user(StorageUser("ana"))
        floor.require(tmp_path)
        await storage.begin_parts(PartPlan("shared/one", 4 * MIB, MIB, 4))
        with pytest.raises(InsufficientStorage):
            await storage.begin_parts(PartPlan("shared/two", 4 * MIB, MIB, 4))
        assert len(list((tmp_path / "shared").iterdir())) == 1
        await file_system.close()


class TestShareOfTheLocalRoot:
    FULL = (409, "quota_exceeded")

    async def test_user_exhausts_own_quota_without_affecting_others(self, tmp_path: Path, database_dsn: str):
        async with files_on(tmp_path, database_dsn, max_bytes_per_user=MIB) as files:
            ana, bob = await files.api.user(), await files.api.user()
            home = f"file:///user/{ana.username}"
            assert (await upload(ana, "file:///shared", "a", bytes(600 * KIB))).status_code == 200
            assert (await ana.get("taskserver/upload/available_space")).json()["upload_available_space"] == 424 * KIB
            refused = [
                await upload(ana, "file:///shared", "b", bytes(500 * KIB)),
                await upload(ana, home, "b", bytes(500 * KIB)),
                await ana.post("storage/copy", source_path="file:///shared/a", dest_path=f"{home}/b"),
                await ana.send(
                    "POST",
                    "storage/upload/chunks",
                    params=part("b", 500 * KIB),
                    files={"qqfile": ("blob", bytes(250 * KIB))},
                ),
            ]
            assert [status_and_errno(answer) for answer in refused] == [self.FULL] * len(refused)
            assert "filebrowser.max_bytes_per_user" in refused[0].json()["message"]
            assert (await upload(bob, "file:///shared", "c", bytes(900 * KIB))).status_code == 200

    async def test_deletions_by_others_free_quota_and_servers_agree(self, tmp_path: Path):
        now = [0.0]
        tree, ana, bob = LocalTree(tmp_path), AccessRules(StorageUser("ana")), AccessRules(StorageUser("bob"))
        for directory in ("shared", "user/ana", "user/bob"):
            (tmp_path / directory).mkdir(parents=True)
        first = UserQuotas(tree, 1000, clock=lambda: now[0])
        with (tmp_path / "shared/a").open("wb") as file:
            first.mark(file.fileno(), ana)
            file.write(bytes(700))
        (tmp_path / "user/ana/b").write_bytes(bytes(200))
        (tmp_path / "shared/c").write_bytes(bytes(5000))
        second = UserQuotas(tree, 1000, clock=lambda: now[0])
        for quotas in (first, second):
            assert (quotas.remaining(ana), quotas.remaining(bob)) == (100, 1000)
        first.take(ana, 60)
        with pytest.raises(StoreQuotaExceeded):
            first.take(ana, 60)
        (tmp_path / "shared/a").unlink()
        now[0] = 31
        assert first.remaining(ana) == 800

    async def test_permissions_neither_hide_files_nor_lock_out_others(self, tmp_path: Path):
        file_system = LocalFileSystem(tmp_path, max_bytes_per_user=1000)
        for directory in ("shared/mine", "user/ana"):
            (tmp_path / directory).mkdir(parents=True)
        ana = file_system.as_user(StorageUser("ana"))
        await ana.write("shared/mine/file", pieces_of(700), overwrite=False)
        await ana.set_permissions("shared/mine/file", 0)
        await ana.set_permissions("shared/mine", 0)
        await ana.mkdir("shared/closed", permissions=0)
        # The service may run as root here. Because root can read every file, the test checks the modes instead.
        modes = [(tmp_path / path).stat().st_mode & 0o777 for path in ("shared/mine/file", "shared/mine")]
        assert modes == [0o400, 0o500]
        assert (tmp_path / "shared/closed").stat().st_mode & 0o777 == 0o500
        await file_system.close()

    async def test_unreadable_directory_does_not_delay_other_users(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        for directory in ("shared/closed", "user/bob"):
            (tmp_path / directory).mkdir(parents=True)
        (tmp_path / "user/bob/file").write_bytes(bytes(100))
        opened_one = LocalTree.directory

        def directory(tree: LocalTree, path: str, *, make: bool = False) -> Any:
            if path == "shared/closed":
                raise PermissionError(errno.EACCES, "closed")
            return opened_one(tree, path, make=make)

        monkeypatch.setattr(LocalTree, "directory", directory)
        assert UserQuotas(LocalTree(tmp_path), 1000).remaining(AccessRules(StorageUser("bob"))) == 900

    async def test_user_with_many_files_occupies_one_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        now, ana = [0.0], AccessRules(StorageUser("ana"))
        (tmp_path / "user/ana").mkdir(parents=True)
        quotas = UserQuotas(LocalTree(tmp_path), 1000, clock=lambda: now[0])
        assert quotas.remaining(ana) == 1000
        now[0] = 31
        entered, may_go_on = Event(), Event()

        def used_bytes(_quotas: UserQuotas, _access: AccessRules) -> int:
            entered.set()
            assert may_go_on.wait(60)
            return 300

        monkeypatch.setattr(UserQuotas, "_used_bytes", used_bytes)
        with ThreadPoolExecutor(1) as threads:
            measuring = threads.submit(quotas.remaining, ana)
            assert entered.wait(60)
            # Data that is written during a measurement is added to the measured usage, so no new measurement is needed.
            quotas.take(ana, 200)
            may_go_on.set()
            assert measuring.result(60) == 500


async def pieces_of(size_bytes: int) -> AsyncIterator[bytes]:
    yield bytes(size_bytes)
