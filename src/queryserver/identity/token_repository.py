"""The state that calls depend on: the users of tokens, and of callers of other issuers and plug-ins."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg

from queryserver.identity.model import User
from queryserver.identity.repository import CallerKey, KnownCaller, TokenKey, TokenOwner, preferences_of
from queryserver.platform.database import CoalescingReader, Database

USER_NOW = """
    u.id, u.username, u.is_admin, u.is_active, u.token_epoch, u.preferences,
        array(
            select g.name from group_members m join groups g on g.id = m.group_id where m.user_id = u.id
        ) as groups,
        array(
            select distinct r."right" from group_members m join group_rights r using (group_id)
            where m.user_id = u.id
        ) as rights,
        (select s.version from connector_state s) as connectors_version
"""
"""What a row of `users u` says about a user with all rights; see `user_of`."""

_OWNERS = f"""
    select k.n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id in (k.family, k.jti)) as is_revoked
    from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as k (user_id, family, jti, n)
    join users u on u.id = k.user_id
"""

# What nearly every call asks. PostgreSQL plans the query above anew each time, for it takes the arrays of an unknown
# call to be long; this one it plans five times and never again: 0.13 instead of 0.43 ms.
_OWNER = f"""
    select 1 as n, {USER_NOW},
        exists (select from revoked_tokens t where t.token_id in ($2, $3)) as is_revoked
    from users u where u.id = $1
"""

_EXCHANGE = """
    with first as (
        insert into rotated_tokens (jti, expires_at) values ($1, $2) on conflict do nothing returning jti
    )
    select exists (select from first) as is_first,
        (select now() - rotated_at from rotated_tokens where jti = $1) as since
"""

_REVOKE = """
    insert into revoked_tokens (token_id, expires_at) values ($1, $2)
    on conflict (token_id) do update set expires_at = greatest(revoked_tokens.expires_at, excluded.expires_at)
"""


class TokenRepository:
    """Ended and exchanged tokens. All calls raise DatabaseUnavailable. Also tells statements about their users."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: CoalescingReader[TokenKey, TokenOwner] = CoalescingReader(self._read_owners)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        """The user behind a token. Calls that come at once share a query."""
        return await self._owners.get(token)

    async def user(self, user_id: int) -> User | None:
        """An active user with rights and groups; None when disabled or deleted."""
        owner = await self._owners.get(TokenKey(user_id, "", ""))
        return owner.user if owner and owner.is_active else None

    async def revoke(self, token_id: str, *, keep_until: datetime) -> None:
        """Refuse a family, or one token by its jti. Repeating it is harmless."""
        await self._database.execute(_REVOKE, token_id, keep_until)

    async def end_all(self, user_id: int, *, epoch: int) -> None:
        """End all tokens of a user, unless that happened since the token of this epoch was issued."""
        await self._database.execute(
            "update users set token_epoch = token_epoch + 1 where id = $1 and token_epoch = $2", user_id, epoch
        )

    async def exchange(self, jti: str, *, expires_at: datetime) -> timedelta | None:
        """Note that a refresh token is exchanged; None at the first time, later the time since then."""
        row = await self._database.row(_EXCHANGE, jti, expires_at)
        if row is None or row["is_first"]:
            return None
        # Two at once: the loser's snapshot lacks the winner's row, so the exchange is of this moment.
        return row["since"] or timedelta(0)

    async def exchanged_for(self, jti: str) -> timedelta | None:
        """The time since a refresh token was exchanged; None when it was not."""
        return await self._database.value("select now() - rotated_at from rotated_tokens where jti = $1", jti)

    async def aclose(self) -> None:
        """Stop the queries on their way."""
        await self._owners.aclose()

    async def _read_owners(self, keys: Sequence[TokenKey]) -> Mapping[TokenKey, TokenOwner]:
        if len(keys) == 1:
            rows = await self._database.fetch(_OWNER, keys[0].user_id, keys[0].family, keys[0].jti)
        else:
            columns = [key.user_id for key in keys], [key.family for key in keys], [key.jti for key in keys]
            rows = await self._database.fetch(_OWNERS, *columns)
        return {keys[row["n"] - 1]: _owner(row) for row in rows}


def user_of(row: asyncpg.Record) -> User:
    """The user of a row with the columns of USER_NOW."""
    rights = frozenset[str](row["rights"])
    return User(
        id=row["id"],
        username=row["username"],
        is_admin=row["is_admin"] or "admin" in rights,
        rights=rights,
        groups=frozenset(row["groups"]),
        connectors_version=row["connectors_version"],
        preferences=preferences_of(row["preferences"]),
    )


def _owner(row: asyncpg.Record) -> TokenOwner:
    return TokenOwner(user_of(row), row["is_active"], row["token_epoch"], row["is_revoked"])


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

# As `_OWNER`: one key alone is planned once, not for each call.
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
