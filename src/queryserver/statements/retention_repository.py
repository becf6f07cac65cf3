"""What the sweep does with records whose time is over."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import UUID

import asyncpg

from queryserver.errors.base import DatabaseUnavailable
from queryserver.platform.database import Database, database_errors

_CLEANING = 0x7173636C  # "qscl": servers clean up one at a time

_OVER = "state = 'available' and expires_at < now()"

_EXPIRE = f"""
with over as (
    select id from statements where {_OVER}
    order by expires_at limit $1 for update skip locked
), expired as (
    update statements set state = 'expired', message = 'Results have expired.', inline_result = null
    where id in (select id from over) returning id
), doomed as (
    insert into doomed_results (statement_id) select id from expired on conflict do nothing
)
select count(*) from expired
"""

# Only statements that wait or run have one.
_FORGET_TOKENS = """
update statements set sealed_token = null, token_expires_at = null
where state in ('waiting', 'running') and token_expires_at <= now()
"""

# What is kept of a long text: enough to recognise a statement by.
KEPT_CHARACTERS = 4000

_LONG_STATEMENTS = """
select id from statements
where text_bytes > 0 and ended_at < now() - $1::interval and state <> 'available'
order by ended_at limit $2
"""

_CUT_STATEMENTS = f"""
with long as ({_LONG_STATEMENTS} for update skip locked)
update statements set
    text_is_cut = octet_length(statement) > $3::integer,
    statement = case
        when octet_length(statement) > $3::integer then left(statement, {KEPT_CHARACTERS}) else statement
    end,
    columns = case when octet_length(columns::text) > $3::integer then null else columns end,
    message = case when octet_length(message) > $3::integer then left(message, {KEPT_CHARACTERS}) else message end,
    text_bytes = 0
where id in (select id from long)
"""

_LONG_SCRIPTS = """
select id from scripts
where text_bytes > 0 and not exists (
    select from statements
    where script_id = scripts.id and (ended_at is null or ended_at > now() - $1::interval)
)
order by id limit $2
"""

_CUT_SCRIPTS = f"""
with long as ({_LONG_SCRIPTS} for update skip locked)
update scripts set body = left(body, {KEPT_CHARACTERS}), text_is_cut = true, text_bytes = 0
where id in (select id from long)
"""

_OLD = """
select id from statements
where recorded_at < now() - $1::interval and coalesce(ended_at, recorded_at) < now() - $1::interval
    and state not in ('waiting', 'running')
order by recorded_at limit $2
"""

_DELETE_HISTORY = f"""
with old as ({_OLD} for update skip locked), doomed as (
    insert into doomed_results (statement_id) select id from old on conflict do nothing
), gone as (
    delete from statements where id in (select id from old) returning id
)
select count(*) from gone
"""

_UNUSED_SCRIPTS = "from scripts where not exists (select from statements where script_id = scripts.id)"

_SPENT: Mapping[str, str] = {
    "idempotency keys": "from idempotency_keys where created_at < now() - interval '24 hours'",
    "revoked tokens": "from revoked_tokens where expires_at < now()",
    "rotated tokens": "from rotated_tokens where expires_at < now()",
    "login counters": "from login_failures where window_started_at < now() - interval '1 day'",
    "login networks": "from login_networks where last_login_at < now() - interval '30 days'",
    "closed sessions": "from sessions where closed_at < now() - interval '30 days'",
    "scripts": _UNUSED_SCRIPTS,
}


class StatementRetention:
    """Deletes in small batches, so that no call waits behind a large one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def expire_results(self, *, limit: int) -> int:
        """`available` past `expires_at` becomes `expired`, its bytes doomed."""
        return await self._database.value(_EXPIRE, limit)

    async def count_expired(self) -> int:
        """How many `expire_results` would change by now."""
        return await self._database.value(f"select count(*) from statements where {_OVER}")

    async def forget_tokens(self) -> int:
        """External tokens past their expiry are erased, whatever becomes of their statements."""
        return await self._database.execute(_FORGET_TOKENS)

    async def doomed(self, *, limit: int) -> Sequence[UUID]:
        """Results whose bytes are to be deleted."""
        found = await self._database.fetch("select statement_id from doomed_results order by since limit $1", limit)
        return [row["statement_id"] for row in found]

    async def buried(self, statement_ids: Sequence[UUID]) -> None:
        """Their bytes are gone. The segments leave the record only now: until then they say what is to be deleted."""
        async with self._database.transaction() as connection:
            await connection.execute(
                "delete from result_segments where statement_id = any($1::uuid[])", list(statement_ids)
            )
            await connection.execute(
                "delete from doomed_results where statement_id = any($1::uuid[])", list(statement_ids)
            )

    async def delete_logs(self, *, older_than: timedelta, limit: int, dry_run: bool = False) -> int:
        """Logs of statements that ended before that."""
        chosen = """from statement_logs where statement_id in (
            select id from statements
            where ended_at < now() - $1::interval and exists (
                select from statement_logs as line where line.statement_id = statements.id
            ) limit $2)"""
        if dry_run:
            return await self._database.value(f"select count(*) {chosen}", older_than, 2**31)
        return await self._database.execute(f"delete {chosen}", older_than, limit)

    async def cut_texts(self, *, older_than: timedelta, limit: int, kept_bytes: int, dry_run: bool = False) -> int:
        """Keep only the beginning of long texts of statements and scripts that ended before that; how many.

        Statements whose result can still be read keep theirs. At most `limit` of each kind at a time.
        """
        if dry_run:
            counts = [
                await self._database.value(f"select count(*) from ({long}) as long", older_than, 2**31)
                for long in (_LONG_STATEMENTS, _LONG_SCRIPTS)
            ]
            return sum(counts)
        cut = await self._database.execute(_CUT_STATEMENTS, older_than, limit, kept_bytes)
        return cut + await self._database.execute(_CUT_SCRIPTS, older_than, limit)

    async def delete_history(self, *, older_than: timedelta, limit: int, dry_run: bool = False) -> int:
        """Records of statements that ended before that, with results, logs and scripts."""
        if dry_run:
            return await self._database.value(
                f"select count(*) from ({_OLD}) as old",
                older_than,
                2**31,
            )
        return await self._database.value(_DELETE_HISTORY, older_than, limit)

    async def delete_spent(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Idempotency keys past 24 h, revocations past their tokens, old login counters: kind to number."""
        counts: dict[str, int] = {}
        for kind, chosen in _SPENT.items():
            if dry_run:
                counts[kind] = await self._database.value(f"select count(*) {chosen}")
            else:
                counts[kind] = await self._delete(chosen)
        return counts

    async def _delete(self, chosen: str) -> int:
        try:
            return await self._database.execute(f"delete {chosen}")
        except asyncpg.ForeignKeyViolationError:
            # A script was sent again at this moment: what is unused is deleted the next time.
            return 0

    async def has_more_entries_than(self, number: int) -> bool:
        """Whether the histories of all users together are longer. Reads no more than that many."""
        return await self._database.value(
            "select exists (select from statements where in_history offset $1 limit 1)", number
        )

    async def closable(self, *, unused_since: timedelta) -> Sequence[UUID]:
        """`available` statements whose last use lies further back."""
        found = await self._database.fetch(
            """select id from statements where state = 'available' and last_used_at <= now() - $1::interval
            order by last_used_at""",
            unused_since,
        )
        return [row["id"] for row in found]


@asynccontextmanager
async def alone_in_cleaning(dsn: str) -> AsyncGenerator[bool]:
    """Whether no other process is inside. Raises DatabaseUnavailable.

    On a connection of its own, with which the lock goes, too: a pool may have one only, and that is needed inside.
    """
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
    try:
        with database_errors():
            is_alone = await connection.fetchval("select pg_try_advisory_lock($1)", _CLEANING, timeout=10)
        yield is_alone
        with suppress(DatabaseUnavailable), database_errors():
            # The server notices some time later that a connection has ended.
            await connection.execute("select pg_advisory_unlock_all()", timeout=10)
    finally:
        connection.terminate()
