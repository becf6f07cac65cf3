"""Counts the calls of each caller per minute, across all servers."""

from collections.abc import Mapping

from queryserver.platform.database import Database

# Sorted, so that servers lock shared rows in the same order. Counts of a past minute are dropped.
_ADD = """
insert into request_counts as known (caller, minute, requests)
select caller, $2, calls from unnest($1::text[], $3::int[]) as given (caller, calls) order by caller
on conflict (caller) do update set
    requests = case
        when known.minute = excluded.minute then known.requests + excluded.requests
        when known.minute < excluded.minute then excluded.requests
        else known.requests
    end,
    minute = greatest(known.minute, excluded.minute)
returning caller, requests
"""
_FORGET = """
with forgotten as (delete from request_counts where minute < floor(extract(epoch from now()) / 60))
select extract(epoch from now())::float8
"""


class RequestCounts:
    """The table `request_counts`. Each method is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Add calls by caller for a minute (since 1970); return the totals of all servers for the same callers."""
        rows = await self._database.fetch(_ADD, list(calls), minute, list(calls.values()))
        return {row["caller"]: row["requests"] for row in rows}

    async def forget(self) -> float:
        """Delete the counts of past minutes; return the database's time in seconds since 1970."""
        return await self._database.value(_FORGET)
