"""Records of which identities of other issuers are which users."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from queryserver.domain.identities import ExternalIdentity


@dataclass(frozen=True, slots=True)
class LinkedIdentity:
    """An identity and its user."""

    username: str
    issuer: str
    subject: str
    by_administrator: bool
    """Linked by a command; else at the first call of the identity."""
    linked_at: datetime


class IdentityRecords(Protocol):
    """Links between identities and users. All calls raise DatabaseUnavailable."""

    async def link_first(self, user_id: int, identity: ExternalIdentity) -> bool:
        """Link a user who has no password and no identity, and is no administrator.

        False: the user is another by now, or the identity is linked to another user.
        """
        ...

    async def link(self, username_key: str, identity: ExternalIdentity) -> bool:
        """Link any user, in the name of an administrator; repeating it is harmless.

        False: the identity is linked to another user. Raises unknown_user.
        """
        ...

    async def unlink(self, username_key: str | None, *, issuer: str | None = None, subject: str | None = None) -> int:
        """End links; each part that is given narrows which. How many there were."""
        ...

    async def identities(self, username_key: str | None = None) -> Sequence[LinkedIdentity]:
        """Those of one user, or all, by name of the user, issuer and subject."""
        ...
