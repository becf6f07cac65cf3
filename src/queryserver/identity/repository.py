"""Users, their preferences and identities, who makes a call, and the rule that an administrator stays."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID

from queryserver.errors.base import NameTaken, UnknownGroup, last_administrator, service_account
from queryserver.identity.model import ApiTokenLimits, ExternalIdentity, Preferences, Scope, User, Username
from queryserver.platform.database import CoalescingReader, Connection, Database, Row


@dataclass(frozen=True, slots=True)
class Account:
    """A user in the lists of administrators."""

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    is_active: bool
    is_admin: bool
    """The flag of the user, whatever the groups give."""
    has_password: bool
    is_service_account: bool
    groups: tuple[str, ...]
    last_login: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A user to be made. Without `password_hash` there is no local login."""

    username: Username
    password_hash: str | None = None
    is_admin: bool = False
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()
    identity: ExternalIdentity | None = None
    """Linked to the user from the start."""
    by_administrator: bool = False
    """Whether an administrator links the two, and not a first call."""
    is_service_account: bool = False


@dataclass(frozen=True, slots=True)
class StoredLogin:
    user_id: int
    username: str
    password_hash: str | None
    is_active: bool
    token_epoch: int


class TokenKey(NamedTuple):
    """The parts of a token that its state depends on."""

    user_id: int
    family: str
    jti: str


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The present state of the user of a token."""

    user: User
    is_active: bool
    token_epoch: int
    is_revoked: bool
    """The token itself or its family was ended."""


@dataclass(frozen=True, slots=True)
class CallerKey:
    """The caller without an own token: an identity of another issuer, and the id by which its token can be ended.

    `username_key` is that of the user with this name, where nothing is linked; None: no user can have the name.
    """

    identity: ExternalIdentity
    username_key: str | None
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class KnownCaller(TokenOwner):
    """The present state of a user who was found by a linked identity, or else by name."""

    came_lately: bool
    """The last login was within the hour."""
    is_linked: bool
    """The identity is linked to this user; else only the name fits."""
    has_password: bool
    has_identities: bool
    """This or any other identity is linked to the user."""
    is_service_account: bool


@dataclass(frozen=True, slots=True)
class ApiTokenOwner(TokenOwner):
    """The present state of an API token and its user, who has the rights of the token."""

    expires_at: datetime
    """UTC."""
    is_expired: bool
    made_in_epoch: int
    is_use_unknown: bool
    """Its last use was not noted within the minute."""


TAKE_TURNS = "select pg_advisory_xact_lock(1902341490)"
"""Lock of every transaction that makes or unmakes administrators: what it has counted stays true to its end."""

IS_ADMINISTRATOR = """
    (u.is_admin or exists (
        select from group_members m join group_rights r using (group_id)
        where m.user_id = u.id and r."right" = 'admin'))
"""
"""Condition on a row `u` of users: by its own flag, or by a group."""

ANY_ADMINISTRATOR = f"select exists (select from users u where u.is_active and {IS_ADMINISTRATOR})"


@asynccontextmanager
async def administrator_kept(connection: Connection) -> AsyncGenerator[None]:
    """Around a change, inside a transaction. Raises last_administrator at the end when the change left none."""
    await connection.execute(TAKE_TURNS)
    was_any = await connection.fetchval(ANY_ADMINISTRATOR)
    yield
    if was_any and not await connection.fetchval(ANY_ADMINISTRATOR):
        raise last_administrator("The last active administrator cannot be disabled or stop being one.")


_INSERT = """
    insert into users (username, username_key, password_hash, is_admin, first_name, last_name, email,
        is_service_account)
    values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (username_key) do nothing
    returning id
"""

# False: the identity is linked to another user already.
_LINK = """
    insert into external_identities (issuer, subject, user_id, by_administrator) values ($1, $2, $3, $4)
    on conflict do nothing returning true
"""

_ALL = """
    select u.id, u.username, u.first_name, u.last_name, u.email, u.is_active, u.is_admin,
        u.password_hash is not null as has_password, u.is_service_account, u.last_login, u.created_at,
        array(
            select g.name from group_members m join groups g on g.id = m.group_id
            where m.user_id = u.id order by g.name
        ) as groups
    from users u order by u.username_key
"""

_NAMES = """
    select array(select username from users order by username_key) as users,
        array(select name from groups order by name) as groups
"""

_PROMOTE_FIRST = f"""
    update users set is_admin = true
    where id = $1 and not ({ANY_ADMINISTRATOR})
"""

_CHANGE = """
    update users set is_active = coalesce($2, is_active), is_admin = coalesce($3, is_admin),
        password_hash = coalesce($4, password_hash), token_epoch = token_epoch + $5
    where username_key = $1
"""

_NEW_GROUP = """
    with made as (insert into groups (name) values ($1) on conflict do nothing returning id)
    insert into group_rights (group_id, "right") select made.id, unnest($2::text[]) from made
"""

# Locked, so that of two first calls at once, each of another issuer, one is linked.
_FREE_USER = f"""
    select u.id from users u
    where u.id = $1 and u.password_hash is null and not u.is_service_account and not {IS_ADMINISTRATOR}
        and not exists (select from external_identities i where i.user_id = u.id)
    for no key update of u
"""

_LINK_FIRST = """
    insert into external_identities (issuer, subject, user_id)
    select $2, $3, u.id from users u
    where u.id = $1 and not exists (select from external_identities i where i.user_id = u.id)
    on conflict do nothing
"""


class AccountRepository:
    """Users and groups. Each call is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def login_of(self, username_key: str) -> StoredLogin | None:
        row = await self._database.row(
            "select id, username, password_hash, is_active, token_epoch from users where username_key = $1",
            username_key,
        )
        return StoredLogin(*row) if row else None

    async def record_login(self, user_id: int) -> None:
        await self._database.execute("update users set last_login = now() where id = $1", user_id)

    async def replace_hash(self, user_id: int, *, old: str, new: str) -> None:
        """Keep a fresh hash of an unchanged password; nothing happens when the password has changed meanwhile."""
        await self._database.execute(
            "update users set password_hash = $3 where id = $1 and password_hash = $2", user_id, old, new
        )

    async def create(self, account: NewAccount, *, default_group: str) -> int:
        """The id of the new user, who joins the default group too.

        Raises NameTaken (of the user or the identity), UnknownGroup.
        """
        async with self._database.transaction() as connection:
            return await _create(connection, account, default_group)

    async def create_first(self, account: NewAccount, *, default_group: str) -> bool:
        """Make the very first user; False when there is one already, also when several try at once."""
        async with self._database.transaction() as connection:
            await connection.execute(TAKE_TURNS)
            if await connection.fetchval("select exists (select from users)"):
                return False
            await _create(connection, account, default_group)
            return True

    async def promote_first(self, user_id: int) -> bool:
        """Make the user an administrator when there is no active one; of several at once one succeeds."""
        async with self._database.transaction() as connection:
            await connection.execute(TAKE_TURNS)
            return await connection.execute(_PROMOTE_FIRST, user_id) == "UPDATE 1"

    async def has_users(self) -> bool:
        return await self._database.value("select exists (select from users)")

    async def all(self) -> Sequence[Account]:
        rows = await self._database.fetch(_ALL)
        return [Account(**cast("dict[str, Any]", {**row, "groups": tuple(row["groups"])})) for row in rows]

    async def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """All users and all groups, each in order. Raises DatabaseUnavailable."""
        row = await self._database.row(_NAMES)
        return (row["users"], row["groups"]) if row else ((), ())

    async def change(
        self,
        username_key: str,
        *,
        is_active: bool | None = None,
        is_admin: bool | None = None,
        password_hash: str | None = None,
        ends_tokens: bool = False,
    ) -> bool:
        """What is None stays. False: no such user. Raises last_administrator, service_account (a password for one)."""
        values = (is_active, is_admin, password_hash, int(ends_tokens))
        is_service = "select is_service_account from users where username_key = $1"
        async with self._database.transaction() as connection, administrator_kept(connection):
            if password_hash is not None and await connection.fetchval(is_service, username_key):
                raise service_account(username_key)
            return await connection.execute(_CHANGE, username_key, *values) == "UPDATE 1"

    async def end_all_tokens(self) -> int:
        """Of all users; their number."""
        return await self._database.execute("update users set token_epoch = token_epoch + 1")

    async def ensure_group(self, name: str, rights: Sequence[str]) -> None:
        """Make the group with these rights if there is none of that name; one that exists keeps its own."""
        await self._database.execute(_NEW_GROUP, name, list(rights))

    async def link_first(self, user_id: int, identity: ExternalIdentity) -> bool:
        """Link a user who has no password and no identity, and is no administrator.

        False: the user has changed since, or the identity is linked to another user.
        """
        async with self._database.transaction() as connection:
            if await connection.fetchval(_FREE_USER, user_id) is None:
                return False
            # A snapshot of its own: what was linked while this transaction waited for the lock is seen.
            return await connection.execute(_LINK_FIRST, user_id, identity.issuer, identity.subject) == "INSERT 0 1"


async def _create(connection: Connection, account: NewAccount, default_group: str) -> int:
    user_id = await connection.fetchval(
        _INSERT,
        account.username.shown,
        account.username.key,
        account.password_hash,
        account.is_admin,
        account.first_name,
        account.last_name,
        account.email,
        account.is_service_account,
    )
    if user_id is None:
        raise NameTaken(f"User {account.username.shown} exists already.")
    # Locked against deletion until the memberships are written.
    rows = await connection.fetch(
        "select id, name from groups where name = any($1::text[]) order by id for key share",
        [default_group, *account.groups],
    )
    groups = {row["name"]: row["id"] for row in rows}
    for name in account.groups:
        if name not in groups:
            raise UnknownGroup(name)
    await connection.execute(
        "insert into group_members (user_id, group_id) select $1, unnest($2::bigint[]) on conflict do nothing",
        user_id,
        list(groups.values()),
    )
    if identity := account.identity:
        linked = await connection.fetchval(_LINK, identity.issuer, identity.subject, user_id, account.by_administrator)
        if not linked:
            raise NameTaken(f"The subject {identity.subject} is linked to another user already.")
    return user_id


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """From their stored form; values that this version does not know count as absent."""
    big_numbers: object = stored.get("big_numbers")
    return Preferences(big_numbers="text") if big_numbers == "text" else Preferences()


_USER_NOW = """
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
"""The columns of a row of `users u` for a user with all rights; see `_state`."""

_OWNERS = f"""
    select k.n, {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id in (k.family, k.jti)) as is_revoked
    from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as k (user_id, family, jti, n)
    join users u on u.id = k.user_id
"""

_OWNER = f"""
    select {_USER_NOW},
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

_STANDING = """
        coalesce(u.last_login > now() - interval '1 hour', false) as came_lately,
        l.user_id is not null as is_linked,
        u.password_hash is not null as has_password,
        exists (select from external_identities i where i.user_id = u.id) as has_identities, u.is_service_account
"""

_FACTS = ("came_lately", "is_linked", "has_password", "has_identities", "is_service_account")

# A link goes before a name: the two may be those of different users.
_CALLERS = f"""
    select k.n, {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id = k.token_id) as is_revoked, {_STANDING}
    from unnest($1::text[], $2::text[], $3::text[], $4::text[])
        with ordinality as k (username_key, token_id, issuer, subject, n)
    left join external_identities l on l.issuer = k.issuer and l.subject = k.subject
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = k.username_key))
"""

_CALLER = f"""
    select {_USER_NOW},
        exists (select from revoked_tokens t where t.token_id = $2) as is_revoked, {_STANDING}
    from (select 1) as one
    left join external_identities l on l.issuer = $3 and l.subject = $4
    join users u on u.id = coalesce(
        l.user_id, (select named.id from users named where named.username_key = $1::text))
"""

_API_TOKEN = f"""
        {_USER_NOW}, t.id as api_token_id, t.name, t.scopes, t.connectors, t.token_epoch as made_in_epoch,
        t.revoked_at is not null as is_revoked, t.expires_at, t.expires_at <= now() as is_expired,
        coalesce(t.last_used_at <= now() - interval '1 minute', true) as is_use_unknown
"""

_API_TOKEN_FACTS = ("expires_at", "is_expired", "made_in_epoch", "is_use_unknown")

_API_TOKENS = f"""
    select k.n, {_API_TOKEN}
    from unnest($1::bytea[]) with ordinality as k (digest, n)
    join api_tokens t on t.digest = k.digest join users u on u.id = t.user_id
"""

_ONE_API_TOKEN = f"select {_API_TOKEN} from api_tokens t join users u on u.id = t.user_id where t.digest = $1"

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
    """Who makes a call, by an own token or an identity of another issuer, and the ends of tokens.

    Calls that come at once share a query. All raise DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners = CoalescingReader(database, many=_OWNERS, one=_OWNER)
        self._callers = CoalescingReader(database, many=_CALLERS, one=_CALLER)
        self._api_tokens = CoalescingReader(database, many=_API_TOKENS, one=_ONE_API_TOKEN)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        row = await self._owners.get(*token)
        return TokenOwner(*_state(row)) if row else None

    async def user(self, user_id: int) -> User | None:
        """An active user with rights and groups; None when disabled or deleted."""
        owner = await self.owner(TokenKey(user_id, "", ""))
        return owner.user if owner and owner.is_active else None

    async def caller(self, key: CallerKey) -> KnownCaller | None:
        """The user that the identity is linked to, else the user of the name; None: there is none."""
        row = await self._callers.get(key.username_key, key.token_id, key.identity.issuer, key.identity.subject)
        return KnownCaller(*_state(row), *(row[name] for name in _FACTS)) if row else None

    async def api_token(self, digest: bytes) -> ApiTokenOwner | None:
        row = await self._api_tokens.get(digest)
        if row is None:
            return None
        # A later version may know further scopes.
        scopes = frozenset(scope for scope in Scope if scope in row["scopes"])
        connectors = None if row["connectors"] is None else frozenset[str](row["connectors"])
        user, is_active, epoch, is_revoked = _state(row)
        limits = ApiTokenLimits(row["api_token_id"], row["name"], scopes, connectors, digest)
        facts = (row[name] for name in _API_TOKEN_FACTS)
        return ApiTokenOwner(user.narrowed(limits), is_active, epoch, is_revoked, *facts)

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

    async def note_call(self, user_id: int) -> None:
        """Set the time of the last login to now, unless it is within the hour."""
        await self._database.execute(_NOTE_CALL, user_id)

    async def note_api_tokens(self, used: Collection[UUID]) -> None:
        """Set the last use of these API tokens to now."""
        await self._database.execute("update api_tokens set last_used_at = now() where id = any($1)", list(used))

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
        for reader in (self._owners, self._callers, self._api_tokens):
            await reader.aclose()


def _state(row: Row) -> tuple[User, bool, int, bool]:
    """The user of a row with the columns of `_USER_NOW`, and the first facts of a `TokenOwner`."""
    rights = frozenset[str](row["rights"])
    user = User(
        id=row["id"],
        username=row["username"],
        is_admin=row["is_admin"] or "admin" in rights,
        rights=rights,
        groups=frozenset(row["groups"]),
        connectors_version=row["connectors_version"],
        preferences=preferences_of(stored) if (stored := row["preferences"]) else Preferences(),
    )
    return user, row["is_active"], row["token_epoch"], row["is_revoked"]
