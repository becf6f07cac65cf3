"""The embedded sample: its databases, its files, and the permissions of its logins."""

import asyncio
import csv
import gzip
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing, suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import pyarrow.parquet as pq
import pytest
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import run
from tests.contract.postgresql_basis import address_of
from tests.contract.storage_basis import content, entries, put
from tests.fixtures.database import ensure_databases, execute

from queryserver.engines.postgresql.engine import PostgresqlEngine, UserLogins
from queryserver.errors.statements import EngineError
from queryserver.files.model import StorageUser
from queryserver.files.stores.local.storage import LocalFileSystem
from queryserver.identity.model import User
from queryserver.platform.embedded.cluster import (
    DUCKDB_FILE,
    SAMPLE_DATABASE,
    SAMPLE_LOGIN,
    SAMPLE_OWNER,
    SAMPLE_ROLE,
    SERVICE_ROLE,
    SQLITE_FILE,
    EmbeddedResources,
)
from queryserver.platform.embedded.postgres import EmbeddedPostgres, with_embedded_resources
from queryserver.platform.embedded.sample import (
    ORDERS,
    REQUESTS,
    SAMPLES,
    ensure_sample_files,
    ensure_sample_storage,
    sample_tables,
)
from queryserver.platform.settings.tree import Settings

REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory):
    """Start a separate server, because other tests enable loopback logins on the shared one."""
    async with EmbeddedPostgres.start(tmp_path_factory.mktemp("access"), durable=False) as server:
        await ensure_databases(server, sample_tables)
        yield server


@pytest.mark.security("T8")
@pytest.mark.parametrize("database", [SERVICE_ROLE, "postgres", "template1"])
async def test_sample_role_cannot_open_other_databases(server: EmbeddedPostgres, database: str):
    password = server.cluster.secrets.sample
    for host in ("127.0.0.1", server.address.socket_directory):
        with pytest.raises(REFUSED):
            await asyncpg.connect(
                host=host, port=server.address.port, user=SAMPLE_ROLE, password=password, database=database, ssl=False
            )


@pytest.mark.security("T8")
@pytest.mark.parametrize("database", [SERVICE_ROLE, SAMPLE_DATABASE])
async def test_service_role_cannot_log_in_over_loopback(server: EmbeddedPostgres, database: str):
    with pytest.raises(REFUSED):
        await asyncpg.connect(
            host="127.0.0.1",
            port=server.address.port,
            user=SERVICE_ROLE,
            password=server.cluster.secrets.service,
            database=database,
            ssl=False,
        )


async def test_wrong_password_is_refused_on_socket_and_loopback(server: EmbeddedPostgres):
    for dsn in (server.service_dsn(), server.defaults.sample_dsn, server.admin_dsn()):
        login, at, place = dsn.partition("@")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"{login}x{at}{place}")


async def test_service_role_owns_its_database_without_superuser(server: EmbeddedPostgres):
    connection = await asyncpg.connect(server.service_dsn())
    try:
        assert await connection.fetchval("SHOW is_superuser") == "off"
        await connection.execute("CREATE TABLE mine (a integer); DROP TABLE mine")
    finally:
        await connection.close()


async def test_users_may_change_sample_database(server: EmbeddedPostgres):
    connection = await asyncpg.connect(server.defaults.sample_dsn)
    try:
        await connection.execute("CREATE SCHEMA own; CREATE TABLE own.t (a integer); DROP SCHEMA own CASCADE")
        await connection.execute("CREATE TABLE t AS SELECT * FROM customers; DROP TABLE t")
    finally:
        await connection.close()


@pytest.mark.parametrize("statement",
    ["SELECT rolpassword FROM pg_authid", "COPY (SELECT 1) TO PROGRAM 'true'", "SELECT pg_read_file('postgresql.conf')",
    "CREATE ROLE another", "CREATE DATABASE another", "ALTER SYSTEM SET fsync = off", "SET ROLE queryserver",
    "ALTER DATABASE sample CONNECTION LIMIT 0"])  # fmt: skip
async def test_users_cannot_administer_the_server(server: EmbeddedPostgres, statement: str):
    connection = await asyncpg.connect(server.defaults.sample_dsn)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_changed_sample_password_is_restored_at_next_start(server: EmbeddedPostgres):
    await execute(server.defaults.sample_dsn, f"ALTER ROLE {SAMPLE_ROLE} PASSWORD 'stolen'")
    await ensure_databases(server, sample_tables)
    await execute(server.defaults.sample_dsn, "SELECT 1")


async def test_dropped_sample_table_is_not_recreated(server: EmbeddedPostgres):
    await execute(server.defaults.sample_dsn, "DROP TABLE web_requests")
    await ensure_databases(server, sample_tables)
    with pytest.raises(asyncpg.UndefinedTableError):
        await execute(server.defaults.sample_dsn, "SELECT 1 FROM web_requests")


async def test_unfinished_sample_database_is_recreated(tmp_path):
    async with EmbeddedPostgres.start(tmp_path, durable=False) as server:
        await execute(server.admin_dsn(), "CREATE DATABASE sample_unfinished")
        await ensure_databases(server, sample_tables)
        await execute(server.defaults.sample_dsn, "SELECT 1 FROM order_items")


REVENUE = "SELECT sum(quantity * unit_price * (1 - coalesce(discount, 0))) FROM order_items"
QUESTIONS = (
    "SELECT count(*), count(email), count(credit_limit) FROM customers",
    "SELECT count(*), count(weight_kg), sum(price) FROM products",
    "SELECT count(*), count(shipped_on), count(note) FROM orders",
    "SELECT count(*), count(discount), sum(quantity) FROM order_items",
    "SELECT count(*), count(bytes_sent), max(id) FROM web_requests",
    "SELECT name, city FROM customers ORDER BY id LIMIT 1",
    "SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.is_active",
)


def test_sample_rows_are_deterministic():
    assert [table.rows for table in sample_tables()] == [table.rows for table in sample_tables()]


def test_sample_contains_common_types_nulls_and_non_ascii_text():
    values = [value for table in sample_tables() for row in table.rows for value in row]
    assert {type(value) for value in values} == {int, float, str, bool, Decimal, date, datetime, type(None)}
    assert any(isinstance(value, str) and not value.isascii() for value in values)
    assert any(isinstance(value, datetime) and value.tzinfo for value in values)


async def test_same_sql_returns_same_result_in_all_three_engines(sample_dsn: str, sample_directory: Path):
    postgresql = await asyncpg.connect(sample_dsn)
    try:
        with (
            duckdb.connect(str(sample_directory / DUCKDB_FILE)) as quack,
            closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite,
        ):
            for question in QUESTIONS:
                wanted = tuple(await postgresql.fetchrow(question))
                assert quack.execute(question).fetchone() == wanted, question
                floats = tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in wanted)
                assert lite.execute(question).fetchone() == pytest.approx(floats), question
            wanted = await postgresql.fetchval(REVENUE)
            assert quack.execute(REVENUE).fetchone()[0] == wanted
            assert lite.execute(REVENUE).fetchone()[0] == pytest.approx(float(wanted))
    finally:
        await postgresql.close()


def test_changes_to_sample_database_files_persist(sample_directory: Path):
    with closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite, lite:
        lite.execute("DROP TABLE web_requests")
    ensure_sample_files(sample_directory, sample_tables)
    with closing(sqlite3.connect(sample_directory / SQLITE_FILE)) as lite:
        tables = {name for (name,) in lite.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"customers", "products", "orders", "order_items"}


def test_unfinished_sample_database_files_are_recreated(tmp_path: Path):
    for name in (f"{DUCKDB_FILE}.unfinished", f"{DUCKDB_FILE}.unfinished.wal", f"{SQLITE_FILE}.unfinished-journal"):
        (tmp_path / name).write_bytes(b"half a file")
    ensure_sample_files(tmp_path, sample_tables)
    assert sorted(file.name for file in tmp_path.iterdir()) == [DUCKDB_FILE, SQLITE_FILE]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with duckdb.connect(str(tmp_path / DUCKDB_FILE)) as quack:
        assert quack.execute("SELECT count(*) FROM customers").fetchone() == (400,)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    ensure_sample_storage(tmp_path / "files", sample_tables)
    return tmp_path / "files"


def test_sample_files_contain_sample_rows(files: Path):
    samples = files / SAMPLES
    with (samples / "orders.csv").open(encoding="utf-8", newline="") as stream:
        orders = list(csv.DictReader(stream))
    assert len(orders) == ORDERS
    assert {order["note"] for order in orders} >= {"", 'ring twice, say "hello"', "fragile; ünïcode, ok?"}
    requests = gzip.decompress((samples / "web_requests.csv.gz").read_bytes()).decode().splitlines()
    assert len(requests) == REQUESTS + 1
    items = next(table for table in sample_tables() if table.name == "order_items")
    stored = pq.read_table(samples / "order_items.parquet")
    assert stored.column_names == list(items.column_names)
    assert [tuple(row.values()) for row in stored.to_pylist()] == list(items.rows)


def test_sample_files_are_reproducible(files: Path, tmp_path: Path):
    ensure_sample_storage(tmp_path / "again", sample_tables)
    for file in (files / SAMPLES).iterdir():
        assert file.read_bytes() == (tmp_path / "again" / SAMPLES / file.name).read_bytes()


def test_changes_to_sample_storage_persist(files: Path):
    (files / SAMPLES / "orders.csv").unlink()
    (files / SAMPLES / "products.csv").write_text("mine")
    ensure_sample_storage(files, sample_tables)
    assert not (files / SAMPLES / "orders.csv").exists()
    assert (files / SAMPLES / "products.csv").read_text() == "mine"


def test_unfinished_sample_storage_is_recreated(tmp_path: Path):
    (tmp_path / "files.unfinished" / "shared").mkdir(parents=True)
    (tmp_path / "files.unfinished" / "half a file").touch()
    ensure_sample_storage(tmp_path / "files", sample_tables)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["shared"]


async def test_any_user_can_browse_and_change_samples(files: Path):
    file_system = LocalFileSystem(files)
    alice = file_system.as_user(StorageUser("alice"))
    found = {entry.name: entry for entry in await entries(alice, SAMPLES)}
    assert {"README.txt", "customers.csv", "order_items.parquet", "web_requests.csv.gz"} <= set(found)
    assert sum(entry.size_bytes for entry in found.values()) < 1_500_000
    assert (await content(alice, f"{SAMPLES}/customers.csv", length=8)) == b"id,name,"
    await put(alice, f"{SAMPLES}/mine.csv")
    await file_system.close()


def test_embedded_local_root_is_used_unless_configured(tmp_path: Path):
    defaults = EmbeddedResources("postgresql://", "postgresql://", tmp_path / "databases", tmp_path / "files")
    assert with_embedded_resources(Settings(), defaults).filebrowser.local_root == tmp_path / "files"
    given = Settings.model_validate({"filebrowser": {"local_root": str(tmp_path)}})
    assert with_embedded_resources(given, defaults).filebrowser.local_root == tmp_path


ANA, BEN = User(1, "ana"), User(2, "ben")
OWNERS = """
    SELECT min(tableowner), count(*) FROM pg_tables
    WHERE tablename IN ('customers', 'products', 'orders', 'order_items')
    GROUP BY tableowner
"""


@pytest.fixture
async def sample(server: EmbeddedPostgres) -> AsyncGenerator[PostgresqlEngine]:
    engine = sample_engine(server)
    yield engine
    await engine.close()


def sample_engine(server: EmbeddedPostgres) -> PostgresqlEngine:
    logins = UserLogins(
        server.service_dsn(),
        group=SAMPLE_OWNER,
        login_group=SAMPLE_LOGIN,
        database=SAMPLE_DATABASE,
        role_of=f"{SAMPLE_ROLE}_{{:d}}".format,
    )
    return PostgresqlEngine(address_of(server.defaults.sample_dsn), user_logins=logins)


async def said(engine: PostgresqlEngine, user: User, sql: str) -> list[tuple[Any, ...]]:
    async with engine.session(user, NO_OPTIONS) as session:
        return (await run(session, sql)).rows


async def test_user_who_locks_own_role_blocks_no_other_user(sample: PostgresqlEngine) -> None:
    async with sample.session(ANA, NO_OPTIONS) as session:
        await run(session, "BEGIN")
        await run(session, "ALTER ROLE CURRENT_USER SET work_mem = '1MB'")
        await run(session, "SET ROLE none")
        await run(session, "ALTER ROLE CURRENT_USER PASSWORD 'hostile'")
        waiting = asyncio.create_task(said(sample, ANA, "SELECT 1"))
        while not await said(sample, BEN, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert not waiting.done()
        assert await said(sample, User(3, "eve"), "SELECT 1") == [(1,)]
        assert not waiting.done()
        await run(session, "ROLLBACK")
    assert await waiting == [(1,)]


async def test_servers_can_concurrently_create_same_user_login(server) -> None:
    engines = [sample_engine(server) for _ in range(4)]
    user = User(77, "new")
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(said(engine, user, "SELECT 1") for engine in engines for _ in range(4)))
    assert answers == [[(1,)]] * 16
    for engine in engines:
        await engine.close()


@pytest.mark.security("T8")
@pytest.mark.parametrize("statement",
    ["REASSIGN OWNED BY sample_owner TO current_user", "REASSIGN OWNED BY sample_owner TO sample_user_1",
    "REASSIGN OWNED BY sample_owner TO session_user", "ALTER TABLE customers OWNER TO current_user",
    "ALTER TABLE customers OWNER TO session_user", "ALTER TABLE customers OWNER TO sample_user_1",
    "ALTER SCHEMA public OWNER TO session_user", "DROP OWNED BY sample_owner", "GRANT sample_owner TO sample_user_1",
    "GRANT sample_user_1 TO sample_owner", "ALTER ROLE sample_owner LOGIN", "CREATE SCHEMA AUTHORIZATION session_user",
    "ALTER DEFAULT PRIVILEGES FOR ROLE sample_owner REVOKE ALL ON TABLES FROM PUBLIC",
    "DO $$ BEGIN EXECUTE 'REASSIGN OWNED BY sample_owner TO session_user'; END $$",
    "ALTER DATABASE sample OWNER TO session_user", "REVOKE sample_owner FROM sample_user_1"])  # fmt: skip
async def test_user_cannot_take_over_shared_tables(sample: PostgresqlEngine, statement: str) -> None:
    for role in ("RESET ROLE", "SET ROLE none", "SET ROLE sample_owner"):
        async with sample.session(ANA, NO_OPTIONS) as session:
            await run(session, role)
            with suppress(EngineError):  # for some ineffective statements, PostgreSQL only issues a warning
                await run(session, statement)
        assert await said(sample, BEN, OWNERS) == [(SAMPLE_OWNER, 4)]
        assert await said(sample, BEN, "SELECT count(*) FROM customers") == [(400,)]
        assert await said(sample, ANA, "SELECT count(*) FROM customers") == [(400,)]


async def test_login_outside_shared_role_cannot_create_tables(sample: PostgresqlEngine) -> None:
    async with sample.session(ANA, NO_OPTIONS) as session:
        await run(session, "RESET ROLE")
        for statement in ("CREATE TABLE own (n integer)", "CREATE TEMP TABLE own (n integer)", "CREATE SCHEMA own"):
            with pytest.raises(EngineError, match="permission denied"):
                await run(session, statement)


async def test_tables_taken_over_in_earlier_version_return_to_shared_owner(server: EmbeddedPostgres) -> None:
    admin = server.admin_dsn(SAMPLE_DATABASE)
    engine = sample_engine(server)
    assert await said(engine, ANA, "SELECT 1") == [(1,)]  # this creates the login
    for statement in ("CREATE TABLE taken (n integer)", "ALTER TABLE taken OWNER TO sample_user_1"):
        await execute(admin, statement)
    await ensure_databases(server, sample_tables)
    assert await said(engine, BEN, "DROP TABLE taken") == []
    await engine.close()
