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
            "queryserver_logins", "Logins judged, by the back end that said yes.", ["result", "backend"]
        )
        self.logins_throttled = counter("queryserver_login_throttled", "Logins refused because too many had failed.")
        self.tokens_issued = counter("queryserver_tokens_issued", "Own tokens issued.", ["type"])
        self.external_tokens = counter("queryserver_external_jwt", "Tokens of other issuers judged.", ["result"])
        self.key_fetches = counter("queryserver_jwks_fetch", "Key sets asked for.", ["result"])
        self.index_objects = gauge(
            "queryserver_metadata_index_objects",
            "Objects in the index of the metadata search.",
            ["kind"],
            multiprocess_mode="mostrecent",
        )
        self.searches = histogram("queryserver_search_seconds", "Time that a source of the search took.", ["source"])
        ended = counter("queryserver_statements", "Statements that have ended.", ["dialect", "outcome"])
        seconds = histogram(
            "queryserver_statement_seconds",
            "Time from the beginning of the work on a statement to its end.",
            ["dialect"],
            buckets=_STATEMENT_S,
        )
        # Cached, because looking up the child metric of a label takes longer than counting.
        self._ended_of, self._seconds_of = cache(ended.labels), cache(seconds.labels)
        self._failures = counter("queryserver_engine_errors", "Refusals and failures of engines.", ["dialect", "kind"])
        self._sessions = gauge(
            "queryserver_engine_sessions", "Engine sessions open now, those of looks at metadata included.", ["dialect"]
        )
        self.leases_lost = counter("queryserver_leases_lost", "Statements that another process took over.")
        self.results_expired = counter("queryserver_results_expired", "Results whose time was over.")
        self.storage_operations = counter(
            "queryserver_storage_operations", "Calls on files that were answered.", ["fs", "operation", "outcome"]
        )
        self.uploads = gauge("queryserver_uploads_active", "Uploads on their way.")
        self.queries = histogram(
            "queryserver_db_query_seconds", "Time that a connection to the service database was used.", buckets=_QUERY_S
        )
        self.connections = gauge(
            "queryserver_db_pool_connections",
            "Connections to the service database, by whether they are in use.",
            ["state"],
        )
        self.tasks_ended = counter("queryserver_tasks", "Tasks that have ended.", ["task", "outcome"])
        self.schedules_fired = counter(
            "queryserver_schedules_fired", "Fires of schedules: submitted, skipped or failed.", ["outcome"]
        )
        self.emails = counter("queryserver_emails", "Tries to send a mail.", ["outcome"])
        self.webhooks = counter("queryserver_webhooks", "Tries to make a signed call.", ["outcome"])

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
            "queryserver_http_connections_refused", "Connections above a bound, by the bound.", ["bound"]
        )
        self._cut = counter("queryserver_http_connections_cut", "Connections ended early, by reason.", ["reason"])

    def refused(self, bound: Literal["address", "total"]) -> None:
        self._refused.labels(bound).inc()

    def cut(self, reason: DisconnectReason) -> None:
        self._cut.labels(reason).inc()
