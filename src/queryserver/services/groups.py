"""Groups and their administration (Contract platform 4.3, 12)."""

from collections.abc import Sequence

from queryserver.db.accounts import GroupRepository
from queryserver.domain.errors.base import NameTaken, UnknownGroup, default_group_kept, invalid_group_name
from queryserver.domain.rights import read_right
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.groups import GroupGrants

MAX_NAME_LENGTH = 150


class Groups:
    """Makes and changes groups; what is so already stays as it is.

    User names are read by the case rule, names of groups are taken to the letter.
    """

    def __init__(self, records: GroupRepository, usernames: UsernameRule, default_group: str) -> None:
        self._records = records
        self._usernames = usernames
        self._default_group = default_group

    async def create(self, name: str) -> None:
        """Make a group without rights. Raises invalid_group_name, NameTaken."""
        if not _can_be_listed(name):
            raise invalid_group_name(
                "A group name has 1 to 150 printable characters without comma, and no blank at its ends."
            )
        if not await self._records.create(name):
            raise NameTaken(f"Group {name} exists already.")

    async def delete(self, name: str) -> None:
        """Take a group away. Raises UnknownGroup, default_group_kept, last_administrator."""
        if name == self._default_group:
            raise default_group_kept(f"Group {name} is the one that new users join, and cannot be deleted.")
        if not await self._records.delete(name):
            raise UnknownGroup(name)

    async def add(self, username: str, group: str) -> None:
        """Make a user a member. Raises InvalidUsername, unknown_user, UnknownGroup."""
        await self._records.add(self._usernames.read(username).key, group)

    async def remove(self, username: str, group: str) -> None:
        """End a membership. Raises InvalidUsername, unknown_user, UnknownGroup, last_administrator."""
        await self._records.remove(self._usernames.read(username).key, group)

    async def grant(self, group: str, right: str) -> None:
        """Give a group a right. Raises invalid_right, UnknownGroup."""
        await self._records.grant(group, read_right(right))

    async def ungrant(self, group: str, right: str) -> None:
        """Take a right from a group. Raises invalid_right, UnknownGroup, last_administrator."""
        await self._records.ungrant(group, read_right(right))

    async def grants(self, group: str | None = None) -> Sequence[GroupGrants]:
        """One group, or all in order. Raises UnknownGroup."""
        return await self._records.grants(group)


def _can_be_listed(name: str) -> bool:
    """Lists of groups are written with commas between them, and lines of commands with tabs."""
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name == name.strip() and "," not in name
