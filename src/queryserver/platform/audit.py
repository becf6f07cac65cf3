"""The audit trail: who did what (Contract platform 11)."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from queryserver.errors.base import QueryServerError
from queryserver.platform.log_lines import FIELDS


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


class Audit(Protocol):
    """Writes audit events; never fails a call."""

    def record(self, event: AuditEvent) -> None:
        """Write one event."""
        ...


AUDIT_LOGGER = "queryserver.audit"


class AuditLog:
    """Audit events as lines of the logger `queryserver.audit`; where they go is a matter of `configure_logging`.

    Both forms of lines escape what does not print, so that no name or path makes a line of its own (Rule T29).
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger(AUDIT_LOGGER)

    def record(self, event: AuditEvent) -> None:
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


AUDIT: Audit = AuditLog()
"""The one that all services write to; `configure_logging` says which file that is."""
