"""Users who are found by name: the bearers of other issuers' tokens, and whom plug-ins vouch for."""

from collections.abc import Mapping, Sequence

import asyncpg

from queryserver.db.coalescing import CoalescingReader
from queryserver.db.database import Database
from queryserver.db.tokens import USER_NOW, user_of
from queryserver.interfaces.accounts import CallerKey, KnownCaller

_STANDING = """
        coalesce(u.last_login > now() - interval '1 hour', false) as came_lately,
        l.user_id is not null as is_linked,
        u.password_hash is not null as has_password,
        exists (select from external_identities i where i.user_id = u.id) as has_identities
"""

# A link goes before a name: the two may be those of different users.
_CALLERS = f"""
    select k.n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id = k.token_id) as is_revoked, {_STANDING}
    from unnest($1::text[], $2::text[], $3::text[], $4::text[])
        with ordinality as k (username_key, token_id, issuer, subject, n)
    left join external_identities l on l.issuer = k.issuer and l.subject = k.subject
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = k.username_key))
"""

# As in db/tokens.py: one key alone is planned once, not for each call.
_CALLER = f"""
    select 1 as n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id = $2) as is_revoked, {_STANDING}
    from (select 1) as one
    left join external_identities l on l.issuer = $3 and l.subject = $4
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = $1::text))
"""

_NOTE_CALL = """
    update users set last_login = now()
    where id = $1 and (last_login is null or last_login <= now() - interval '1 hour')
"""

_ORDINARY = "not exists (select from group_rights r where r.group_id = g.id and r.\"right\" = 'admin')"

_LEAVE = f"""
    delete from group_members m using groups g
    where m.user_id = $1 and g.id = m.group_id and g.name <> all($2::text[]) and {_ORDINARY}
"""

# Locked against deletion until the memberships are written: what is deleted meanwhile is left out.
_JOIN = f"""
    insert into group_members (user_id, group_id)
    select $1, g.id from groups g where g.name = any($2::text[]) and {_ORDINARY}
    for key share of g
    on conflict do nothing
"""

_GROUPS = """
    select array(select g.name from group_members m join groups g on g.id = m.group_id where m.user_id = $1)
"""


class CallerRepository:
    """Users who prove by other means than an own token who they are. All calls raise DatabaseUnavailable.

    Calls that come at once share a query.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers: CoalescingReader[CallerKey, KnownCaller] = CoalescingReader(self._read)

    async def caller(self, key: CallerKey) -> KnownCaller | None:
        """The user that the identity is linked to, else the user of the name; None: there is none."""
        return await self._callers.get(key)

    async def note_call(self, user_id: int) -> None:
        """Set the time of the last login to now, unless it is within the hour."""
        await self._database.execute(_NOTE_CALL, user_id)

    async def join_only(self, user_id: int, groups: Sequence[str], *, default_group: str) -> frozenset[str]:
        """Put a user into these groups and the default group, and take others away; the groups after that.

        Unknown names are left out. Groups that give the right `admin` are neither given nor taken.
        """
        names = [default_group, *groups]
        async with self._database.transaction() as connection:
            # Two calls of one user at once, with different groups, must not leave the union.
            await connection.execute("select from users where id = $1 for no key update", user_id)
            await connection.execute(_LEAVE, user_id, names)
            await connection.execute(_JOIN, user_id, names)
            return frozenset(await connection.fetchval(_GROUPS, user_id))

    async def aclose(self) -> None:
        """Stop the queries on their way."""
        await self._callers.aclose()

    async def _read(self, keys: Sequence[CallerKey]) -> Mapping[CallerKey, KnownCaller]:
        if len(keys) == 1:
            rows = await self._database.fetch(_CALLER, *_parts(keys[0]))
        else:
            rows = await self._database.fetch(_CALLERS, *map(list, zip(*map(_parts, keys), strict=True)))
        return {keys[row["n"] - 1]: _caller(row) for row in rows}


def _parts(key: CallerKey) -> tuple[str | None, str, str, str]:
    return key.username_key, key.token_id, key.identity.issuer, key.identity.subject


def _caller(row: asyncpg.Record) -> KnownCaller:
    return KnownCaller(
        user=user_of(row),
        is_active=row["is_active"],
        token_epoch=row["token_epoch"],
        is_revoked=row["is_revoked"],
        came_lately=row["came_lately"],
        is_linked=row["is_linked"],
        has_password=row["has_password"],
        has_identities=row["has_identities"],
    )
