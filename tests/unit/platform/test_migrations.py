"""The schema: its newest version, upgrades to it, and programs of older versions beside a newer one."""

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
    present_schema,
    refusal,
    require_usable,
)

EXPANDS = "alter table users add column nickname text not null default ''"
CONTRACTS = "alter table users drop column nickname"


def scripts_with(directory: Path, *added: tuple[str, str | None, str]) -> Path:
    """The scripts of a later program: those of this one, and more: revision, oldest program and DDL of each."""
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


def test_the_newest_revision_is_the_head_that_alembic_finds():
    assert newest_revision() == ScriptDirectory(str(SCRIPTS)).get_current_head()


def test_what_the_scripts_declare_is_read_as_alembic_reads_it():
    for script in ScriptDirectory(str(SCRIPTS)).walk_revisions():
        declared = getattr(script.module, "oldest_program", script.revision)
        assert "0018" <= declared <= script.revision, f"{script.revision} names a version that never was."
    assert oldest_program() == "0018"


@pytest.mark.parametrize("declared", [[], [("9001", "0019")], [("9001", "0018")], [("9001", "0018"), ("9002", "9001")],
    [("9001", None), ("9002", "0018")], [("9001", "0019"), ("9002", "0018")]])  # fmt: skip
def test_the_oldest_program_runs_on_every_migration_after_its_own(tmp_path: Path, declared):
    scripts = scripts_with(tmp_path, *((*one, "") for one in declared)) if declared else SCRIPTS
    ours = dict.fromkeys(("0018", "0019", "0020", "0021", "0022", "0023", "0024", "0025"), "0018")
    known = {**ours, **{revision: oldest or revision for revision, oldest in declared}}
    runs = [own for own in known if all(oldest <= own for later, oldest in known.items() if later > own)]
    assert oldest_program(scripts) == min(runs)


@pytest.mark.parametrize(("version", "oldest", "own", "is_usable"), [
    (None, None, "0019", False), ("0018", "0018", "0019", False),
    ("0019", None, "0019", True), ("0020", None, "0019", False), ("0020", "0019", "0019", True),
    ("0020", "0018", "0019", True), ("0020", "0020", "0019", False)])  # fmt: skip
def test_a_program_runs_on_its_own_schema_and_on_newer_ones_that_permit_it(version, oldest, own, is_usable):
    assert Schema(version, oldest).is_usable(own) is is_usable


@pytest.mark.platform(52)
async def test_migrating_at_once_and_again_leaves_one_schema(unmigrated_dsn):
    assert (await present_schema(unmigrated_dsn)).version is None
    await asyncio.gather(migrate(unmigrated_dsn), migrate(unmigrated_dsn))
    await migrate(unmigrated_dsn)
    assert await present_schema(unmigrated_dsn) == Schema(newest_revision(), "0018")


async def test_a_schema_that_this_program_does_not_know_stays_as_it_is(database_dsn):
    await execute(database_dsn, "update alembic_version set version_num = '0017'")
    with pytest.raises(SchemaMismatch, match="schema version 0017, which this program does not know"):
        await migrate(database_dsn)
    assert (await present_schema(database_dsn)).version == "0017"


async def test_a_database_without_the_table_of_facts_is_refused_in_words(unmigrated_dsn):
    await execute(unmigrated_dsn, "create table alembic_version (version_num text)")
    assert await present_schema(unmigrated_dsn) == Schema(None, None)
    await execute(unmigrated_dsn, "insert into alembic_version values ('0003')")
    with pytest.raises(SchemaMismatch, match="schema version 0003, this program needs"):
        await require_usable(unmigrated_dsn)


@pytest.mark.platform(52)
async def test_the_former_program_goes_on_beside_a_schema_that_was_only_expanded(database_dsn, tmp_path: Path):
    later = scripts_with(tmp_path, ("9001", newest_revision(), EXPANDS))
    assert await migrate(database_dsn, later) == Schema("9001", newest_revision())
    await require_usable(database_dsn)
    # Its own migrate, as its start runs it with auto_migrate, leaves the newer schema alone.
    assert await migrate(database_dsn) == Schema("9001", newest_revision())


@pytest.mark.platform(52)
async def test_the_former_program_is_refused_once_the_schema_is_contracted(database_dsn, tmp_path: Path):
    added = ("9001", newest_revision(), EXPANDS)
    await migrate(database_dsn, scripts_with(tmp_path, added))
    contracted = scripts_with(tmp_path, added, ("9002", "9001", CONTRACTS))
    assert await migrate(database_dsn, contracted) == Schema("9002", "9001")
    with pytest.raises(SchemaMismatch, match=r"schema version 9002, this program needs .*version 9001 or newer run"):
        await require_usable(database_dsn)
    with pytest.raises(SchemaMismatch, match="9002, which this program does not know"):
        await migrate(database_dsn)
    # The program between the two runs on.
    assert refusal(await present_schema(database_dsn), scripts_with(tmp_path, added)) is None


async def test_a_migration_that_fails_changes_neither_the_schema_nor_what_runs_on_it(database_dsn, tmp_path: Path):
    before = await present_schema(database_dsn)
    wrong = scripts_with(tmp_path, ("9001", newest_revision(), EXPANDS), ("9002", None, "drop table no_such_table"))
    with pytest.raises(SchemaMismatch, match="could not be migrated"):
        await migrate(database_dsn, wrong)
    assert await present_schema(database_dsn) == before
