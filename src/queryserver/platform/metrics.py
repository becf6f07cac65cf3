"""The metrics (Contract platform 9.3). No label value may contain a user, statement, path or host name."""

from collections.abc import Collection
from functools import cache, partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER = "other"
"""Replaces unknown label values, so that clients cannot create new time series."""

_QUERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_STATEMENT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)


class Metrics:
    """The metrics of all services. Each worker process keeps its own counts.

    Dialects that are not in `dialects` are counted together as `other`.
    """

    def __init__(self, registry: CollectorRegistry, *, dialects: Collection[str]) -> None:
        self._dialects = frozenset(dialects)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        self.logins = counter(
            "queryserver_logins", "Login attempts by result and accepting login source.", ["result", "backend"]
        )
        self.logins_throttled = counter(
            "queryserver_login_throttled", "Logins rejected after too many failed attempts."
        )
        self.tokens_issued = counter("queryserver_tokens_issued", "Tokens issued by this service.", ["type"])
        self.external_tokens = counter(
            "queryserver_external_jwt", "Verified tokens of external issuers by result.", ["result"]
        )
        self.key_fetches = counter("queryserver_jwks_fetch", "Requests for key sets of external issuers.", ["result"])
        self.index_objects = gauge(
            "queryserver_metadata_index_objects",
            "Objects in the metadata search index.",
            ["kind"],
            multiprocess_mode="mostrecent",
        )
        self.searches = histogram("queryserver_search_seconds", "Duration of a search in one source.", ["source"])
        ended = counter("queryserver_statements", "Statements that have ended.", ["dialect", "outcome"])
        seconds = histogram(
            "queryserver_statement_seconds",
            "Time from the start of a statement by a runner to its end.",
            ["dialect"],
            buckets=_STATEMENT_S,
        )
        # Cached, because looking up the child metric of a label takes longer than counting.
        self._ended_of, self._seconds_of = cache(ended.labels), cache(seconds.labels)
        self._failures = counter("queryserver_engine_errors", "Engine errors by error code.", ["dialect", "kind"])
        self._sessions = gauge(
            "queryserver_engine_sessions", "Open engine sessions, including those for metadata.", ["dialect"]
        )
        self.leases_lost = counter("queryserver_leases_lost", "Statements taken over by another process.")
        self.results_expired = counter("queryserver_results_expired", "Results deleted after their retention time.")
        self.storage_operations = counter(
            "queryserver_storage_operations", "Completed storage operations.", ["fs", "operation", "outcome"]
        )
        self.uploads = gauge("queryserver_uploads_active", "Uploads in progress.")
        self.queries = histogram(
            "queryserver_db_query_seconds", "Duration of one use of a service database connection.", buckets=_QUERY_S
        )
        self.connections = gauge(
            "queryserver_db_pool_connections", "Open and idle connections to the service database.", ["state"]
        )
        self.tasks_ended = counter("queryserver_tasks", "Tasks that have ended.", ["task", "outcome"])
        self.schedules_fired = counter(
            "queryserver_schedules_fired", "Schedule runs by outcome: submitted, skipped or failed.", ["outcome"]
        )
        self.emails = counter("queryserver_emails", "Attempts to send an email.", ["outcome"])
        self.webhooks = counter("queryserver_webhooks", "Attempts to call a webhook.", ["outcome"])

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """Count a statement that reached the terminal state `outcome`, `seconds` after a runner had started it."""
        known = self.dialect(dialect)
        self._ended_of(known, outcome).inc()
        self._seconds_of(known).observe(seconds)

    def engine_failed(self, dialect: str, kind: str) -> None:
        """Count a refusal or failure of an engine. `kind` is the error code."""
        self._failures.labels(self.dialect(dialect), kind).inc()

    def engine_sessions(self, dialect: str) -> Gauge:
        """Return the gauge of open engine sessions for the dialect."""
        return self._sessions.labels(self.dialect(dialect))

    def dialect(self, name: str) -> str:
        """Return the dialect as a label value: `other` if it is not among the known dialects."""
        return name if name in self._dialects else OTHER


NO_METRICS = Metrics(CollectorRegistry(), dialects=())
"""Metrics that are never exported: for commands, and for servers with `enable_prometheus = false`."""


DisconnectReason = Literal["head_timeout", "head_too_large", "malformed", "pipeline", "handshake", "stalled", "unsent"]
"""Why the server closed a connection."""


class ConnectionCounts:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.open = Gauge(
            "queryserver_http_connections", "Open connections.", registry=registry, multiprocess_mode="livesum"
        )
        self._refused = counter(
            "queryserver_http_connections_refused", "Connections refused because of a limit, by limit.", ["bound"]
        )
        self._cut = counter("queryserver_http_connections_cut", "Connections closed early, by reason.", ["reason"])

    def refused(self, bound: Literal["address", "total"]) -> None:
        self._refused.labels(bound).inc()

    def cut(self, reason: DisconnectReason) -> None:
        self._cut.labels(reason).inc()
