"""No claim takes a row from a process that starts and claims it while the query of the claim waits for a lock."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from tests.fixtures.database import PATIENT
from tests.fixtures.owners import AFTER_LOCK, NEW, result_of_late_claim

from queryserver.engines.protocol import TableName
from queryserver.files import repository as transfers
from queryserver.imports import repository as imports
from queryserver.platform.database import Database, open_database
from queryserver.platform.ownership import OwnedTable
from queryserver.search import repository as scopes
from queryserver.search.model import ScopeKey
from queryserver.statements import session_repository as sessions
from queryserver.tasks import deliveries
from queryserver.tasks import repository as tasks
from queryserver.tasks.model import NewTask, TaskName

ID = UUID(int=1)
DIGEST = b"digest"
SCOPE = ScopeKey("elsewhere", None, b"address", is_stored=False)
ORPHAN = imports.UnfinishedTable(ID, 1, "elsewhere", TableName("", "sales"))


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as opened:
        await opened.execute(
            "insert into users (id, username, username_key) overriding system value values (1, 'ana', 'ana')"
        )
        yield opened


async def add_task(database: Database) -> None:
    await tasks.TaskRecords(database, keep=timedelta(days=1)).submit(NewTask(ID, TaskName.DOCUMENT_CLEANUP, {}, 1))


async def add_delivery(database: Database) -> None:
    new = deliveries.NewDelivery("key", deliveries.DeliveryKind.EMAIL, "ana@example.com", {})
    async with database.transaction() as connection:
        await deliveries.Outbox(database).add(connection, [new])


async def add_transfer(database: Database) -> None:
    await database.execute(
        """insert into storage_transfers (id, digest, user_id, username, is_admin, kind, source_scheme, source,
            target_scheme, target, overwrite, state, owner, lease_until)
        values ($1, $2, 1, 'ana', false, 'copy', 'hdfs', 'a', 'hdfs', 'b', false, 'copying', 'dead', 'infinity')""",
        ID,
        DIGEST,
    )


async def claim_transfer(database: Database) -> object:
    _exists, claimed = await transfers.TransferRecords(database).claim_same([DIGEST], owner="two")
    return claimed


async def add_engine(database: Database) -> None:
    await sessions.SessionRecords(database).hold_engine("elsewhere", owner="dead")


async def add_session(database: Database) -> None:
    record = sessions.SessionRecord(
        id=1,
        guid="guid",
        user_id=1,
        connector="elsewhere",
        dialect="hive",
        named=True,
        properties=(),
        settings={},
        sealed_credentials=None,
        owner="dead",
        is_live=False,
        idle=timedelta(hours=1),
        last_used_at=datetime.now(UTC),
    )
    assert await sessions.SessionRecords(database).open(record, max_open=1)


async def add_orphan(database: Database) -> None:
    await imports.UnfinishedTables(database).add(ORPHAN)


async def add_scope(database: Database) -> None:
    await scopes.MetadataIndexRecords(database).scope(SCOPE)


Case = tuple[OwnedTable, Callable[[Database], Awaitable[None]], Callable[[Database], Coroutine[Any, Any, object]]]

WAITING: dict[str, Case] = {
    "transfers": (transfers.TRANSFERS, add_transfer, claim_transfer),
    "engines": (
        sessions.ENGINE_OWNERS,
        add_engine,
        lambda database: sessions.SessionRecords(database).hold_engine("elsewhere", owner="two"),
    ),
    "sessions": (
        sessions.SESSIONS,
        add_session,
        lambda database: sessions.SessionRecords(database).close_lost(owner="two"),
    ),
    "orphaned tables": (
        imports.ORPHANS,
        add_orphan,
        lambda database: imports.UnfinishedTables(database).claim(ORPHAN, owner="two"),
    ),
    "scopes": (
        scopes.SCOPES,
        add_scope,
        lambda database: scopes.MetadataIndexRecords(database).claim(SCOPE, owner="two", interval=timedelta(0)),
    ),
}
"""Claims that wait for the row."""

SKIPPING: dict[str, tuple[ModuleType, str, Case]] = {
    "tasks": (
        tasks,
        "_CLAIM",
        (
            tasks.TASKS,
            add_task,
            lambda database: tasks.TaskRecords(database, keep=timedelta(days=1)).claim(owner="two"),
        ),
    ),
    "deliveries": (
        deliveries,
        "_CLAIM",
        (
            deliveries.DELIVERIES,
            add_delivery,
            lambda database: deliveries.Outbox(database).claim(deliveries.DeliveryKind.EMAIL, 5, owner="two"),
        ),
    ),
    "orphaned transfers": (
        transfers,
        "_CLAIM_ORPHAN",
        (
            transfers.TRANSFERS,
            add_transfer,
            lambda database: transfers.TransferRecords(database).claim_orphan(owner="two"),
        ),
    ),
}
"""Claims that skip locked rows, with the names of their queries."""


async def fails(database: Database, case: Case, *, locks_rows: bool) -> None:
    table, add, claim = case
    await add(database)
    assert not await result_of_late_claim(database, table, claim(database), locks_rows=locks_rows)
    assert await database.value(f"select owner from {table.name}") == NEW


async def test_former_owner_of_a_session_does_not_close_it(database: Database) -> None:
    """The former owner was paused. Meanwhile, another process has opened the session again."""
    await add_session(database)
    records = sessions.SessionRecords(database)
    assert await records.still_owned([], owner="dead") == [1]
    await database.execute(f"update sessions set {sessions.SESSIONS.claimed('$1')}", "two")
    assert await records.still_owned([1], owner="dead") == []
    assert not await records.close(1, owner="dead")
    assert await records.still_owned([], owner="two") == [1]


async def test_fence_of_an_engine_does_not_start_again_after_a_release(database: Database) -> None:
    records = sessions.SessionRecords(database)
    for fence, owner in enumerate(("one", "two", "two"), start=1):
        assert await records.hold_engine("elsewhere", owner=owner)
        assert await records.engines_of(owner) == ["elsewhere"]
        assert await database.value("select fence from engine_owners") == fence
        await records.release_engines(owner=owner)
        assert await records.engines_of(owner) == []
        assert await database.value(f"select {sessions.ENGINE_OWNERS.claimable()} from engine_owners")


@pytest.mark.parametrize("name", WAITING)
async def test_claim_that_waits_for_a_row_takes_it_from_no_new_owner(database: Database, name: str) -> None:
    await fails(database, WAITING[name], locks_rows=True)


@pytest.mark.parametrize("name", SKIPPING)
async def test_claim_that_skips_locked_rows_takes_none_from_a_new_owner(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module, query, case = SKIPPING[name]
    sql, limit = getattr(module, query), "$2" if name == "deliveries" else "1"
    waits = AFTER_LOCK.format(limit=f"{limit}::bigint")
    late = sql.replace(f"limit {limit} for update", f"limit {waits} for update")
    assert late != sql
    monkeypatch.setattr(module, query, late)
    await fails(database, case, locks_rows=False)
