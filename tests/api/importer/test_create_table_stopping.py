"""Imports that are canceled, hit a limit, or lose their server (Contract importer 13.4; checklist 56)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.api.driving import Caller, until
from tests.api.importer.conftest import refusal, uploaded
from tests.api.importer.tables import CONTENT, Tables, ask, imported, open_tables, quoted, started, tables_like
from tests.fakes.loading import StoredTable
from tests.fixtures.database import new_database

from queryserver.engines.protocol import TableName
from queryserver.imports.repository import UnfinishedTables
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.ownership import Ownership
from queryserver.platform.roles import Role
from queryserver.statements.session_options import SessionCredentials

ROWS = CONTENT.count(b"\n") - 1
LARGE = b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"x" * 40) for n in range(200_000))


@pytest.fixture(scope="module")
async def opened(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory, users_url: str
) -> AsyncIterator[Tables]:
    """An application with its own service database, so that no other process sweeps its statements. A user may run two
    statements at a time.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        directory = tmp_path_factory.mktemp("stopping")
        with pytest.MonkeyPatch.context() as patched:
            # The janitor searches for orphaned tables only if a test triggers it.
            patched.setattr("queryserver.imports.repository._SEARCH_EVERY_S", 3600.0)
            async for tables in open_tables(directory, dsn, users_url, max_statements_per_user=2):
                yield tables


@pytest.fixture
async def tables(opened: Tables) -> Tables:
    """The application, after all statements of earlier tests have ended. Its engine `slow` is empty and holds no
    loads.
    """
    slow = opened.slow
    slow.refuse_drops = False
    slow.release()
    await until(lambda: opened.api.services.statements.runner.statements.active == 0)
    await opened.api.database.execute("delete from import_leftovers")
    slow.loads = 0
    slow.tables.clear()
    return opened


@pytest.fixture
async def ana(tables: Tables) -> Caller:
    return await tables.api.user("ana")


async def eventually_loading(tables: Tables) -> None:
    """Wait until the engine `slow` has a staging table, which shows that a load has begun."""
    await until(lambda: any(name.name.startswith("_qs_import_") for name in tables.slow.tables))


async def eventually_progressing(ana: Caller, operation: str) -> None:
    """Wait until the load's progress has been recorded."""

    async def progress() -> bool:
        return bool((await ana.on(operation, "get_logs"))["progress"])

    await until(progress)


async def leftovers(tables: Tables) -> int:
    return await tables.api.database.value("select count(*) from import_leftovers")


async def left_behind(tables: Tables, caller: Caller, connector: str, table: str, statement_id: UUID) -> None:
    """Create a table, and record it as left behind by an import whose server crashed."""
    await caller.run(connector, f"CREATE TABLE {quoted(table)} (a INTEGER)")
    user_id = await tables.api.database.value("select id from users where username = $1", caller.username)
    await tables.api.database.execute(
        'insert into import_leftovers (statement_id, user_id, connector, "table") values ($1, $2, $3, $4)',
        statement_id, user_id, connector, table,
    )  # fmt: skip


async def test_stopping_server_starts_and_records_no_import(tables, ana, monkeypatch):
    path = await uploaded(ana, CONTENT)
    monkeypatch.setattr(tables.api.services.statements.runner.instance, "is_draining", True)
    answer = await ask(ana, "duckdb", "late", file_path=path)
    assert refusal(answer) == (503, "stopping")
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await ana.get("editor/get_history")).json()["count"] == 0
    monkeypatch.undo()
    await started(ana, "duckdb", "late", file_path=path)


@pytest.mark.importer(56)
class TestCancel:
    async def test_cancel_during_a_load_leaves_no_table(self, tables: Tables, ana: Caller):
        tables.slow.hold(after=1)
        operation = await started(ana, "slow", "stopped", file_path=await uploaded(ana, LARGE))
        await eventually_loading(tables)
        assert await leftovers(tables) == 1
        await eventually_progressing(ana, operation)
        await ana.on(operation, "cancel_statement")
        assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
        assert tables.slow.tables == {}
        assert await leftovers(tables) == 0

    @pytest.mark.parametrize("connector", ["duckdb", "sqlite", "postgresql"])
    async def test_databases_keep_no_tables_of_a_canceled_import(self, tables: Tables, ana: Caller, connector: str):
        path = await uploaded(ana, LARGE)
        for pause_s in (0.0, 0.2, 0.4):
            operation = await started(ana, connector, "stopped", file_path=path)
            await asyncio.sleep(pause_s)
            await ana.on(operation, "cancel_statement")
            end = (await ana.ended(operation))["query_status"]["state"]
            if end == "available":
                await ana.run(connector, "DROP TABLE stopped")
            else:
                assert end == "canceled"
            assert await tables_like(ana, connector, "stopped") == []
            assert await tables_like(ana, connector, "_qs_import_") == []
            assert await leftovers(tables) == 0


class TestLimits:
    @pytest.mark.security("T30")
    async def test_imports_count_toward_the_users_statement_limit(self, tables: Tables, ana: Caller):
        tables.slow.hold()
        path = await uploaded(ana, CONTENT)
        operations = [await started(ana, "slow", f"t{n}", file_path=path) for n in range(2)]
        answer = await ask(ana, "slow", "t3", file_path=path)
        assert refusal(answer) == (429, "too_many_statements")
        assert int(answer.headers["retry-after"]) > 0
        for operation in operations:
            await ana.on(operation, "cancel_statement")
            await ana.ended(operation)
        tables.slow.release()
        assert (await imported(ana, "slow", "t3", file_path=path))["rows_loaded"] == ROWS

    async def test_engine_never_executes_the_history_text(self, tables: Tables, ana: Caller):
        """The fake engine rejects statements that it cannot parse, so the import would fail if the text were
        executed.
        """
        await imported(ana, "slow", "t")
        assert "CREATE TABLE `t`" in (await ana.history(doc_type="hive"))["history"][0]["data"]["statement"]
        assert tables.slow.loads == 1


@pytest.mark.importer(55)
async def test_concurrent_appends_to_a_missing_table_all_arrive(tables: Tables, ana: Caller):
    tables.slow.hold()
    path = await uploaded(ana, CONTENT)
    operations = [await started(ana, "slow", "shared", file_path=path, if_exists="append") for _ in range(2)]
    await until(lambda: tables.slow.loads == 2)
    tables.slow.release()
    assert [(await ana.ended(one))["query_status"]["state"] for one in operations] == ["available", "available"]
    assert [table.rows for table in tables.slow.tables.values()] == [2 * ROWS]
    # One of the two imports loaded twice, because the other one had created the table in the meantime.
    assert tables.slow.loads == 3
    assert await leftovers(tables) == 0


class TestFile:
    @pytest.mark.importer(9)
    async def test_expired_upload_is_not_imported(self, tables: Tables, ana: Caller):
        path = await uploaded(ana, CONTENT)
        await tables.api.database.execute("update import_uploads set expires_at = now()")
        assert refusal(await ask(ana, "duckdb", "second", file_path=path)) == (400, "file_not_found")

    async def test_remote_file_changed_during_the_load_is_imported_unchanged(self, tables, ana):
        tables.slow.hold()
        path = tables.shared_file("large.csv", LARGE)
        operation = await started(ana, "slow", "changed", file_path=path, import_type="remote")
        await eventually_loading(tables)
        tables.shared_file("large.csv", LARGE + b"1,2\n")
        tables.slow.release()
        end = await ana.ended(operation)
        assert end["query_status"]["state"] == "available", end
        (table,) = tables.slow.tables.values()
        assert table.rows == LARGE.count(b"\n") - 1


@pytest.mark.importer(56)
async def test_running_import_extends_the_expiry_of_its_upload(
    tables: Tables, ana: Caller, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queryserver.imports.session._KEEP_ALIVE_EVERY_S", 0.05)
    database = tables.api.database
    tables.slow.hold()
    operation = await started(ana, "slow", "kept", file_path=await uploaded(ana, CONTENT))
    await eventually_loading(tables)
    await database.execute("update import_uploads set expires_at = now() + interval '30 seconds'")
    await until(lambda: database.value("select max(expires_at) > now() + interval '1 minute' from import_uploads"))
    tables.slow.release()
    assert (await ana.ended(operation))["query_status"]["state"] == "available"


@pytest.mark.importer(80)
async def test_upload_of_an_unfinished_import_is_not_discarded(tables: Tables, ana: Caller):
    async def discard() -> tuple[int, object]:
        answer = await ana.post("importer/upload/discard", file_path=path)
        return answer.status_code, answer.json().get("code", answer.json().get("discarded"))

    tables.slow.hold()
    path = await uploaded(ana, LARGE)
    operation = await started(ana, "slow", "discarded", file_path=path)
    assert await discard() == (400, "file_in_use")
    await eventually_loading(tables)
    assert await discard() == (400, "file_in_use")
    tables.slow.release()
    assert (await ana.ended(operation))["query_status"]["state"] == "available"
    assert [table.rows for table in tables.slow.tables.values()] == [LARGE.count(b"\n") - 1]
    assert await discard() == (200, True)


class TestJanitor:
    @pytest.mark.parametrize("connector", ["duckdb", "sqlite", "postgresql"])
    async def test_janitor_drops_tables_left_by_a_crash(self, tables: Tables, ana: Caller, connector: str):
        await left_behind(tables, ana, connector, table := f"_qs_import_{uuid4().hex}", uuid4())
        assert (await tables.api.running.statements.retention.clean_up(dry_run=True))["tables of broken imports"] == 1
        assert await tables_like(ana, connector, table) == [table]
        assert (await tables.api.running.statements.retention.clean_up())["tables of broken imports"] == 1
        assert await tables_like(ana, connector, table) == []
        assert await leftovers(tables) == 0

    async def test_janitor_keeps_the_tables_of_a_running_import(self, tables: Tables, ana: Caller):
        tables.slow.hold()
        operation = await started(ana, "slow", "t", file_path=await uploaded(ana, CONTENT))
        await eventually_loading(tables)
        assert (await tables.api.services.statements.retention.clean_up())["tables of broken imports"] == 0
        assert await leftovers(tables) == 1
        await ana.on(operation, "cancel_statement")
        await ana.ended(operation)

    async def test_janitor_retries_an_unavailable_engine(self, tables: Tables, ana: Caller):
        await left_behind(tables, ana, "slow", "left", uuid4())
        tables.slow.tables[TableName("main", "left")] = StoredTable(pa.schema([("a", pa.int64())]))
        tables.slow.refuse_drops = True
        assert (await tables.api.services.statements.retention.clean_up())["tables of broken imports"] == 0
        assert await leftovers(tables) == 1
        tables.slow.refuse_drops = False
        assert (await tables.api.services.statements.retention.clean_up())["tables of broken imports"] == 1
        assert tables.slow.tables == {}

    async def test_table_claimed_by_a_live_process_is_left_to_it(self, tables: Tables, ana: Caller):
        await left_behind(tables, ana, "slow", "left", uuid4())
        tables.slow.tables[TableName("main", "left")] = StoredTable(pa.schema([("a", pa.int64())]))
        clean_up, database = tables.api.services.statements.retention.clean_up, tables.api.database
        other = Ownership(database, lease=timedelta(seconds=600))
        async with other.running(Role.SERVER):
            records = UnfinishedTables(database)
            (found,) = await records.find_abandoned(["slow"], limit=10)
            claims = await asyncio.gather(*(records.claim(found, owner=other.id) for _ in range(4)))
            assert sorted(map(str, claims)) == ["1", "None", "None", "None"]
            assert (await clean_up())["tables of broken imports"] == 0
        # That process has died.
        assert (await clean_up())["tables of broken imports"] == 1
        assert tables.slow.tables == {}
        assert await leftovers(tables) == 0

    async def test_process_whose_heartbeat_was_late_drops_no_table(
        self, tables: Tables, ana: Caller, monkeypatch: pytest.MonkeyPatch
    ):
        await left_behind(tables, ana, "slow", "left", uuid4())
        clean_up = tables.api.services.statements.retention.clean_up
        with monkeypatch.context() as patched:
            patched.setattr(Ownership, "may_take_over", False)
            assert (await clean_up())["tables of broken imports"] == 0
            assert (await clean_up(dry_run=True))["tables of broken imports"] == 1
        assert (await clean_up())["tables of broken imports"] == 1

    async def test_unexpected_failure_releases_the_table(
        self, tables: Tables, ana: Caller, monkeypatch: pytest.MonkeyPatch
    ):
        await left_behind(tables, ana, "slow", "left", uuid4())
        clean_up = tables.api.services.statements.retention.clean_up

        async def broken(*_: object) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(SessionCredentials, "options", broken)
            with pytest.raises(RuntimeError, match="planted"):
                await clean_up()
        assert (await clean_up())["tables of broken imports"] == 1

    async def test_import_of_a_lost_server_fails_and_its_tables_are_dropped(self, tables: Tables, ana: Caller):
        """The next sweep finds the record of the import, whose owner is dead, and wakes the janitor."""
        tables.slow.hold()
        tables.slow.refuse_drops = True
        operation = await started(ana, "slow", "t", file_path=await uploaded(ana, CONTENT))
        await eventually_loading(tables)
        await tables.api.database.execute(
            "update statements set owner = 'gone', fence = fence + 1, lease_until = now() where id = $1",
            UUID(operation),
        )
        tables.slow.refuse_drops = False
        end = await ana.ended(operation)
        assert (end["query_status"]["state"], end["code"]) == ("failed", "outcome_unknown")

        async def cleared() -> bool:
            return not tables.slow.tables and not await leftovers(tables)

        await until(cleared)
