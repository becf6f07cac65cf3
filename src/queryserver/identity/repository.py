"""Users and groups, identities of other issuers, and who stays administrator."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import asyncpg

from queryserver.errors.base import NameTaken, UnknownGroup, last_administrator, unknown_user
from queryserver.identity.model import BigNumbers, ExternalIdentity, Preferences, User, Username
from queryserver.platform.database import Connection, Database


@dataclass(frozen=True, slots=True)
class Account:
    """A user as administrators see one."""

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    is_active: bool
    is_admin: bool
    """The flag of the user, whatever the groups give."""
    has_password: bool
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


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """What a login looks at."""

    user_id: int
    username: str
    password_hash: str | None
    is_active: bool
    token_epoch: int


@dataclass(frozen=True, slots=True)
class TokenKey:
    """What the state of a token depends on."""

    user_id: int
    family: str
    jti: str


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The user of a token as the database knows it now."""

    user: User
    is_active: bool
    token_epoch: int
    is_revoked: bool
    """The token itself or its family was ended."""


@dataclass(frozen=True, slots=True)
class CallerKey:
    """Who calls without an own token: an identity of another issuer, and by what its token can be ended.

    `username_key` is that of the user whom the name means where nothing is linked; None: it can mean none.
    """

    identity: ExternalIdentity
    username_key: str | None
    token_id: str = ""


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """A user as the database knows one now, found by a linked identity or else by name."""

    user: User
    is_active: bool
    token_epoch: int
    is_revoked: bool
    """The token was ended."""
    came_lately: bool
    """The last login was within the hour."""
    is_linked: bool
    """The identity is linked to this user; else only the name fits."""
    has_password: bool
    has_identities: bool
    """This or any other identity is linked to the user."""


@dataclass(frozen=True, slots=True)
class GroupGrants:
    """A group with its rights and how many users are in it."""

    name: str
    rights: tuple[str, ...]
    """In order."""
    members: int


@dataclass(frozen=True, slots=True)
class LinkedIdentity:
    """An identity and its user."""

    username: str
    issuer: str
    subject: str
    by_administrator: bool
    """Linked by a command; else at the first call of the identity."""
    linked_at: datetime


TAKE_TURNS = "select pg_advisory_xact_lock(1902341490)"
"""Held to the end of a transaction by whoever makes or unmakes administrators: what it counts stays true until then."""

IS_ADMINISTRATOR = """
    (u.is_admin or exists (
        select from group_members m join group_rights r using (group_id)
        where m.user_id = u.id and r."right" = 'admin'))
"""
"""Of a row `u` of users: by its own flag, or by a group."""

ANY_ADMINISTRATOR = f"select exists (select from users u where u.is_active and {IS_ADMINISTRATOR})"


@asynccontextmanager
async def administrator_kept(connection: Connection) -> AsyncGenerator[None]:
    """Around a change, inside a transaction: raises last_administrator at the end when it has left nobody."""
    await connection.execute(TAKE_TURNS)
    was_any = await connection.fetchval(ANY_ADMINISTRATOR)
    yield
    if was_any and not await connection.fetchval(ANY_ADMINISTRATOR):
        raise last_administrator("The last active administrator cannot be disabled or stop being one.")


_LOGIN = "select id, username, password_hash, is_active, token_epoch from users where username_key = $1"

_INSERT = """
    insert into users (username, username_key, password_hash, is_admin, first_name, last_name, email)
    values ($1, $2, $3, $4, $5, $6, $7)
    on conflict (username_key) do nothing
    returning id
"""

# Locked against deletion until the memberships are written.
_GROUPS = "select id, name from groups where name = any($1::text[]) order by id for key share"

_JOIN = """
    insert into group_members (user_id, group_id)
    select $1, unnest($2::bigint[])
    on conflict do nothing
"""

# False: the identity is linked to another user already.
_LINK = """
    insert into external_identities (issuer, subject, user_id, by_administrator) values ($1, $2, $3, $4)
    on conflict do nothing returning true
"""

_ALL = """
    select u.id, u.username, u.first_name, u.last_name, u.email, u.is_active, u.is_admin,
        u.password_hash is not null as has_password, u.last_login, u.created_at,
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

_NEW_GROUP = """
    with made as (insert into groups (name) values ($1) on conflict do nothing returning id)
    insert into group_rights (group_id, "right") select made.id, unnest($2::text[]) from made
"""


class AccountRepository:
    """Users and groups. Each call is one transaction; all raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def login_of(self, username_key: str) -> StoredLogin | None:
        """The user of that name."""
        row = await self._database.row(_LOGIN, username_key)
        return StoredLogin(*row) if row else None

    async def record_login(self, user_id: int) -> None:
        """Set the time of the last login to now."""
        await self._database.execute("update users set last_login = now() where id = $1", user_id)

    async def replace_hash(self, user_id: int, *, old: str, new: str) -> None:
        """Keep a fresh hash of an unchanged password; nothing happens when the password has changed meanwhile."""
        await self._database.execute(
            "update users set password_hash = $3 where id = $1 and password_hash = $2", user_id, old, new
        )

    async def create(self, account: NewAccount, *, default_group: str) -> int:
        """The id of the new user, who joins the default group too.

        Raises NameTaken, UnknownGroup, NameTaken.
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
        """Whether there is any user."""
        return await self._database.value("select exists (select from users)")

    async def all(self) -> Sequence[Account]:
        """Every user, by name."""
        return [_account(row) for row in await self._database.fetch(_ALL)]

    async def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """All users and all groups, each in order. Raises DatabaseUnavailable."""
        row = await self._database.row(_NAMES)
        return (row["users"], row["groups"]) if row else ((), ())

    async def set_active(self, username_key: str, *, active: bool) -> bool:
        """Enable, or disable and end all tokens. False: no such user. Raises last_administrator."""
        if active:
            return bool(
                await self._database.execute("update users set is_active = true where username_key = $1", username_key)
            )
        return await self._with_an_administrator_left(
            "update users set is_active = false, token_epoch = token_epoch + 1 where username_key = $1", username_key
        )

    async def set_admin(self, username_key: str, *, admin: bool) -> bool:
        """Set the administrator flag. False: no such user. Raises last_administrator."""
        if admin:
            return bool(
                await self._database.execute("update users set is_admin = true where username_key = $1", username_key)
            )
        return await self._with_an_administrator_left(
            "update users set is_admin = false where username_key = $1", username_key
        )

    async def set_password(self, username_key: str, password_hash: str) -> bool:
        """Replace the password and end all tokens. False: no such user."""
        changed = await self._database.execute(
            "update users set password_hash = $2, token_epoch = token_epoch + 1 where username_key = $1",
            username_key,
            password_hash,
        )
        return bool(changed)

    async def end_tokens(self, username_key: str | None) -> int:
        """End all tokens of one user, or of everybody; how many users that were."""
        return await self._database.execute(
            "update users set token_epoch = token_epoch + 1 where $1::text is null or username_key = $1", username_key
        )

    async def ensure_group(self, name: str, rights: Sequence[str]) -> None:
        """Make the group with these rights if there is none of that name; one that exists keeps its own."""
        await self._database.execute(_NEW_GROUP, name, list(rights))

    async def _with_an_administrator_left(self, change: str, username_key: str) -> bool:
        async with self._database.transaction() as connection, administrator_kept(connection):
            return await connection.execute(change, username_key) == "UPDATE 1"


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
    )
    if user_id is None:
        raise NameTaken(f"User {account.username.shown} exists already.")
    groups = {row["name"]: row["id"] for row in await connection.fetch(_GROUPS, [default_group, *account.groups])}
    for name in account.groups:
        if name not in groups:
            raise UnknownGroup(name)
    await connection.execute(_JOIN, user_id, list(groups.values()))
    if account.identity:
        await _link(connection, account.identity, user_id, by_administrator=account.by_administrator)
    return user_id


async def _link(connection: Connection, identity: ExternalIdentity, user_id: int, *, by_administrator: bool) -> None:
    """Raises NameTaken."""
    if not await connection.fetchval(_LINK, identity.issuer, identity.subject, user_id, by_administrator):
        raise NameTaken(f"The subject {identity.subject} is linked to another user already.")


def _account(row: asyncpg.Record) -> Account:
    values: dict[str, Any] = dict(row)
    values["groups"] = tuple(row["groups"])
    return Account(**values)


_BIG_NUMBERS: Mapping[object, BigNumbers] = {"number": "number", "text": "text"}


class PreferenceRepository:
    """What users want where a call does not say it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, user_id: int, changes: Mapping[str, str]) -> Preferences | None:
        """Replace the preferences that are named; None: there is no such user any more. Raises DatabaseUnavailable."""
        stored = await self._database.value(
            "update users set preferences = preferences || $2 where id = $1 returning preferences",
            user_id,
            dict(changes),
        )
        return None if stored is None else preferences_of(cast("Mapping[str, Any]", stored))


def preferences_of(stored: Mapping[str, Any]) -> Preferences:
    """From their stored form; what this version does not know counts as absent."""
    return Preferences(big_numbers=_BIG_NUMBERS.get(stored.get("big_numbers"), Preferences().big_numbers))


# Locked against deletion until the membership or right that needs them is written.
_USER = "select id from users where username_key = $1 for key share"
_GROUP = "select id from groups where name = $1 for key share"

_JOIN_GROUP = "insert into group_members (user_id, group_id) values ($1, $2) on conflict do nothing"
_LEAVE = "delete from group_members where user_id = $1 and group_id = $2"
_GRANT = """insert into group_rights (group_id, "right") values ($1, $2) on conflict do nothing"""
_UNGRANT = """delete from group_rights where group_id = $1 and "right" = $2"""

_GRANTS = """
    select g.name,
        array(select r."right" from group_rights r where r.group_id = g.id order by r."right" collate "C") as rights,
        (select count(*) from group_members m where m.group_id = g.id) as members
    from groups g where $1::text is null or g.name = $1 order by g.name collate "C"
"""


class GroupRepository:
    """Groups and memberships. Each call is one transaction; all raise DatabaseUnavailable.

    Changes say whether they changed anything. Whatever would leave no active administrator raises last_administrator.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str) -> bool:
        """Make a group without rights; False when there is one of that name."""
        return bool(
            await self._database.execute("insert into groups (name) values ($1) on conflict (name) do nothing", name)
        )

    async def delete(self, name: str) -> bool:
        """Take a group away with its memberships and rights; False when there is none. Raises last_administrator."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            return _changed(await connection.execute("delete from groups where name = $1", name))

    async def add(self, username_key: str, group: str) -> bool:
        """Make a user a member. Raises unknown_user, UnknownGroup."""
        async with self._database.transaction() as connection:
            user_id, group_id = await _user(connection, username_key), await _group(connection, group)
            return _changed(await connection.execute(_JOIN_GROUP, user_id, group_id))

    async def remove(self, username_key: str, group: str) -> bool:
        """End a membership. Raises unknown_user, UnknownGroup, last_administrator."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            user_id, group_id = await _user(connection, username_key), await _group(connection, group)
            return _changed(await connection.execute(_LEAVE, user_id, group_id))

    async def grant(self, group: str, right: str) -> bool:
        """Give a group a right. Raises UnknownGroup."""
        async with self._database.transaction() as connection:
            return _changed(await connection.execute(_GRANT, await _group(connection, group), right))

    async def ungrant(self, group: str, right: str) -> bool:
        """Take a right from a group. Raises UnknownGroup, last_administrator."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            return _changed(await connection.execute(_UNGRANT, await _group(connection, group), right))

    async def grants(self, group: str | None) -> Sequence[GroupGrants]:
        """One group, or all in order. Raises UnknownGroup."""
        rows = await self._database.fetch(_GRANTS, group)
        if group is not None and not rows:
            raise UnknownGroup(group)
        return [GroupGrants(row["name"], tuple(row["rights"]), row["members"]) for row in rows]


async def _user(connection: Connection, username_key: str) -> int:
    user_id = await connection.fetchval(_USER, username_key)
    if user_id is None:
        raise unknown_user(username_key)
    return user_id


async def _group(connection: Connection, name: str) -> int:
    group_id = await connection.fetchval(_GROUP, name)
    if group_id is None:
        raise UnknownGroup(name)
    return group_id


def _changed(tag: str) -> bool:
    return not tag.endswith(" 0")


# Locked, so that of two first calls at once, each of another issuer, one is linked.
_FREE_USER = f"""
    select u.id from users u
    where u.id = $1 and u.password_hash is null and not {IS_ADMINISTRATOR}
        and not exists (select from external_identities i where i.user_id = u.id)
    for no key update of u
"""

_LINK_FIRST = """
    insert into external_identities (issuer, subject, user_id)
    select $2, $3, u.id from users u
    where u.id = $1 and not exists (select from external_identities i where i.user_id = u.id)
    on conflict do nothing
"""

_LINK_ANY = """
    insert into external_identities as known (issuer, subject, user_id, by_administrator) values ($1, $2, $3, true)
    on conflict (issuer, subject) do update set by_administrator = true where known.user_id = excluded.user_id
    returning true
"""

_UNLINK = """
    delete from external_identities i using users u
    where u.id = i.user_id and ($1::text is null or u.username_key = $1)
        and ($2::text is null or i.issuer = $2) and ($3::text is null or i.subject = $3)
"""

_LINKED = """
    select u.username, i.issuer, i.subject, i.by_administrator, i.linked_at
    from external_identities i join users u on u.id = i.user_id
    where $1::text is null or u.username_key = $1
    order by u.username_key collate "C", i.issuer collate "C", i.subject collate "C"
"""


class IdentityRepository:
    """Links between identities and users. All calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def link_first(self, user_id: int, identity: ExternalIdentity) -> bool:
        """Link a user who has no password and no identity, and is no administrator.

        False: the user is another by now, or the identity is linked to another user.
        """
        async with self._database.transaction() as connection:
            if await connection.fetchval(_FREE_USER, user_id) is None:
                return False
            # A snapshot of its own: what was linked while this transaction waited for the lock is seen.
            return await connection.execute(_LINK_FIRST, user_id, identity.issuer, identity.subject) == "INSERT 0 1"

    async def link(self, username_key: str, identity: ExternalIdentity) -> bool:
        """Link any user, in the name of an administrator; repeating it is harmless.

        False: the identity is linked to another user. Raises unknown_user.
        """
        async with self._database.transaction() as connection:
            user_id = await connection.fetchval(
                "select id from users where username_key = $1 for key share", username_key
            )
            if user_id is None:
                raise unknown_user(username_key)
            return await connection.fetchval(_LINK_ANY, identity.issuer, identity.subject, user_id) is True

    async def unlink(self, username_key: str | None, *, issuer: str | None = None, subject: str | None = None) -> int:
        """End links; each part that is given narrows which. How many there were."""
        return await self._database.execute(_UNLINK, username_key, issuer, subject)

    async def identities(self, username_key: str | None = None) -> Sequence[LinkedIdentity]:
        """Those of one user, or all, by name of the user, issuer and subject."""
        return [LinkedIdentity(*row) for row in await self._database.fetch(_LINKED, username_key)]
