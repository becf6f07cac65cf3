"""A result store fails, is slow, or loses objects (Contract platform 10.3, editor 6)."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Api, Caller, until, verdict
from tests.fakes.storage_faults import FaultyStorage

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageError, StorageUnavailable, StoreQuotaExceeded, VerificationFailed
from queryserver.files.model import FileStatus
from queryserver.platform.settings.tree import Settings
from queryserver.results import stores
from queryserver.results.stores import ResultFiles

UNREACHABLE = (503, -1, "service_unavailable")
LARGE = "rows 3000 wide 1000"
"""A statement whose result has one segment with several blocks. The result is too large for the statement's record."""
LARGER = "rows 9000 wide 1000"
"""A statement whose result has several segments."""


@dataclass
class SlowStorage(FaultyStorage):
    """A store in which reads and writes of segments block while `go` is cleared."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        await self._wait(path)
        async for piece in super().read(path, offset=offset, length=length, version=version):
            yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        await self._wait(path)
        return await super().write(path, body, overwrite=overwrite, size_bytes=size_bytes)

    async def _wait(self, path: str) -> None:
        if path.endswith(".arrow"):
            self.waiting += 1
            await self.go.wait()
            self.waiting -= 1


@dataclass
class Served:
    """A server, and its result store `store`, which the test controls."""

    opened: AbstractAsyncContextManager[Api]
    stores: list[SlowStorage]

    @property
    def store(self) -> SlowStorage:
        return self.stores[-1]


@pytest.fixture
def served(small_api: ApiOpener, monkeypatch: pytest.MonkeyPatch) -> Served:
    made: list[SlowStorage] = []
    build: Callable[[Settings], ResultFiles] = stores.build_result_files

    def wrapped(settings: Settings) -> ResultFiles:
        files = build(settings)
        made.append(SlowStorage(files.storage))
        made[-1].go.set()
        return replace(files, storage=made[-1])

    monkeypatch.setattr(stores, "build_result_files", wrapped)
    # While the store is slow, a cancel call need not wait for the engine's confirmation.
    return Served(small_api(cancel_wait_s=1), made)


def failing_from(number: int, error: QueryServerError) -> Callable[[int, str], QueryServerError | None]:
    """Return a failure that makes reads and writes fail for the segment with this number and all later ones. Checks of
    the store succeed.
    """

    def failure(_call: int, path: str) -> QueryServerError | None:
        name = path.rpartition("/")[2]
        return error if name.endswith(".arrow") and int(name[:-6].rpartition("-")[2]) >= number else None

    return failure


def numbers(page: dict[str, Any]) -> list[int]:
    """Return the first cell of each row as an integer. Cells of wide rows are strings."""
    return [int(row[0]) for row in page["data"]]


async def large_result(ana: Caller) -> str:
    body = await ana.run("mysql", LARGE)
    assert (body["status"], body["query_status"]["state"]) == (0, "available"), body
    return body["history_uuid"]


@pytest.mark.platform(106)
async def test_store_failure_on_commit_fails_the_statement(served):
    failures = (
        StorageError("no room"),
        StorageUnavailable("gone"),
        PermissionDenied("refused"),
        VerificationFailed("other bytes"),
        StoreQuotaExceeded("used up"),
    )
    async with served.opened as api:
        ana = await api.user()
        for error, number in itertools.product(failures, (0, 1)):
            served.store.failures["write"] = failing_from(number, error)
            body = await ana.run("mysql", LARGER, limit=9000)
            assert (body["status"], body["code"], body["query_status"]["state"]) == (1, "result_store_failed", "failed")
            assert error.message not in body["message"]
            page = await ana.on(body["history_uuid"], "fetch_result_data")
            assert (page["status"], page["code"], page.get("result")) == (1, "result_store_failed", None)
        del served.store.failures["write"]
        await large_result(ana)


@pytest.mark.platform(106)
async def test_partial_result_of_a_failed_statement_is_deleted(served):
    async with served.opened as api:
        ana = await api.user()
        served.store.failures["write"] = failing_from(1, StorageUnavailable("gone"))
        body = await ana.run("mysql", LARGER, limit=9000)
        assert body["code"] == "result_store_failed"

        async def nothing_is_left() -> bool:
            return [batch async for batch in api.services.statements.retention.listing.statements()] == []

        await until(nothing_is_left)


async def test_lost_object_is_reported_as_unavailable_and_the_state_is_kept(served):
    async with served.opened as api:
        ana = await api.user()
        operation = await large_result(ana)
        [path] = api.services.settings.results_dir.rglob("*.arrow")
        path.unlink()
        assert await ana.refused("editor/fetch_result_data", operationId=operation, rows=10) == UNREACHABLE
        assert await ana.refused("editor/fetch_result_data", operationId=operation, start_row=2000) == UNREACHABLE
        assert verdict(await ana.get(f"editor/download/{operation}", format="csv")) == UNREACHABLE
        assert await ana.state(operation) == "available"
        # The cursor has not advanced, because no rows were returned.
        stored = await api.database.value("select cursor_row from statements where id = $1::uuid", operation)
        assert stored == 0


async def test_damaged_object_is_never_read_as_fewer_rows(served):
    async with served.opened as api:
        ana = await api.user()
        for kept_bytes in (0, 100, -100, -8):
            operation = await large_result(ana)
            [path] = api.services.settings.results_dir.rglob(f"{operation}/*.arrow")
            path.write_bytes(path.read_bytes()[:kept_bytes])
            assert await ana.refused("editor/fetch_result_data", operationId=operation, rows=10) == UNREACHABLE


async def test_failing_reads_are_unavailable_until_the_store_recovers(served):
    async with served.opened as api:
        ana = await api.user()
        for error in (StorageError("broken"), StorageUnavailable("gone"), PermissionDenied("refused")):
            operation = await large_result(ana)
            served.store.failures["read"] = error
            assert await ana.refused("editor/fetch_result_data", operationId=operation, rows=10) == UNREACHABLE
            del served.store.failures["read"]
            assert numbers(await ana.page(operation, rows=10)) == list(range(10))
        served.store.failures["read"] = StorageUnavailable("gone")
        assert verdict(await ana.get("/desktop/debug/is_ready")) == (503, -1, "not_ready")


async def test_slow_store_does_not_delay_other_calls(served):
    async with served.opened as api:
        ana, bob = await api.user(), await api.user()
        operation = await large_result(ana)
        served.store.go.clear()
        pages = [asyncio.create_task(ana.page(operation, start_row=n * 500, rows=5)) for n in range(6)]
        writing = await ana.execute("mysql", LARGE)
        await until(lambda: served.store.waiting >= 2)
        assert (await bob.result("mysql", "rows 3"))["data"] == [[0], [1], [2]]
        assert (await bob.result("sqlite", "select 1"))["data"] == [[1]]
        assert (await bob.get("/desktop/debug/is_alive")).status_code == 200
        assert await ana.state(writing["history_uuid"]) in {"waiting", "running"}
        assert not any(page.done() for page in pages)
        served.store.go.set()
        assert [numbers(page)[0] for page in await asyncio.gather(*pages)] == [n * 500 for n in range(6)]
        assert (await ana.ended(writing["history_uuid"]))["query_status"]["state"] == "available"


async def test_statement_can_be_canceled_while_the_store_is_slow(served):
    async with served.opened as api:
        ana = await api.user()
        served.store.go.clear()
        operation = (await ana.execute("mysql", LARGE))["history_uuid"]
        await until(lambda: served.store.waiting == 1)
        await ana.on(operation, "cancel_statement")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
        served.store.go.set()


async def test_old_orphaned_results_are_deleted(served):
    async with served.opened as api:
        ana = await api.user()
        retention = api.services.statements.retention
        kept, ended, unknown = [await large_result(ana) for _ in range(3)]
        await api.database.execute("update statements set state = 'failed' where id = $1::uuid", ended)
        await api.database.execute("delete from statements where id = $1::uuid", unknown)
        assert (await retention.clean_up(dry_run=True))["orphaned results"] == 0

        made_old(api, ended, unknown, kept)
        assert (await retention.clean_up(dry_run=True))["orphaned results"] == 2
        assert len(directories(api)) == 3
        assert (await retention.clean_up())["orphaned results"] == 2
        assert directories(api) == {kept}
        assert numbers(await ana.page(kept, rows=1)) == [0]
        assert (await retention.clean_up())["orphaned results"] == 0


async def test_results_of_another_database_are_never_deleted(served):
    async with served.opened as api:
        ana = await api.user()
        retention = api.services.statements.retention
        unknown = await large_result(ana)
        await api.database.execute("delete from statements where id = $1::uuid", unknown)
        made_old(api, unknown)
        await retention.clean_up(dry_run=True)
        owner = api.services.settings.results_dir / "owner"
        assert not owner.exists()
        # Such a file would be left by a copied database with another identity.
        owner.write_text("another")
        assert (await retention.clean_up())["orphaned results"] == 0
        assert directories(api) == {unknown}
        owner.unlink()
        assert (await retention.clean_up())["orphaned results"] == 1
        mine = owner.read_text()
        assert mine == await api.database.value("select value from facts where name = 'result_store_owner'")
        await retention.clean_up()
        assert owner.read_text() == mine


async def test_other_results_are_deleted_despite_an_undeletable_result(served):
    async with served.opened as api:
        ana = await api.user()
        unknown = [await large_result(ana) for _ in range(2)]
        await api.database.execute("delete from statements where id = any($1::text[]::uuid[])", unknown)
        made_old(api, *unknown)
        served.store.failures["delete"] = PermissionDenied("not yours")
        assert (await api.services.statements.retention.clean_up())["orphaned results"] == 2
        del served.store.failures["delete"]
        assert (await api.services.statements.retention.clean_up())["orphaned results"] == 2
        assert directories(api) == set()


async def test_unlistable_store_does_not_stop_other_clean_up(served):
    async with served.opened as api:
        ana = await api.user()
        operation = await large_result(ana)
        await api.database.execute("delete from statements where id = $1::uuid", operation)
        made_old(api, operation)
        served.store.failures["list_directory"] = StorageUnavailable("gone")
        done = await api.services.statements.retention.clean_up()
        assert done["orphaned results"] == 0
        assert "history entries" in done
        del served.store.failures["list_directory"]
        assert (await api.services.statements.retention.clean_up())["orphaned results"] == 1


def made_old(api: Api, *operations: str) -> None:
    for operation in operations:
        for path in api.services.settings.results_dir.rglob(f"{operation}/*.arrow"):
            hours_ago = time.time() - timedelta(hours=2).total_seconds()
            os.utime(path, (hours_ago, hours_ago))


def directories(api: Api) -> set[str]:
    return {path.parent.name for path in api.services.settings.results_dir.rglob("*.arrow")}
