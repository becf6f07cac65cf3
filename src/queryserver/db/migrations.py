"""Creating and upgrading the schema of the service database."""

import asyncio
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from queryserver.db.database import database_errors
from queryserver.domain.errors import SchemaMismatch

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel carries the scripts inside the package; in a checkout they stand at the top level.
_SCRIPTS = next(path for path in (_PACKAGE / "_alembic", _PACKAGE.parents[1] / "alembic") if path.is_dir())

_LOCK = 0x71736D67  # "qsmg": servers that start together migrate one after another


def newest_revision() -> str:
    """The schema version that this program was written for."""
    head = ScriptDirectory(str(_SCRIPTS)).get_current_head()
    if head is None:
        message = "the migrations are not part of this installation"
        raise RuntimeError(message)
    return head


async def migrate(dsn: str) -> None:
    """Bring the schema to the newest revision. Several at once are safe: they queue on an advisory lock."""
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            await connection.execute("select pg_advisory_lock($1)", _LOCK)
            # Alembic is synchronous at heart; its own loop runs in this thread, off ours.
            await asyncio.to_thread(command.upgrade, _config(dsn), "head")
        finally:
            await connection.close(timeout=5)


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
        message = (
            f"The database has schema version {present or 'none'}, this program needs {wanted}. "
            "Run `queryserver migrate` with the newest program."
        )
        raise SchemaMismatch(message)


def _config(dsn: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["dsn"] = dsn
    return config
