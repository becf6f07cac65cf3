"""Versions of the database schema, migrations, and older programs on a newer schema."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from tests.fixtures.database import execute

from queryserver.errors.base import SchemaMismatch
from queryserver.platform.migrations import (
    SCRIPTS,
    Schema,
    migrate,
    newest_revision,
    oldest_program,
    read_schema,
    refusal,
    require_usable,
)

EXPANDS = "alter table users add column nickname text not null default ''"
CONTRACTS = "alter table users drop column nickname"


def scripts_with(directory: Path, *added: tuple[str, str | None, str]) -> Path:
    """Return the migration scripts of a newer program.

    Each added migration is given by its revision, the oldest program that can use the result (or None), and its DDL.
    """
    scripts = Path(tempfile.mkdtemp(dir=directory)) / "alembic"
    shutil.copytree(SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    before = newest_revision()
    for revision, oldest, ddl in added:
        declared = f'oldest_program = "{oldest}"\n' if oldest else ""
        (scripts / "versions" / f"{revision}_later.py").write_text(
            f'from alembic import op\n\nrevision = "{revision}"\ndown_revision = "{before}"\n{declared}\n\n'
            f"def upgrade() -> None:\n    for statement in {ddl.split('; ')!r}:\n        op.execute(statement)\n"
        )
        before = revision
    return scripts


def test_newest_revision_is_alembic_head():
    assert newest_revision() == ScriptDirectory(str(SCRIPTS)).get_current_head()


def test_oldest_program_declarations_are_valid_and_read_correctly():
    for script in ScriptDirectory(str(SCRIPTS)).walk_revisions():
        declared = getattr(script.module, "oldest_program", script.revision)
        assert "0018" <= declared <= script.revision, f"{script.revision} names a version that never was."
    assert oldest_program() == "0018"


@pytest.mark.parametrize("declared", [[], [("9001", "0019")], [("9001", "0018")], [("9001", "0018"), ("9002", "9001")],
    [("9001", None), ("9002", "0018")], [("9001", "0019"), ("9002", "0018")]])  # fmt: skip
def test_oldest_program_supports_every_later_migration(tmp_path: Path, declared):
    scripts = scripts_with(tmp_path, *((*one, "") for one in declared)) if declared else SCRIPTS
    ours = dict.fromkeys((script.name[:4] for script in sorted(SCRIPTS.glob("versions/0*.py"))), "0018")
    known = {**ours, **{revision: oldest or revision for revision, oldest in declared}}
    runs = [own for own in known if all(oldest <= own for later, oldest in known.items() if later > own)]
    assert oldest_program(scripts) == min(runs)


@pytest.mark.parametrize(("version", "oldest", "own", "is_usable"), [
    (None, None, "0019", False), ("0018", "0018", "0019", False),
    ("0019", None, "0019", True), ("0020", None, "0019", False), ("0020", "0019", "0019", True),
    ("0020", "0018", "0019", True), ("0020", "0020", "0019", False)])  # fmt: skip
def test_program_runs_on_its_own_schema_and_permitting_newer_schemas(version, oldest, own, is_usable):
    assert Schema(version, oldest).is_usable(own) is is_usable


@pytest.mark.platform(52)
async def test_concurrent_and_repeated_migrations_are_idempotent(unmigrated_dsn):
    assert (await read_schema(unmigrated_dsn)).version is None
    await asyncio.gather(migrate(unmigrated_dsn), migrate(unmigrated_dsn))
    await migrate(unmigrated_dsn)
    assert await read_schema(unmigrated_dsn) == Schema(newest_revision(), "0018")


async def test_unknown_schema_version_is_not_migrated(database_dsn):
    await execute(database_dsn, "update alembic_version set version_num = '0017'")
    with pytest.raises(SchemaMismatch, match="schema version 0017, which this release does not know"):
        await migrate(database_dsn)
    assert (await read_schema(database_dsn)).version == "0017"


async def test_database_without_schema_facts_table_is_refused(unmigrated_dsn):
    await execute(unmigrated_dsn, "create table alembic_version (version_num text)")
    assert await read_schema(unmigrated_dsn) == Schema(None, None)
    await execute(unmigrated_dsn, "insert into alembic_version values ('0003')")
    with pytest.raises(SchemaMismatch, match="schema version 0003, but this release requires"):
        await require_usable(unmigrated_dsn)


@pytest.mark.platform(52)
async def test_former_program_continues_on_expanded_schema(database_dsn, tmp_path: Path):
    later = scripts_with(tmp_path, ("9001", newest_revision(), EXPANDS))
    assert await migrate(database_dsn, later) == Schema("9001", newest_revision())
    await require_usable(database_dsn)
    # auto_migrate runs the older program's migrations at startup; they must not change the newer schema.
    assert await migrate(database_dsn) == Schema("9001", newest_revision())


@pytest.mark.platform(52)
async def test_former_program_is_refused_on_contracted_schema(database_dsn, tmp_path: Path):
    added = ("9001", newest_revision(), EXPANDS)
    await migrate(database_dsn, scripts_with(tmp_path, added))
    contracted = scripts_with(tmp_path, added, ("9002", "9001", CONTRACTS))
    assert await migrate(database_dsn, contracted) == Schema("9002", "9001")
    with pytest.raises(
        SchemaMismatch, match=r"schema version 9002, but this release requires .*version 9001 or newer can"
    ):
        await require_usable(database_dsn)
    with pytest.raises(SchemaMismatch, match="9002, which this release does not know"):
        await migrate(database_dsn)
    # The program whose newest migration is 9001 can still use the schema.
    assert refusal(await read_schema(database_dsn), scripts_with(tmp_path, added)) is None


async def test_failed_migration_leaves_schema_and_oldest_program_unchanged(database_dsn, tmp_path: Path):
    before = await read_schema(database_dsn)
    wrong = scripts_with(tmp_path, ("9001", newest_revision(), EXPANDS), ("9002", None, "drop table no_such_table"))
    with pytest.raises(SchemaMismatch, match="could not be migrated"):
        await migrate(database_dsn, wrong)
    assert await read_schema(database_dsn) == before
