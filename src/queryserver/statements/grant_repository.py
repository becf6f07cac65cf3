"""Reads and writes the table `result_grants`: the users and groups to whom a result is granted (Contract sharing).

The calling services check access rights.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from uuid import UUID

from queryserver.connectors.model import ResultSharing
from queryserver.platform.database import Database, Row
from queryserver.statements.model import StatementStatus
from queryserver.statements.rows import STATUS, status_from_row

MAX_GRANTS_PER_RESULT = 500


FOREIGN = ""
"""Stands for the connector of results that another user has granted. No connector has this key, so none permits it."""


UNKNOWN = "?"
"""Stands for the connectors of results that an older program has stored. No connector has this key either."""


@dataclass(frozen=True, slots=True)
class ReadSources:
    """What a statement has read with its owner's rights (Contract sharing 4.3)."""

    own_rights: bool = False
    """Whether it has read files, or its session logged in to the data source with the owner's own credentials."""
    connectors: frozenset[str] = frozenset()
    """Keys of the connectors whose stored results it has read."""

    def __or__(self, other: "ReadSources") -> "ReadSources":
        return ReadSources(self.own_rights or other.own_rights, self.connectors | other.connectors)


@dataclass(frozen=True, slots=True)
class Grant:
    """The valid grant through which a user may read a result: the one that ends last."""

    shared_by: str
    """Name of the user who owns the result."""
    title: str
    granted_at: datetime
    valid_until: datetime
    sources: ReadSources = ReadSources()


@dataclass(frozen=True, slots=True)
class Grantee:
    """A user or a group to whom a result is granted."""

    user: str | None
    group: str | None
    title: str
    granted_at: datetime
    valid_until: datetime


@dataclass(frozen=True, slots=True)
class NamedUser:
    id: int
    name: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class GrantedTo:
    """Ids of users and groups."""

    users: Collection[int] = ()
    groups: Collection[int] = ()


# An older program has run the statement if it may have rows although the columns are null.
_READ_CONNECTORS = f"""coalesce({{row}}.read_connectors, case
    when not {{row}}.is_script and {{row}}.state in ('running', 'available', 'expired', 'closed')
    then array['{UNKNOWN}'] else array[]::text[]
end)"""
_SOURCES = f"""
coalesce(statements.uses_own_rights, false) as uses_own_rights,
{_READ_CONNECTORS.format(row="statements")} as read_connectors
"""

_IS_VALID = """valid_until > now() and (
    grants.user_id = {user} or grants.group_id in (select group_id from group_members where user_id = {user})
)"""

# A statement of a script is also granted through the script's operation. The grants of a disabled owner are suspended.
_FIND = f"""
select username as shared_by, title, granted_at, valid_until, {_SOURCES}
from statements
    join result_grants as grants on grants.statement_id in (statements.id, statements.operation_id)
    join users as owner on owner.id = statements.user_id and owner.is_active
where statements.id = $1 and {_IS_VALID.format(user="$2")}
order by valid_until desc limit 1
"""

# Locks users and groups against deletion until the grants are written; those deleted before are skipped.
_GRANT = f"""
with people as (
    select id from users where id = any($2::bigint[]) and is_active for key share
), teams as (
    select id from groups where id = any($3::bigint[]) for key share
), granted as (
    select id as user_id, null::bigint as group_id from people union all select null, id from teams
)
insert into result_grants (statement_id, user_id, group_id, valid_until, title)
select $1, user_id, group_id, $4, $5 from granted
where (select count(*) from granted) + (
    select count(*) from result_grants as present where statement_id = $1 and not exists (
        select from granted where (user_id, group_id) is not distinct from (present.user_id, present.group_id)
    )
) <= {MAX_GRANTS_PER_RESULT}
on conflict (statement_id, coalesce(user_id, 0), coalesce(group_id, 0))
    do update set valid_until = excluded.valid_until, title = excluded.title, granted_at = now()
"""

_REVOKE = """
delete from result_grants
where statement_id = $1 and ($2 or user_id = any($3::bigint[]) or group_id = any($4::bigint[]))
"""

_OF_STATEMENT = """
select username as user, name as group, title, granted_at, valid_until
from result_grants left join users on users.id = user_id left join groups on groups.id = group_id
where statement_id = $1 and valid_until > now()
order by username collate "C", name collate "C"
"""

HAS_RESULT = """(
    statements.state in ('waiting', 'running', 'available') or (statements.is_script and exists (
        select from statements as part where part.operation_id = statements.id and part.state = 'available'
    ))
)"""
"""SQL condition: the operation has rows that can be read, or may still produce them."""

_IS_READABLE = f"""(
    {{row}}.state in ('waiting', 'running', 'available')
    and array[{{row}}.connector] || {_READ_CONNECTORS}
        <@ case when {{row}}.uses_own_rights then $3::text[] else $2::text[] end
)"""

# Each branch of the union reads its own index. The page is joined to the count, so that there is a row without a result
# if the page is empty.
RECEIVED = f"""
with received as (
    select * from result_grants where user_id = $1
    union all
    select * from result_grants where group_id in (select group_id from group_members where user_id = $1)
), mine as (
    select statement_id, max(valid_until) as valid_until, max(granted_at) as granted_at,
        (array_agg(title order by granted_at desc))[1] as title
    from received where valid_until > now() group by statement_id
), readable as (
    select mine.*, username as shared_by from mine join statements on id = statement_id
        join users as owner on owner.id = statements.user_id and owner.is_active
    where statements.user_id <> $1 and case
        when not statements.is_script then {_IS_READABLE.format(row="statements")}
        else exists (
            select from statements as part
            where part.operation_id = statements.id and {_IS_READABLE.format(row="part")}
        )
    end
)
select * from (select count(*) as results from readable) as counted left join (
    select shared_by, title, granted_at, valid_until, {STATUS}
    from readable join statements on id = statement_id
    order by granted_at desc, history_id desc offset $4 limit $5
) as page on true
order by granted_at desc, history_id desc
"""


class GrantRecords:
    """Grants of results. Each method is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, statement_id: UUID, user_id: int) -> Grant | None:
        """Return the grant through which the user may read the statement's result now, or None if there is none."""
        row = await self._database.row(_FIND, statement_id, user_id)
        if row is None:
            return None
        return Grant(row["shared_by"], row["title"], row["granted_at"], row["valid_until"], _sources(row))

    async def grant(self, statement_id: UUID, to: GrantedTo, *, until: datetime, title: str) -> int:
        """Grant the result, or change the end and title of existing grants. Returns how many were written.

        Writes nothing if the result would have more than MAX_GRANTS_PER_RESULT grants, or if none of the users and
        groups is left.
        """
        async with self._database.transaction() as connection:
            # Otherwise, parallel calls could not see each other's grants, and would exceed the maximum together.
            await connection.execute("select from statements where id = $1 for no key update", statement_id)
            status = await connection.execute(_GRANT, statement_id, list(to.users), list(to.groups), until, title)
        return int(status.rsplit(" ", 1)[1])

    async def revoke(self, statement_id: UUID, to: GrantedTo | None) -> int:
        """Delete the grants to these users and groups, or all if `to` is None. Returns how many were deleted."""
        named = to or GrantedTo()
        return await self._database.execute(_REVOKE, statement_id, to is None, list(named.users), list(named.groups))

    async def of_statement(self, statement_id: UUID) -> Sequence[Grantee]:
        """Return the valid grants of a result: users by name, then groups by name."""
        rows = await self._database.fetch(_OF_STATEMENT, statement_id)
        return [Grantee(**dict(row)) for row in rows]

    async def received(
        self, user_id: int, connectors: Mapping[ResultSharing, Sequence[str]], *, offset: int, limit: int
    ) -> tuple[int, Sequence[tuple[Grant, StatementStatus]]]:
        """Return the number of results that other users have granted to the user, and one page, newest grant first.

        `connectors` has the keys of the connectors whose results the user may read, by their setting.
        """
        anyone = list(connectors.get(ResultSharing.ANYONE, ()))
        keys = [*connectors.get(ResultSharing.USERS_OF_CONNECTOR, ()), *anyone]
        rows = await self._database.fetch(RECEIVED, user_id, keys, anyone, offset, limit)
        return rows[0]["results"], [
            (Grant(row["shared_by"], row["title"], row["granted_at"], row["valid_until"]), status_from_row(row))
            for row in rows
            if row["id"] is not None
        ]

    async def sources(self, statement_id: UUID) -> ReadSources:
        """Return what the statement has read or, for a script, what its statements have read."""
        rows = await self._database.fetch(
            f"select {_SOURCES} from statements where id = $1 or operation_id = $1", statement_id
        )
        return reduce(or_, map(_sources, rows), ReadSources())

    async def record_sources(self, statement_id: UUID, sources: ReadSources) -> None:
        """Record what the statement has read so far."""
        await self._database.execute(
            "update statements set uses_own_rights = $2, read_connectors = $3 where id = $1",
            statement_id,
            sources.own_rights,
            sorted(sources.connectors),
        )

    async def users(self, keys: Collection[str]) -> Mapping[str, NamedUser]:
        """Return the users with these name keys, by key."""
        rows = await self._database.fetch(
            "select username_key, id, username, is_active from users where username_key = any($1::text[])", list(keys)
        )
        return {row["username_key"]: NamedUser(row["id"], row["username"], row["is_active"]) for row in rows}

    async def groups(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the ids of the groups with these names."""
        rows = await self._database.fetch("select name, id from groups where name = any($1::text[])", list(names))
        return {row["name"]: row["id"] for row in rows}


def _sources(row: Row) -> ReadSources:
    return ReadSources(row["uses_own_rights"], frozenset(row["read_connectors"]))
