"""Everything that `serve --embedded` needs, from nothing but a directory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from queryserver.platform.embedded.cluster import package_directory
from queryserver.platform.embedded.postgres import EmbeddedPostgres, ensure_databases
from queryserver.platform.embedded.sample import ensure_sample_files, ensure_sample_storage, sample_tables
from queryserver.platform.embedded.system import STORAGE_DIRECTORY, EmbeddedDefaults
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.platform.settings.tree import Settings


@asynccontextmanager
async def prepare(state_dir: Path, *, durable: bool = True) -> AsyncGenerator[EmbeddedDefaults]:
    """Start the private PostgreSQL and make the sample data that are missing; on leaving PostgreSQL is stopped.

    Ready in about two seconds at the first start, a third of a second later on. Raises EmbeddedPostgresError,
    and EmbeddedPostgresNotInstalled before anything is written.
    """
    await asyncio.to_thread(package_directory)
    async with EmbeddedPostgres.start(state_dir, durable=durable) as server:
        databases_dir = server.state_directory / "databases"
        tables = await asyncio.to_thread(sample_tables)
        files_dir = server.state_directory / STORAGE_DIRECTORY
        await asyncio.to_thread(ensure_sample_files, databases_dir, tables)
        await asyncio.to_thread(ensure_sample_storage, files_dir, tables)
        await ensure_databases(server, tables)
        yield EmbeddedDefaults(server.service_dsn(), server.sample_dsn(), databases_dir, files_dir)


def with_defaults(settings: Settings, defaults: EmbeddedDefaults) -> Settings:
    """The settings to serve with. Interpreters of the settings file take the place of the sample ones."""
    desktop = settings.desktop
    database = desktop.database.model_copy(
        update={"url": SecretStr(defaults.service_dsn), "embedded": True, "auto_migrate": True}
    )
    policy = desktop.connector_policy.model_copy(
        update={"local_database_dir": desktop.connector_policy.local_database_dir or defaults.databases_dir}
    )
    local_root = settings.filebrowser.local_root or defaults.files_dir
    interpreters = settings.notebook.interpreters or sample_interpreters(defaults)
    return settings.model_copy(
        update={
            "desktop": desktop.model_copy(update={"database": database, "connector_policy": policy}),
            "filebrowser": settings.filebrowser.model_copy(update={"local_root": local_root}),
            "notebook": settings.notebook.model_copy(update={"interpreters": interpreters}),
        }
    )


def sample_interpreters(defaults: EmbeddedDefaults) -> dict[str, InterpreterSettings]:
    """The three dialects that are there at once, with the sample data."""
    return {
        "duckdb": InterpreterSettings(name="DuckDB", interface="duckdb", options={"path": defaults.duckdb_path}),
        "postgresql": InterpreterSettings(
            name="PostgreSQL", interface="sqlalchemy", options={"url": defaults.sample_dsn}
        ),
        "sqlite": InterpreterSettings(name="SQLite", interface="sqlite", options={"path": defaults.sqlite_path}),
    }
