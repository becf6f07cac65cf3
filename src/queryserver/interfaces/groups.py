"""Groups: who is in them, and what they may."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupGrants:
    """A group with its rights and how many users are in it."""

    name: str
    rights: tuple[str, ...]
    """In order."""
    members: int


class GroupRecords(Protocol):
    """Groups and memberships. Each call is one transaction; all raise DatabaseUnavailable.

    Changes say whether they changed anything. Whatever would leave no active administrator raises last_administrator.
    """

    async def create(self, name: str) -> bool:
        """Make a group without rights; False when there is one of that name."""
        ...

    async def delete(self, name: str) -> bool:
        """Take a group away with its memberships and rights; False when there is none. Raises last_administrator."""
        ...

    async def add(self, username_key: str, group: str) -> bool:
        """Make a user a member. Raises unknown_user, UnknownGroup."""
        ...

    async def remove(self, username_key: str, group: str) -> bool:
        """End a membership. Raises unknown_user, UnknownGroup, last_administrator."""
        ...

    async def grant(self, group: str, right: str) -> bool:
        """Give a group a right. Raises UnknownGroup."""
        ...

    async def ungrant(self, group: str, right: str) -> bool:
        """Take a right from a group. Raises UnknownGroup, last_administrator."""
        ...

    async def grants(self, group: str | None) -> Sequence[GroupGrants]:
        """One group, or all in order. Raises UnknownGroup."""
        ...
