"""Runs the migrations with asyncpg, so that the whole program uses the same driver and DSN format."""

import asyncio
import os

import asyncpg
from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

_RECORD = """
    insert into facts (name, value) values (:name, :value) on conflict (name) do update set value = excluded.value
"""


def _run(connection: Connection) -> None:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
        if fact := context.config.attributes.get("fact"):
            connection.execute(text(_RECORD), fact)


async def _migrate() -> None:
    dsn = context.config.attributes.get("dsn") or os.environ["QUERYSERVER_MIGRATE_DSN"]
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn, timeout=10), poolclass=NullPool
    )
    async with engine.connect() as connection:
        await connection.run_sync(_run)
        await connection.commit()
    await engine.dispose()


asyncio.run(_migrate())
