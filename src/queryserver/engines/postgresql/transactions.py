"""The transaction around a statement, its read-only mode, and the name under which `pg_stat_activity` shows it."""

from dataclasses import dataclass

from queryserver.engines.protocol import StatementContext
from queryserver.engines.statement_tags import short_tag

_NAME_BYTES = 63
"""The server cuts longer values of `application_name`."""
_SAVEPOINT = "queryserver_read_only"


@dataclass(frozen=True, slots=True)
class Brackets:
    """The commands before and after a statement, each sent in one message."""

    begin: str
    keep: str
    """Sent after success."""
    undo: str
    """Sent after a failure, and after a cancellation."""


def statement_name(context: StatementContext) -> str:
    """Return the value of `application_name` for a statement; empty if the context names nothing."""
    return short_tag(context, _NAME_BYTES)


def name_command(name: str) -> str:
    """Return the command that sets the name for the session. It cannot fail."""
    return f"SET application_name = '{name}'"


def naming(name: str) -> str:
    """Return what follows BEGIN to set the name until the end of the transaction; empty without a name."""
    return f"; SET LOCAL application_name = '{name}'" if name else ""


def brackets(*, read_only: bool, is_in_transaction: bool, name: str) -> Brackets:
    """Return what to send around a statement, which begins a transaction, or a savepoint in the session's own one.

    The name ends with the transaction or savepoint, so that it costs no message of its own.

    A read-only mode that is set for the session could be lifted by a statement. In an open transaction it cannot be
    lifted any more once a query has begun, and in a savepoint never. The server restores the mode of the outer
    transaction at the end of a savepoint, so later statements may change data. Both are rolled back after success, too:
    effects that the mode does not prevent, such as notifications, settings and rows of temporary tables, are undone.
    """
    named = naming(name)
    if not read_only:
        return Brackets(f"BEGIN{named}", "COMMIT", "ROLLBACK")
    if not is_in_transaction:
        return Brackets(f"BEGIN READ ONLY{named}", "ROLLBACK", "ROLLBACK")
    end = f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}; RELEASE SAVEPOINT {_SAVEPOINT}"
    return Brackets(f"SAVEPOINT {_SAVEPOINT}; SET TRANSACTION READ ONLY{named}", end, end)
