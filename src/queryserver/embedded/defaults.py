"""Everything that `serve --embedded` needs, from nothing but a directory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from queryserver.embedded.databases import ensure_databases
from queryserver.embedded.postgres import EmbeddedPostgres
from queryserver.embedded.sample import sample_tables
from queryserver.embedded.sample_files import DUCKDB_FILE, SQLITE_FILE, ensure_sample_files
from queryserver.embedded.sample_storage import DIRECTORY, ensure_sample_storage


@dataclass(frozen=True, slots=True)
class EmbeddedDefaults:
    """Where the embedded default keeps its databases and files. The DSNs hold passwords: never log them."""

    service_dsn: str = field(repr=False)
    """The service's own database (over a socket); empty at the first start, to be migrated by the caller."""
    sample_dsn: str = field(repr=False)
    """The users' PostgreSQL database, on loopback; its role cannot open the service's database."""
    databases_dir: Path
    """Holds the files of the duckdb and sqlite connectors and nothing else."""
    files_dir: Path
    """The local root: the store `file`, with sample files from the first start on."""
    duckdb_path: str = DUCKDB_FILE
    """Relative to `databases_dir`."""
    sqlite_path: str = SQLITE_FILE
    """Relative to `databases_dir`."""


@asynccontextmanager
async def prepare(state_dir: Path, *, durable: bool = True) -> AsyncGenerator[EmbeddedDefaults]:
    """Start the private PostgreSQL and make the sample data that are missing; on leaving PostgreSQL is stopped.

    Ready in about two seconds at the first start, a third of a second later on. Raises EmbeddedPostgresError, among
    them StateDirectoryInUse.
    """
    async with EmbeddedPostgres.start(state_dir, durable=durable) as server:
        databases_dir = server.state_directory / "databases"
        tables = await asyncio.to_thread(sample_tables)
        files_dir = server.state_directory / DIRECTORY
        await asyncio.to_thread(ensure_sample_files, databases_dir, tables)
        await asyncio.to_thread(ensure_sample_storage, files_dir, tables)
        await ensure_databases(server, tables)
        yield EmbeddedDefaults(server.service_dsn(), server.sample_dsn(), databases_dir, files_dir)
