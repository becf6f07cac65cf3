"""Users and groups."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from queryserver.db.administrators import ANY_ADMINISTRATOR, TAKE_TURNS, administrator_kept
from queryserver.db.database import Connection, Database
from queryserver.domain.errors import NameTaken, UnknownGroup
from queryserver.domain.identities import ExternalIdentity
from queryserver.interfaces.accounts import Account, NewAccount, StoredLogin

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
    """Users and groups in the service database; see `interfaces.accounts.AccountRecords` and `AccountNames`."""

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
        """Keep a fresh hash of an unchanged password."""
        await self._database.execute(
            "update users set password_hash = $3 where id = $1 and password_hash = $2", user_id, old, new
        )

    async def create(self, account: NewAccount, *, default_group: str) -> int:
        """The id of the new user. Raises NameTaken, UnknownGroup, NameTaken."""
        async with self._database.transaction() as connection:
            return await _create(connection, account, default_group)

    async def create_first(self, account: NewAccount, *, default_group: str) -> bool:
        """Make the very first user; False when there is one already."""
        async with self._database.transaction() as connection:
            await connection.execute(TAKE_TURNS)
            if await connection.fetchval("select exists (select from users)"):
                return False
            await _create(connection, account, default_group)
            return True

    async def promote_first(self, user_id: int) -> bool:
        """Make the user an administrator when there is no active one."""
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
        """All users and all groups, each in order."""
        row = await self._database.row(_NAMES)
        return (row["users"], row["groups"]) if row else ((), ())

    async def set_active(self, username_key: str, *, active: bool) -> bool:
        """Enable, or disable and end all tokens. Raises last_administrator."""
        if active:
            return bool(
                await self._database.execute("update users set is_active = true where username_key = $1", username_key)
            )
        return await self._with_an_administrator_left(
            "update users set is_active = false, token_epoch = token_epoch + 1 where username_key = $1", username_key
        )

    async def set_admin(self, username_key: str, *, admin: bool) -> bool:
        """Set the administrator flag. Raises last_administrator."""
        if admin:
            return bool(
                await self._database.execute("update users set is_admin = true where username_key = $1", username_key)
            )
        return await self._with_an_administrator_left(
            "update users set is_admin = false where username_key = $1", username_key
        )

    async def set_password(self, username_key: str, password_hash: str) -> bool:
        """Replace the password and end all tokens."""
        changed = await self._database.execute(
            "update users set password_hash = $2, token_epoch = token_epoch + 1 where username_key = $1",
            username_key,
            password_hash,
        )
        return bool(changed)

    async def end_tokens(self, username_key: str | None) -> int:
        """End all tokens of one user, or of everybody."""
        return await self._database.execute(
            "update users set token_epoch = token_epoch + 1 where $1::text is null or username_key = $1", username_key
        )

    async def ensure_group(self, name: str, rights: Sequence[str]) -> None:
        """Make the group with these rights if there is none of that name."""
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
