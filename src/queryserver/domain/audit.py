"""What is written down about who did what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One thing that somebody did, or was refused. Never holds a secret, nor the text of a statement."""

    user: str
    """Who called; at a login, the name as given."""
    effective_user: str
    """As whom it was done."""
    operation: str
    """Such as `storage.delete`."""
    path: str
    """Normal form; empty where there is none."""
    outcome: str
    """`ok`, or the code of the error."""
    size_bytes: int | None = None
    client: str = ""
    """Address of the caller, where it matters."""
    subject: str = ""
    """What was changed or used, where that is no file: a user, a group, a connector."""
    facts: Mapping[str, str | int] = field(default_factory=lambda: MappingProxyType({}))
    """Further ones by name, such as `operation_id`."""
