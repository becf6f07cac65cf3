"""Users and groups as administrators look them up (Contract platform 6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


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


class UserLists(Protocol):
    """Looks users up. Everything is ordered by name; all calls raise DatabaseUnavailable."""

    async def matching(
        self, wanted: UserFilter, *, offset: int, limit: int | None
    ) -> tuple[int, Sequence[UserSummary]]:
        """How many match, and those from `offset` on; all of them without a limit."""
        ...

    async def with_ids(self, ids: Sequence[int]) -> Sequence[UserDetails]:
        """The users of these ids, each once."""
        ...

    async def suggested_users(self, typed: Suggestion) -> Sequence[UserDetails]:
        """Active users whose names fit."""
        ...

    async def suggested_groups(self, typed: Suggestion) -> Sequence[GroupName]:
        """Groups whose names fit."""
        ...
