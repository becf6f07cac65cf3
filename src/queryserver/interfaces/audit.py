"""Where it is written who did what (Contract platform 11, `desktop.logging.audit_file`; storage S15)."""

from typing import Protocol

from queryserver.domain.audit import AuditEvent


class Audit(Protocol):
    """Writes audit events; never fails a call."""

    def record(self, event: AuditEvent) -> None:
        """Write one event."""
        ...
