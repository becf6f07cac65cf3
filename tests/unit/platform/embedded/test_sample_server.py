"""The separate PostgreSQL cluster of the sample database, which starts when it is first used."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import failure, run
from tests.contract.loading_basis import INT64, STRING, MemoryLedger, numbered, staging_of
from tests.fixtures.database import ensure_databases, execute

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.sources import configured_connectors
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import LoadColumn, TableLoad, TableName
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.imports.model import declared_type
from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_OWNER, find_processes, load_or_create_secrets
from queryserver.platform.embedded.postgres import EmbeddedPostgres, running_resources, with_embedded_resources
from queryserver.platform.embedded.sample import ensure_service_database, has_database, sample_tables
from queryserver.platform.embedded.sample_server import SampleLimits, SampleServer, sample_server
from queryserver.platform.machine_limits import DiskFloor
from queryserver.platform.settings.tree import Settings

ANA, BEN = User(1, "ana"), User(2, "ben")
MIB = 1024 * 1024
FIVE = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tableowner = 'sample_owner'"
ENDLESS = "CREATE TABLE large AS SELECT n, repeat(md5(n::text), 20) AS a FROM generate_series(1, 2000000000) n"


NO_LIMITS = SampleLimits()


@asynccontextmanager
async def started(state_dir: Path, limits: SampleLimits = NO_LIMITS) -> AsyncGenerator[SampleServer]:
    async with EmbeddedPostgres.start(state_dir, durable=False) as service:
        await ensure_service_database(service)
        async with sample_server(state_dir, service, sample_tables, durable=False, limits=limits) as sample:
            yield sample


@asynccontextmanager
async def engine_of(sample: SampleServer) -> AsyncGenerator[PostgresqlEngine]:
    """Build the engine as the application does."""
    settings = with_embedded_resources(Settings(), sample.defaults)
    builder = EngineBuilder(settings)
    [connector] = [one for one in configured_connectors(settings) if one.dialect == "postgresql"]
    engine = builder.build(connector)
    assert isinstance(engine, PostgresqlEngine)
    yield engine
    await engine.close()
    await builder.aclose()


async def said(engine: PostgresqlEngine, user: User, sql: str) -> list[tuple[Any, ...]]:
    async with engine.session(user, NO_OPTIONS) as session:
        return (await run(session, sql)).rows


async def test_concurrent_first_connections_start_server_and_are_served(tmp_path: Path) -> None:
    async with started(tmp_path) as sample:
        assert not sample.is_started
        assert not (tmp_path / "postgresql-sample" / "data").exists()
        async with engine_of(sample) as engine:
            users = [User(number, f"user{number}") for number in range(1, 6)]
            assert await asyncio.gather(*(said(engine, user, FIVE) for user in users)) == [[(5,)]] * 5
            assert sample.is_started
            name = await said(engine, BEN, "SELECT session_user::text, current_user::text")
            assert name == [("sample_user_2", SAMPLE_OWNER)]
        defaults = running_resources(tmp_path)
        assert defaults is not None
        assert (defaults.sample_dsn, defaults.sample_admin_dsn) == (
            sample.defaults.sample_dsn, sample.defaults.sample_admin_dsn,
        )  # fmt: skip
    assert not os.path.exists(sample.address.socket_directory)  # noqa: ASYNC240, PTH110 no other task is running


async def test_rows_persist_after_stop_and_no_process_remains(tmp_path: Path) -> None:
    async with started(tmp_path) as sample, engine_of(sample) as engine:
        await said(engine, ANA, "CREATE TABLE mine AS SELECT 7 AS n")
        assert find_processes(sample.cluster_name)
        name = sample.cluster_name
    assert not find_processes(name)
    async with started(tmp_path) as sample, engine_of(sample) as engine:
        assert await said(engine, BEN, "SELECT n FROM mine") == [(7,)]


async def test_service_database_is_unaffected_by_sample_server_crash(tmp_path: Path) -> None:
    async with EmbeddedPostgres.start(tmp_path, durable=False) as service:
        await ensure_service_database(service)
        limits = SampleLimits()
        async with sample_server(tmp_path, service, sample_tables, durable=False, limits=limits) as sample:
            kept = await asyncpg.connect(service.service_dsn())
            async with engine_of(sample) as engine:
                await said(engine, ANA, "SELECT 1")
                for process in find_processes(sample.cluster_name).postmasters:
                    os.kill(process, signal.SIGKILL)
                assert await kept.fetchval("SELECT 1") == 1
                async with asyncio.timeout(60):
                    while True:
                        try:
                            assert await said(engine, BEN, FIVE) == [(5,)]
                        except Exception:  # noqa: BLE001 the server is restarting
                            await asyncio.sleep(0.2)
                        else:
                            break
            await kept.close()


async def test_sample_from_earlier_version_is_migrated_with_user_objects(tmp_path: Path) -> None:
    async with EmbeddedPostgres.start(tmp_path, durable=False) as service:
        await ensure_databases(service, sample_tables)
        former = service.admin_dsn(SAMPLE_DATABASE)
        for statement in (
            "CREATE ROLE sample_user_1 LOGIN", "CREATE SCHEMA own AUTHORIZATION sample_owner",
            "CREATE TABLE own.mine AS SELECT 7 AS n", "ALTER TABLE own.mine OWNER TO sample_user_1",
            "CREATE VIEW own.shown AS SELECT n + 1 AS n FROM own.mine", "ALTER VIEW own.shown OWNER TO sample_owner",
            "DROP TABLE web_requests",
        ):  # fmt: skip
            await execute(former, statement)
    async with EmbeddedPostgres.start(tmp_path, durable=False) as service:
        await ensure_service_database(service)
        limits = SampleLimits()
        async with (
            sample_server(tmp_path, service, sample_tables, durable=False, limits=limits) as sample,
            engine_of(sample) as engine,
        ):
            assert await said(engine, BEN, "SELECT n FROM own.shown") == [(8,)]
            assert await said(engine, BEN, FIVE) == [(4,)]
            assert await said(engine, BEN, "DROP SCHEMA own CASCADE") == []
            connection = await asyncpg.connect(service.admin_dsn())
            assert not await has_database(connection, SAMPLE_DATABASE)
            await connection.close()


class Usage:
    """The usage of a simulated disk of `total` bytes."""

    def __init__(self, total: int, used: int) -> None:
        self.total, self.used, self.free = total, used, total - used


async def test_writing_statement_stops_at_disk_floor(tmp_path: Path) -> None:
    def usage(_: Path) -> Usage:
        files = list((tmp_path / "postgresql-sample" / "data" / "base").rglob("*"))
        return Usage(1024 * MIB, sum(file.stat().st_size for file in files if file.is_file()))

    limits = SampleLimits(floor=DiskFloor(min_bytes=900 * MIB, usage=usage))
    async with started(tmp_path, limits) as sample, engine_of(sample) as engine:
        await said(engine, ANA, "CREATE TABLE kept AS SELECT 7 AS n")
        async with engine.session(ANA, NO_OPTIONS) as session:
            error = await failure(session, ENDLESS)
            assert (error.code, error.sqlstate) == ("insufficient_storage", "53100")
        assert await said(engine, BEN, "SELECT n FROM kept") == [(7,)]
        assert usage(tmp_path).used < 200 * MIB
        await said(engine, BEN, "DROP TABLE kept")


async def test_statement_that_catches_cancellation_stops_at_quota(tmp_path: Path) -> None:
    catching = f"""
        DO $$ BEGIN
            LOOP
                BEGIN
                    {ENDLESS};
                EXCEPTION WHEN query_canceled THEN NULL;
                END;
            END LOOP;
        END $$
    """
    async with started(tmp_path, SampleLimits(quota_bytes=100 * MIB)) as sample, engine_of(sample) as engine:
        async with engine.session(ANA, NO_OPTIONS) as session:
            assert (await failure(session, ENDLESS)).code == "insufficient_storage"
        async with engine.session(ANA, NO_OPTIONS) as session:
            assert (await failure(session, catching)).code in {"insufficient_storage", "outcome_unknown"}
        assert await said(engine, BEN, FIVE) == [(5,)]


SPILLING = "SELECT count(*) FROM (SELECT repeat(md5(n::text), 20) AS a FROM generate_series(1, 2000000000) n) large"
DELETING = "DELETE FROM one WHERE fill()"


@pytest.mark.parametrize("statement", [SPILLING, DELETING])
async def test_spilling_query_and_writing_delete_stop_at_disk_floor(tmp_path: Path, statement: str) -> None:
    def usage(_: Path) -> Usage:
        used = 0
        for file in (tmp_path / "postgresql-sample" / "data" / "base").rglob("*"):
            with suppress(OSError):
                used += file.stat().st_size
        return Usage(1024 * MIB, used)

    limits = SampleLimits(floor=DiskFloor(min_bytes=900 * MIB, usage=usage))
    async with started(tmp_path, limits) as sample, engine_of(sample) as engine:
        await said(engine, ANA, "CREATE TABLE one AS SELECT 1 AS n")
        await said(engine, ANA, "CREATE TABLE large (n int, a text)")
        await said(
            engine,
            ANA,
            "CREATE FUNCTION fill() RETURNS boolean LANGUAGE plpgsql AS "
            "$$BEGIN FOR n IN 1..2000000000 LOOP INSERT INTO large VALUES (n, repeat('x', 2000)); END LOOP; END$$",
        )
        async with engine.session(ANA, NO_OPTIONS) as session:
            error = await failure(session, statement)
            assert (error.code, error.sqlstate) == ("insufficient_storage", "53100")
        assert await said(engine, BEN, FIVE) == [(7,)]
        assert await said(engine, BEN, "DELETE FROM one") == []
        await said(engine, BEN, "TRUNCATE large")
        await said(engine, BEN, "DROP TABLE large")


@pytest.mark.timeout(360)
async def test_disk_space_of_stopped_insert_is_released(tmp_path: Path) -> None:
    insert = "INSERT INTO large SELECT n, repeat('x', 2000) FROM (SELECT generate_series(1, 2000000000) n) s"
    async with started(tmp_path, SampleLimits(quota_bytes=100 * MIB)) as sample, engine_of(sample) as engine:
        await said(engine, ANA, "CREATE TABLE large (n int, a text)")
        async with engine.session(ANA, NO_OPTIONS) as session:
            assert (await failure(session, insert)).code == "insufficient_storage"
        size = "SELECT pg_total_relation_size('large') < 1000000, current_setting('autovacuum_naptime')"
        async with asyncio.timeout(300):
            while await said(engine, BEN, size) != [(True, "10s")]:  # noqa: ASYNC110 the server sends no event
                await asyncio.sleep(0.5)


async def test_spilling_query_continues_when_only_tables_reach_the_quota(tmp_path: Path) -> None:
    async with started(tmp_path, SampleLimits(quota_bytes=24 * MIB)) as sample, engine_of(sample) as engine:
        sort = "SELECT count(*) FROM (SELECT n FROM generate_series(1, 700000) n ORDER BY -n OFFSET 1) s, pg_sleep(1.5)"
        assert await said(engine, ANA, sort) == [(699999,)]
        files = (tmp_path / "postgresql-sample" / "data" / "base").rglob("*")
        assert sum(file.stat().st_size for file in files) > 24 * MIB


async def test_sample_statement_can_be_canceled(tmp_path: Path) -> None:
    async with started(tmp_path) as sample, engine_of(sample) as engine, engine.session(ANA, NO_OPTIONS) as session:
        handle = await session.submit("SELECT pg_sleep(600)")
        await session.poll(handle, wait_s=0.2)
        await session.cancel(handle)
        assert (await session.poll(handle, wait_s=30)).state.name == "CANCELED"


async def test_sample_secrets_differ_from_service_secrets(tmp_path: Path) -> None:
    async with started(tmp_path):
        secrets = [
            load_or_create_secrets(tmp_path / name / "secrets.json", may_create=False)
            for name in ("postgresql", "postgresql-sample")
        ]
    assert secrets[0].sample != secrets[1].sample
    assert secrets[0].service != secrets[1].service


@pytest.mark.security("T8")
async def test_sample_logins_see_no_service_database(tmp_path: Path) -> None:
    async with started(tmp_path) as sample, engine_of(sample) as engine:
        found = await said(engine, ANA, "SELECT datname::text FROM pg_database ORDER BY 1")
        assert found == [("postgres",), ("sample",), ("template0",), ("template1",)]


async def test_import_stops_at_quota(tmp_path: Path) -> None:
    columns = (LoadColumn("n", INT64, declared_type(INT64, "postgresql"), True),
               LoadColumn("s", STRING, declared_type(STRING, "postgresql"), True))  # fmt: skip
    target = TableName(None, "large")
    load = TableLoad(target, staging_of(target), columns)

    async def endless() -> AsyncIterator[pa.RecordBatch]:
        while True:
            yield numbered(load, 0, 10_000, "x" * 500)

    async with (
        started(tmp_path, SampleLimits(quota_bytes=60 * MIB)) as sample,
        engine_of(sample) as engine,
        engine.loader(ANA, NO_OPTIONS) as loader,
    ):
        with pytest.raises(EngineError) as ended:
            await loader.load(load, endless(), MemoryLedger())
        assert ended.value.code == "insufficient_storage"
        assert not await loader.exists(target)
