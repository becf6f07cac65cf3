"""Stored users, groups and identities, and the rule that at least one administrator remains."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from queryserver.errors.base import NameTaken, UnknownGroup, external_user, last_administrator, service_account
from queryserver.identity.model import ExternalIdentity, Username
from queryserver.platform.database import Connection, Database, Row


@dataclass(frozen=True, slots=True)
class Account:
    """A user in a list for administrators."""

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    is_active: bool
    is_admin: bool
    """The user's own flag, regardless of groups."""
    has_password: bool
    is_service_account: bool
    groups: tuple[str, ...]
    last_login: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A user to be created. If `password_hash` is None, the user cannot log in with a local password."""

    username: Username
    password_hash: str | None = None
    is_admin: bool = False
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: tuple[str, ...] = ()
    identity: ExternalIdentity | None = None
    """An identity that is linked to the new user."""
    by_administrator: bool = False
    """Whether an administrator links the identity; otherwise the identity's first call does."""
    is_service_account: bool = False


@dataclass(frozen=True, slots=True)
class AccountDetails:
    """A user with everything that administrators see of one user."""

    account: Account
    is_administrator: bool
    """By the user's own flag or by a group."""
    identities: tuple[ExternalIdentity, ...]
    """Sorted by issuer and subject."""


@dataclass(frozen=True, slots=True)
class AccountChange:
    """Properties of a user to change; None leaves a property unchanged."""

    first_name: str | None = None
    last_name: str | None = None
    email: str | None = None
    is_active: bool | None = None
    is_admin: bool | None = None
    password_hash: str | None = field(default=None, repr=False)
    groups: tuple[str, ...] | None = None
    """Names that replace all of the user's groups."""
    ends_tokens: bool = False


@dataclass(frozen=True, slots=True)
class MembershipChanges:
    """Names of the groups that a user has joined and left, each sorted."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredLogin:
    user_id: int
    username: str
    password_hash: str | None
    is_active: bool
    token_epoch: int


LOCK_ADMINISTRATORS = "select pg_advisory_xact_lock(1902341490)"
"""Serializes transactions that add or remove administrators, so that their checks stay valid."""

IS_ADMINISTRATOR = """
    (u.is_admin or exists (
        select from group_members m join group_rights r using (group_id)
        where m.user_id = u.id and r."right" = 'admin'))
"""
"""SQL condition on a row `u` of users: the user is an administrator by own flag or by group."""

ANY_ADMINISTRATOR = f"select exists (select from users u where u.is_active and {IS_ADMINISTRATOR})"


@asynccontextmanager
async def administrator_remains(connection: Connection) -> AsyncGenerator[None]:
    """Run a change in the transaction of `connection`. Raises last_administrator if no administrator remains."""
    await connection.execute(LOCK_ADMINISTRATORS)
    was_any = await connection.fetchval(ANY_ADMINISTRATOR)
    yield
    if was_any and not await connection.fetchval(ANY_ADMINISTRATOR):
        raise last_administrator("The last active administrator cannot be disabled or lose administrator rights.")


_INSERT = """
    insert into users (username, username_key, password_hash, is_admin, first_name, last_name, email,
        is_service_account)
    values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (username_key) do nothing
    returning id
"""

# Returns no row if the identity is already linked to another user.
_LINK = """
    insert into external_identities (issuer, subject, user_id, by_administrator) values ($1, $2, $3, $4)
    on conflict do nothing returning true
"""

_ACCOUNT = """
    select u.id, u.username, u.first_name, u.last_name, u.email, u.is_active, u.is_admin,
        u.password_hash is not null as has_password, u.is_service_account, u.last_login, u.created_at,
        array(
            select g.name from group_members m join groups g on g.id = m.group_id
            where m.user_id = u.id order by g.name
        ) as groups
    from users u
"""

_ALL = f"{_ACCOUNT} order by u.username_key"

_DETAILS = f"""
    select a.*, {IS_ADMINISTRATOR} as is_administrator, coalesce(i.issuers, array[]::text[]) as issuers,
        coalesce(i.subjects, array[]::text[]) as subjects
    from ({_ACCOUNT} where u.username_key = $1) a join users u on u.id = a.id
        left join lateral (
            select array_agg(e.issuer order by e.issuer, e.subject) as issuers,
                array_agg(e.subject order by e.issuer, e.subject) as subjects
            from external_identities e where e.user_id = u.id) i on true
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
        password_hash = coalesce($4, password_hash), token_epoch = token_epoch + $5,
        first_name = coalesce($6, first_name), last_name = coalesce($7, last_name), email = coalesce($8, email)
    where username_key = $1
    returning id
"""

# A linked user with a password logs in with both: an administrator has linked a user that had one.
_LOGIN_KIND = """
    select u.is_service_account, u.password_hash is null
        and exists (select from external_identities i where i.user_id = u.id) as is_external
    from users u where u.username_key = $1 for no key update of u
"""

_LEAVE = """
    delete from group_members m using groups g
    where m.user_id = $1 and g.id = m.group_id and g.id <> all($2::bigint[]) returning g.name
"""

_JOIN = """
    with joined as (
        insert into group_members (user_id, group_id) select $1, unnest($2::bigint[]) on conflict do nothing
        returning group_id)
    select g.name from joined j join groups g on g.id = j.group_id
"""

_END_GRANTS = "delete from result_grants where user_id = (select id from users where username_key = $1)"
"""Grants of results to a disabled user are not restored when the user is enabled again (Contract sharing 3.4)."""

_NEW_GROUP = """
    with made as (insert into groups (name) values ($1) on conflict do nothing returning id)
    insert into group_rights (group_id, "right") select made.id, unnest($2::text[]) from made
"""

# With the row lock, only one of two concurrent first calls from different issuers links the user.
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
    """Users and groups in the database. Each method is one transaction; all raise DatabaseUnavailable."""

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
        """Store a new hash of the same password, unless the password has changed in the meantime."""
        await self._database.execute(
            "update users set password_hash = $3 where id = $1 and password_hash = $2", user_id, old, new
        )

    async def create(self, account: NewAccount, *, default_group: str) -> int:
        """Create a user in the default group and the account's groups; return the user id.

        Raises NameTaken (the user name or the identity), UnknownGroup.
        """
        async with self._database.transaction() as connection:
            return await _create(connection, account, default_group)

    async def create_first(self, account: NewAccount, *, default_group: str) -> bool:
        """Create the very first user, and return whether that succeeded: it fails if any user exists.

        Of several concurrent calls, only one succeeds.
        """
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_ADMINISTRATORS)
            if await connection.fetchval("select exists (select from users)"):
                return False
            await _create(connection, account, default_group)
            return True

    async def promote_first(self, user_id: int) -> bool:
        """Make the user an administrator if no active one exists. Only one of several concurrent calls succeeds."""
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_ADMINISTRATORS)
            return await connection.execute(_PROMOTE_FIRST, user_id) == "UPDATE 1"

    async def has_users(self) -> bool:
        return await self._database.value("select exists (select from users)")

    async def all(self) -> Sequence[Account]:
        rows = await self._database.fetch(_ALL)
        return [_account(row) for row in rows]

    async def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return all user names and all group names, each sorted. Raises DatabaseUnavailable."""
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
        """Change the given properties; None leaves a property unchanged. Returns False if there is no such user.

        Raises last_administrator, and service_account when setting a service account's password.
        """
        change = AccountChange(
            is_active=is_active, is_admin=is_admin, password_hash=password_hash, ends_tokens=ends_tokens
        )
        async with self._database.transaction() as connection, administrator_remains(connection):
            if password_hash is not None:
                row = await connection.fetchrow(_LOGIN_KIND, username_key)
                if row is not None and row["is_service_account"]:
                    raise service_account(username_key)
            return await _change(connection, username_key, change) is not None

    async def update(self, username_key: str, change: AccountChange) -> MembershipChanges | None:
        """Make all of these changes, or none if one is refused. Returns None if there is no such user.

        Raises last_administrator, UnknownGroup, and, when setting a password, service_account, external_user.
        """
        async with self._database.transaction() as connection, administrator_remains(connection):
            if change.password_hash is not None and (row := await connection.fetchrow(_LOGIN_KIND, username_key)):
                if row["is_service_account"]:
                    raise service_account(username_key)
                if row["is_external"]:
                    raise external_user(username_key)
            user_id = await _change(connection, username_key, change)
            if user_id is None:
                return None
            if change.groups is None:
                return MembershipChanges()
            ids = [*(await _locked_groups(connection, change.groups)).values()]
            left = await connection.fetch(_LEAVE, user_id, ids)
            joined = await connection.fetch(_JOIN, user_id, ids)
            return MembershipChanges(
                tuple(sorted(row["name"] for row in joined)), tuple(sorted(row["name"] for row in left))
            )

    async def details(self, username_key: str) -> AccountDetails | None:
        row = await self._database.row(_DETAILS, username_key)
        if row is None:
            return None
        identities = tuple(map(ExternalIdentity, row["issuers"], row["subjects"]))
        return AccountDetails(_account(row), row["is_administrator"], identities)

    async def end_all_tokens(self) -> int:
        """Invalidate all tokens of all users. Returns the number of users."""
        return await self._database.execute("update users set token_epoch = token_epoch + 1")

    async def ensure_group(self, name: str, rights: Sequence[str]) -> None:
        """Create the group with these rights. An existing group keeps its own rights."""
        await self._database.execute(_NEW_GROUP, name, list(rights))

    async def link_first(self, user_id: int, identity: ExternalIdentity) -> bool:
        """Link a user who has no password and no identity and is neither administrator nor service account.

        Returns False if the user no longer meets these conditions, or if the identity is linked to another user.
        """
        async with self._database.transaction() as connection:
            if await connection.fetchval(_FREE_USER, user_id) is None:
                return False
            # A second statement gets a new snapshot, so it sees links that were created while the first waited.
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
        raise NameTaken(f"User {account.username.shown} already exists.")
    groups = await _locked_groups(connection, account.groups, default_group)
    await connection.execute(
        "insert into group_members (user_id, group_id) select $1, unnest($2::bigint[]) on conflict do nothing",
        user_id,
        list(groups.values()),
    )
    if identity := account.identity:
        linked = await connection.fetchval(_LINK, identity.issuer, identity.subject, user_id, account.by_administrator)
        if not linked:
            raise NameTaken(f"The subject {identity.subject} is already linked to another user.")
    return user_id


async def _locked_groups(connection: Connection, names: Sequence[str], *optional: str) -> dict[str, int]:
    """Return the ids of these groups by name, and those of the `optional` ones that exist. Raises UnknownGroup.

    The lock prevents the groups from being deleted before memberships are written.
    """
    rows = await connection.fetch(
        "select id, name from groups where name = any($1::text[]) order by id for key share", [*optional, *names]
    )
    groups = {row["name"]: row["id"] for row in rows}
    for name in names:
        if name not in groups:
            raise UnknownGroup(name)
    return groups


async def _change(connection: Connection, username_key: str, change: AccountChange) -> int | None:
    """Change everything but the groups. Returns the user's id, or None if there is no such user."""
    if change.is_active is False:
        await connection.execute(_END_GRANTS, username_key)
    return await connection.fetchval(
        _CHANGE,
        username_key,
        change.is_active,
        change.is_admin,
        change.password_hash,
        int(change.ends_tokens),
        change.first_name,
        change.last_name,
        change.email,
    )


def _account(row: Row) -> Account:
    stored = {name: row[name] for name in Account.__slots__}
    return Account(**cast("dict[str, Any]", {**stored, "groups": tuple(row["groups"])}))
