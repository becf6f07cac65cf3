"""Calls of this minute on all servers."""

from collections.abc import Mapping

from queryserver.db.database import Database

# Sorted, so that two servers lock the rows they share in one order. A server whose clock is behind adds nothing.
_ADD = """
insert into request_counts as known (caller, minute, requests)
select caller, $2, calls from unnest($1::text[], $3::int[]) as told (caller, calls) order by caller
on conflict (caller) do update set
    requests = case
        when known.minute = excluded.minute then known.requests + excluded.requests
        when known.minute < excluded.minute then excluded.requests
        else known.requests
    end,
    minute = greatest(known.minute, excluded.minute)
returning caller, requests
"""


class RequestCounts:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Add calls by caller to those of that minute (since 1970); the sums of all servers for the same callers."""
        rows = await self._database.fetch(_ADD, list(calls), minute, list(calls.values()))
        return {row["caller"]: row["requests"] for row in rows}

    async def forget(self, *, before: int) -> None:
        """Drop what was counted before that minute."""
        await self._database.execute("delete from request_counts where minute < $1", before)
