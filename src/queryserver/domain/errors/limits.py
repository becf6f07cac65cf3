"""Limits on callers."""

from datetime import timedelta

from queryserver.domain.errors.base import QueryServerError


class TooManyRequests(QueryServerError):
    """A limit on this caller is reached; `retry_after` says when to come back."""

    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyConnections(TooManyRequests):
    """`max_connections_per_address` calls of the caller's address are under way."""

    code = "too_many_connections"


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
    """Stored results of the caller fill `spool_max_bytes_per_user`, or texts `statement_text_max_bytes_per_user`."""

    code = "quota_exceeded"


class LoginThrottled(TooManyRequests):
    """Too many failed logins (Contract platform 3.8)."""

    code = "login_throttled"
