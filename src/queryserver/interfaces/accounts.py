"""Records of users, of ended tokens and of failed logins."""

from dataclasses import dataclass
from datetime import datetime

from queryserver.domain.identities import ExternalIdentity
from queryserver.domain.user import User
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
