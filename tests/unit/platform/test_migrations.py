"""The schema: its newest version, and upgrades to it."""

import asyncio

import pytest
from alembic.script import ScriptDirectory
from tests.fixtures.database import execute

from queryserver.errors.base import SchemaMismatch
from queryserver.platform.migrations import SCRIPTS, migrate, newest_revision, present_revision


def test_the_newest_revision_is_the_head_that_alembic_finds():
    assert newest_revision() == ScriptDirectory(str(SCRIPTS)).get_current_head()


@pytest.mark.platform(52)
async def test_migrating_at_once_and_again_leaves_one_schema(unmigrated_dsn):
    assert await present_revision(unmigrated_dsn) is None
    await asyncio.gather(migrate(unmigrated_dsn), migrate(unmigrated_dsn))
    await migrate(unmigrated_dsn)
    assert await present_revision(unmigrated_dsn) == newest_revision()


async def test_a_schema_that_this_program_does_not_know_stays_as_it_is(database_dsn):
    await execute(database_dsn, "update alembic_version set version_num = '0017'")
    with pytest.raises(SchemaMismatch, match="schema version 0017, which this program does not know"):
        await migrate(database_dsn)
    assert await present_revision(database_dsn) == "0017"
