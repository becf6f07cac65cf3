"""How the service database is used, for those who run it."""

from dataclasses import dataclass

from queryserver.db.database import Database

# A login sees the addresses of its own connections; a socket and loopback are the same host.
_LOOK = """
    select
        exists (select from pg_extension where extname = 'pg_trgm') as has_trigrams,
        (
            select count(distinct case when client_addr in ('127.0.0.1', '::1') then null else client_addr end)
                + max(case when client_addr is null or client_addr in ('127.0.0.1', '::1') then 1 else 0 end)
            from pg_stat_activity
            where datname = current_database() and usename = current_user and backend_type = 'client backend'
        ) as hosts,
        (select count(*) from (select from statements where in_history limit $1) entries) as history_entries,
        (select coalesce(array_agg(id), '{}') from connectors where deleted_at is null) as connectors
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the database knows about its users."""

    has_trigrams: bool
    hosts: int
    """From how many machines servers and commands are connected."""
    history_entries: int
    """Counted up to a limit."""
    connectors: frozenset[int]
    """Ids of stored ones."""


async def look_at(database: Database, *, count_up_to: int) -> Deployment:
    """As it is now. Raises DatabaseUnavailable."""
    row = await database.row(_LOOK, count_up_to)
    assert row is not None  # noqa: S101 a select without `from` gives one row
    return Deployment(row["has_trigrams"], row["hosts"], row["history_entries"], frozenset(row["connectors"]))
