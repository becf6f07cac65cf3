"""Of the deployment as a whole: values that all servers share, counts of calls, and sealing with a new key."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from queryserver.platform.database import Database


class Role(StrEnum):
    """What a process of the deployment does; stored with the instance."""

    SERVER = "server"
    """Answers calls; runs statements too where the task server is off."""
    WORKER = "worker"
    """Runs statements and tasks."""
    BEAT = "beat"
    """Fires schedules; runs nothing itself."""


class Sealer(Protocol):
    """Encrypts what the database must not show; the key is not in the database."""

    def seal(self, secret: bytes) -> bytes: ...

    def unseal(self, sealed: bytes) -> bytes:
        """Raises ValueError when it was changed or its key is unknown."""
        ...


_KEEP = """
    with made as (insert into facts (name, value) values ($1, $2) on conflict do nothing returning value)
    select value from made union all select value from facts where name = $1 limit 1
"""


class FactRepository:
    """Values that all servers share, by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, name: str, value: str) -> str:
        """The value kept under a name; `value` becomes it when there is none. Raises DatabaseUnavailable."""
        kept = await self._database.value(_KEEP, name, value)
        # Nothing comes back when another server's insert committed after our snapshot: then it is there now.
        return kept or await self._database.value("select value from facts where name = $1", name)

    async def value(self, name: str) -> str | None:
        """The value kept under a name; None when there is none. Raises DatabaseUnavailable."""
        return await self._database.value("select value from facts where name = $1", name)

    async def replace(self, name: str, value: str) -> None:
        await self._database.execute(
            "insert into facts (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            name,
            value,
        )


# Sorted, so that two servers lock the rows they share in one order. One that is late with its minute adds nothing.
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
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        """Add calls by caller to those of that minute (since 1970); the sums of all servers for the same callers."""
        rows = await self._database.fetch(_ADD, list(calls), minute, list(calls.values()))
        return {row["caller"]: row["requests"] for row in rows}

    async def forget(self) -> float:
        """Delete the counts of past minutes; the time by the clock of the database, in seconds since 1970."""
        return await self._database.value(_FORGET)


_BATCH = 500
# Table, its key, the column, and the rows that are still needed: closed sessions are never opened again.
_PLACES = (
    ("sessions", "id", "bigint", "sealed_credentials", "closed_at is null"),
    ("statements", "id", "uuid", "sealed_token", "true"),
    ("statements", "id", "uuid", "engine_handle", "true"),
    ("statements", "id", "uuid", "sealed_parameters", "true"),
)


async def reseal(database: Database, sealer: Sealer) -> tuple[int, int]:
    """Seal all secrets of other tables with the present key; servers may be at work meanwhile.

    How many were encrypted anew, and how many could not be opened, because their key is unknown. A value that changes
    after its batch was read is sealed with the present key anyway.
    """
    done = lost = 0
    for table, key, kind, column, needed in _PLACES:
        last: object = None
        select = (
            f"select {key}, {column} as sealed from {table} where {column} is not null and {needed}"
            f" and ($1::{kind} is null or {key} > $1::{kind}) order by {key} limit {_BATCH}"
        )
        update = f"update {table} set {column} = $3 where {key} = $1 and {column} = $2"
        while rows := await database.fetch(select, last):
            for row in rows:
                try:
                    resealed = _resealed(row["sealed"], sealer)
                except ValueError:
                    lost += 1
                else:
                    done += await database.execute(update, row[key], row["sealed"], resealed)
            last = rows[-1][key]
    return done, lost


def _resealed(sealed: bytes | str, sealer: Sealer) -> bytes | str:
    """Marks of statements are kept as base64. Raises ValueError."""
    if isinstance(sealed, str):
        return b64encode(sealer.seal(sealer.unseal(b64decode(sealed, validate=True)))).decode()
    return sealer.seal(sealer.unseal(sealed))
