"""Stores the records of engine sessions and the owners of engine data (Contract editor 9)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from queryserver.platform.database import Database, Row
from queryserver.platform.ownership import OwnedTable

SESSIONS = OwnedTable("sessions", active="closed_at is null")
ENGINE_OWNERS = OwnedTable("engine_owners", key=("connector",))


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The record of a session that create_session opened (`named`) or that stays open between a script's statements."""

    id: int
    guid: str
    user_id: int
    connector: str
    dialect: str
    named: bool
    properties: Sequence[Mapping[str, Any]]
    settings: Mapping[str, str]
    sealed_credentials: bytes | None
    owner: str
    is_live: bool
    idle: timedelta
    last_used_at: datetime
    is_busy: bool = False


# Columns with the same name and type as a field of `SessionRecord`.
_FIELDS = (
    "id", "guid", "user_id", "connector", "dialect", "named", "properties", "settings", "sealed_credentials", "owner",
    "last_used_at",
)  # fmt: skip
_COLUMNS = f"""{", ".join(_FIELDS)}, {SESSIONS.is_owned()} as is_live, idle_s,
    exists (
        select from statements where session_id = sessions.id and state in ('waiting', 'running')
    ) as is_busy"""

_OPEN = f"""
insert into sessions (
    id, guid, user_id, connector, dialect, named, properties, settings, sealed_credentials, owner, idle_s, fence,
    lease_until
)
select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 1, 'infinity'
where not $6 or (
    select count(*) from sessions where user_id = $3 and named and closed_at is null
) < $12
on conflict (id) do update set {SESSIONS.claimed("excluded.owner")}, last_used_at = now(), closed_at = null
returning true
"""

_SHARED = """
insert into shared_sessions as known (user_id, connector, digest, session_id, guid) values ($1, $2, $3, $4, $5)
on conflict (user_id, connector, digest) do update set guid = known.guid
returning session_id, guid
"""

_LOCK = 0x71737365  # "qsse"

_CLOSE_UNUSED = """
update sessions set closed_at = now(), sealed_credentials = null
where id = $1 and closed_at is null and last_used_at <= now() - $2::interval and not exists (
    select from statements where session_id = sessions.id and state in ('waiting', 'running')
)
"""

# Also returns those of the sessions $2 that are closed but have active statements: a statement submitted while its
# session was being closed must not end with the session.
_STILL_OWNED = f"""
select id from sessions where {SESSIONS.owned_by("$1")} union all
select id from sessions where owner = $1 and closed_at is not null and id = any($2::bigint[]) and exists (
    select from statements where session_id = sessions.id and state in ('waiting', 'running')
)
"""

_HOLD = f"""
insert into engine_owners as held (connector, owner, fence, lease_until) values ($1, $2, 1, 'infinity')
on conflict (connector) do update set {ENGINE_OWNERS.claimed("$2", "held")}
    where held.owner = $2 or {ENGINE_OWNERS.may_claim("$2", "held")}
returning true
"""


class SessionRecords:
    """Reads and writes the `sessions` table, one transaction per method. Callers check access rights."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, session: SessionRecord, *, max_open: int) -> bool:
        """Store a session, or reopen an unnamed one. Return False if the user has `max_open` named sessions open."""
        async with self._database.transaction() as connection:
            # The count is exact, because a user's sessions are stored one at a time.
            await connection.execute("select pg_advisory_xact_lock($1, $2::bigint::integer)", _LOCK, session.user_id)
            stored = await connection.fetchval(
                _OPEN,
                session.id,
                session.guid,
                session.user_id,
                session.connector,
                session.dialect,
                session.named,
                list(session.properties),
                dict(session.settings),
                session.sealed_credentials,
                session.owner,
                int(session.idle.total_seconds()),
                max_open,
            )
        return stored is True

    async def find_shared(
        self, user_id: int, connector: str, purpose: str, proposed: tuple[int, str]
    ) -> tuple[int, str]:
        """Return the id and GUID of the session that a user's statements share for a purpose.

        If there is none yet, store and return `proposed`.
        """
        digest = hashlib.sha256(purpose.encode()).digest()
        row = await self._database.row(_SHARED, user_id, connector, digest, *proposed)
        return (row["session_id"], row["guid"]) if row else proposed

    async def read(self, session_id: int) -> SessionRecord | None:
        """Return an open session, or None if it is closed or unknown."""
        row = await self._database.row(
            f"select {_COLUMNS} from sessions where id = $1 and closed_at is null", session_id
        )
        return _session_from_row(row) if row else None

    async def find_named(self, session_id: int) -> tuple[int, str] | None:
        """Return the user id and the connector of a named session, open or closed."""
        row = await self._database.row("select user_id, connector from sessions where id = $1 and named", session_id)
        return (row["user_id"], row["connector"]) if row else None

    async def open_sessions(
        self,
        *,
        user_id: int | None = None,
        connectors: Sequence[str] | None = None,
        unused_since: timedelta | None = None,
    ) -> Sequence[SessionRecord]:
        """Return the open named sessions that match the filters. None matches all."""
        rows = await self._database.fetch(
            f"""select {_COLUMNS} from sessions
            where named and closed_at is null and ($1::bigint is null or user_id = $1)
                and ($2::text[] is null or connector = any($2::text[]))
                and ($3::interval is null or last_used_at <= now() - $3::interval)
            order by id""",
            user_id,
            None if connectors is None else list(connectors),
            unused_since,
        )
        return [_session_from_row(row) for row in rows]

    async def used_connectors(self, user_id: int) -> Sequence[tuple[str, str]]:
        """Return the connectors and dialects on which a user has or had named sessions. Newest session first."""
        rows = await self._database.fetch(
            """select connector, dialect from sessions where named and user_id = $1
            group by connector, dialect order by max(id) desc""",
            user_id,
        )
        return [(row["connector"], row["dialect"]) for row in rows]

    async def credentials(self, user_id: int, connector: str) -> bytes | None:
        """Return the encrypted credentials of the user's newest open session for that connector."""
        return await self._database.value(
            """select sealed_credentials from sessions
            where user_id = $1 and connector = $2 and closed_at is null and sealed_credentials is not null
            order by id desc limit 1""",
            user_id,
            connector,
        )

    async def touch(self, session_id: int) -> None:
        """Record that the session's user has used it. Polling does not count as use."""
        await self._database.execute(
            "update sessions set last_used_at = now() where id = $1 and closed_at is null", session_id
        )

    async def close(self, session_id: int, *, owner: str | None = None) -> bool:
        """Close the session and erase its credentials. Return False if it was closed or `owner` does not own it."""
        changed = await self._database.execute(
            """update sessions set closed_at = now(), sealed_credentials = null
            where id = $1 and closed_at is null and ($2::text is null or owner = $2)""",
            session_id,
            owner,
        )
        return changed == 1

    async def close_unused(self, session_id: int, *, unused_since: timedelta) -> bool:
        """Close an unused session. Return False if it is already closed, was used since, or has active statements."""
        return await self._database.execute(_CLOSE_UNUSED, session_id, unused_since) == 1

    async def still_owned(self, recorded: Sequence[int], *, owner: str) -> Sequence[int]:
        """Return the ids of `owner`'s open sessions, and of those in `recorded` that are closed but have active
        statements.
        """
        return [row["id"] for row in await self._database.fetch(_STILL_OWNED, owner, list(recorded))]

    async def close_lost(self, *, owner: str) -> int:
        """Close the sessions of processes that are not alive, except `owner`. Return their number."""
        return await self._database.execute(
            f"""update sessions set closed_at = now(), sealed_credentials = null
            where {SESSIONS.active} and {SESSIONS.may_claim("$1")}""",
            owner,
        )

    async def hold_engine(self, connector: str, *, owner: str) -> bool:
        """Claim an engine's data, unless another process that is alive holds it. Return whether `owner` holds it."""
        return await self._database.value(_HOLD, connector, owner) is True

    async def engines_of(self, owner: str) -> Sequence[str]:
        """Return the engines that `owner` still holds."""
        rows = await self._database.fetch(
            f"select connector from engine_owners where {ENGINE_OWNERS.owned_by('$1')}", owner
        )
        return [row["connector"] for row in rows]

    async def release_engines(self, *, owner: str) -> None:
        """Release all engines that `owner` holds."""
        # The rows remain, so that the fence of an engine never starts again.
        await self._database.execute(
            f"update engine_owners set lease_until = '-infinity' where {ENGINE_OWNERS.owned_by('$1')}", owner
        )


def _session_from_row(row: Row) -> SessionRecord:
    return SessionRecord(
        **{name: row[name] for name in _FIELDS},
        is_live=row["is_live"],
        idle=timedelta(seconds=row["idle_s"]),
        is_busy=row["is_busy"],
    )
