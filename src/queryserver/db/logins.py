"""Failed logins and the networks of recent ones, for all servers together."""

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


_MOST_NETWORKS = 20
"""Of one name. Whoever knows a password cannot make more room for guesses with it than this."""

_IS_KNOWN = """
    select exists (
        select from login_networks
        where name = $1 and network = $2 and last_login_at > now() - interval '30 days')
"""

_NOTE = """
    insert into login_networks (name, network) values ($1, $2)
    on conflict (name, network) do update set last_login_at = now()
"""

_FORGET = """
    delete from login_networks where name = $1 and network not in (
        select network from login_networks where name = $1 order by last_login_at desc, network limit $2)
"""


class LoginNetworkRepository:
    """Networks that users have logged in from within 30 days. Both parts are digests. Raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_known(self, name: str, network: str) -> bool:
        """Whether a user of that name has logged in from there."""
        return await self._database.value(_IS_KNOWN, name, network)

    async def note(self, name: str, network: str) -> None:
        """A login has succeeded. The newest networks of a name are kept, a bounded number."""
        async with self._database.transaction() as connection:
            await connection.execute(_NOTE, name, network)
            await connection.execute(_FORGET, name, _MOST_NETWORKS)
