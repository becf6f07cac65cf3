"""Lists and administers users, groups and linked identities."""

import asyncio
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.model import preferences_of
from queryserver.identity.passwords import LoginThrottle, Passwords
from queryserver.identity.repository import (
    AccountChange,
    AccountDetails,
    AccountRepository,
    MembershipChanges,
    NewAccount,
    administrator_remains,
)
from queryserver.platform.database import Connection, Database
from queryserver.platform.settings.desktop import AuthSettings


@dataclass(frozen=True, slots=True)
class UserSummary:
    """A user in a list. `groups` are sorted names; `is_admin` is true by own flag or by group."""

    id: int
    username: str
    groups: tuple[str, ...]
    is_active: bool
    is_admin: bool
    is_service_account: bool
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    last_login: datetime | None = None


@dataclass(frozen=True, slots=True)
class GroupName:
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class UserDetails:
    """A user with details. `groups` are sorted by name; empty unless requested."""

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    last_login: datetime | None
    groups: tuple[GroupName, ...] = ()


# Sorted by code point, whatever the database's collation.
_BY_NAME = 'order by u.username_key collate "C"'

# `username_key` is case-folded only if names ignore case; otherwise the database's lower() is used for matching.
_MATCHING = f"""
    with matching as materialized (
        select u.id, u.username, u.username_key, u.is_active, u.is_admin, u.is_service_account, u.first_name,
            u.last_name, u.email, u.last_login
        from users u
        where ($1::text is null or u.username_key = $1 or lower(u.username) = $2)
            and ($3::bool is null or u.is_active = $3)
            and ($7::bool is null or u.is_service_account = $7)
            and ($8::text is null or strpos(u.username_key, $8) > 0 or strpos(lower(u.username), $9) > 0
                or strpos(lower(u.first_name || ' ' || u.last_name), $9) > 0 or strpos(lower(u.email), $9) > 0)
            and ($4::text[] is null or u.id in (
                select m.user_id from group_members m join groups g on g.id = m.group_id where g.name = any($4)))
    ), page as (
        select u.* from matching u {_BY_NAME} limit $6 offset $5
    ), membership as (
        select m.user_id, array_agg(g.name order by g.name collate "C") as groups,
            bool_or(a.group_id is not null) as admin
        from page p join group_members m on m.user_id = p.id join groups g on g.id = m.group_id
            left join group_rights a on a.group_id = g.id and a."right" = 'admin'
        group by m.user_id
    )
    select c.count, u.id, u.username, u.is_active, u.is_admin or coalesce(m.admin, false) as is_admin,
        u.is_service_account, u.first_name, u.last_name, u.email, u.last_login,
        coalesce(m.groups, array[]::text[]) as groups
    from (select count(*) from matching) c
        left join page u on true left join membership m on m.user_id = u.id
    {_BY_NAME}
"""

_DETAILS = "u.id, u.username, u.first_name, u.last_name, u.email, u.last_login"

_SUGGESTED = f"""
    select {_DETAILS} from users u
    where u.is_active and (strpos(u.username_key, $1) > 0 or strpos(lower(u.username), $2) > 0)
        and u.id is distinct from $3
    {_BY_NAME} limit $4
"""

_GROUPS_OF = """
    select m.user_id, g.id, g.name from group_members m join groups g on g.id = m.group_id
    where m.user_id = any($1::bigint[]) order by g.name collate "C"
"""

_GROUP_NAMES = """
    select g.id, g.name from groups g
    where $1::bigint is null or exists (select from group_members m where m.group_id = g.id and m.user_id = $1)
    order by g.name collate "C"
"""

_ROWS_PER_SLICE = 2000
"""Number of rows that are converted before other tasks may run. Converting them takes about 6 ms."""

MAX_PAGE = 1000


class Users:
    """Lists users and groups by name, and stores preferences. All calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def matching(
        self,
        *,
        username: str | None = None,
        typed: str | None = None,
        groups: tuple[str, ...] | None = None,
        is_active: bool | None = None,
        is_service_account: bool | None = None,
        page: int | None = None,
        limit: int | None = None,
    ) -> tuple[int, Sequence[UserSummary]]:
        """Return the number of matching users and one page of them; all users if `page` and `limit` are None.

        `username` is matched case-insensitively, and `groups` selects members of any of the groups. `typed` is a part
        of the user name, of the first and last name, or of the e-mail address, ignoring case. A filter that is None
        matches all users.
        """
        offset, size = 0, limit
        if page is not None or limit is not None:
            size = limit or MAX_PAGE
            offset = min(((page or 1) - 1) * size, 2**62)  # must fit into a bigint
        # Names are stored in NFKC.
        name = None if username is None else unicodedata.normalize("NFKC", username)
        part = None if typed is None else unicodedata.normalize("NFKC", typed)
        rows = await self._database.fetch(
            _MATCHING,
            None if name is None else name.casefold(),
            None if name is None else name.lower(),
            is_active,
            None if groups is None else list(groups),
            offset,
            size,
            is_service_account,
            None if part is None else part.casefold(),
            None if part is None else part.lower(),
        )
        users: list[UserSummary] = []
        for start in range(0, len(rows), _ROWS_PER_SLICE):
            users += [
                UserSummary(
                    id=row["id"],
                    username=row["username"],
                    groups=tuple(row["groups"]),
                    is_active=row["is_active"],
                    is_admin=row["is_admin"],
                    is_service_account=row["is_service_account"],
                    first_name=row["first_name"],
                    last_name=row["last_name"],
                    email=row["email"],
                    last_login=row["last_login"],
                )
                for row in rows[start : start + _ROWS_PER_SLICE]
                if row["id"] is not None  # for a page past the end, the only row contains just the count
            ]
            await asyncio.sleep(0)
        return rows[0]["count"], users

    async def change_preferences(self, user_id: int, changes: Mapping[str, str]) -> model.Preferences | None:
        """Replace the given preferences and return the result; None if the user no longer exists."""
        change = "update users set preferences = preferences || $2 where id = $1 returning preferences"
        stored = await self._database.value(change, user_id, dict(changes))
        return None if stored is None else preferences_of(stored)

    async def with_ids(self, ids: Sequence[int]) -> Sequence[UserDetails]:
        """Return the users with these ids, each once, sorted by name. Unknown ids are skipped."""
        rows = await self._database.fetch(
            f"select {_DETAILS} from users u where u.id = any($1::bigint[]) {_BY_NAME}", list(ids)
        )
        return [UserDetails(*row) for row in rows]

    async def completions(
        self,
        caller: model.User,
        typed: str,
        *,
        count: int,
        with_groups: bool,
        with_caller: bool,
        only_groups_of_caller: bool,
    ) -> tuple[Sequence[UserDetails], Sequence[GroupName]]:
        """Return active users and groups whose names contain `typed`, ignoring case; at most `count` of each.

        `with_groups` adds the groups of each user, `with_caller` includes the caller, and `only_groups_of_caller`
        limits the returned groups to those of the caller.
        """
        text = unicodedata.normalize("NFKC", typed)
        without = None if with_caller else caller.id
        users = await self._database.fetch(_SUGGESTED, text.casefold(), text.lower(), without, count)
        groups: dict[int, list[GroupName]] = {}
        if with_groups:
            for row in await self._database.fetch(_GROUPS_OF, [row["id"] for row in users]):
                groups.setdefault(row["user_id"], []).append(GroupName(row["id"], row["name"]))
        # Compared in Python, because with the collation C lower() changes ASCII letters only. There are few groups.
        names = await self._database.fetch(_GROUP_NAMES, caller.id if only_groups_of_caller else None)
        return (
            [UserDetails(*row, groups=tuple(groups.get(row["id"], ()))) for row in users],
            [GroupName(*row) for row in names if text.casefold() in row["name"].casefold()][:count],
        )


MAX_PASSWORD_BYTES = 1024
"""The maximum length of a password that a login accepts (Contract platform 3.2)."""

DEFAULT_RIGHTS = (
    "filebrowser.s3_access",
    "filebrowser.abfs_access",
    "filebrowser.ofs_access",
    "filebrowser.file_access",
    "importer",
    "download",
    "metadata",
)
"""The initial rights of the default group (Contract platform 4.3)."""


class Accounts:
    """Creates and changes users. Names are normalized by UsernameRule; invalid names raise InvalidUsername."""

    def __init__(
        self, records: AccountRepository, passwords: Passwords, throttle: LoginThrottle, auth: AuthSettings
    ) -> None:
        self.all = records.all
        self.end_all_tokens = records.end_all_tokens
        self._records = records
        self._passwords = passwords
        self._throttle = throttle
        self._auth = auth
        self._usernames = model.UsernameRule.of(auth)

    async def ensure_default_group(self) -> None:
        """Create the group that new users join, with its initial rights. An existing group keeps its own rights."""
        await self._records.ensure_group(self._auth.default_user_group, DEFAULT_RIGHTS)

    async def create(
        self,
        person: model.AuthenticatedUser,
        password: str,
        *,
        identity: model.ExternalIdentity | None = None,
        is_admin: bool = False,
        is_service_account: bool = False,
    ) -> model.Username:
        """Create a user. The password is ignored for service accounts and users with an external identity.

        Raises InvalidPassword, NameTaken (the user name or the identity), UnknownGroup.
        """
        username = self._usernames.read(person.username)
        account = NewAccount(
            username,
            None if identity or is_service_account else await self.hashed(password, username.shown),
            is_admin=is_admin,
            is_service_account=is_service_account,
            first_name=person.first_name,
            last_name=person.last_name,
            email=person.email,
            groups=tuple(person.groups or ()),
            identity=identity,
            by_administrator=identity is not None,
        )
        await self._records.create(account, default_group=self._auth.default_user_group)
        return username

    async def create_first(self, name: str, password: str) -> bool:
        """Create an administrator if no users exist. Only one of several concurrent calls succeeds.

        Raises InvalidPassword.
        """
        if await self._records.has_users():
            return False  # checked first: every start passes the same password, which newer, stricter rules may reject
        username = self._usernames.read(name)
        account = NewAccount(username, await self.hashed(password, username.shown), is_admin=True)
        return await self._records.create_first(account, default_group=self._auth.default_user_group)

    async def disable(self, name: str) -> None:
        """Block logins and invalidate all tokens of the user. Raises unknown_user, last_administrator."""
        _require_known(name, await self._records.change(self._key(name), is_active=False, ends_tokens=True))

    async def enable(self, name: str) -> None:
        """Allow logins again. Earlier tokens remain invalid. Raises unknown_user."""
        _require_known(name, await self._records.change(self._key(name), is_active=True))

    async def update(self, name: str, change: AccountChange) -> MembershipChanges:
        """Make all of these changes, or none if one is refused. Returns which groups the user has joined and left.

        Raises unknown_user, last_administrator, UnknownGroup, service_account, external_user.
        """
        changes = await self._records.update(self._key(name), change)
        if changes is None:
            raise errors.unknown_user(name)
        return changes

    async def details(self, name: str) -> AccountDetails:
        """Return one user. Raises unknown_user."""
        details = await self._records.details(self._key(name))
        if details is None:
            raise errors.unknown_user(name)
        return details

    async def set_admin(self, name: str, *, admin: bool) -> None:
        """Set or clear the administrator flag. Raises unknown_user, last_administrator."""
        _require_known(name, await self._records.change(self._key(name), is_admin=admin))

    async def set_password(self, name: str, password: str) -> None:
        """Replace the password and invalidate all tokens. Raises unknown_user, InvalidPassword, service_account."""
        new = await self.hashed(password, name)
        _require_known(name, await self._records.change(self._key(name), password_hash=new, ends_tokens=True))

    async def unlock(self, name: str) -> None:
        """Reset the failed logins of a name. The user need not exist."""
        await self._throttle.unlock(self._key(name))

    async def end_tokens(self, name: str) -> None:
        """Invalidate all tokens of a user. Raises unknown_user."""
        _require_known(name, await self._records.change(self._key(name), ends_tokens=True))

    async def hashed(self, password: str, name: str) -> str:
        """Check a new password of the user with this name, and return its hash. Raises InvalidPassword."""
        least = self._auth.password_min_length
        if len(password) < least:
            raise errors.InvalidPassword(f"The password must have at least {least} characters.")
        if len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
            raise errors.InvalidPassword(f"The password must have at most {MAX_PASSWORD_BYTES} bytes.")
        if self._auth.password_min_score:
            strength = await self._passwords.strength(password, name=name)
            if strength.score < self._auth.password_min_score:
                raise errors.InvalidPassword(
                    f"The password is easy to guess. {strength.reason}".rstrip(" .")
                    + ". Choose several unrelated words, or random letters and digits."
                )
        return await self._passwords.hash(password)

    def _key(self, name: str) -> str:
        return self._usernames.read(name).key


def _require_known(name: str, is_known: bool) -> None:
    if not is_known:
        raise errors.unknown_user(name)


MAX_NAME_LENGTH = 150


@dataclass(frozen=True, slots=True)
class GroupGrants:
    name: str
    rights: tuple[str, ...]
    """Sorted."""
    members: int


# The lock prevents the group from being deleted before the membership or right is written.
_GROUP = "select id from groups where name = $1 for key share"

_NEW_GROUP = "insert into groups (name) values ($1) on conflict (name) do nothing returning id"

_GRANT = """
    insert into group_rights (group_id, "right") select $1, unnest($2::text[]) on conflict do nothing
"""

_REVOKE = """delete from group_rights where group_id = $1 and "right" = any($2::text[])"""

_GRANTS = """
    select g.name,
        array(select r."right" from group_rights r where r.group_id = g.id order by r."right" collate "C") as rights,
        (select count(*) from group_members m where m.group_id = g.id) as members
    from groups g where $1::text is null or g.name = $1 order by g.name collate "C"
"""


class Groups:
    """Creates and changes groups. Repeating a membership or right change is not an error.

    User names are normalized by UsernameRule; group names must match exactly. All calls raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, auth: AuthSettings) -> None:
        self._database = database
        self._usernames = model.UsernameRule.of(auth)
        self.default = auth.default_user_group
        """The name of the group that new users join."""

    async def create(self, name: str, rights: Collection[str] = ()) -> None:
        """Create a group. Raises invalid_group_name, invalid_right, NameTaken."""
        # Group lists are separated by commas, and command output by tabs.
        is_printable = name.isprintable() and name == name.strip() and "," not in name
        if not 0 < len(name) <= MAX_NAME_LENGTH or not is_printable:
            raise errors.invalid_group_name(
                "A group name must have 1 to 150 printable characters, without commas or leading or trailing blanks."
            )
        given = [model.read_right(right) for right in rights]
        async with self._database.transaction() as connection:
            group_id = await connection.fetchval(_NEW_GROUP, name)
            if group_id is None:
                raise errors.NameTaken(f"Group {name} already exists.")
            await connection.execute(_GRANT, group_id, given)

    async def delete(self, name: str) -> None:
        """Delete a group. Raises UnknownGroup, default_group_kept, last_administrator."""
        if name == self.default:
            raise errors.default_group_kept(f"Group {name} is the default group of new users and cannot be deleted.")
        async with self._database.transaction() as connection, administrator_remains(connection):
            if await connection.execute("delete from groups where name = $1", name) == "DELETE 0":
                raise errors.UnknownGroup(name)

    async def add(self, username: str, group: str) -> None:
        """Add a user to a group. Raises InvalidUsername, unknown_user, UnknownGroup."""
        await self._change_member(
            username, group, "insert into group_members (user_id, group_id) values ($1, $2) on conflict do nothing"
        )

    async def remove(self, username: str, group: str) -> None:
        """Remove a user from a group. Raises InvalidUsername, unknown_user, UnknownGroup, last_administrator."""
        await self._change_member(username, group, "delete from group_members where user_id = $1 and group_id = $2")

    async def grant(self, group: str, right: str) -> None:
        """Grant a right to a group. Raises invalid_right, UnknownGroup."""
        await self.change_rights(group, grant=(right,))

    async def ungrant(self, group: str, right: str) -> None:
        """Revoke a right from a group. Raises invalid_right, UnknownGroup, last_administrator."""
        await self.change_rights(group, revoke=(right,))

    async def change_rights(self, group: str, *, grant: Collection[str] = (), revoke: Collection[str] = ()) -> None:
        """Grant and revoke rights of a group together. Raises invalid_right, UnknownGroup, last_administrator."""
        given, taken = ([model.read_right(right) for right in rights] for rights in (grant, revoke))
        async with self._database.transaction() as connection, administrator_remains(connection):
            group_id = await _group_id(connection, group)
            await connection.execute(_GRANT, group_id, given)
            await connection.execute(_REVOKE, group_id, taken)

    async def grants(self, group: str | None = None) -> Sequence[GroupGrants]:
        """Return the given group, or all groups sorted by name. Raises UnknownGroup."""
        rows = await self._database.fetch(_GRANTS, group)
        if group is not None and not rows:
            raise errors.UnknownGroup(group)
        return [GroupGrants(row["name"], tuple(row["rights"]), row["members"]) for row in rows]

    async def _change_member(self, username: str, group: str, change: str) -> None:
        key = self._usernames.read(username).key
        async with self._database.transaction() as connection, administrator_remains(connection):
            user_id = await _user_id(connection, key)
            await connection.execute(change, user_id, await _group_id(connection, group))


async def _group_id(connection: Connection, name: str) -> int:
    group_id = await connection.fetchval(_GROUP, name)
    if group_id is None:
        raise errors.UnknownGroup(name)
    return group_id


def checked_identity(auth: AuthSettings, name: str, issuer: str, subject: str | None = None) -> model.ExternalIdentity:
    """Return the identity of a subject at a configured issuer. The subject defaults to the user name.

    Raises InvalidUsername, InvalidParameter (unknown issuer or invalid subject).
    """
    username = model.UsernameRule.of(auth).read(name)
    issuers = {model.plug_in_issuer(one) for one in (*auth.backend, *auth.authenticators) if model.is_import_path(one)}
    if model.LDAP in auth.backend:
        issuers.add(model.LDAP)
    if auth.jwt.key_server_url:
        issuers.add(model.jwt_issuer(auth.jwt.issuer))
    if issuer not in issuers and auth.jwt.issuer != model.ANY:
        known = ", ".join(sorted(issuers)) or "none"
        raise errors.InvalidParameter(f"issuer: {issuer} is not in the settings. Configured issuers: {known}.")
    identity = model.identity_of(issuer, username.shown if subject is None else subject)
    text = identity.subject
    if not text.strip() or len(text) > model.IDENTITIES_MAX_LENGTH or not text.isprintable():
        raise errors.InvalidParameter(f"subject must have 1 to {model.IDENTITIES_MAX_LENGTH} printable characters.")
    return identity


@dataclass(frozen=True, slots=True)
class LinkedIdentity:
    username: str
    issuer: str
    subject: str
    by_administrator: bool
    """Whether an administrator created the link; otherwise the identity's first call did."""
    linked_at: datetime


_LINK = """
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


class Identities:
    """Links users to external identities. User names are normalized by UsernameRule.

    All calls raise DatabaseUnavailable.
    """

    def __init__(self, database: Database, auth: AuthSettings) -> None:
        self._database = database
        self._auth = auth
        self._usernames = model.UsernameRule.of(auth)

    async def link(self, name: str, issuer: str, subject: str | None = None) -> model.ExternalIdentity:
        """Link an issuer's subject to this user, effective from the subject's next call. Idempotent.

        The subject defaults to the user name. Raises InvalidUsername, InvalidParameter (unknown issuer or invalid
        subject), unknown_user, service_account, NameTaken.
        """
        identity = checked_identity(self._auth, name, issuer, subject)
        async with self._database.transaction() as connection:
            user_id = await _user_id(connection, self._usernames.read(name).key)
            if await connection.fetchval("select is_service_account from users where id = $1", user_id):
                raise errors.service_account(name)
            if not await connection.fetchval(_LINK, identity.issuer, identity.subject, user_id):
                raise errors.NameTaken(f"The subject {identity.subject} is already linked to another user.")
        return identity

    async def unlink(self, name: str | None, *, issuer: str | None = None, subject: str | None = None) -> int:
        """Remove the links of one user or of all users, optionally only those of one issuer or subject.

        Returns the number of removed links.

        Raises InvalidUsername.
        """
        key = None if name is None else self._usernames.read(name).key
        if issuer is not None and subject is not None:
            subject = model.identity_of(issuer, subject).subject
        return await self._database.execute(_UNLINK, key, issuer, subject)

    async def all(self, name: str | None = None) -> Sequence[LinkedIdentity]:
        """Return the links of one user or of all users, sorted by user name, issuer and subject. Raises
        InvalidUsername.
        """
        key = None if name is None else self._usernames.read(name).key
        return [LinkedIdentity(*row) for row in await self._database.fetch(_LINKED, key)]


async def _user_id(connection: Connection, username_key: str) -> int:
    """Return the user's id and lock the row against deletion until the end of the transaction."""
    user_id = await connection.fetchval("select id from users where username_key = $1 for key share", username_key)
    if user_id is None:
        raise errors.unknown_user(username_key)
    return user_id


class UserDirectory(Protocol):
    async def user(self, user_id: int) -> model.User | None:
        """Return an active user with rights and groups; None if disabled or deleted. Raises DatabaseUnavailable."""
        ...

    async def active(self, user_ids: Collection[int]) -> AbstractSet[int]:
        """Return which of these users are neither disabled nor deleted. Raises DatabaseUnavailable."""
        ...
