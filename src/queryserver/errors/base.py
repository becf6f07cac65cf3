"""The root of the error tree, and errors common to all calls: authentication, permissions, request bodies, limits."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

_MAX_NAMES = 20
_MAX_NAME_CHARACTERS = 100


class QueryServerError(Exception):
    """A failure with a human-readable `message` and a stable, machine-readable `code`, set as a class argument."""

    code: str = "internal_error"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code

    def __init__(
        self, message: str, *, details: Mapping[str, Any] | None = None, extra_fields: Mapping[str, Any] | None = None
    ) -> None:
        """`extra_fields` contains additional keys for the response body (Contract platform 1.4)."""
        super().__init__(message)
        self.message = message
        self.details = details
        """Structured facts about the failure for clients, or None."""
        self.extra_fields = extra_fields or {}


P = ParamSpec("P")
ErrorT = TypeVar("ErrorT", bound=QueryServerError)
FixedT = TypeVar("FixedT", bound=QueryServerError)


def recreate_error(kind: type[ErrorT], code: str, message: str, details: Mapping[str, Any] | None = None) -> ErrorT:
    """Recreate an error raised in another process.

    `message` is used unchanged, even for classes whose constructor builds the message from other arguments.
    """
    error = kind.__new__(kind)
    QueryServerError.__init__(error, message, details=details)
    error.code = code
    return error


class ErrorKind(Generic[P, ErrorT]):
    """An error code for an error class. Calling the kind creates an error of the class with this code.

    The kind takes the arguments of the class. If the kind has a `message`, the message is a `str.format` template, and
    the arguments fill its placeholders.
    """

    @overload
    def __init__(self, error: Callable[P, ErrorT], code: str) -> None: ...

    @overload
    def __init__(self: "ErrorKind[..., FixedT]", error: Callable[[str], FixedT], code: str, message: str) -> None: ...

    def __init__(self, error: Callable[..., ErrorT], code: str, message: str | None = None) -> None:
        self.code = code
        self._error = error
        self._message = message
        KINDS.append((code, cast("type[ErrorT]", error)))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ErrorT:
        error = self._error(*args, **kwargs) if self._message is None else self._error(self._message.format(*args))
        error.code = self.code
        return error


KINDS: list[tuple[str, type[QueryServerError]]] = []
"""The code and class of every ErrorKind, for the list of error codes in the API description."""


def known_names(names: Sequence[str], *, word: str = "Configured") -> str:
    """Return the last sentence of a message about an unknown name: a list of at most 20 valid names."""
    if not names:
        return f" {word}: none that you may use."
    shown = ", ".join(name[:_MAX_NAME_CHARACTERS] for name in islice(names, _MAX_NAMES))
    more = len(names) - _MAX_NAMES
    return f" {word}: {shown} and {more} more." if more > 0 else f" {word}: {shown}."


# Callers and their permissions


class NotAuthenticated(QueryServerError, code="not_authenticated"):
    """The call has no credentials."""

    challenges: tuple[str, ...] = ()
    """Additional values for `WWW-Authenticate` headers, from authenticator plug-ins."""

    def __init__(self, message: str = "Authentication credentials were not provided.") -> None:
        super().__init__(message)


class InvalidToken(NotAuthenticated, code="token_not_valid"):
    """The call's token is malformed, expired or revoked."""

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


class UserNotFound(NotAuthenticated, code="user_not_found"):
    """The token is valid, but its user was deleted."""

    def __init__(self) -> None:
        super().__init__("User not found")


class IdentityRefused(UserNotFound):
    """An external identity maps to no user. `reason` appears in the log and in `auth explain`, never in responses."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class UserInactive(NotAuthenticated, code="user_inactive"):
    def __init__(self) -> None:
        super().__init__("User is inactive")


class AuthenticationFailed(NotAuthenticated, code="authentication_failed"):
    """A login back end or an authenticator refused the caller. The remaining back ends are not tried.

    API calls report `detail` and `code`. A refused login returns the same response regardless of the reason.
    """

    def __init__(
        self, detail: str = "No active account found with the given credentials", code: str | None = None
    ) -> None:
        super().__init__(detail)
        self.shown_code = code


class IssuerLoginRefused(NotAuthenticated, code="issuer_login_refused"):
    """The external issuer refused a login, or its ID token belongs to no user of this service."""

    def __init__(self, message: str = "The login at the issuer belongs to no user of this server.") -> None:
        super().__init__(message)


# The header is repeated or does not have exactly one value after `Bearer`.
bad_authorization_header = ErrorKind(
    NotAuthenticated, "bad_authorization_header", "Authorization header must contain two space-delimited values"
)


class PermissionDenied(QueryServerError, code="permission_denied"): ...


class InsufficientScope(PermissionDenied, code="insufficient_scope"):
    """The API token of the call lacks a scope, regardless of the user's rights."""

    def __init__(self, scope: str, message: str | None = None) -> None:
        super().__init__(message or f"The API token lacks the scope {scope}.", extra_fields={"scope": scope})
        self.scope = scope


admin_required = ErrorKind(PermissionDenied, "admin_required")
download_disabled = ErrorKind(PermissionDenied, "download_disabled")
csrf_header_missing = ErrorKind(PermissionDenied, "csrf_header_missing")
origin_not_allowed = ErrorKind(PermissionDenied, "origin_not_allowed")


# Invalid calls


class InvalidRequest(QueryServerError, code="invalid_request"):
    """The call is invalid and would fail again if repeated unchanged."""


class MissingParameter(InvalidRequest, code="missing_parameter"):
    """A required parameter is absent or blank. The message names the parameter."""


class InvalidParameter(InvalidRequest, code="invalid_parameter"):
    """A parameter has the wrong type, is out of range or is not one of the allowed values. The message names it."""


class UnreadableParameter(InvalidParameter):
    """The value of the parameter `name` contains invalid UTF-8 or U+0000."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"The parameter {name[:64]} {problem}")
        self.name = name


class TooComplex(InvalidRequest, code="too_complex"):
    """Processing the content takes more time or memory than a single call may use."""


class InvalidJson(InvalidRequest, code="invalid_json"): ...


class LateBody(InvalidRequest, code="invalid_body"):
    def __init__(self) -> None:
        super().__init__("The request body did not arrive in time.")


class BodyTooSlow(QueryServerError, code="request_timeout"):
    """The body arrived at less than 1 KiB/s for a minute."""


class InvalidFields(InvalidRequest, code="validation_failed"):
    """Fields of a token call are invalid. `fields` maps field names to messages (Contract platform 3.2)."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        super().__init__("Some fields are not valid.")
        self.fields = fields


class InvalidUsername(InvalidRequest, code="invalid_username"):
    def __init__(self) -> None:
        super().__init__("A username must have 1 to 150 characters: letters, digits and @ . + - _, and not only dots.")


class InvalidPassword(InvalidRequest, code="invalid_password"):
    """A new password violates the length or strength rules of `desktop.auth`, or is too long for a login."""


login_state_invalid = ErrorKind(
    InvalidRequest,
    "login_state_invalid",
    "This login was begun in another browser or too long ago, or is completed already. Log in again.",
)
device_code_expired = ErrorKind(InvalidRequest, "device_code_expired", "The login was not approved in time.")
invalid_body = ErrorKind(InvalidRequest, "invalid_body")
conflicting_parameters = ErrorKind(InvalidRequest, "conflicting_parameters")
invalid_right = ErrorKind(InvalidRequest, "invalid_right")
invalid_group_name = ErrorKind(InvalidRequest, "invalid_group_name")
too_many_ids = ErrorKind(InvalidRequest, "too_many_ids")


class PayloadTooLarge(QueryServerError, code="payload_too_large"):
    """The body, or the statement it contains, exceeds its size limit."""


class UnsupportedMediaType(QueryServerError, code="unsupported_media_type"): ...


class NotSupported(QueryServerError, code="not_supported"): ...


issuer_not_configured = ErrorKind(
    NotSupported, "issuer_not_configured", "No login at an external issuer is configured (`desktop.auth.oidc`)."
)
device_login_not_supported = ErrorKind(
    NotSupported, "device_login_not_supported", "The issuer or this server permits no login by a code."
)


# Missing objects, and objects in a state that does not permit the call


class NotFound(QueryServerError, code="not_found"):
    """The object does not exist, or the caller may not see it. Both cases give the same response."""


class UnknownGroup(NotFound, code="unknown_group"):
    def __init__(self, name: str) -> None:
        super().__init__(f"Group {name} does not exist.")


unknown_user = ErrorKind(NotFound, "unknown_user", "User {} does not exist.")
task_not_found = ErrorKind(NotFound, "task_not_found", "Task {:.100} does not exist.")


class Conflict(QueryServerError, code="conflict"):
    """The object's state does not permit the call."""


class NameTaken(Conflict, code="name_taken"):
    """Another user, group, identity, connector or schedule has this name."""


class VersionConflict(Conflict, code="version_conflict"):
    """The object has changed since the client read it. The response contains the stored version number."""

    def __init__(self, version: int, *, is_missing: bool = False) -> None:
        """`is_missing` is set if the request has no version."""
        message = "The object has changed since you read it. Read it again and retry."
        if is_missing:
            message = f"version is required, because the object exists already. Its version is {version}."
        super().__init__(message, extra_fields={"version": version})


schedule_not_found = ErrorKind(NotFound, "schedule_not_found", "Schedule {} does not exist.")
schedule_running = ErrorKind(Conflict, "schedule_running")
task_server_disabled = ErrorKind(NotSupported, "task_server_disabled")
smtp_not_configured = ErrorKind(NotSupported, "smtp_not_configured")
default_group_kept = ErrorKind(Conflict, "default_group")
last_administrator = ErrorKind(Conflict, "last_administrator")
service_account = ErrorKind(Conflict, "service_account", "{} is a service account and can only have API tokens.")
external_user = ErrorKind(Conflict, "external_user", "{} logs in at an external issuer and has no password.")
api_token_not_found = ErrorKind(NotFound, "api_token_not_found", "API token {} does not exist.")
document_not_found = ErrorKind(NotFound, "document_not_found", "Document {} does not exist.")
document_version_not_found = ErrorKind(
    NotFound, "document_version_not_found", "Version {} of the document does not exist, or is no longer kept."
)
document_in_trash = ErrorKind(Conflict, "document_in_trash", "Document {} is in the trash. Restore it first.")


# Limits on callers


class TooManyRequests(QueryServerError, code="too_many_requests"):
    """The caller has reached a limit. `retry_after` is the time to wait before the next attempt."""

    def __init__(self, message: str, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyStreams(TooManyRequests, code="too_many_streams"):
    """The user already has `max_streams_per_user` long polls, event streams and downloads open."""


class LoginThrottled(TooManyRequests, code="login_throttled"): ...


# The caller's address already has `max_connections_per_address` calls in progress.
too_many_connections = ErrorKind(TooManyRequests, "too_many_connections")
too_many_statements = ErrorKind(TooManyRequests, "too_many_statements")
too_many_sessions = ErrorKind(TooManyRequests, "too_many_sessions")
too_many_api_tokens = ErrorKind(TooManyRequests, "too_many_api_tokens")
too_many_documents = ErrorKind(TooManyRequests, "too_many_documents")
quota_exceeded = ErrorKind(TooManyRequests, "quota_exceeded")
# Raised also by statements that would start within the day; `retry_after` is the time until midnight UTC.
budget_exhausted = ErrorKind(TooManyRequests, "budget_exhausted")


# The service itself


class ServiceUnavailable(QueryServerError, code="service_unavailable"): ...


class DatabaseUnavailable(ServiceUnavailable, code="database_unavailable"):
    def __init__(self) -> None:
        super().__init__("The service database cannot be reached.")


class LoginBackendUnavailable(ServiceUnavailable, code="login_backend_unavailable"):
    """No login back end accepted the caller, and at least one did not respond, was busy, or failed."""


class KeyServerUnavailable(ServiceUnavailable, code="key_server_unavailable"):
    """No recent key set is available, so external tokens cannot be verified."""


class IssuerUnavailable(ServiceUnavailable, code="issuer_unavailable"):
    def __init__(self, message: str = "The login issuer cannot be reached. Try again later.") -> None:
        super().__init__(message)


stopping = ErrorKind(ServiceUnavailable, "stopping")


class SchemaMismatch(QueryServerError, code="schema_mismatch"): ...


class ConfigurationError(QueryServerError, code="configuration_error"):
    """The settings prevent the server from starting. `problems` contains lines of the form `<key>: <text>`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
