"""The databases inside the private PostgreSQL and who may open them."""

import asyncpg

from queryserver.domain.sample_database import SAMPLE_DATABASE, SAMPLE_OWNER, SAMPLE_ROLE
from queryserver.embedded.cluster import SERVICE_ROLE
from queryserver.embedded.postgres import EmbeddedPostgres
from queryserver.embedded.sample import SampleTable

_UNFINISHED = f"{SAMPLE_DATABASE}_unfinished"

_CONNECT_S = 10
_COMMAND_S = 60

# PostgreSQL lets a role change its own password and settings: both are put back at each start.
_SAMPLE_ROLE_RULES = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 10"
_OWNER_RULES = "NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD NULL"

# Default privileges belong to the common owner, and would hold for the tables that other users make afterwards.
# DROP OWNED would revoke the owner's right to connect.
_NOTHING_OF_THE_OWNER_CHANGES = """
    CREATE OR REPLACE FUNCTION pg_catalog.queryserver_refuse() RETURNS event_trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = session_user) THEN
            RAISE insufficient_privilege USING MESSAGE = 'permission denied: ' || tg_tag || ' changes what others make';
        END IF;
    END $$;
    DROP EVENT TRIGGER IF EXISTS queryserver_refuse;
    CREATE EVENT TRIGGER queryserver_refuse ON ddl_command_start
        WHEN TAG IN ('ALTER DEFAULT PRIVILEGES', 'DROP OWNED')
        EXECUTE FUNCTION pg_catalog.queryserver_refuse();
"""


async def ensure_databases(server: EmbeddedPostgres, tables: tuple[SampleTable, ...]) -> None:
    """Make what is missing: the service's database, empty, and the users' one with the sample in it. Idempotent."""
    connection = await _connect(server.admin_dsn())
    try:
        # It makes the logins of users, and has no right of theirs itself.
        await _ensure_role(connection, SERVICE_ROLE, "CREATEROLE", server.role_password(SERVICE_ROLE))
        await _ensure_role(connection, SAMPLE_ROLE, _SAMPLE_ROLE_RULES, server.role_password(SAMPLE_ROLE))
        await _ensure_owner(connection)
        if not await _exists(connection, SERVICE_ROLE):
            await connection.execute(f"CREATE DATABASE {SERVICE_ROLE} OWNER {SERVICE_ROLE}")
        for database in (SERVICE_ROLE, "postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        if not await _exists(connection, SAMPLE_DATABASE):
            await _make_sample(server, connection, tables)
        await _repair_sample(server)
    finally:
        await connection.close(timeout=_CONNECT_S)


async def _ensure_role(connection: asyncpg.Connection, role: str, rules: str, password: str) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
        await connection.execute(f"CREATE ROLE {role}")
    # The password is of the URL-safe alphabet, so that it needs no escaping.
    await connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD '{password}' {rules}")
    await connection.execute(f"ALTER ROLE {role} RESET ALL")


async def _ensure_owner(connection: asyncpg.Connection) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", SAMPLE_OWNER):
        await connection.execute(f"CREATE ROLE {SAMPLE_OWNER}")
    await connection.execute(f"ALTER ROLE {SAMPLE_OWNER} {_OWNER_RULES}")
    await connection.execute(f"ALTER ROLE {SAMPLE_OWNER} RESET ALL")
    await connection.execute(f"GRANT {SAMPLE_OWNER} TO {SAMPLE_ROLE}")
    await connection.execute(f"GRANT {SAMPLE_OWNER} TO {SERVICE_ROLE} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")


async def _repair_sample(server: EmbeddedPostgres) -> None:
    """Rights of the owner, also in a database of an earlier version, where the login owned the tables."""
    connection = await _connect(server.admin_dsn(SAMPLE_DATABASE))
    try:
        await connection.execute(f"ALTER DATABASE {SAMPLE_DATABASE} RESET ALL")
        await connection.execute(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {SAMPLE_DATABASE} TO {SAMPLE_OWNER}")
        await connection.execute(f"GRANT ALL ON SCHEMA public TO {SAMPLE_OWNER}")
        await connection.execute(f"REASSIGN OWNED BY {SAMPLE_ROLE} TO {SAMPLE_OWNER}")
        await connection.execute(_NOTHING_OF_THE_OWNER_CHANGES)
    finally:
        await connection.close(timeout=_CONNECT_S)


async def _exists(connection: asyncpg.Connection, database: str) -> bool:
    return bool(await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", database))


async def _make_sample(
    server: EmbeddedPostgres, connection: asyncpg.Connection, tables: tuple[SampleTable, ...]
) -> None:
    """Filled under another name and then renamed: the database is there whole or not at all."""
    await connection.execute(f"DROP DATABASE IF EXISTS {_UNFINISHED}")
    await connection.execute(f"CREATE DATABASE {_UNFINISHED}")
    await connection.execute(f"REVOKE ALL ON DATABASE {_UNFINISHED} FROM PUBLIC")
    await connection.execute(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {_UNFINISHED} TO {SAMPLE_OWNER}")
    filling = await _connect(server.admin_dsn(_UNFINISHED))
    try:
        await _fill(filling, tables)
    finally:
        await filling.close(timeout=_CONNECT_S)
    await connection.execute(f"ALTER DATABASE {_UNFINISHED} RENAME TO {SAMPLE_DATABASE}")


async def _fill(connection: asyncpg.Connection, tables: tuple[SampleTable, ...]) -> None:
    await connection.execute(f"GRANT ALL ON SCHEMA public TO {SAMPLE_OWNER}")
    for table in tables:
        await connection.execute(table.create_statement())
        await connection.copy_records_to_table(table.name, records=table.rows, columns=table.column_names)
        await connection.execute(f"ALTER TABLE {table.name} OWNER TO {SAMPLE_OWNER}")
    await connection.execute("ANALYZE")


async def _connect(dsn: str) -> asyncpg.Connection:
    return await asyncpg.connect(dsn, timeout=_CONNECT_S, command_timeout=_COMMAND_S)
