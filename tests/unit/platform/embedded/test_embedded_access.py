"""Who may open which database of the private PostgreSQL."""

import asyncpg
import pytest
from tests.cases import each
from tests.fixtures.database import execute

from queryserver.platform.embedded.cluster import SAMPLE_DATABASE, SAMPLE_ROLE, SERVICE_ROLE
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.embedded.sample import ensure_databases, sample_tables

REFUSED = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory):
    """Not the shared one: other tests open that to loopback."""
    async with EmbeddedPostgres.start(tmp_path_factory.mktemp("access"), durable=False) as server:
        await ensure_databases(server, sample_tables())
        yield server


@pytest.mark.security("T8")
@each("database", SERVICE_ROLE, "postgres", "template1")
async def test_the_sample_role_opens_no_other_database(server: EmbeddedPostgres, database: str):
    password = server.role_password(SAMPLE_ROLE)
    for host in ("127.0.0.1", str(server.socket_directory)):
        with pytest.raises(REFUSED):
            await asyncpg.connect(
                host=host, port=server.port, user=SAMPLE_ROLE, password=password, database=database, ssl=False
            )


@pytest.mark.security("T8")
@each("database", SERVICE_ROLE, SAMPLE_DATABASE)
async def test_the_service_role_cannot_log_in_over_loopback(server: EmbeddedPostgres, database: str):
    with pytest.raises(REFUSED):
        await asyncpg.connect(
            host="127.0.0.1",
            port=server.port,
            user=SERVICE_ROLE,
            password=server.role_password(SERVICE_ROLE),
            database=database,
            ssl=False,
        )


async def test_a_wrong_password_is_refused_on_socket_and_loopback(server: EmbeddedPostgres):
    for dsn in (server.service_dsn(), server.sample_dsn(), server.admin_dsn()):
        login, at, place = dsn.partition("@")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"{login}x{at}{place}")


async def test_the_service_role_is_no_superuser_and_owns_its_database(server: EmbeddedPostgres):
    connection = await asyncpg.connect(server.service_dsn())
    try:
        assert await connection.fetchval("SHOW is_superuser") == "off"
        await connection.execute("CREATE TABLE mine (a integer); DROP TABLE mine")
    finally:
        await connection.close()


async def test_users_may_change_the_sample_database(server: EmbeddedPostgres):
    connection = await asyncpg.connect(server.sample_dsn())
    try:
        await connection.execute("CREATE SCHEMA own; CREATE TABLE own.t (a integer); DROP SCHEMA own CASCADE")
        await connection.execute("CREATE TABLE t AS SELECT * FROM customers; DROP TABLE t")
    finally:
        await connection.close()


@each(
    "statement",
    "SELECT rolpassword FROM pg_authid",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "SELECT pg_read_file('postgresql.conf')",
    "CREATE ROLE another",
    "CREATE DATABASE another",
    "ALTER SYSTEM SET fsync = off",
    "SET ROLE queryserver",
    "ALTER DATABASE sample CONNECTION LIMIT 0",
)
async def test_users_have_no_power_over_the_server(server: EmbeddedPostgres, statement: str):
    connection = await asyncpg.connect(server.sample_dsn())
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_password_that_a_user_changed_is_put_back_at_the_next_start(server: EmbeddedPostgres):
    await execute(server.sample_dsn(), f"ALTER ROLE {SAMPLE_ROLE} PASSWORD 'stolen'")
    await ensure_databases(server, sample_tables())
    await execute(server.sample_dsn(), "SELECT 1")


async def test_what_users_dropped_is_not_made_again(server: EmbeddedPostgres):
    await execute(server.sample_dsn(), "DROP TABLE web_requests")
    await ensure_databases(server, sample_tables())
    with pytest.raises(asyncpg.UndefinedTableError):
        await execute(server.sample_dsn(), "SELECT 1 FROM web_requests")


async def test_a_sample_database_that_was_not_finished_is_made_anew(tmp_path):
    async with EmbeddedPostgres.start(tmp_path, durable=False) as server:
        await execute(server.admin_dsn(), "CREATE DATABASE sample_unfinished")
        await ensure_databases(server, sample_tables())
        await execute(server.sample_dsn(), "SELECT 1 FROM order_items")
