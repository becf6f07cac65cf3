"""Settings of statements, results and sessions: tables `editor`, `notebook`, `documents`, `metastore`, `limits`,
`retention`.
"""

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
        raise ValueError("must be a string, a number or a boolean.")  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
    return value


OptionValue: TypeAlias = Annotated[str | int | float | bool, BeforeValidator(_plain)]


MAX_REUSE_AGE_S = 365 * 86_400
"""Maximum of `max_age_s`."""


class GeneralSettings(Section):
    """Settings that can be given for each data source (Contract editor 13, marked c; platform 5.11)."""

    read_only: Flag = False
    """Whether statements that change data are refused."""
    statement_timeout_s: Positive | None = None
    """Overrides `editor.statement_timeout_s`."""
    metadata_timeout_s: Positive | None = None
    """Overrides `editor.metadata_timeout_s`."""
    sample_timeout_s: Positive | None = None
    """Overrides `editor.sample_timeout_s`."""
    session_idle_s: Positive | None = None
    """Overrides `editor.session_idle_s`."""
    shared_session: Flag | None = None
    """Overrides `editor.shared_session`."""
    sample_views: Flag | None = None
    """Overrides `editor.sample_views`."""
    strict_settings: Flag = False
    """Whether engine settings that are not in `connector_policy.session_conf_allowed` are refused. If false, they are
    ignored, with a warning in the statement's log."""
    reuse_max_age_s: Annotated[Count, Field(le=MAX_REUSE_AGE_S)] = 0
    """Default of the field `max_age_s` of execute: a stored result of the same query of the same user that is not older
    answers the statement in place of the data source; 0: only calls that send `max_age_s` reuse results. Side effects
    of most functions cannot be detected, so set this only if no query is run for its effects."""
    retry: Literal["never", "read_only"] = "never"
    """`read_only`: if the process that runs a statement dies, a read-only statement is run once more, provided that it
    has its own session and no stored row. Side effects of functions cannot be detected, so choose this only if queries
    may run twice."""
    max_estimated_bytes: Positive | None = None
    """A statement is not run if the data source expects it to read more bytes; absent: no limit. Requires a data source
    that estimates bytes (docs/engines.md)."""
    max_estimated_cost: Positive | None = None
    """A statement is not run if its plan has a higher cost, in the units of the planner; absent: no limit. Requires a
    data source that estimates costs (postgresql)."""
    share_results: Literal["never", "users_of_connector", "anyone"] | None = None
    """To whom users may grant their results: no user, users who may use the data source too, or any user; absent:
    `never` if the data source knows the caller (by impersonation, the caller's token or login), otherwise
    `users_of_connector`."""


class InterpreterSettings(GeneralSettings):
    """A data source on which statements can run."""

    name: Text = ""
    """Display name; empty: the key of this table."""
    interface: Annotated[Text, Field(min_length=1)]
    """How the data source is reached: `duckdb`, `sqlite`, `sqlalchemy`, `hiveserver2`, `trino` or `phoenix`."""
    dialect: Text = ""
    """SQL dialect; empty: the key of this table."""
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    """Options of the interface, such as `url` or `path`."""
    groups: Names | None = None
    """Groups that may use the data source; absent: all users."""

    @model_validator(mode="before")
    @classmethod
    def _lift_options(cls, values: Any) -> Any:
        """Move general settings out of `options`, where stored connectors have them, to the top level."""
        options = values.get("options") if isinstance(values, Mapping) else None
        if not isinstance(options, Mapping):
            return values
        lifted = {name: options[name] for name in GeneralSettings.model_fields if name in options}
        kept = {name: value for name, value in options.items() if name not in lifted}
        return {**lifted, **values, "options": kept}


class ExampleConnectorSettings(Section):
    """A connector that `connector/examples/install` creates."""

    nice_name: Text = ""
    """Display name; empty: the key of this table."""
    dialect: Annotated[Text, Field(min_length=1)]
    """SQL dialect."""
    interface: Annotated[Text, Field(min_length=1)]
    """How the data source is reached; see `interface` of an interpreter."""
    settings: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    """Options of the interface."""
    groups: Names | None = None
    """Groups that may use the connector; absent: the default group."""


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
    """Restrictions that apply to connectors."""

    allowed_drivers: Names = tuple(_DRIVERS.split())
    """Drivers that connector URLs may name."""
    extra_url_options: dict[str, Names] = Field(default_factory=dict[str, Names])
    """By driver: additional options that its URLs may contain."""
    session_conf_allowed: Names = (
        "hive.execution.engine",
        "mapreduce.job.queuename",
        "tez.queue.name",
        "mem_limit",
        "request_pool",
        "query_timeout_s",
    )
    """Engine options that clients and connectors may set. Other options from clients are ignored or, with
    `strict_settings`, refused."""
    blocked_networks: Networks = tuple(map(ip_network, _BLOCKED))
    """Networks to which engine connections are refused."""
    allowed_networks: Networks = ()
    """The only networks to which engine connections are permitted; empty: all that are not blocked."""
    allow_service_database_server: Flag = False
    """Whether stored connectors may use other databases on the server of `desktop.database`. Interpreters from the
    settings may always do so. The service's own database is refused to both."""
    test_timeout_s: Positive = 10
    """Timeout for a connection test."""
    grant_to_default_group: Flag = True
    """Whether the default group may use new connectors."""
    local_database_dir: OptionalPath = None
    """Directory of the files that duckdb and sqlite may open; empty: they can only use `:memory:`."""
    local_database_max_bytes: Positive = 10 * GIB
    """Maximum size of a duckdb or sqlite file, and of the sample database of `serve --embedded`. A statement that would
    exceed it fails. The same limit applies separately to the log and to the temporary files of sqlite."""


# A hundred years; larger values would overflow in date arithmetic.
_MAX_DAYS = 36_500

Days = Annotated[Positive, Field(le=_MAX_DAYS)]
Hours = Annotated[Positive, Field(le=24 * _MAX_DAYS)]
Seconds = Annotated[Positive, Field(le=86_400 * 365)]


class GroupLimitSettings(Section):
    """Limits for the members of a group, in place of those of `editor`. Of several groups the highest limit applies."""

    max_estimated_bytes: Count | None = None
    """Overrides `editor.max_estimated_bytes`; 0: no limit."""
    budget_engine_s_per_day: Count | None = None
    """Overrides `editor.budget_engine_s_per_day`; 0: no limit."""
    budget_bytes_per_day: Count | None = None
    """Overrides `editor.budget_bytes_per_day`; 0: no limit."""


class EditorSettings(Section):
    """Statements and their results."""

    default_limit: Count = 5000
    """Row limit that clients are advised to send (`app_config.editor.default_limit`); 0: none."""
    enforce_default_limit: Flag = False
    """Whether `default_limit` is applied to results if neither the call nor the statement has a limit."""
    result_max_rows: Positive = 1_000_000
    """Maximum number of rows in a result."""
    result_max_bytes: Positive = GIB
    """Maximum size of a result."""
    batch_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Maximum size of a fetched batch as JSON."""
    rendering_max_bytes: Annotated[Positive, Field(ge=32 * MIB)] = 192 * MIB
    """Memory for building batches and samples in one process, half of it at most for one user. Further calls wait."""
    cell_max_bytes: Annotated[Positive, Field(ge=64 * KIB)] = 16 * MIB
    """Maximum size of a value in a result. A larger value fails the statement with `cell_too_large`."""
    result_retention_h: Hours = 24
    """How long a result is kept after the end of its statement."""
    share_default_days: Days = 7
    """How long a grant of a result lasts if the call has no `until`, at most until the result expires."""
    share_max_days: Days = 30
    """Maximum duration of a grant of a result."""
    log_retention_days: Days = 7
    """How long statement logs are kept."""
    history_retention_days: Days = 365
    """How long statement records are kept."""
    log_max_bytes: Positive = MIB
    """Maximum size of a statement's stored log."""
    statement_max_bytes: Positive = 10 * MIB
    """Maximum size of a statement or script."""
    script_max_statements: Annotated[Positive, Field(le=100_000)] = 1000
    """Maximum number of statements in a script that one call runs (`run_all`)."""
    statement_text_kept_bytes: Annotated[Positive, Field(ge=16 * KIB)] = 16 * KIB
    """Texts of statements and scripts up to this size are kept as long as their records. Of longer texts, only the
    first 4,000 characters and a hash are kept that long, and the whole text for `statement_text_retention_h`."""
    statement_text_retention_h: Hours = 24
    """How long longer texts are kept in full after the end of the statement and of its result."""
    statement_text_max_bytes_per_user: Positive = 64 * MIB
    """Maximum total size of one user's longer texts that are kept in full for `statement_text_retention_h`; the default
    holds six texts of `statement_max_bytes`. The write-ahead log of the service database needs the same space again."""
    request_body_max_bytes: Positive = 16 * MIB
    """Maximum body size of an editor call."""
    statement_timeout_s: Seconds = 3600
    """Timeout of a statement if the call has no `timeout`; 600 for impala."""
    metadata_timeout_s: Seconds = 30
    """Timeout for listing databases, tables, columns and functions, and for explain."""
    sample_timeout_s: Seconds = 10
    """Timeout for reading sample rows."""
    metadata_cache_s: Count = 60
    """How long metadata is cached."""
    metadata_max_names: Positive = 50_000
    """Maximum number of names in one response."""
    cancel_wait_s: Seconds = 10
    """How long a cancel call waits for the engine to confirm the cancellation."""
    lease_timeout_s: Annotated[Seconds, Field(ge=3)] = 30
    """How long a process that sends no heartbeat keeps its statements before another process takes them over."""
    session_idle_s: Seconds = 900
    """How long an idle engine session stays open."""
    shared_session: Flag = False
    """Whether calls that specify no session share one session per user."""
    sample_views: Flag = True
    """Whether sample rows can be read from views."""
    escape_default: Flag = False
    """Whether cells are HTML-escaped if the call does not specify `escape`."""
    max_statements_per_user: Positive = 50
    """Maximum number of waiting and running statements per user."""
    max_sessions_per_user: Positive = 50
    """Maximum number of open sessions per user."""
    max_sessions_per_connector: Annotated[Positive, Field(ge=2)] = 128
    """Sessions per connector that one process keeps open for `create_session`. One user can hold at most half of them
    and, of the last quarter, no more than an equal share."""
    max_streams_per_user: Positive = 20
    """Maximum number of concurrent event streams, long polls and downloads per user."""
    stream_max_s: Seconds = 3600
    """Maximum duration of an event stream."""
    spool_max_bytes_per_user: Positive = 20 * GIB
    """Maximum total size of the stored results of one user."""
    max_estimated_bytes: Count = 0
    """A statement is not run if the data source expects it to read more bytes; 0: no limit. Statements that the data
    source cannot estimate are run."""
    budget_engine_s_per_day: Count = 0
    """Maximum time that the statements of one user run on data sources in one UTC day, in seconds; 0: no limit."""
    budget_bytes_per_day: Count = 0
    """Maximum bytes that the statements of one user read from data sources in one UTC day: as the data source reports
    them, otherwise its estimate, otherwise the size of the rows; 0: no limit."""
    group_limits: dict[str, GroupLimitSettings] = Field(default_factory=dict[str, GroupLimitSettings])
    """By group: limits of its members in place of `max_estimated_bytes`, `budget_engine_s_per_day` and
    `budget_bytes_per_day`."""

    @property
    def result_retention(self) -> timedelta:
        return timedelta(hours=self.result_retention_h)

    @property
    def share_default(self) -> timedelta:
        return timedelta(days=min(self.share_default_days, self.share_max_days))

    @property
    def share_max(self) -> timedelta:
        return timedelta(days=self.share_max_days)

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
    """Editor values for clients, and the data sources."""

    default_limit: Count = 5000
    """Alias of `editor.default_limit`."""
    default_interpreter: Text = ""
    """Key, id or display name of the data source for calls that name none; empty: the first one."""
    interpreters_shown_on_wheel: Names = ()
    """Keys of the data sources that clients list first."""
    interpreters: dict[str, InterpreterSettings] = Field(default_factory=dict[str, InterpreterSettings])


class DocumentSettings(Section):
    """Documents: the saved queries of users."""

    max_per_user: Positive = 10_000
    """Maximum number of documents of one user, including the trash."""
    text_max_bytes: Annotated[Positive, Field(le=8 * MIB)] = MIB
    """Maximum size of the statement of one document."""
    max_bytes_per_user: Positive = 256 * MIB
    """Maximum total size of the documents of one user, including the trash and former versions."""
    versions_kept: Annotated[Count, Field(le=1000)] = 20
    """Number of former versions that are kept of each document."""
    trash_days: Count = 30
    """Days after which the cleanup deletes documents in the trash."""

    @property
    def trash_retention(self) -> timedelta:
        return timedelta(days=self.trash_days)


class MetastoreSettings(Section):
    """Metadata settings from older settings files."""

    allow_sample_data_from_views: Flag = True
    """Alias of `editor.sample_views`."""


class LimitsSettings(Section):
    """Limits for calls that have no specific limits."""

    max_body_bytes: Positive = 10 * MIB
    """Maximum body size of a call."""
    max_json_depth: Annotated[Positive, Field(le=1000)] = 64
    """Maximum nesting depth of JSON."""
    api_requests_per_minute: Count = 0
    """Maximum calls per minute by one user, or by one address on public paths; 0 disables the limit."""
    calls_per_user: Annotated[Positive, Field(ge=2)] = 64
    """Maximum concurrent calls of one user in one process, in addition to `editor.max_streams_per_user` event streams,
    long polls and transfers. Further calls wait."""


class RetentionSettings(Section):
    """The periodic cleanup. `editor.result_retention_h` defines how long results are kept."""

    tasks_days: Days = 30
    """How long finished tasks are listed."""
    run_every_s: Seconds = 3600
    """Interval between cleanups."""

    @property
    def run_every(self) -> timedelta:
        return timedelta(seconds=self.run_every_s)


class EngineTlsSettings(Section):
    """Encryption of the engine connection."""

    enabled: Flag = False
    """Whether TLS is used."""
    cacerts: OptionalPath = None
    """PEM file of trusted CAs."""
    # The attribute has another name, because `validate` is a method of Pydantic models.
    validate_certificate: Flag = Field(default=True, alias="validate")
    """Whether certificates are verified."""


class BeeswaxSettings(Section):
    """HiveServer2 defaults for interpreters of the dialect hive that have no options."""

    hive_server_host: Text = "localhost"
    """Host name, or a comma-separated list."""
    hive_server_port: Port = 10000
    """Port."""
    transport_mode: Literal["binary", "http"] = "binary"
    """Transport protocol."""
    http_path: Text = "cliservice"
    """URL path, for the transport http."""
    auth_mechanism: Literal["", "NONE", "NOSASL", "PLAIN", "LDAP", "GSSAPI", "JWT"] = ""
    """How the service authenticates; empty: determined by `use_sasl`."""
    auth_username: Text = ""
    """Login name of the service; empty: the caller's name."""
    auth_password: Secret = NO_SECRET
    """Password of the service."""
    use_sasl: Flag = True
    """If `auth_mechanism` is empty: NONE (SASL) if true, NOSASL if false."""
    server_conn_timeout: Positive = 120
    """Timeout for connecting, in seconds."""
    close_queries: Flag = False
    """Whether results are closed when the client leaves its editor."""
    close_sessions: Flag = False
    """Accepted from older settings files; has no effect."""
    max_number_of_sessions: Whole = -1
    """Accepted from older settings files; has no effect."""
    ssl: EngineTlsSettings = EngineTlsSettings()


class ImpalaSettings(Section):
    """Impala defaults for interpreters of the dialect impala that have no options."""

    server_host: Text = "localhost"
    """Host name, or a comma-separated list."""
    server_port: Port = 21050
    """Port."""
    impersonation_enabled: Flag = False
    """Whether statements run as the caller."""
    use_thrift_http: Flag = False
    """Whether the transport is HTTP."""
    auth_username: Text = ""
    """Login name of the service; empty: the caller's name."""
    auth_password: Secret = NO_SECRET
    """Password of the service."""
    server_conn_timeout: Positive = 120
    """Timeout for connecting, in seconds."""
    query_timeout_s: Count = 600
    """Sent to Impala as a session option."""
    session_timeout_s: Count = 3600
    """Sent to Impala as a session option."""
    close_queries: Flag = False
    """Whether results are closed when the client leaves its editor."""
    ssl: EngineTlsSettings = EngineTlsSettings()


class SparkSettings(Section):
    """Spark Thrift Server defaults for interpreters of the dialect sparksql that have no options."""

    sql_server_host: Text = "localhost"
    """Host name."""
    sql_server_port: Port = 10000
    """Port."""
    use_sasl: Flag = True
    """Whether the service authenticates with SASL."""
