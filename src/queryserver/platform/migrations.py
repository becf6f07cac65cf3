"""Creating and upgrading the schema of the service database, and opening it when the schema is right."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import structlog

from queryserver.errors.base import SchemaMismatch
from queryserver.platform.database import Database, database_errors, open_database, required_dsn
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel carries the scripts inside the package; in a checkout they stand at the top level.
SCRIPTS = next(path for path in (_PACKAGE / "_alembic", _PACKAGE.parents[1] / "alembic") if path.is_dir())

_LOCK = 0x71736D67  # "qsmg": servers that start together migrate one after another
_LIMIT_S = 3600


def newest_revision() -> str:
    """The schema version of this program."""
    return max(_revisions())


def _revisions() -> list[str]:
    """Scripts are named `<revision>_<slug>.py`, in order."""
    return [script.name.partition("_")[0] for script in SCRIPTS.glob("versions/[0-9]*.py")]


async def migrate(dsn: str) -> None:
    """Bring the schema to the newest revision. Several at once are safe: they queue on an advisory lock.

    Raises DatabaseUnavailable, SchemaMismatch when it did not work.
    """
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            await connection.execute("select pg_advisory_lock($1)", _LOCK)
            present = await present_revision(dsn)
            if present not in (None, *_revisions()):
                raise SchemaMismatch(
                    f"The database has schema version {present}, which this program does not know: it belongs to a "
                    "newer program, or to one from before the first release, whose databases are created anew."
                )
            if present != newest_revision():
                await _upgrade(dsn)
        finally:
            await connection.close(timeout=5)


async def _upgrade(dsn: str) -> None:
    """In a process of its own: SQLAlchemy and Alembic would keep 28 MiB of the server's memory for good.

    The DSN goes through standard input, because other processes can read arguments and environment.
    """
    upgrading = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            _, complaint = await upgrading.communicate(dsn.encode())
    finally:
        if upgrading.returncode is None:
            upgrading.kill()
            await upgrading.wait()
    if upgrading.returncode:
        log.error("migration failed", complaint=complaint.decode(errors="replace")[-4000:])
        raise SchemaMismatch("The database could not be migrated; the log says why.")


async def present_revision(dsn: str) -> str | None:
    """The schema version of the database; None when it was never migrated."""
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            if await connection.fetchval("select to_regclass('alembic_version')") is None:
                return None
            return await connection.fetchval("select version_num from alembic_version")
        finally:
            await connection.close(timeout=5)


async def require_newest(dsn: str) -> None:
    """Raises SchemaMismatch unless the database has exactly the schema of this program."""
    present, wanted = await present_revision(dsn), newest_revision()
    if present != wanted:
        raise SchemaMismatch(
            f"The database has schema version {present or 'none'}, this program needs {wanted}. "
            "Run `queryserver migrate` with the newest program."
        )


@asynccontextmanager
async def open_service_database(settings: Settings) -> AsyncGenerator[Database]:
    """The service database, for commands. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with open_database(dsn, settings.desktop.database) as database:
        yield database


def _upgrade_here(dsn: str) -> None:
    from alembic import command  # noqa: PLC0415 not in the memory of a server
    from alembic.config import Config  # noqa: PLC0415 as above

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["dsn"] = dsn
    command.upgrade(config, "head")


if __name__ == "__main__":
    _upgrade_here(sys.stdin.read())
