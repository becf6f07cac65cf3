"""The schema: its newest version, and migrations against the tables."""

import asyncio

import asyncpg
import pytest

from queryserver.db import upgrading
from queryserver.db.migrations import migrate, newest_revision, present_revision


def test_the_newest_revision_is_the_head_that_alembic_finds():
    assert newest_revision() == upgrading.head()


@pytest.mark.platform(52)
async def test_migrating_at_once_and_again_leaves_one_schema(unmigrated_dsn):
    assert await present_revision(unmigrated_dsn) is None
    await asyncio.gather(migrate(unmigrated_dsn), migrate(unmigrated_dsn))
    await migrate(unmigrated_dsn)
    assert await present_revision(unmigrated_dsn) == newest_revision()


async def test_the_migrations_make_exactly_the_tables_of_the_models(database_dsn):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    from queryserver.db.tables import metadata

    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(database_dsn), poolclass=NullPool
    )
    async with engine.connect() as connection:
        differences = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
        )
    await engine.dispose()
    assert differences == []
