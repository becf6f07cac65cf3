"""Records of which identities of other issuers are which users."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LinkedIdentity:
    """An identity and its user."""

    username: str
    issuer: str
    subject: str
    by_administrator: bool
    """Linked by a command; else at the first call of the identity."""
    linked_at: datetime
