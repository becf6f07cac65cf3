"""Users and groups as administrators look them up (Contract platform 6)."""

from dataclasses import dataclass
from datetime import datetime


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
