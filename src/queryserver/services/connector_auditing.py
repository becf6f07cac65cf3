"""Who did what with which connector (Contract platform 11)."""

from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.audit import AuditEvent
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.user import User
from queryserver.interfaces.audit import Audit

_LONGEST = 100


class ConnectorEvent:
    """What becomes of an event while its work is done."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        """The id; before there is one, the name."""
        self.outcome = "ok"


class ConnectorAudit:
    """Writes one event for each change and each refusal."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @contextmanager
    def event(self, user: User, operation: str, subject: str | None) -> Generator[ConnectorEvent]:
        """One event `connector.<operation>`; its outcome is `ok`, the code of the error, or `interrupted`."""
        event, outcome = ConnectorEvent((subject or "")[:_LONGEST]), "interrupted"
        try:
            yield event
            outcome = event.outcome
        except QueryServerError as error:
            outcome = error.code
            raise
        finally:
            self._audit.record(
                AuditEvent(
                    user=user.username,
                    effective_user=user.username,
                    operation=f"connector.{operation}",
                    path=event.subject,
                    outcome=outcome,
                )
            )
