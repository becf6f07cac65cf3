"""What became of logins and tokens, for the audit and for metrics."""

from queryserver.domain.errors.base import (
    AuthenticationFailed,
    LoginBackendUnavailable,
    LoginThrottled,
    QueryServerError,
)
from queryserver.interfaces.metrics import AccountMetrics
from queryserver.services.auditing import BY_SERVER, AuditTrail


class AccountNotes:
    """Notes both at once; `metrics` is for what only counts."""

    def __init__(self, audit: AuditTrail, metrics: AccountMetrics) -> None:
        self._audit = audit
        self.metrics = metrics

    def accepted(self, username: str, client: str, back_end: str) -> None:
        """Somebody is logged in. The name is that of the account, however it was given."""
        self.metrics.login("accepted", back_end)
        self._audit.record(username, "login", client=client, facts={"back_end": back_end})

    def refused(self, username: str, client: str, error: QueryServerError) -> None:
        """Somebody is not logged in. The name is noted as it was given: it need not be anybody's."""
        match error:
            case LoginThrottled():
                self.metrics.login_throttled()
            case AuthenticationFailed():
                self.metrics.login("refused", "")
            case LoginBackendUnavailable():
                self.metrics.login("unavailable", "")
            case _:
                pass
        self._audit.record(username, "login", outcome=error.code, client=client)

    def made_first(self, username: str, client: str) -> None:
        """The first login has made its user."""
        self._audit.record(username, "user.create", username, client=client, facts=BY_SERVER)
        self.promoted(username, client)

    def promoted(self, username: str, client: str) -> None:
        """A login has made its user an administrator."""
        self._audit.record(username, "user.make_admin", username, client=client, facts=BY_SERVER)

    def revoked(self, username: str, *, everything: bool) -> None:
        """Tokens of a user have ended by a call."""
        self._audit.record(username, "token.revoke", facts={"all": "true"} if everything else {})
