"""Records of users, of ended tokens and of failed logins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from queryserver.domain.identities import ExternalIdentity
from queryserver.domain.user import Preferences, User
from queryserver.domain.usernames import Username


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


class AccountRecords(Protocol):
    """Users and groups. Each call is one transaction; all raise DatabaseUnavailable."""

    async def login_of(self, username_key: str) -> StoredLogin | None:
        """The user of that name."""
        ...

    async def record_login(self, user_id: int) -> None:
        """Set the time of the last login to now."""
        ...

    async def replace_hash(self, user_id: int, *, old: str, new: str) -> None:
        """Keep a fresh hash of an unchanged password; nothing happens when the password has changed meanwhile."""
        ...

    async def create(self, account: NewAccount, *, default_group: str) -> int:
        """The id of the new user, who joins the default group too.

        Raises NameTaken, UnknownGroup, NameTaken.
        """
        ...

    async def create_first(self, account: NewAccount, *, default_group: str) -> bool:
        """Make the very first user; False when there is one already, also when several try at once."""
        ...

    async def promote_first(self, user_id: int) -> bool:
        """Make the user an administrator when there is no active one; of several at once one succeeds."""
        ...

    async def has_users(self) -> bool:
        """Whether there is any user."""
        ...

    async def all(self) -> Sequence[Account]:
        """Every user, by name."""
        ...

    async def set_active(self, username_key: str, *, active: bool) -> bool:
        """Enable, or disable and end all tokens. False: no such user. Raises last_administrator."""
        ...

    async def set_admin(self, username_key: str, *, admin: bool) -> bool:
        """Set the administrator flag. False: no such user. Raises last_administrator."""
        ...

    async def set_password(self, username_key: str, password_hash: str) -> bool:
        """Replace the password and end all tokens. False: no such user."""
        ...

    async def end_tokens(self, username_key: str | None) -> int:
        """End all tokens of one user, or of everybody; how many users that were."""
        ...

    async def ensure_group(self, name: str, rights: Sequence[str]) -> None:
        """Make the group with these rights if there is none of that name; one that exists keeps its own."""
        ...


class PreferenceRecords(Protocol):
    """What users want where a call does not say it."""

    async def change(self, user_id: int, changes: Mapping[str, str]) -> Preferences | None:
        """Replace the preferences that are named; None: there is no such user any more. Raises DatabaseUnavailable."""
        ...


class AccountNames(Protocol):
    """Names of users and groups."""

    async def names(self) -> tuple[Sequence[str], Sequence[str]]:
        """All users and all groups, each in order. Raises DatabaseUnavailable."""
        ...


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


class TokenRecords(Protocol):
    """Ended and exchanged tokens. All calls raise DatabaseUnavailable."""

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        """The user behind a token; None when deleted."""
        ...

    async def revoke(self, token_id: str, *, keep_until: datetime) -> None:
        """Refuse a family, or one token by its jti. Repeating it is harmless."""
        ...

    async def end_all(self, user_id: int, *, epoch: int) -> None:
        """End all tokens of a user, unless that happened since the token of this epoch was issued."""
        ...

    async def exchange(self, jti: str, *, expires_at: datetime) -> timedelta | None:
        """Note that a refresh token is exchanged; None at the first time, later the time since then."""
        ...

    async def exchanged_for(self, jti: str) -> timedelta | None:
        """The time since a refresh token was exchanged; None when it was not."""
        ...


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


class CallerRecords(Protocol):
    """Users who prove by other means than an own token who they are. All calls raise DatabaseUnavailable."""

    async def caller(self, key: CallerKey) -> KnownCaller | None:
        """The user that the identity is linked to, else the user of the name; None: there is none."""
        ...

    async def note_call(self, user_id: int) -> None:
        """Set the time of the last login to now, unless it is within the hour."""
        ...

    async def join_only(self, user_id: int, groups: Sequence[str], *, default_group: str) -> frozenset[str]:
        """Put a user into these groups and the default group, and take others away; the groups after that.

        Unknown names are left out. Groups that give the right `admin` are neither given nor taken.
        """
        ...


class LoginFailures(Protocol):
    """Failed logins, counted for all servers together. Keys are digests. All calls raise DatabaseUnavailable."""

    async def blocked(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """How long the first free attempt is away; None when no key has reached its limit."""
        ...

    async def add(self, limits: Mapping[str, int], window: timedelta) -> timedelta | None:
        """Count one failure for each key, unless one had reached its limit: then the time as in `blocked`."""
        ...

    async def clear(self, key: str) -> None:
        """Forget the failures of a key."""
        ...

    async def clear_below(self, key: str) -> None:
        """Forget the failures of all keys that begin with this one and a blank."""
        ...


class LoginNetworks(Protocol):
    """Networks that users have logged in from within 30 days. Both parts are digests. Raises DatabaseUnavailable."""

    async def is_known(self, name: str, network: str) -> bool:
        """Whether a user of that name has logged in from there."""
        ...

    async def note(self, name: str, network: str) -> None:
        """A login has succeeded. The newest networks of a name are kept, a bounded number."""
        ...


class Facts(Protocol):
    """Facts about this deployment."""

    async def keep(self, name: str, value: str) -> str:
        """The value kept under a name; `value` becomes it when there is none. Raises DatabaseUnavailable."""
        ...
