"""How an engine's users affect each other and the server's CPU, memory and disk."""

import asyncio
import threading
from collections import namedtuple
from collections.abc import AsyncGenerator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import ended, failure, operation, run, started
from tests.contract.postgresql_basis import address_of
from tests.fixtures.database import ensure_databases, execute
from tests.refusals import raises_code

from queryserver.connectors.engine_builders import BUILDERS, EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.engines.blocking_drivers import DriverThreads
from queryserver.engines.duckdb.connection import DuckdbConnection
from queryserver.engines.duckdb.database import Config, DuckdbDatabase
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.limits import DuckdbLimits
from queryserver.engines.postgresql.engine import PostgresqlEngine, UserLogins
from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.engines.storage_watch import StorageLimits
from queryserver.errors.statements import StatementRejected
from queryserver.identity.model import User
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_LOGIN, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.embedded.sample import sample_tables
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor
from queryserver.platform.settings.tree import Settings

MIB = 1024 * 1024
ANA, BEN = User(1, "ana"), User(2, "ben")
Usage = namedtuple("Usage", "total free")  # noqa: PYI024 two numbers, as `shutil.disk_usage` gives them

SETTINGS_OF_EVERYBODY = (
    "SET GLOBAL Calendar = 'buddhist'",
    "set global \"TimeZone\" = 'Asia/Bangkok'",
    "SET /* a */ GLOBAL -- b\n Calendar = 'buddhist'",
    "RESET GLOBAL Calendar",
    "EXPLAIN ANALYZE SET GLOBAL Calendar = 'buddhist'",
    "EXPLAIN (FORMAT json) SET GLOBAL Calendar = 'buddhist'",
    "EXPLAIN SET GLOBAL Calendar = 'buddhist'",
    "SET GLOBAL max_temp_directory_size = '1TB'",
    "SET max_temp_directory_size = '1TB'",
    "PRAGMA max_temp_directory_size = '1TB'",
    "SET enable_progress_bar = false",
    "PRAGMA copy_database(own, memory)",
    "COPY FROM DATABASE own TO memory",
    "PRAGMA import_database('x')",
    "PRAGMA add_parquet_key('a', '0123456789112345')",
    "PRAGMA enable_verification",
    "PRAGMA disable_progress_bar",
    "PRAGMA json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "FORCE CHECKPOINT",
    "CALL force_checkpoint()",
    "CALL enable_profiling()",
    "SELECT write_log('x')",
)

PATHS_OF_THE_SERVER = (
    "PRAGMA database_list",
    "FROM duckdb_databases()",
    "SELECT path FROM duckdb_databases",
    'SELECT * FROM system."main"."duckdb_databases"()',
    "FROM 'duckdb_databases'",
    "FROM pragma_database_list",
    "CALL duckdb_settings()",
    'SELECT * FROM "DUCKDB_SETTINGS"()',
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT current_setting('temp_directory')",
    "SELECT current_setting('temp' || '_directory')",
    "SELECT 'temp_directory'.current_setting()",
    "SELECT current_setting('allowed_paths')",
    "SHOW temp_directory",
    'FROM (SHOW "allowed_paths")',
    "FROM query('FROM duckdb_' || 'databases()')",
    "FROM query('FROM duckdb_databases()')",
    "FROM query('FROM query(''FROM duckdb_settings()'')')",
    "FROM query_table('duckdb_databases')",
    "FROM query_table('duckdb_' || 'databases')",
    "CREATE VIEW v AS SELECT path FROM duckdb_databases()",
    "CREATE MACRO m() AS TABLE SELECT * FROM duckdb_settings()",
    "PREPARE p AS SELECT current_setting($1)",
    "FROM duckdb_temporary_files()",
    "FROM duckdb_extensions()",
    "FROM duckdb_secrets()",
    "FROM duckdb_logs",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb_databases()'))",
)

STILL_ALLOWED = (
    "SET TimeZone = 'Asia/Tokyo'",
    "SET TIME ZONE 'Asia/Tokyo'",
    "SET SESSION Calendar = 'buddhist'",
    "RESET Calendar",
    "SET schema = 'main'",
    "SET search_path = 'main'",
    "USE main",
    "SET VARIABLE global = 1",
    "PRAGMA table_info('t')",
    "PRAGMA version",
    "PRAGMA database_size",
    "CALL pragma_version()",
    "SHOW TABLES",
    "SHOW t",
    "DESCRIBE t",
    "CHECKPOINT",
    "SELECT current_setting('TimeZone')",
    "FROM query('SELECT 1')",
    "FROM query_table('t')",
    "FROM query_table(['t', 't'])",
    "UPDATE t SET n = 1",
    "EXPLAIN UPDATE t SET n = 1",
    "SELECT 'duckdb_databases shows paths', 'SET GLOBAL x = 1'",
)

BEYOND_THE_TYPES = {
    "lists": "SELECT " + "[" * 100 + "1" + "]" * 100,
    "structs": "SELECT " + "{'a': " * 100 + "1" + "}" * 100,
    "maps": "SELECT " + "MAP {'a': " * 100 + "1" + "}" * 100,
    "cast": "SELECT NULL::INTEGER" + "[]" * 100,
    "of a table": f"CREATE OR REPLACE TABLE deep (n INTEGER{'[]' * 100}); ",
}


def opened(directory: Path, *, temporary_max_bytes: int = 1024 * MIB, floor: DiskFloor = NO_FLOOR) -> DuckdbDatabase:
    """Open a database in this process. The test sets its disk and limits."""
    storage = StorageLimits(quota_bytes=1024 * MIB, floor=floor)
    limits = DuckdbLimits(cell_max_bytes=MIB, temporary_max_bytes=temporary_max_bytes, storage=storage)
    config: Config = {"memory_limit": "60MB", "threads": 1}
    return DuckdbDatabase(directory, directory / "own.duckdb", config, read_only=False, limits=limits)


@pytest.fixture
async def duckdb_engine(tmp_path: Path) -> AsyncGenerator[DuckdbEngine]:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    yield engine
    await engine.close()


@pytest.fixture
async def ana(duckdb_engine: DuckdbEngine) -> AsyncGenerator[EngineSession]:
    async with duckdb_engine.session(ANA, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE IF NOT EXISTS t AS SELECT 1 AS n")
        yield session


class TestSettingsOfDuckdb:
    @pytest.mark.parametrize("statement", SETTINGS_OF_EVERYBODY)
    async def test_statement_changes_no_settings_of_others(
        self, duckdb_engine: DuckdbEngine, ana: EngineSession, statement: str
    ) -> None:
        assert isinstance(await failure(ana, statement), StatementRejected)
        async with duckdb_engine.session(BEN, NO_OPTIONS) as ben:
            answer = await run(ben, "SELECT current_setting('Calendar'), current_setting('TimeZone')")
        assert answer.rows == [("gregorian", "UTC")]

    async def test_session_does_not_see_settings_of_another(
        self, duckdb_engine: DuckdbEngine, ana: EngineSession
    ) -> None:
        async with duckdb_engine.session(BEN, NO_OPTIONS) as ben:
            await run(ana, "SET Calendar = 'buddhist'")
            await run(ana, "SET TimeZone = 'Asia/Bangkok'")
            year = "SELECT date_part('year', TIMESTAMPTZ '2023-06-01 12:00:00+00')"
            assert (await run(ana, year)).cell == 2566
            assert (await run(ben, year)).cell == 2023

    def test_session_has_own_value_of_each_database_wide_setting(self, tmp_path: Path) -> None:
        database = opened(tmp_path)
        early = database.connect(NO_OPTIONS, is_private=False)
        database.native.execute("SET GLOBAL Calendar = 'buddhist'")
        database.native.execute("SET GLOBAL TimeZone = 'Asia/Bangkok'")
        for connection in (early, database.connect(NO_OPTIONS, is_private=False)):
            settings = connection.native.execute("SELECT current_setting('Calendar'), current_setting('TimeZone')")
            assert settings.fetchall() == [("gregorian", "UTC")]

    @pytest.mark.parametrize("statement", PATHS_OF_THE_SERVER)
    async def test_no_statement_reveals_a_server_path(self, ana: EngineSession, tmp_path: Path, statement: str) -> None:
        message = (await failure(ana, statement)).message
        assert "Permission Error" in message
        assert str(tmp_path) not in message

    @pytest.mark.parametrize("statement", STILL_ALLOWED)
    async def test_statements_about_own_session_still_work(self, ana: EngineSession, statement: str) -> None:
        await run(ana, statement)


class TestTypesOfDuckdb:
    @pytest.mark.parametrize("statement", BEYOND_THE_TYPES.values())
    async def test_types_nested_100_deep_are_refused(self, ana: EngineSession, statement: str) -> None:
        if statement.startswith("CREATE"):
            await run(ana, statement)
            statement = "FROM deep"
        assert "nested deeper" in (await failure(ana, statement)).message

    async def test_structs_of_dates_are_planned_in_linear_time(self, ana: EngineSession) -> None:
        async with asyncio.timeout(60):
            answer = await run(ana, "SELECT " + "{'a': " * 50 + "DATE '2024-01-02'" + "}" * 50)
        assert repr(date(2024, 1, 2)) in str(answer.cell)

    async def test_unknown_statement_kind_is_refused(self, ana: EngineSession) -> None:
        assert isinstance(await failure(ana, "UPDATE EXTENSIONS"), StatementRejected)

    async def test_large_values_within_limits_are_unchanged(self, ana: EngineSession) -> None:
        await run(ana, "CREATE TABLE large (n INTEGER, s VARCHAR, b BLOB, l VARCHAR[], d DATE[])")
        await run(
            ana,
            "INSERT INTO large SELECT range, CASE WHEN range % 3 > 0 THEN repeat(chr(97 + range::INTEGER % 26), 40000)"
            " END, repeat('\\x00z', 20000)::BLOB, [repeat('l', 40000), NULL], [DATE '2024-01-02', NULL]"
            " FROM range(20)",
        )
        answer = await run(ana, 'SELECT *, \'é\' AS "a "" b" FROM large ORDER BY n')
        assert [column.name for column in answer.columns] == ["n", "s", "b", "l", "d", 'a " b']
        for number, row in enumerate(answer.rows):
            letter = chr(97 + number % 26)
            assert row[0] == number
            assert row[1] == (letter * 40000 if number % 3 else None)
            assert row[2] == b"\0z" * 20000
            assert row[3] == ["l" * 40000, None]
            assert row[4] == [date(2024, 1, 2), None]
            assert row[5] == "é"


class TestDiskOfDuckdb:
    @staticmethod
    def spill(connection: DuckdbConnection) -> None:
        connection.run("CREATE OR REPLACE TABLE s AS SELECT range n, md5(range::VARCHAR) m FROM range(1500000)")
        connection.run("CREATE OR REPLACE TABLE o AS SELECT a.m, a.n FROM s a ORDER BY a.m, a.n")

    @pytest.mark.slow
    def test_temporary_files_stop_at_reserved_space_and_reads_still_work(self, tmp_path: Path) -> None:
        free = [100 * 1024 * MIB]
        floor = DiskFloor(min_bytes=1024 * MIB, usage=lambda _: Usage(1024**4, free[0]), clock=lambda: float(free[0]))
        connection = opened(tmp_path, floor=floor).connect(NO_OPTIONS, is_private=False)
        self.spill(connection)
        free[0] = 1024 * MIB
        with raises_code("insufficient_storage"):
            self.spill(connection)
        (batch,) = connection.run("SELECT count(*) FROM o").next_batches()
        assert batch.to_pylist() == [{"count_star()": 1_500_000}]
        free[0] = 90 * 1024 * MIB
        self.spill(connection)

    def test_temporary_files_have_their_own_limit(self, tmp_path: Path) -> None:
        connection = opened(tmp_path, temporary_max_bytes=MIB).connect(NO_OPTIONS, is_private=False)
        with pytest.raises(StatementRejected, match="temporary files of this database"):
            self.spill(connection)


class TestThreads:
    async def test_one_user_cannot_occupy_all_threads(self, tmp_path: Path) -> None:
        engine = DuckdbEngine(path="own.duckdb", root=tmp_path, max_statements=4)
        slow = "SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b"
        async with (
            engine.session(ANA, NO_OPTIONS) as one,
            engine.session(ANA, NO_OPTIONS) as two,
            engine.session(ANA, NO_OPTIONS) as three,
            engine.session(BEN, NO_OPTIONS) as other,
            operation(one, slow) as first,
            operation(two, slow) as second,
            operation(three, slow) as third,
        ):
            await started(one, first)
            await started(two, second)
            assert (await run(other, "SELECT 1")).cell == 1
            assert (await three.poll(third)).state is OperationState.PENDING
            await one.cancel(first)
            await started(three, third)
        await engine.close()

    async def test_hanging_driver_call_keeps_the_slot_of_its_user(self) -> None:
        threads, free = DriverThreads("test", max_statements=4), threading.Event()
        kept = [threads.start(free.wait, user_id=1) for _ in range(2)]
        waiting = [threads.start(free.wait, user_id=1) for _ in range(8)]
        others = [threads.start(threading.get_native_id, user_id=number) for number in range(2, 20)]
        async with asyncio.timeout(60):
            await asyncio.gather(*map(asyncio.wrap_future, others))
        assert all(call.running() for call in kept)
        assert not any(call.running() for call in waiting)
        assert all(call.cancel() for call in waiting)
        free.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*map(asyncio.wrap_future, kept))
        await threads.close()


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedPostgres]:
    async with EmbeddedPostgres.start(tmp_path_factory.mktemp("users"), durable=False) as server:
        await ensure_databases(server, sample_tables)
        yield server


@pytest.fixture
async def sample(server: EmbeddedPostgres) -> AsyncGenerator[PostgresqlEngine]:
    engine = sample_engine(server)
    yield engine
    await engine.close()


def sample_engine(server: EmbeddedPostgres) -> PostgresqlEngine:
    """Build an engine for the sample database like the server's own."""
    logins = UserLogins(
        server.service_dsn(),
        group=SAMPLE_OWNER,
        login_group=SAMPLE_LOGIN,
        database=SAMPLE_DATABASE,
        role_of=f"{SAMPLE_ROLE}_{{:d}}".format,
    )
    return PostgresqlEngine(address_of(server.defaults.sample_dsn), user_logins=logins)


async def said(engine: PostgresqlEngine, user: User, sql: str) -> list[tuple[Any, ...]]:
    """Run a statement in a separate session; return its rows."""
    async with engine.session(user, NO_OPTIONS) as session:
        return (await run(session, sql)).rows


ROLE_STATE = (
    "SELECT current_setting('search_path'), current_setting('default_transaction_read_only'),"
    " current_setting('statement_timeout'), session_user::text, current_user::text"
)
STORED = (
    "ALTER ROLE CURRENT_USER SET search_path = pg_catalog",
    "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on",
    f"ALTER ROLE CURRENT_USER IN DATABASE {SAMPLE_DATABASE} SET statement_timeout = 1",
    "ALTER ROLE CURRENT_USER PASSWORD 'hostile'",
    "ALTER ROLE CURRENT_USER PASSWORD NULL",
)


class TestSample:
    @pytest.mark.parametrize("statement", STORED)
    @pytest.mark.parametrize("role", ["none", SAMPLE_OWNER])
    async def test_data_stored_by_a_role_reaches_no_other_user_or_later_session(
        self, server: EmbeddedPostgres, sample: PostgresqlEngine, statement: str, role: str
    ) -> None:
        def state(user: User) -> list[tuple[Any, ...]]:
            return [('"$user", public', "off", "0", f"{SAMPLE_ROLE}_{user.id}", SAMPLE_OWNER)]

        async with sample.session(ANA, NO_OPTIONS) as session:
            await run(session, f"SET ROLE {role}")
            await run(session, statement)
        later = sample_engine(server)
        assert await said(later, BEN, ROLE_STATE) == state(BEN)
        assert await said(later, ANA, ROLE_STATE) == state(ANA)
        await later.ping()
        await later.close()

    async def test_users_can_neither_read_nor_stop_statements_of_others(self, sample: PostgresqlEngine) -> None:
        async with sample.session(BEN, NO_OPTIONS) as ben, operation(ben, "SELECT 'secret-of-ben', pg_sleep(60)"):
            found = await said(
                sample, ANA, f"SELECT pid, query FROM pg_stat_activity WHERE usename = '{f'{SAMPLE_ROLE}_{BEN.id}'}'"
            )
            assert found
            assert not [query for _, query in found if "secret-of-ben" in query]
            for role in ("none", SAMPLE_OWNER):
                async with sample.session(ANA, NO_OPTIONS) as ana:
                    await run(ana, f"SET ROLE {role}")
                    for call in ("pg_cancel_backend", "pg_terminate_backend"):
                        error = await failure(ana, f"SELECT {call}({found[0][0]})")
                        assert "permission denied" in error.message

    async def test_user_stops_own_statement(self, sample: PostgresqlEngine) -> None:
        async with sample.session(ANA, NO_OPTIONS) as session, operation(session, "SELECT pg_sleep(60)") as handle:
            await started(session, handle)
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=10)).state is OperationState.CANCELED

    async def test_tables_are_writable_by_all_users(self, sample: PostgresqlEngine) -> None:
        await said(sample, ANA, "CREATE TABLE of_ana AS SELECT 1 AS n")
        await said(sample, BEN, "INSERT INTO of_ana SELECT count(*) FROM customers")
        assert await said(sample, ANA, "SELECT n FROM of_ana ORDER BY n") == [(1,), (400,)]
        await said(sample, BEN, "DROP TABLE of_ana")

    @pytest.mark.parametrize(
        "statement",
        [
            "ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM sample_owner",
            "DROP OWNED BY sample_owner",
            "ALTER DATABASE sample SET search_path = pg_catalog",
            "SET ROLE sample_user",
            "SET ROLE sample_user_2",
            "SET SESSION AUTHORIZATION sample_user_2",
            "ALTER ROLE sample_user_2 PASSWORD 'x'",
            "ALTER ROLE sample_user SET search_path = pg_catalog",
            "GRANT sample_user_2 TO sample_owner",
            "DROP ROLE sample_user_2",
            "DROP EVENT TRIGGER queryserver_refuse",
            "CREATE OR REPLACE FUNCTION pg_catalog.queryserver_refuse() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "PREPARE TRANSACTION 'x'",
        ],
    )
    async def test_changes_to_sessions_of_others_are_refused(self, sample: PostgresqlEngine, statement: str) -> None:
        await said(sample, BEN, "SELECT 1")
        async with sample.session(ANA, NO_OPTIONS) as session:
            for role in ("none", SAMPLE_OWNER):
                await run(session, f"SET ROLE {role}")
                if statement.startswith("PREPARE"):
                    await run(session, "BEGIN")
                    await run(session, "SELECT 1")
                assert isinstance(await failure(session, statement), StatementRejected)
                await run(session, "ROLLBACK")

    async def test_pooled_connection_keeps_nothing_of_its_last_session(self, sample: PostgresqlEngine) -> None:
        pid = "SELECT pg_backend_pid()"
        async with sample.session(ANA, NO_OPTIONS) as session:
            former = (await run(session, pid)).cell
            for statement in (
                "CREATE TEMP TABLE left_over AS SELECT 1",
                "LISTEN others",
                "SELECT pg_advisory_lock(42)",
                "BEGIN",
                "DECLARE left_open CURSOR WITH HOLD FOR SELECT 1",
                "COMMIT",
                "SET work_mem = '1GB'",
                "RESET ROLE",
            ):
                await run(session, statement)
        left = (
            "SELECT (SELECT count(*) FROM pg_cursors WHERE name = 'left_open')"
            " + (SELECT count(*) FROM pg_listening_channels())"
            " + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
            " + (SELECT count(*) FROM pg_class WHERE relname = 'left_over'), current_setting('work_mem'),"
            " current_user::text"
        )
        async with sample.session(ANA, NO_OPTIONS) as session:
            assert (await run(session, pid)).cell == former
            assert (await run(session, left)).rows == [(0, "4MB", SAMPLE_OWNER)]

    async def test_connections_per_user_are_limited(self, sample: PostgresqlEngine) -> None:
        limit = f"SELECT rolconnlimit FROM pg_roles WHERE rolname = '{f'{SAMPLE_ROLE}_{ANA.id}'}'"
        assert await said(sample, ANA, limit) == [(20,)]

    async def test_database_of_an_earlier_version_gets_the_common_owner(self, server: EmbeddedPostgres) -> None:
        admin = server.admin_dsn(SAMPLE_DATABASE)
        await execute(admin, f"CREATE TABLE earlier (n integer); ALTER TABLE earlier OWNER TO {SAMPLE_ROLE}")
        await ensure_databases(server, sample_tables)
        engine = sample_engine(server)
        await said(engine, ANA, "INSERT INTO earlier VALUES (1)")
        await said(engine, BEN, "DROP TABLE earlier")
        await engine.close()

    async def test_only_the_embedded_sample_connector_creates_user_logins(self, server: EmbeddedPostgres) -> None:
        url = server.defaults.sample_dsn
        addresses = EngineBuilder(Settings()).addresses
        connector = Connector(
            key="pg",
            dialect="postgresql",
            interface="sqlalchemy",
            nice_name="",
            limits=ConnectorLimits(*[timedelta(seconds=60)] * 4),
            options={"url": url},
        )
        embedded, external = (
            EngineBuilder(
                Settings.model_validate({"desktop": {"database": {"url": server.service_dsn(), "embedded": embedded}}}),
                addresses=addresses,
            )
            for embedded in (True, False)
        )
        own = BUILDERS["sqlalchemy"](connector, embedded)
        assert isinstance(own, PostgresqlEngine)
        assert own._user_logins is not None
        other = BUILDERS["sqlalchemy"](connector, external)
        assert isinstance(other, PostgresqlEngine)
        assert other._user_logins is None
        for engine in (own, other):
            await engine.close()

    async def test_common_owner_cannot_log_in(self, server: EmbeddedPostgres, sample: PostgresqlEngine) -> None:
        await said(sample, ANA, "ALTER ROLE CURRENT_USER PASSWORD 'known'")
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await asyncpg.connect(
                host="127.0.0.1",
                port=server.address.port,
                user=SAMPLE_OWNER,
                password="known",
                database=SAMPLE_DATABASE,
            )
