"""Objects that are not there, or not in the state that a call needs."""

from collections.abc import Sequence

from queryserver.domain.errors.base import QueryServerError, configured

_SHOWN = 100  # characters of a name that a client gave


class NotFound(QueryServerError):
    """What was named does not exist, or the caller may not see it: the two are not told apart."""

    code = "not_found"


class OperationNotFound(NotFound):
    """No such operation for this caller."""

    code = "operation_not_found"

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"Operation {operation_id} does not exist.")


class UnknownDialect(NotFound):
    """No such dialect or connector for this caller."""

    code = "dialect_not_found"

    def __init__(self, name: str, usable: Sequence[str]) -> None:
        """`usable`: names of what the caller may use instead."""
        super().__init__(f"Snippet type {name[:_SHOWN]} is not configured.{configured(usable)}")


class UnknownUser(NotFound):
    """No user of that name."""

    code = "unknown_user"

    def __init__(self, username: str) -> None:
        super().__init__(f"User {username} does not exist.")


class UnknownGroup(NotFound):
    """No group of that name."""

    code = "unknown_group"

    def __init__(self, name: str) -> None:
        super().__init__(f"Group {name} does not exist.")


class SessionNotFound(NotFound):
    """No such session for this caller."""

    code = "session_not_found"

    def __init__(self, session_id: int | str) -> None:
        super().__init__(f"Session {session_id} does not exist.")


class MetadataNotFound(NotFound):
    """A metadata object is unknown at the data source: `status` 1 (Contract editor 1.4)."""


class DatabaseNotFound(MetadataNotFound):
    """No such database, or schema where that is the unit."""

    code = "database_not_found"

    def __init__(self, database: str) -> None:
        super().__init__(f"Database {database[:_SHOWN]} does not exist.")


class TableNotFound(MetadataNotFound):
    """No such table or view."""

    code = "table_not_found"

    def __init__(self, database: str, table: str) -> None:
        super().__init__(f"Table {database[:_SHOWN]}.{table[:_SHOWN]} does not exist.")


class ColumnNotFound(MetadataNotFound):
    """No such column."""

    code = "column_not_found"

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"Column {table[:_SHOWN]}.{column[:_SHOWN]} does not exist.")


class NestedPathNotFound(MetadataNotFound):
    """A column's type has no such part."""

    code = "nested_path_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"Invalid nested type path: {path[:_SHOWN]}")


class FunctionNotFound(MetadataNotFound):
    """No such function."""

    code = "function_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"Function {name[:_SHOWN]} does not exist.")


class Conflict(QueryServerError):
    """The state of the object forbids the call."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """The idempotency key was used for another request."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__("This idempotency key was used for another request.")


class PreviousNotFinished(Conflict):
    """The previous statement of the script still runs."""

    code = "previous_not_finished"

    def __init__(self) -> None:
        super().__init__("The previous statement of this script has not ended yet.")


class StatementTextExpired(Conflict):
    """Of a long statement or script that ended some time ago only the beginning is still stored."""

    code = "statement_text_expired"

    def __init__(self) -> None:
        super().__init__(
            "The text of this script is not stored any more: long texts are kept for"
            " `editor.statement_text_retention_h` hours after their end. Send the script again."
        )


class NoMoreStatements(Conflict):
    """The script has no statement after the given one."""

    code = "no_more_statements"

    def __init__(self) -> None:
        super().__init__("The script has no further statement.")


class DownloadRefused(Conflict):
    """A statement without a finished result cannot be downloaded; `outcome` says why (Contract editor 8.2)."""

    code = "not_finished"

    def __init__(self, code: str, message: str, *, status: int, gone: bool = False) -> None:
        super().__init__(message)
        self.outcome_code = code
        self.status = status
        self.gone = gone


class UsernameTaken(Conflict):
    """A user of that name exists, by the case rule."""

    code = "name_taken"

    def __init__(self, username: str) -> None:
        super().__init__(f"User {username} exists already.")


class IdentityTaken(Conflict):
    """The subject of an issuer is linked to another user already."""

    code = "name_taken"

    def __init__(self, subject: str) -> None:
        super().__init__(f"The subject {subject} is linked to another user already.")


class GroupExists(Conflict):
    """A group of that name exists."""

    code = "name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(f"Group {name} exists already.")


class DefaultGroupKept(Conflict):
    """The group that new users join cannot be deleted."""

    code = "default_group"

    def __init__(self, name: str) -> None:
        super().__init__(f"Group {name} is the one that new users join, and cannot be deleted.")


class LastAdministrator(Conflict):
    """The last active administrator stays one."""

    code = "last_administrator"

    def __init__(self) -> None:
        super().__init__("The last active administrator cannot be disabled or stop being one.")
