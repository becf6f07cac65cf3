"""Queries for several keys keep their plan. Planning them takes longer than running them (docs/benchmarks.md)."""

import asyncio
from collections.abc import Awaitable, Callable

from queryserver.identity.callers import CallerRepository
from queryserver.platform.database import Database, open_database
from queryserver.platform.settings.sections import DatabaseSettings

_ONE = DatabaseSettings(pool_max=1, connect_timeout_s=30)
"""All queries use one connection, which plans for itself."""
_ROUNDS = 20
_PLANS = """
select generic_plans, custom_plans from pg_prepared_statements
where statement like '%unnest(%' and statement not like '%pg_prepared_statements%'
"""


async def test_query_of_users_keeps_its_plan(database_dsn: str) -> None:
    async with open_database(database_dsn, _ONE) as database:
        await _check_plans(database, CallerRepository(database).user)


async def test_query_of_api_tokens_keeps_its_plan(database_dsn: str) -> None:
    async with open_database(database_dsn, _ONE) as database:
        callers = CallerRepository(database)
        await _check_plans(database, lambda number: callers.api_token(bytes([number])))


async def _check_plans(database: Database, read: Callable[[int], Awaitable[object]]) -> None:
    """Read four keys at a time. PostgreSQL plans the first five executions, then compares the cost of both plans."""
    for _ in range(_ROUNDS):
        await asyncio.gather(*(read(number) for number in range(4)))
    [plans] = await database.fetch(_PLANS)
    assert plans["custom_plans"] == 5, plans
    assert plans["generic_plans"] > 0, plans
