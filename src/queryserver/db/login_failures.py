"""Failed logins, counted for all servers together."""

from collections.abc import Mapping
from datetime import timedelta

from queryserver.db.database import Database

# A window begins with its first failure and never moves: attempts that are refused neither count nor extend it.
_BLOCKED = """
    select max(f.window_started_at + $3 - now())
    from unnest($1::text[], $2::int[]) as k (key, most)
    join login_failures f on f.key = k.key
    where f.failures >= k.most and f.window_started_at + $3 > now()
"""

# Sorted, so that two statements lock the rows they share in one order.
_ADD = f"""
    with blocked as ({_BLOCKED}),
    counted as (
        insert into login_failures as f (key, window_started_at, failures)
        select k.key, now(), 1 from unnest($1::text[]) as k (key)
        where (select max from blocked) is null
        order by k.key
        on conflict (key) do update set
            failures = case when f.window_started_at + $3 > now() then f.failures + 1 else 1 end,
            window_started_at = case when f.window_started_at + $3 > now() then f.window_started_at else now() end
        returning f.key, f.failures, f.window_started_at
    )
    select coalesce(
        (select max from blocked),
        (
            select max(c.window_started_at + $3 - now())
            from counted c join unnest($1::text[], $2::int[]) as k (key, most) on k.key = c.key
            where c.failures > k.most
        )
    )
"""


class LoginFailureRepository:
    """Failed logins, counted for all servers together. Keys are digests. All calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def blocked(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """How long the first free attempt is away; None when no key has reached its limit."""
        return await self._database.value(_BLOCKED, list(limits), list(limits.values()), window)

    async def add(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """Count one failure for each key; the time as in `blocked` when it was one too many.

        Attempts that were let in side by side are counted one after another, so that what is above a limit shows.
        """
        return await self._database.value(_ADD, list(limits), list(limits.values()), window)

    async def clear(self, key: str) -> None:
        """Forget the failures of a key."""
        await self._database.execute("delete from login_failures where key = $1", key)

    async def clear_below(self, key: str) -> None:
        """Forget the failures of all keys that begin with this one and a blank."""
        await self._database.execute("delete from login_failures where starts_with(key, $1)", f"{key} ")
