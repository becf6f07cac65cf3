"""The caller."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ADMIN = "admin"
DOWNLOAD = "download"
IMPORTER = "importer"
METADATA = "metadata"
IMPERSONATE = "security.impersonate"
ANY_CONNECTOR = "connector:*"


@dataclass(frozen=True, slots=True)
class ExternalToken:
    """The token of another issuer that a call came with (Contract platform 3.9). Never logged."""

    text: str = field(repr=False)
    expires_at: int
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """An external token as the database keeps it, beside the statement that needs it."""

    content: bytes = field(repr=False)
    expires_at: int
    """Seconds since 1970; from then on nobody uses it."""


BigNumbers: TypeAlias = Literal["number", "text"]
"""How numbers are written that may have more digits than a double keeps."""


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a user wants where a call does not say it."""

    big_numbers: BigNumbers = "number"


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user with the union of the rights of the groups (Contract platform 4.3)."""

    id: int
    username: str
    is_admin: bool = False
    rights: frozenset[str] = field(default_factory=frozenset[str])
    groups: frozenset[str] = field(default_factory=frozenset[str])
    connectors_version: int = field(default=0, compare=False)
    """The state of the stored connectors when the rights were read: this process must know it, too."""
    external_token: ExternalToken | None = field(default=None, compare=False)
    """For engines that take the caller's own token instead of a login; None with an own token."""
    token_ids: tuple[str, str] = field(default=("", ""), compare=False, repr=False)
    """By what the token of the call can be ended: its family and its own id; empty texts where there is none."""
    token_epoch: int | None = field(default=None, compare=False, repr=False)
    """The epoch of an own token; None for a caller without one."""
    preferences: Preferences = field(default=Preferences(), compare=False)

    def may(self, right: str) -> bool:
        """Administrators may everything."""
        return self.is_admin or right in self.rights

    def may_use(self, connector_right: str) -> bool:
        """Whether a stored connector is granted, by itself or with all others."""
        return self.is_admin or connector_right in self.rights or ANY_CONNECTOR in self.rights


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """What a login back end or an authenticator says about the caller."""

    username: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    groups: Sequence[str] | None = None
    """Names of the groups that the user is in from now on; None: they stay as they are."""
