"""`db.connectors`, `db.history`, `db.metadata` and `db.users` (issue 20, section 3)."""

import asyncio

import pytest
from tests.client.conftest import QUICK, Server

from queryserver_client import Conflict, Connection, NotFound, PermissionDenied, connect, connect_sync
from queryserver_client.metadata import TableName


async def test_connectors_are_created_tested_changed_and_deleted(server: Server):
    async with connect(server.url, token=await server.token(admin=True), retries=QUICK) as db:
        assert any(
            (kind.dialect, kind.interface, kind.is_runnable) == ("duckdb", "duckdb", True)
            for kind in await db.connectors.types()
        )
        assert (await db.connectors.test(dialect="duckdb", interface="duckdb", settings={"path": ":memory:"})).ok
        made = await db.connectors.create("Scratch", "duckdb", "duckdb", {"path": ":memory:"}, description="for tests")
        assert (made.name, made.dialect, made.version) == ("Scratch", "duckdb", 1)
        assert made.settings["path"] == ":memory:"
        with pytest.raises(Conflict):
            await db.connectors.create("scratch", "duckdb", "duckdb", {"path": ":memory:"})
        assert await (await db.query(made.id, "SELECT 1")).scalar() == 1
        assert made.id in [connector.id for connector in await db.connectors.list()]
        changed = await db.connectors.update(made.id, name="Notes", settings={"path": ":memory:"})
        assert (changed.name, changed.version, changed.description) == ("Notes", 2, "for tests")
        with pytest.raises(Conflict) as caught:
            await db.connectors.update(made.id, name="Late", version=1)
        assert caught.value.body["version"] == 2
        test = await db.connectors.test(made.id)
        assert (test.ok, test.reason, [check["name"] for check in test.checks][-1]) == (True, "", "statement")
        await db.connectors.delete(made.id)
        with pytest.raises(NotFound):
            await db.connectors.get(made.id)


async def test_usable_connectors_are_those_permitted_to_the_user(db: Connection):
    usable = {one.id: one for one in await db.connectors.usable()}
    assert usable["duckdb"].dialect == "duckdb"
    assert usable["warehouse"].dialect == "postgresql"
    assert "closed" not in usable
    with pytest.raises(PermissionDenied):
        await db.connectors.create("Mine", "duckdb", "duckdb")


async def test_history_lists_each_statement_once_newest_first(db: Connection):
    for number in range(3):
        await db.query("duckdb", f"SELECT {number} AS first_kind")
    failed = await db.submit("postgresql", "SELECT nothing_there AS second_kind")
    await failed.wait()
    entries = [entry async for entry in db.history.search()]
    assert [entry.dialect for entry in entries] == ["postgresql", "duckdb", "duckdb", "duckdb"]
    assert (entries[0].operation_id, entries[0].state, entries[0].line) == (failed.operation_id, "failed", 1)
    assert [entry.statement async for entry in db.history.search("FIRST_kind", limit=2)] == [
        "SELECT 2 AS first_kind",
        "SELECT 1 AS first_kind",
    ]
    assert [entry async for entry in db.history.search(dialect="mysql")] == []
    assert await db.history.count("first_kind") == 3
    again = await db.statement(entries[1].operation_id).result()
    assert await again.rows() == [(2,)]


async def test_history_beyond_a_page_is_complete_while_it_grows(db: Connection):
    for number in range(105):
        await db.submit("duckdb", f"SELECT {number}")
    seen: list[str] = []
    async for entry in db.history.search():
        seen.append(entry.statement)
        if len(seen) == 50:
            await db.submit("duckdb", "SELECT 'newer'")
    assert seen == [f"SELECT {number}" for number in range(104, -1, -1)]


async def test_metadata_lists_names_for_prompt_completion(db: Connection):
    await db.query("duckdb", "CREATE SCHEMA IF NOT EXISTS completed")
    await db.query("duckdb", 'CREATE OR REPLACE TABLE completed."it\'s, here" (n INTEGER PRIMARY KEY, t VARCHAR)')
    await db.query("duckdb", "INSERT INTO completed.\"it's, here\" VALUES (1, 'a'), (2, NULL)")
    metadata = db.metadata
    assert [name async for name in metadata.databases("duckdb", "COMPL", refresh=True)] == ["completed"]
    tables = [table async for table in metadata.tables("duckdb", "completed", refresh=True)]
    assert tables == [TableName("it's, here", "Table", "")]
    table = await metadata.table("duckdb", "completed", "it's, here")
    assert [(column.name, column.type) for column in table.columns] == [("n", "INTEGER"), ("t", "VARCHAR")]
    assert table.primary_keys == ("n",)
    assert (await metadata.sample("duckdb", "completed", "it's, here")).rows == ((1, "a"), (2, None))
    assert "abs" in {function.name for function in await metadata.functions("duckdb")}
    with pytest.raises(NotFound) as caught:
        await metadata.table("duckdb", "completed", "missing")
    assert caught.value.code == "table_not_found"


async def test_users_and_preferences_are_read_and_changed(server: Server, db: Connection):
    async with connect(server.url, token=await server.token(admin=True), retries=QUICK) as admin:
        assert len([user async for user in admin.users.list()]) >= 2
        assert [user async for user in admin.users.list(is_service_account=True)] == []
        assert all([user.is_administrator is False async for user in admin.users.list(groups=["analysts"])])
    with pytest.raises(PermissionDenied):
        _ = [user async for user in db.users.list()]
    assert await db.users.preferences() == {"big_numbers": "number"}
    budget = await db.users.budget()
    assert (budget["bytes"]["limit"], budget["bytes"]["left"]) == (None, None)
    assert await db.users.prefer(big_numbers="text") == {"big_numbers": "text"}
    assert await (await db.query("duckdb", "SELECT 9223372036854775807")).scalar() == 2**63 - 1


async def test_sync_client_has_the_same_catalog_calls(server: Server):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            db.query("duckdb", "SELECT 1 AS sync_kind")
            assert "duckdb" in [one.id for one in db.connectors.usable()]
            assert [entry.statement for entry in db.history.search("sync_kind")] == ["SELECT 1 AS sync_kind"]
            assert "main" in list(db.metadata.databases("duckdb"))
            assert db.users.preferences()["big_numbers"] == "number"
            assert db.users.budget()["engine_s"]["limit"] is None

    await asyncio.to_thread(work)
