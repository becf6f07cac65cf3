"""The state that tokens depend on: their users, and what was ended or exchanged."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg

from queryserver.db.coalescing import CoalescingReader
from queryserver.db.database import Database
from queryserver.db.preferences import preferences_of
from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenKey, TokenOwner

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
