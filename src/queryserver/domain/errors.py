"""The error tree. Status codes and bodies live in `api/errors.py`, nowhere else.

QueryServerError
├─ NotAuthenticated ── InvalidToken, AuthenticationFailed
├─ PermissionDenied ── AdminRequired, DownloadDisabled
├─ InvalidRequest ──── MissingParameter, InvalidParameter, InvalidJson, InvalidBody, ConflictingParameters, InvalidPath,
│                      InvalidUsername, InvalidPassword
├─ PayloadTooLarge, UnsupportedMediaType
├─ NotFound ────────── OperationNotFound, UnknownDialect, SessionNotFound, PathNotFound, UnknownUser, UnknownGroup
├─ Conflict ────────── IdempotencyConflict, PreviousNotFinished, NoMoreStatements, PathExists, DirectoryNotEmpty,
│                      UsernameTaken, LastAdministrator
├─ TooManyRequests ─── TooManyStatements, TooManyStreams, TooManySessions, QuotaExceeded, LoginThrottled
├─ NotSupported
├─ EngineError ─────── StatementRejected, RejectedByRule, EngineUnavailable, EngineTimeout, SessionLost,
│                      OutcomeUnknown, CredentialsRequired, ResultStoreFailed
├─ StorageError ────── StorageUnavailable, StorageFull
└─ ServiceUnavailable  DatabaseUnavailable, LoginBackendUnavailable
"""

from datetime import timedelta
from typing import ClassVar


class QueryServerError(Exception):
    """A failure with a stable `code` for programs and a `message` for a person."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotAuthenticated(QueryServerError):
    """No credentials came with the call."""

    code = "not_authenticated"

    def __init__(self, message: str = "Authentication credentials were not provided.") -> None:
        super().__init__(message)


class InvalidToken(NotAuthenticated):
    """A token came, and it is not good."""

    code = "token_not_valid"

    def __init__(
        self,
        message: str = "Token is invalid or expired",
        *,
        token_type: str = "access",  # noqa: S107 a kind, no secret
        detail: str = "Given token not valid for any token type",
    ) -> None:
        super().__init__(message)
        self.token_type = token_type
        self.detail = detail


class BadAuthorizationHeader(NotAuthenticated):
    """`Bearer` without exactly one value, or the header sent twice."""

    code = "bad_authorization_header"

    def __init__(self) -> None:
        super().__init__("Authorization header must contain two space-delimited values")


class UserNotFound(NotAuthenticated):
    """The token is good, its user was deleted."""

    code = "user_not_found"

    def __init__(self) -> None:
        super().__init__("User not found")


class UserInactive(NotAuthenticated):
    """The token is good, its user was disabled."""

    code = "user_inactive"

    def __init__(self) -> None:
        super().__init__("User is inactive")


class AuthenticationFailed(NotAuthenticated):
    """A login back end or an authenticator refuses the caller; nobody else is asked."""

    code = "authentication_failed"

    def __init__(self, message: str = "No active account found with the given credentials") -> None:
        super().__init__(message)


class PermissionDenied(QueryServerError):
    """The caller lacks a right."""

    code = "permission_denied"


class AdminRequired(PermissionDenied):
    """The call is for administrators."""

    code = "admin_required"

    def __init__(self) -> None:
        super().__init__("You must be an administrator.")


class DownloadDisabled(PermissionDenied):
    """Downloads are switched off, or the caller lacks the right `download`."""

    code = "download_disabled"


class InvalidRequest(QueryServerError):
    """The call is wrong as it stands; sending it again changes nothing."""

    code = "invalid_request"


class MissingParameter(InvalidRequest):
    """A required parameter is absent or blank; the message names it."""

    code = "missing_parameter"


class InvalidParameter(InvalidRequest):
    """A parameter has the wrong type, is out of range or an unknown word; the message names it."""

    code = "invalid_parameter"


class InvalidJson(InvalidRequest):
    """A JSON body or a JSON field does not parse."""

    code = "invalid_json"


class InvalidBody(InvalidRequest):
    """The JSON body is not an object."""

    code = "invalid_body"


class InvalidHost(InvalidRequest):
    """The `Host` header is outside `desktop.allowed_hosts`."""

    code = "invalid_host"


class ConflictingParameters(InvalidRequest):
    """Two parameters contradict each other."""

    code = "conflicting_parameters"


class InvalidFields(InvalidRequest):
    """Fields of a token call are wrong; `fields` is the field map of the answer (Contract platform 3.2)."""

    code = "validation_failed"

    def __init__(self, fields: dict[str, list[str]]) -> None:
        super().__init__("Some fields are not valid.")
        self.fields = fields


class InvalidUsername(InvalidRequest):
    """A user name breaks the rule of Contract platform 3.7."""

    code = "invalid_username"

    def __init__(self) -> None:
        super().__init__("A user name has 1 to 150 letters, digits and @ . + - _, and is not only dots.")


class InvalidPassword(InvalidRequest):
    """A new password is below `desktop.auth.password_min_length`, or above what a login takes."""

    code = "invalid_password"


class InvalidPath(InvalidRequest):
    """A storage path leaves its root or cannot be a path."""

    code = "invalid_path"


class PayloadTooLarge(QueryServerError):
    """The body, or the statement in it, is above its limit."""

    code = "payload_too_large"


class UnsupportedMediaType(QueryServerError):
    """The body has a content type that this call does not read."""

    code = "unsupported_media_type"


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

    def __init__(self, name: str) -> None:
        super().__init__(f"Snippet type {name} is not configured.")


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


class PathNotFound(NotFound):
    """No file or directory of that path."""

    code = "path_not_found"


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


class LastAdministrator(Conflict):
    """The last active administrator stays one."""

    code = "last_administrator"

    def __init__(self) -> None:
        super().__init__("The last active administrator cannot be disabled or lose the administrator flag.")


class PathExists(Conflict):
    """There is something of that name already."""

    code = "path_exists"


class DirectoryNotEmpty(Conflict):
    """A directory with entries is deleted only recursively."""

    code = "directory_not_empty"


class TooManyRequests(QueryServerError):
    """A limit on this caller is reached; `retry_after` says when to come back."""

    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyStatements(TooManyRequests):
    """`max_statements_per_user` statements are waiting or running."""

    code = "too_many_statements"


class TooManyStreams(TooManyRequests):
    """`max_streams_per_user` waits, event streams and downloads are open."""

    code = "too_many_streams"


class TooManySessions(TooManyRequests):
    """`max_sessions_per_user` sessions are open."""

    code = "too_many_sessions"


class QuotaExceeded(TooManyRequests):
    """Stored results of the caller fill `spool_max_bytes_per_user`; closing results helps."""

    code = "quota_exceeded"


class LoginThrottled(TooManyRequests):
    """Too many failed logins (Contract platform 3.8)."""

    code = "login_throttled"


class NotSupported(QueryServerError):
    """This server or engine cannot do what was asked."""

    code = "not_supported"


class EngineError(QueryServerError):
    """The outcome of a statement, told by the engine: about a recorded statement it becomes state `failed`."""

    code = "engine_error"


class StatementRejected(EngineError):
    """The engine refused or failed the statement; `message` is its own text, first line first, without traces."""


class RejectedByRule(EngineError):
    """A rule of this service refused the statement; the engine never saw it."""

    code = "rejected"


class EngineUnavailable(EngineError):
    """No connection to the engine could be made; the statement was not started."""

    code = "engine_unavailable"


class EngineTimeout(EngineError):
    """The engine did not answer in time, or its own time limit ended the statement."""

    code = "engine_timeout"


class SessionLost(EngineError):
    """The engine session is gone and the statement was not started."""

    code = "session_lost"


class OutcomeUnknown(EngineError):
    """After sending, the connection was lost: the statement may or may not have taken effect."""

    code = "outcome_unknown"


class CredentialsRequired(EngineError):
    """The data source refused the credentials or lacks them."""

    code = "credentials_required"


class ResultStoreFailed(EngineError):
    """The result could not be stored."""

    code = "result_store_failed"


class StorageError(QueryServerError):
    """A store failed."""

    code = "storage_error"


class StorageUnavailable(StorageError):
    """A store cannot be reached."""

    code = "storage_unavailable"


class StorageFull(StorageError):
    """A store has no room left."""

    code = "storage_full"


class ServiceUnavailable(QueryServerError):
    """Something that the service needs is out of reach for now."""

    code = "service_unavailable"


class DatabaseUnavailable(ServiceUnavailable):
    """The service's own database is out of reach."""

    code = "database_unavailable"

    def __init__(self) -> None:
        super().__init__("The service database cannot be reached.")


class LoginBackendUnavailable(ServiceUnavailable):
    """No login back end accepted the caller, and one could not be asked."""

    code = "login_backend_unavailable"


class SchemaMismatch(QueryServerError):
    """The service database has another schema version than this program."""

    code = "schema_mismatch"


class ConfigurationError(QueryServerError):
    """The settings do not allow a start; `problems` are lines `<key>: <text>`."""

    code = "configuration_error"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
