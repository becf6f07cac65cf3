"""The audit log: one event per line, whatever the level of the main log (Contract platform 11, storage S15)."""

import logging

from queryserver.domain.audit import AuditEvent
from queryserver.logs.lines import FIELDS

AUDIT_LOGGER = "queryserver.audit"


class AuditLog:
    """Audit events as lines of the logger `queryserver.audit`; where they go is a matter of `configure_logging`.

    Both forms of lines escape what does not print, so that no name or path makes a line of its own (Rule T29).
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger(AUDIT_LOGGER)

    def record(self, event: AuditEvent) -> None:
        """See the Protocol."""
        fields: dict[str, object] = {
            "user": event.user,
            "effective_user": event.effective_user,
            "path": event.path,
            "outcome": event.outcome,
        }
        if event.size_bytes is not None:
            fields["size"] = event.size_bytes
        if event.client:
            fields["client"] = event.client
        if event.subject:
            fields["subject"] = event.subject
        self._logger.info(event.operation, extra={FIELDS: {**fields, **event.facts}})
