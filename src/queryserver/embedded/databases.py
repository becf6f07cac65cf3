"""The databases inside the private PostgreSQL and who may open them."""

import asyncpg

from queryserver.embedded.cluster import SAMPLE_DATABASE, SAMPLE_ROLE, SERVICE_ROLE
from queryserver.embedded.postgres import EmbeddedPostgres
from queryserver.embedded.sample import SampleTable

_UNFINISHED = f"{SAMPLE_DATABASE}_unfinished"

_CONNECT_S = 10
_COMMAND_S = 60

# PostgreSQL lets a role change its own password and settings: both are put back at each start.
_SAMPLE_ROLE_RULES = "NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 80"


async def ensure_databases(server: EmbeddedPostgres, tables: tuple[SampleTable, ...]) -> None:
    """Make what is missing: the service's database, empty, and the users' one with the sample in it. Idempotent."""
    connection = await _connect(server.admin_dsn())
    try:
        await _ensure_role(connection, SERVICE_ROLE, "", server.role_password(SERVICE_ROLE))
        await _ensure_role(connection, SAMPLE_ROLE, _SAMPLE_ROLE_RULES, server.role_password(SAMPLE_ROLE))
        if not await _exists(connection, SERVICE_ROLE):
            await connection.execute(f"CREATE DATABASE {SERVICE_ROLE} OWNER {SERVICE_ROLE}")
        for database in (SERVICE_ROLE, "postgres", "template1"):
            await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        if not await _exists(connection, SAMPLE_DATABASE):
            await _make_sample(server, connection, tables)
    finally:
        await connection.close(timeout=_CONNECT_S)


async def _ensure_role(connection: asyncpg.Connection, role: str, rules: str, password: str) -> None:
    if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
        await connection.execute(f"CREATE ROLE {role}")
    # The password is of the URL-safe alphabet, so that it needs no escaping.
    await connection.execute(f"ALTER ROLE {role} LOGIN PASSWORD '{password}' {rules}")
    await connection.execute(f"ALTER ROLE {role} RESET ALL")


async def _exists(connection: asyncpg.Connection, database: str) -> bool:
    return bool(await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", database))


async def _make_sample(
    server: EmbeddedPostgres, connection: asyncpg.Connection, tables: tuple[SampleTable, ...]
) -> None:
    """Filled under another name and then renamed: the database is there whole or not at all."""
    await connection.execute(f"DROP DATABASE IF EXISTS {_UNFINISHED}")
    await connection.execute(f"CREATE DATABASE {_UNFINISHED}")
    await connection.execute(f"REVOKE ALL ON DATABASE {_UNFINISHED} FROM PUBLIC")
    await connection.execute(f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {_UNFINISHED} TO {SAMPLE_ROLE}")
    filling = await _connect(server.admin_dsn(_UNFINISHED))
    try:
        await _fill(filling, tables)
    finally:
        await filling.close(timeout=_CONNECT_S)
    await connection.execute(f"ALTER DATABASE {_UNFINISHED} RENAME TO {SAMPLE_DATABASE}")


async def _fill(connection: asyncpg.Connection, tables: tuple[SampleTable, ...]) -> None:
    await connection.execute(f"GRANT ALL ON SCHEMA public TO {SAMPLE_ROLE}")
    for table in tables:
        await connection.execute(table.create_statement())
        await connection.copy_records_to_table(table.name, records=table.rows, columns=table.column_names)
        await connection.execute(f"ALTER TABLE {table.name} OWNER TO {SAMPLE_ROLE}")
    await connection.execute("ANALYZE")


async def _connect(dsn: str) -> asyncpg.Connection:
    return await asyncpg.connect(dsn, timeout=_CONNECT_S, command_timeout=_COMMAND_S)
