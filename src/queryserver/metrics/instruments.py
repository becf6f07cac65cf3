"""The instruments behind `interfaces.metrics`. Names of further ones belong to the task server."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from queryserver.interfaces.metrics import ExternalTokenResult, FetchResult, LoginResult

OTHER = "other"
"""Stands for values of labels that are not among the known ones: callers must not make series."""

_QUERY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
_STATEMENT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600)


class PrometheusMetrics:
    """See `interfaces.metrics.Metrics`. In one of several worker processes, its part of them."""

    def __init__(self, registry: CollectorRegistry, *, dialects: Collection[str], schemes: Collection[str]) -> None:
        self._dialects, self._schemes = frozenset(dialects), frozenset(schemes)
        self._accounts = _Accounts(registry)
        self._statements = _Statements(registry)
        self._files = _Files(registry)
        self._queries = Histogram(
            "queryserver_db_query_seconds",
            "Time that a connection to the service database was used.",
            registry=registry,
            buckets=_QUERY_S,
        )
        self._connections = Gauge(
            "queryserver_db_pool_connections",
            "Connections to the service database, by whether they are in use.",
            ["state"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._index = Gauge(
            "queryserver_metadata_index_objects",
            "Objects in the index of the metadata search.",
            ["kind"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._searches = Histogram(
            "queryserver_search_seconds", "Time that a source of the search took.", ["source"], registry=registry
        )

    def login(self, result: LoginResult, back_end: str) -> None:
        """See the Protocol."""
        self._accounts.logins.labels(result, back_end or "none").inc()

    def login_throttled(self) -> None:
        """See the Protocol."""
        self._accounts.throttled.inc()

    def token_issued(self, kind: str) -> None:
        """See the Protocol."""
        self._accounts.issued.labels(kind).inc()

    def external_token(self, result: ExternalTokenResult) -> None:
        """See the Protocol."""
        self._accounts.external.labels(result).inc()

    def keys_fetched(self, result: FetchResult) -> None:
        """See the Protocol."""
        self._accounts.fetches.labels(result).inc()

    def index_objects(self, counts: Mapping[str, int]) -> None:
        """See the Protocol."""
        for kind, count in counts.items():
            self._index.labels(kind).set(count)

    def searched(self, source: str, seconds: float) -> None:
        """See the Protocol."""
        self._searches.labels(source).observe(seconds)

    def statement_ended(self, dialect: str, outcome: str, seconds: float) -> None:
        """See the Protocol."""
        known = self.dialect(dialect)
        self._statements.ended.labels(known, outcome).inc()
        self._statements.seconds.labels(known).observe(seconds)

    def engine_failed(self, dialect: str, kind: str) -> None:
        """See the Protocol."""
        self._statements.failures.labels(self.dialect(dialect), kind).inc()

    @contextmanager
    def engine_session(self, dialect: str) -> Generator[None]:
        """See the Protocol."""
        with self._statements.sessions.labels(self.dialect(dialect)).track_inprogress():
            yield

    def lease_lost(self) -> None:
        """See the Protocol."""
        self._statements.leases_lost.inc()

    def results_expired(self, results: int) -> None:
        """See the Protocol."""
        self._statements.expired.inc(results)

    def storage_operation(self, scheme: str, operation: str, outcome: str) -> None:
        """See the Protocol."""
        known = scheme if scheme in self._schemes else OTHER
        self._files.operations.labels(known, operation, outcome).inc()

    @contextmanager
    def upload(self) -> Generator[None]:
        """See the Protocol."""
        with self._files.uploads.track_inprogress():
            yield

    def query(self, seconds: float) -> None:
        """See the Protocol."""
        self._queries.observe(seconds)

    def pool(self, *, used: int, idle: int) -> None:
        """The connections of this process now."""
        self._connections.labels("used").set(used)
        self._connections.labels("idle").set(idle)

    def dialect(self, name: str) -> str:
        """The name as a label: that of the catalogue, or `other`."""
        return name if name in self._dialects else OTHER


class _Accounts:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.logins = Counter(
            "queryserver_logins",
            "Logins judged, by the back end that said yes.",
            ["result", "backend"],
            registry=registry,
        )
        self.throttled = Counter(
            "queryserver_login_throttled", "Logins refused because too many had failed.", registry=registry
        )
        self.issued = Counter("queryserver_tokens_issued", "Own tokens issued.", ["type"], registry=registry)
        self.external = Counter(
            "queryserver_external_jwt", "Tokens of other issuers judged.", ["result"], registry=registry
        )
        self.fetches = Counter("queryserver_jwks_fetch", "Key sets asked for.", ["result"], registry=registry)


class _Statements:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = Counter(
            "queryserver_statements", "Statements that have ended.", ["dialect", "outcome"], registry=registry
        )
        self.seconds = Histogram(
            "queryserver_statement_seconds",
            "Time from the beginning of the work on a statement to its end.",
            ["dialect"],
            registry=registry,
            buckets=_STATEMENT_S,
        )
        self.failures = Counter(
            "queryserver_engine_errors", "Refusals and failures of engines.", ["dialect", "kind"], registry=registry
        )
        self.sessions = Gauge(
            "queryserver_engine_sessions",
            "Engine sessions open now, those of looks at metadata included.",
            ["dialect"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.leases_lost = Counter(
            "queryserver_leases_lost", "Statements that another process took over.", registry=registry
        )
        self.expired = Counter("queryserver_results_expired", "Results whose time was over.", registry=registry)


class _Files:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.operations = Counter(
            "queryserver_storage_operations",
            "Calls on files that were answered.",
            ["fs", "operation", "outcome"],
            registry=registry,
        )
        self.uploads = Gauge(
            "queryserver_uploads_active", "Uploads on their way.", registry=registry, multiprocess_mode="livesum"
        )
