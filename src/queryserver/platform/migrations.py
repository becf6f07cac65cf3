"""Creates and upgrades the schema of the service database, and checks its version before the database is opened."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import structlog

from queryserver.errors.base import SchemaMismatch
from queryserver.platform.database import Database, database_errors, open_database, required_dsn
from queryserver.platform.settings.tree import Settings

log = structlog.get_logger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel contains the scripts inside the package; in a checkout they are at the top level.
SCRIPTS = next(path for path in (_PACKAGE / "_alembic", _PACKAGE.parents[1] / "alembic") if path.is_dir())

_LOCK = 0x71736D67  # "qsmg": the advisory lock that serializes migrations by servers that start at the same time
_LIMIT_S = 3600


_OLDEST_PROGRAM = re.compile(r'^oldest_program = "([0-9]+)"$', re.MULTILINE)
OLDEST_PROGRAM_FACT = "oldest_program_of_schema_"
"""Prefix of a fact's name, to which the schema version is appended. The fact states the oldest compatible program. It
is recorded for older programs, which lack the migration scripts of that version."""


def newest_revision(scripts: Path = SCRIPTS) -> str:
    """Return the schema version that this program uses: that of its newest migration script."""
    return max(_revision_of(script) for script in _versions(scripts))


def oldest_program(scripts: Path = SCRIPTS) -> str:
    """Return the oldest schema version whose programs also run on the newest schema."""
    declared = _declared(scripts)
    newest_first = sorted(declared, reverse=True)
    oldest = newest_first[0]
    for version in newest_first[1:]:
        # A program must tolerate every later migration; the older the program, the more migrations it must tolerate.
        if any(declared[later] > version for later in newest_first if later > version):
            break
        oldest = version
    return oldest


def _declared(scripts: Path) -> Mapping[str, str]:
    """Return, for each schema version, the oldest compatible version that its script declares; by default, itself."""
    found = dict[str, str]()
    for script in _versions(scripts):
        written, revision = _OLDEST_PROGRAM.search(script.read_text(encoding="utf-8")), _revision_of(script)
        found[revision] = written[1] if written else revision
    return found


def _versions(scripts: Path) -> Iterator[Path]:
    return scripts.glob("versions/[0-9]*.py")


def _revision_of(script: Path) -> str:
    """Return the revision of a script. Scripts are named `<revision>_<slug>.py`, and revisions increase."""
    return script.name.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database. `oldest_program` is the oldest schema version whose programs run on it."""

    version: str | None
    """None if the database has never been migrated."""
    oldest_program: str | None

    def is_usable(self, own: str) -> bool:
        """Return whether programs with the schema version `own` run on this schema."""
        if self.version is None or self.version < own:
            return False
        return self.version == own or (self.oldest_program is not None and self.oldest_program <= own)


async def migrate(dsn: str, scripts: Path = SCRIPTS) -> Schema:
    """Upgrade the schema to the newest revision. Leave a newer schema unchanged if this program runs on it.

    Safe to call concurrently: an advisory lock serializes callers. Returns the resulting schema. Raises
    DatabaseUnavailable; SchemaMismatch if the schema version is unknown or the upgrade fails.
    """
    newest = newest_revision(scripts)
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            await connection.execute("select pg_advisory_lock($1)", _LOCK)
            present = await _schema_of(connection)
            if present.is_usable(newest):
                return present
            if present.version not in (None, *_declared(scripts)):
                raise SchemaMismatch(
                    f"The database has schema version {present.version}, which this release does not know. It belongs "
                    "to a newer release, or to a version before the first release, whose databases must be recreated."
                )
            await _upgrade(dsn, scripts)
            return await _schema_of(connection)
        finally:
            await connection.close(timeout=5)


async def _upgrade(dsn: str, scripts: Path) -> None:
    """Upgrade in a child process: in the server, SQLAlchemy and Alembic would permanently occupy 28 MiB.

    The DSN is passed on standard input, because other processes can read arguments and environment.
    """
    upgrading = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        str(scripts),
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
        raise SchemaMismatch("The database could not be migrated; see the server log.")


async def read_schema(dsn: str) -> Schema:
    """Return the schema of the database. Raises DatabaseUnavailable."""
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            return await _schema_of(connection)
        finally:
            await connection.close(timeout=5)


_PRESENT = """
    select version_num, (select value from facts where name = $1 || version_num) as oldest_program from alembic_version
"""


async def _schema_of(connection: asyncpg.Connection) -> Schema:
    if await connection.fetchval("select to_regclass('alembic_version')") is None:
        return Schema(None, None)
    if await connection.fetchval("select to_regclass('facts')") is None:
        return Schema(await connection.fetchval("select version_num from alembic_version"), None)
    found = await connection.fetchrow(_PRESENT, OLDEST_PROGRAM_FACT)
    return Schema(found["version_num"], found["oldest_program"]) if found else Schema(None, None)


def refusal(present: Schema, scripts: Path = SCRIPTS) -> str | None:
    """Return why this program cannot run on the schema, and a remedy; None if it can."""
    own = newest_revision(scripts)
    if present.is_usable(own):
        return None
    begin = f"The database has schema version {present.version or 'none'}, but this release requires {own}."
    if present.version is None or present.version < own:
        return f"{begin} Run `queryserver migrate` of the newest release."
    if present.oldest_program is None:
        return f"{begin} The schema is not marked as compatible with older releases. Install the newest release."
    oldest = present.oldest_program
    return f"{begin} Releases with schema version {oldest} or newer can use it. Install the newest release."


async def require_usable(dsn: str) -> None:
    """Raise SchemaMismatch unless this program runs on the schema. Raises DatabaseUnavailable."""
    if text := refusal(await read_schema(dsn)):
        raise SchemaMismatch(text)


@asynccontextmanager
async def open_service_database(settings: Settings) -> AsyncGenerator[Database]:
    """Open the service database for commands. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_usable(dsn)
    async with open_database(dsn, settings.desktop.database) as database:
        yield database


def _upgrade_in_process(dsn: str, scripts: Path) -> None:
    from alembic import command  # noqa: PLC0415 not in the memory of a server
    from alembic.config import Config  # noqa: PLC0415 as above

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["dsn"] = dsn
    # Recorded in the same transaction as the upgrade, so that older programs never see one without the other.
    fact = OLDEST_PROGRAM_FACT + newest_revision(scripts)
    config.attributes["fact"] = {"name": fact, "value": oldest_program(scripts)}
    command.upgrade(config, "head")


if __name__ == "__main__":
    _upgrade_in_process(sys.stdin.read(), Path(sys.argv[1]))
