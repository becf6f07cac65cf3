"""Who did what with which file (Contract storage S14, S15)."""

from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.audit import AuditEvent
from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.files import StoragePath
from queryserver.domain.transfers import Transfer
from queryserver.interfaces.audit import Audit
from queryserver.services.storage.stores import Caller


class Noted:
    """What the work adds to its event."""

    def __init__(self) -> None:
        self.size_bytes: int | None = None


class StorageAudit:
    """Writes one event for each write, download and refusal."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @contextmanager
    def event(self, caller: Caller, operation: str, path: StoragePath | str) -> Generator[Noted]:
        """One event for what is done inside; its outcome is `ok`, the code of the error, or `interrupted`."""
        noted, outcome = Noted(), "interrupted"
        try:
            yield noted
            outcome = "ok"
        except QueryServerError as error:
            outcome = error.code
            raise
        finally:
            self.record(caller, operation, path, outcome, size_bytes=noted.size_bytes)

    def settled(self, transfer: Transfer, outcome: str) -> None:
        """Write the event of a move or copy that another process had begun: that one could not."""
        # Only GET calls act as others (Contract storage 2.1), so the caller is who the store was used as.
        name = transfer.acting.name
        self._audit.record(AuditEvent(name, name, f"storage.{transfer.kind}", str(transfer.source), outcome))

    def record(
        self,
        caller: Caller,
        operation: str,
        path: StoragePath | str,
        outcome: str = "ok",
        *,
        size_bytes: int | None = None,
    ) -> None:
        """Write one event, such as `record(caller, "storage.delete", path)`."""
        self._audit.record(
            AuditEvent(
                user=caller.user.username,
                effective_user=caller.acting.name,
                operation=operation,
                path=str(path),
                outcome=outcome,
                size_bytes=size_bytes,
            )
        )
