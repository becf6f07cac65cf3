"""Where it is written who did what (Contract platform 11, `desktop.logging.audit_file`; storage S15)."""

from dataclasses import dataclass
from typing import Protocol


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


class Audit(Protocol):
    """Writes audit events; never fails a call."""

    def record(self, event: AuditEvent) -> None:
        """Write one event."""
        ...
