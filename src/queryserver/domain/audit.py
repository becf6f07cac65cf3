"""What is written down about who did what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One thing that somebody did, or was refused."""

    user: str
    """Who called."""
    effective_user: str
    """As whom it was done."""
    operation: str
    """Such as `storage.delete`."""
    path: str
    """Normal form; empty where there is none."""
    outcome: str
    """`ok`, or the code of the error."""
    size_bytes: int | None = None
