"""Users and groups as administrators look them up: each call one query, also with tens of thousands of users."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from queryserver.platform.database import Database


@dataclass(frozen=True, slots=True)
class UserSummary:
    """A user in a list. `groups` are names in order; `is_admin` is by flag or by group."""

    id: int
    username: str
    groups: tuple[str, ...]
    is_active: bool
    is_admin: bool


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group, to choose from."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class UserDetails:
    """A user, to choose from or to show. `groups` are in order of their names, and empty where not asked for."""

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    last_login: datetime | None
    groups: tuple[GroupName, ...] = ()


@dataclass(frozen=True, slots=True)
class UserFilter:
    """Which users are wanted; what is None does not count."""

    username: str | None = None
    """Equal without case."""
    groups: tuple[str, ...] | None = None
    """Members of any of them."""
    is_active: bool | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What is typed into a field that completes names. `text` is found anywhere in a name, without case."""

    text: str
    count: int
    with_groups: bool = False
    """Whether users bring their groups."""
    without_user: int | None = None
    """Id of a user who is left out."""
    groups_of: int | None = None
    """Id of the user whose groups alone are wanted."""


# Names are in the order of their characters in every database, whatever its collation.
_BY_NAME = 'order by u.username_key collate "C"'

# The key is folded by Python, lower() by the collation of the database: with the case rule off only it helps.
_MATCHING = f"""
    with matching as materialized (
        select u.id, u.username, u.username_key, u.is_active, u.is_admin from users u
        where ($1::text is null or u.username_key = $1 or lower(u.username) = $2)
            and ($3::bool is null or u.is_active = $3)
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
        coalesce(m.groups, array[]::text[]) as groups
    from (select count(*) from matching) c
        left join page u on true left join membership m on m.user_id = u.id
    {_BY_NAME}
"""

_DETAILS = "u.id, u.username, u.first_name, u.last_name, u.email, u.last_login"

_WITH_IDS = f"select {_DETAILS} from users u where u.id = any($1::bigint[]) {_BY_NAME}"

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


_AT_ONCE = 2000
"""Rows that are made users before others have their turn: about 6 ms."""


class UserListRepository:
    """Looks users up. Everything is ordered by name; all calls raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def matching(
        self, wanted: UserFilter, *, offset: int, limit: int | None
    ) -> tuple[int, Sequence[UserSummary]]:
        """How many match, and those from `offset` on; all of them without a limit."""
        name = wanted.username
        rows = await self._database.fetch(
            _MATCHING,
            None if name is None else name.casefold(),
            None if name is None else name.lower(),
            wanted.is_active,
            None if wanted.groups is None else list(wanted.groups),
            offset,
            limit,
        )
        users: list[UserSummary] = []
        for start in range(0, len(rows), _AT_ONCE):
            # A page past the end is one row that has the count alone.
            users += [_summary(row) for row in rows[start : start + _AT_ONCE] if row["id"] is not None]
            await asyncio.sleep(0)
        return rows[0]["count"], users

    async def with_ids(self, ids: Sequence[int]) -> Sequence[UserDetails]:
        """The users of these ids, each once."""
        return [UserDetails(*row) for row in await self._database.fetch(_WITH_IDS, list(ids))]

    async def suggested_users(self, typed: Suggestion) -> Sequence[UserDetails]:
        """Active users whose names fit."""
        rows = await self._database.fetch(
            _SUGGESTED, typed.text.casefold(), typed.text.lower(), typed.without_user, typed.count
        )
        groups = await self._groups_of([row["id"] for row in rows]) if typed.with_groups else {}
        return [UserDetails(*row, groups=tuple(groups.get(row["id"], ()))) for row in rows]

    async def suggested_groups(self, typed: Suggestion) -> Sequence[GroupName]:
        """Groups whose names fit."""
        # Compared here: in a database with the collation C lower() knows ASCII only. Groups are few.
        wanted = typed.text.casefold()
        rows = await self._database.fetch(_GROUP_NAMES, typed.groups_of)
        return [GroupName(*row) for row in rows if wanted in row["name"].casefold()][: typed.count]

    async def _groups_of(self, user_ids: Sequence[int]) -> dict[int, list[GroupName]]:
        groups: dict[int, list[GroupName]] = {}
        for row in await self._database.fetch(_GROUPS_OF, user_ids):
            groups.setdefault(row["user_id"], []).append(GroupName(row["id"], row["name"]))
        return groups


def _summary(row: asyncpg.Record) -> UserSummary:
    return UserSummary(row["id"], row["username"], tuple(row["groups"]), row["is_active"], row["is_admin"])
