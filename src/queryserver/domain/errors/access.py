"""Who calls, and what they may."""

from queryserver.domain.errors.base import QueryServerError


class NotAuthenticated(QueryServerError):
    """No credentials came with the call."""

    code = "not_authenticated"
    challenges: tuple[str, ...] = ()
    """What plug-ins add to the answer: one `WWW-Authenticate` each."""

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


class IdentityRefused(UserNotFound):
    """An external identity is no user here; `reason` is for the log and `auth explain`, never for the client."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class UserInactive(NotAuthenticated):
    """The token is good, its user was disabled."""

    code = "user_inactive"

    def __init__(self) -> None:
        super().__init__("User is inactive")


class AuthenticationFailed(NotAuthenticated):
    """A login back end or an authenticator refuses the caller; nobody else is asked.

    `detail` and `code` are told to the client of an API call; a refused login has the same answer for every reason.
    """

    code = "authentication_failed"

    def __init__(
        self, detail: str = "No active account found with the given credentials", code: str | None = None
    ) -> None:
        super().__init__(detail)
        self.told_code = code


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
