"""Everything that `serve --embedded` needs, from nothing but a directory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from queryserver.embedded.binaries import package_directory
from queryserver.embedded.databases import ensure_databases
from queryserver.embedded.places import STORAGE_DIRECTORY, EmbeddedDefaults
from queryserver.embedded.postgres import EmbeddedPostgres
from queryserver.embedded.sample import sample_tables
from queryserver.embedded.sample_files import ensure_sample_files
from queryserver.embedded.sample_storage import ensure_sample_storage


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
