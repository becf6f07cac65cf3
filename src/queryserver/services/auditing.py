"""Who did what, beside files and connectors (Contract platform 11, `desktop.logging.audit_file`)."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from queryserver.domain.audit import AuditEvent
from queryserver.domain.errors.base import QueryServerError
from queryserver.interfaces.audit import Audit

OK = "ok"
_LONGEST = 150
_NO_FACTS: Mapping[str, str | int] = MappingProxyType({})
BY_SERVER: Mapping[str, str] = MappingProxyType({"by": "server"})
"""Of changes that nobody ordered with a command: the server makes them when somebody comes."""


class AuditTrail:
    """Writes one event for each thing that was done, or refused."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def record(
        self,
        user: str,
        operation: str,
        subject: str = "",
        *,
        outcome: str = OK,
        client: str = "",
        facts: Mapping[str, str | int] = _NO_FACTS,
    ) -> None:
        """Write one event, such as `record(user, "statement.start", connector)`. Names are cut where they are long."""
        name = user[:_LONGEST]
        self._audit.record(
            AuditEvent(
                user=name,
                effective_user=name,
                operation=operation,
                path="",
                outcome=outcome,
                client=client,
                subject=subject[:_LONGEST],
                facts=facts,
            )
        )

    @contextmanager
    def event(
        self, user: str, operation: str, subject: str = "", *, facts: Mapping[str, str | int] = _NO_FACTS
    ) -> Generator[None]:
        """One event for what is done inside; its outcome is `ok`, the code of the error, or `interrupted`."""
        outcome = "interrupted"
        try:
            yield
            outcome = OK
        except Exception as error:  # the event of a fault of ours is written, too
            outcome = _code_of(error)
            raise
        finally:
            self.record(user, operation, subject, outcome=outcome, facts=facts)

    @contextmanager
    def failures(
        self, user: str, operation: str, subject: str = "", *, facts: Mapping[str, str | int] = _NO_FACTS
    ) -> Generator[None]:
        """One event when what is done inside fails, with the code of the error; none when it ends or is interrupted."""
        try:
            yield
        except Exception as error:  # the event of a fault of ours is written, too
            self.record(user, operation, subject, outcome=_code_of(error), facts=facts)
            raise


def _code_of(error: Exception) -> str:
    return error.code if isinstance(error, QueryServerError) else QueryServerError.code


class _Unheard:
    def record(self, event: AuditEvent) -> None:
        del event


UNHEARD = AuditTrail(_Unheard())
"""Keeps nothing: for commands that change nothing."""
