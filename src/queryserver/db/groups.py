"""Groups, their members and their rights."""

from collections.abc import Sequence

from queryserver.db.administrators import administrator_kept
from queryserver.db.database import Connection, Database
from queryserver.domain.errors import UnknownGroup, unknown_user
from queryserver.interfaces.groups import GroupGrants

# Locked against deletion until the membership or right that needs them is written.
_USER = "select id from users where username_key = $1 for key share"
_GROUP = "select id from groups where name = $1 for key share"

_JOIN = "insert into group_members (user_id, group_id) values ($1, $2) on conflict do nothing"
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
    """See `interfaces.groups.GroupRecords`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, name: str) -> bool:
        """Make a group without rights."""
        return bool(
            await self._database.execute("insert into groups (name) values ($1) on conflict (name) do nothing", name)
        )

    async def delete(self, name: str) -> bool:
        """Take a group away with its memberships and rights."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            return _changed(await connection.execute("delete from groups where name = $1", name))

    async def add(self, username_key: str, group: str) -> bool:
        """Make a user a member."""
        async with self._database.transaction() as connection:
            user_id, group_id = await _user(connection, username_key), await _group(connection, group)
            return _changed(await connection.execute(_JOIN, user_id, group_id))

    async def remove(self, username_key: str, group: str) -> bool:
        """End a membership."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            user_id, group_id = await _user(connection, username_key), await _group(connection, group)
            return _changed(await connection.execute(_LEAVE, user_id, group_id))

    async def grant(self, group: str, right: str) -> bool:
        """Give a group a right."""
        async with self._database.transaction() as connection:
            return _changed(await connection.execute(_GRANT, await _group(connection, group), right))

    async def ungrant(self, group: str, right: str) -> bool:
        """Take a right from a group."""
        async with self._database.transaction() as connection, administrator_kept(connection):
            return _changed(await connection.execute(_UNGRANT, await _group(connection, group), right))

    async def grants(self, group: str | None) -> Sequence[GroupGrants]:
        """One group, or all in order."""
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
