"""Statements, their results and sessions: tables `editor`, `notebook`, `metastore`, `limits`, `retention`."""

from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from queryserver.platform.settings.sections import (
    GIB,
    KIB,
    MIB,
    NO_SECRET,
    Count,
    Flag,
    Names,
    Networks,
    OptionalPath,
    Port,
    Positive,
    Secret,
    Section,
    Text,
    Whole,
)


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be a text, a number or a boolean.")  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
    return value


OptionValue: TypeAlias = Annotated[str | int | float | bool, BeforeValidator(_plain)]


class GeneralSettings(Section):
    """What every data source may have of its own (Contract editor 13, marked c; platform 5.11)."""

    read_only: Flag = False
    """Whether changes of data are refused."""
    statement_timeout_s: Positive | None = None
    """Instead of `editor.statement_timeout_s`."""
    metadata_timeout_s: Positive | None = None
    """Instead of `editor.metadata_timeout_s`."""
    sample_timeout_s: Positive | None = None
    """Instead of `editor.sample_timeout_s`."""
    session_idle_s: Positive | None = None
    """Instead of `editor.session_idle_s`."""
    shared_session: Flag | None = None
    """Instead of `editor.shared_session`."""
    sample_views: Flag | None = None
    """Instead of `editor.sample_views`."""
    strict_settings: Flag = False
    """Whether engine settings outside of `connector_policy.session_conf_allowed` are refused; otherwise they are
    ignored, with a warning in the log of the statement."""
    retry: Literal["never", "read_only"] = "never"
    """`read_only`: if the process that runs a statement dies, a statement that only reads is run once more, provided
    that it has its own session and no stored row. The effects of functions cannot be known: choose it where queries
    may run twice."""


class InterpreterSettings(GeneralSettings):
    """A data source on which statements can run."""

    name: Text = ""
    """Display name; empty: the key."""
    interface: Annotated[Text, Field(min_length=1)]
    """How it is reached: `duckdb`, `sqlite`, `sqlalchemy`, `hiveserver2`, `trino`, `phoenix`."""
    dialect: Text = ""
    """Its SQL dialect; empty: the key."""
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    """Settings of the interface, such as `url` or `path`."""
    groups: Names | None = None
    """Groups that may use it; absent: all users."""

    @model_validator(mode="before")
    @classmethod
    def _lift_options(cls, values: Any) -> Any:
        """Lift general settings out of the options, where stored connectors have them."""
        options = values.get("options") if isinstance(values, Mapping) else None
        if not isinstance(options, Mapping):
            return values
        lifted = {name: options[name] for name in GeneralSettings.model_fields if name in options}
        kept = {name: value for name, value in options.items() if name not in lifted}
        return {**lifted, **values, "options": kept}


class ExampleConnectorSettings(Section):
    """A connector that `connector/examples/install` adds."""

    nice_name: Text = ""
    """Display name; empty: the key."""
    dialect: Annotated[Text, Field(min_length=1)]
    """Its SQL dialect."""
    interface: Annotated[Text, Field(min_length=1)]
    """How it is reached."""
    settings: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    """Settings of the interface."""
    groups: Names | None = None
    """Groups that may use it; absent: the default group."""


_DRIVERS = (
    "hive impala druid phoenix mysql postgresql trino presto elasticsearch+http calcite awsathena+rest "
    "redshift+psycopg2 snowflake bigquery oracle clickhouse mysql+pymysql postgresql+psycopg postgresql+asyncpg"
)

_BLOCKED = (
    "0.0.0.0/32",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "::/128",
    "fe80::/10",
    "ff00::/8",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
)


class ConnectorPolicySettings(Section):
    """Restrictions on connectors."""

    allowed_drivers: Names = tuple(_DRIVERS.split())
    """Drivers that the url of a connector may name."""
    extra_url_options: dict[str, Names] = Field(default_factory=dict[str, Names])
    """For each driver, the names of additional options that its urls may have."""
    session_conf_allowed: Names = (
        "hive.execution.engine",
        "mapreduce.job.queuename",
        "tez.queue.name",
        "mem_limit",
        "request_pool",
        "query_timeout_s",
    )
    """Engine options that clients and connectors may set; others of clients are ignored (`strict_settings`)."""
    blocked_networks: Networks = tuple(map(ip_network, _BLOCKED))
    """Networks that engine connections must not reach."""
    allowed_networks: Networks = ()
    """The only networks that engine connections may reach; empty: all that are not blocked."""
    allow_service_database_server: Flag = False
    """Whether stored connectors may use other databases on the server of `desktop.database`; interpreters of the
    settings may. The service's own database is refused to all of them."""
    test_timeout_s: Positive = 10
    """Timeout of a connection test."""
    grant_to_default_group: Flag = True
    """Whether the default group may use new connectors."""
    local_database_dir: OptionalPath = None
    """Directory of the files that duckdb and sqlite may open; empty: only `:memory:`."""
    local_database_max_bytes: Positive = 10 * GIB
    """Maximum size of one file of duckdb or sqlite, and of the sample database of `serve --embedded`: a statement that
    would exceed it fails. The log and the temporary files of sqlite have the same limit each."""


# A hundred years, beyond which sums with dates overflow.
_MAX_DAYS = 36_500

Days = Annotated[Positive, Field(le=_MAX_DAYS)]
Hours = Annotated[Positive, Field(le=24 * _MAX_DAYS)]
Seconds = Annotated[Positive, Field(le=86_400 * 365)]


class EditorSettings(Section):
    """Statements and their results."""

    default_limit: Count = 5000
    """Limit that clients are advised to send (`app_config.editor.default_limit`); 0: none."""
    enforce_default_limit: Flag = False
    """Whether a result has at most `default_limit` rows if neither the call nor the statement has a limit."""
    result_max_rows: Positive = 1_000_000
    """Maximum rows of one result."""
    result_max_bytes: Positive = GIB
    """Maximum size of one result."""
    batch_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Maximum size of the JSON of one fetched batch."""
    rendering_max_bytes: Annotated[Positive, Field(ge=32 * MIB)] = 192 * MIB
    """Memory for building batches and samples in one process; half of it for one user. Further calls wait."""
    cell_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Largest value of a result; a larger one ends its statement with `cell_too_large`."""
    result_retention_h: Hours = 24
    """How long a result is kept, from the end of its statement."""
    log_retention_days: Days = 7
    """How long logs of statements are kept."""
    history_retention_days: Days = 365
    """How long records of statements are kept."""
    log_max_bytes: Positive = MIB
    """Maximum size of the stored log of one statement."""
    statement_max_bytes: Positive = 10 * MIB
    """Maximum size of a statement or script."""
    script_max_statements: Annotated[Positive, Field(le=100_000)] = 1000
    """Maximum statements of a script that one call runs (`run_all`)."""
    statement_text_kept_bytes: Annotated[Positive, Field(ge=16 * KIB)] = 16 * KIB
    """Texts of statements and scripts up to this size are kept as long as their record. Of longer ones, the first
    4,000 characters and a hash are kept that long, and the whole text for `statement_text_retention_h`."""
    statement_text_retention_h: Hours = 24
    """How long larger texts are kept whole, from the end of their statement and of its result."""
    statement_text_max_bytes_per_user: Positive = 64 * MIB
    """Total size of the larger texts of one user that are kept whole for `statement_text_retention_h`: by default six
    texts of `statement_max_bytes`. The write-ahead log of the service database needs the same space again."""
    request_body_max_bytes: Positive = 16 * MIB
    """Largest body of an editor call."""
    statement_timeout_s: Seconds = 3600
    """How long a statement may run without a `timeout` in the call; impala: 600."""
    metadata_timeout_s: Seconds = 30
    """Timeout of lists of databases, tables, columns and functions, and of explain."""
    sample_timeout_s: Seconds = 10
    """Timeout of sample rows."""
    metadata_cache_s: Count = 60
    """How long metadata is cached."""
    metadata_max_names: Positive = 50_000
    """Maximum names in one response."""
    cancel_wait_s: Seconds = 10
    """How long a cancellation waits for the engine."""
    lease_timeout_s: Annotated[Seconds, Field(ge=3)] = 30
    """How long a server that shows no sign of life keeps its statements before another one takes them over."""
    session_idle_s: Seconds = 900
    """How long an unused engine session stays open."""
    shared_session: Flag = False
    """Whether calls without a session share one session per user."""
    sample_views: Flag = True
    """Whether sample rows of views are read."""
    escape_default: Flag = False
    """Whether cells are HTML-escaped if the call has no `escape`."""
    max_statements_per_user: Positive = 50
    """Maximum statements of one user that wait or run."""
    max_sessions_per_user: Positive = 50
    """Maximum open sessions of one user."""
    max_sessions_per_connector: Annotated[Positive, Field(ge=2)] = 128
    """Sessions of one connector that one process keeps open for `create_session`; at most half of them of one user, and
    of the last quarter no more than an equal share."""
    max_streams_per_user: Positive = 20
    """Maximum concurrent event streams, waits and downloads of one user."""
    stream_max_s: Seconds = 3600
    """Maximum duration of an event stream."""
    spool_max_bytes_per_user: Positive = 20 * GIB
    """Maximum size of the stored results of one user."""

    @property
    def result_retention(self) -> timedelta:
        return timedelta(hours=self.result_retention_h)

    @property
    def statement_text_retention(self) -> timedelta:
        return timedelta(hours=self.statement_text_retention_h)

    @property
    def log_retention(self) -> timedelta:
        return timedelta(days=self.log_retention_days)

    @property
    def history_retention(self) -> timedelta:
        return timedelta(days=self.history_retention_days)

    @property
    def cancel_wait(self) -> timedelta:
        return timedelta(seconds=self.cancel_wait_s)

    @property
    def lease_timeout(self) -> timedelta:
        return timedelta(seconds=self.lease_timeout_s)


class NotebookSettings(Section):
    """Values of the editor for clients, and the data sources."""

    default_limit: Count = 5000
    """Another name of `editor.default_limit`."""
    default_interpreter: Text = ""
    """Key, id or display name of the data source for calls that name none; empty: the first."""
    interpreters_shown_on_wheel: Names = ()
    """Keys of the data sources that clients show first."""
    interpreters: dict[str, InterpreterSettings] = Field(default_factory=dict[str, InterpreterSettings])


class MetastoreSettings(Section):
    """Metadata settings of older settings files."""

    allow_sample_data_from_views: Flag = True
    """Another name of `editor.sample_views`."""


class LimitsSettings(Section):
    """Limits of calls that have none of their own."""

    max_body_bytes: Positive = 10 * MIB
    """Largest body of a call."""
    max_json_depth: Annotated[Positive, Field(le=1000)] = 64
    """Deepest nesting of JSON."""
    api_requests_per_minute: Count = 0
    """Calls of one user, or of one address on public paths; 0: no limit."""
    calls_per_user: Annotated[Positive, Field(ge=2)] = 64
    """Concurrent calls of one user in one process, besides `editor.max_streams_per_user` event streams, waits and
    transfers; further ones wait."""


class RetentionSettings(Section):
    """The automatic cleanup. `editor.result_retention_h` says how long a result is kept."""

    tasks_days: Days = 30
    """How long ended tasks are listed."""
    run_every_s: Seconds = 3600
    """How often a server cleans up."""

    @property
    def run_every(self) -> timedelta:
        return timedelta(seconds=self.run_every_s)


class EngineTlsSettings(Section):
    """Encryption of the connection."""

    enabled: Flag = False
    """Whether TLS is used."""
    cacerts: OptionalPath = None
    """PEM file of trusted authorities."""
    # Pydantic has a method of the key's own name.
    validate_certificate: Flag = Field(default=True, alias="validate")
    """Whether certificates are verified."""


class BeeswaxSettings(Section):
    """HiveServer2, for interpreters of the dialect hive without options."""

    hive_server_host: Text = "localhost"
    """Host name, or a comma list."""
    hive_server_port: Port = 10000
    """Port."""
    transport_mode: Literal["binary", "http"] = "binary"
    """Transport."""
    http_path: Text = "cliservice"
    """Path, for http."""
    auth_mechanism: Literal["", "NONE", "NOSASL", "PLAIN", "LDAP", "GSSAPI", "JWT"] = ""
    """How the service logs in; empty: by `use_sasl`."""
    auth_username: Text = ""
    """Login of the service; empty: the caller's name."""
    auth_password: Secret = NO_SECRET
    """Password of the service."""
    use_sasl: Flag = True
    """Whether an empty `auth_mechanism` means NONE (SASL) or NOSASL."""
    server_conn_timeout: Positive = 120
    """Seconds to wait for a connection."""
    close_queries: Flag = False
    """Whether results are closed when the client leaves its editor."""
    close_sessions: Flag = False
    """Accepted from older settings files, without effect."""
    max_number_of_sessions: Whole = -1
    """Accepted from older settings files, without effect."""
    ssl: EngineTlsSettings = EngineTlsSettings()


class ImpalaSettings(Section):
    """Impala, for interpreters of the dialect impala without options."""

    server_host: Text = "localhost"
    """Host name, or a comma list."""
    server_port: Port = 21050
    """Port."""
    impersonation_enabled: Flag = False
    """Whether statements run as the caller."""
    use_thrift_http: Flag = False
    """Whether the transport is http."""
    auth_username: Text = ""
    """Login of the service; empty: the caller's name."""
    auth_password: Secret = NO_SECRET
    """Password of the service."""
    server_conn_timeout: Positive = 120
    """Seconds to wait for a connection."""
    query_timeout_s: Count = 600
    """Sent as a session option."""
    session_timeout_s: Count = 3600
    """Sent as a session option."""
    close_queries: Flag = False
    """Whether results are closed when the client leaves its editor."""
    ssl: EngineTlsSettings = EngineTlsSettings()


class SparkSettings(Section):
    """Spark Thrift Server, for interpreters of the dialect sparksql without options."""

    sql_server_host: Text = "localhost"
    """Host name."""
    sql_server_port: Port = 10000
    """Port."""
    use_sasl: Flag = True
    """Whether the login is SASL."""
