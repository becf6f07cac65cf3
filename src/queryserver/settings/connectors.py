"""Data sources: tables `notebook.interpreters`, `desktop.connectors`, `desktop.connector_policy`."""

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from queryserver.settings.networks import Networks
from queryserver.settings.section import Flag, Names, OptionalPlace, Positive, Section, Text


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        message = "must be a text, a number or a boolean."
        raise ValueError(message)  # noqa: TRY004 Pydantic reports ValueError as a problem of the value
    return value


OptionValue: TypeAlias = Annotated[str | int | float | bool, BeforeValidator(_plain)]

# Editor settings that a data source may have of its own (Contract editor 13, marked c), and `read_only`. They may
# stand among the options too, where stored connectors have them (Contract platform 5.11).
_LIFTED = (
    "statement_timeout_s",
    "metadata_timeout_s",
    "sample_timeout_s",
    "session_idle_s",
    "shared_session",
    "sample_views",
    "read_only",
)


class InterpreterSettings(Section):
    """A data source that statements can be sent to."""

    name: Text = ""
    """Name for people; empty: the key."""
    interface: Annotated[Text, Field(min_length=1)]
    """How it is reached: `duckdb`, `sqlite`, `sqlalchemy`, `hiveserver2`, `trino`, `phoenix`."""
    dialect: Text = ""
    """Its SQL; empty: the key."""
    options: dict[str, OptionValue] = Field(default_factory=dict[str, OptionValue])
    """Settings of the interface, such as `url` or `path`."""
    groups: Names | None = None
    """Groups that may use it; absent: all users."""
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

    @model_validator(mode="before")
    @classmethod
    def _lift_options(cls, values: Any) -> Any:
        options = values.get("options") if isinstance(values, Mapping) else None
        if not isinstance(options, Mapping):
            return values
        lifted = {name: options[name] for name in _LIFTED if name in options}
        kept = {name: value for name, value in options.items() if name not in lifted}
        return {**lifted, **values, "options": kept}


class ExampleConnectorSettings(Section):
    """A connector that `connector/examples/install` adds."""

    nice_name: Text = ""
    """Name for people; empty: the key."""
    dialect: Annotated[Text, Field(min_length=1)]
    """Its SQL."""
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
    """What connectors may be and do."""

    allowed_drivers: Names = tuple(_DRIVERS.split())
    """Drivers that a connector's url may name."""
    extra_url_options: dict[str, Names] = Field(default_factory=dict[str, Names])
    """Driver to names of further options that its urls may have."""
    session_conf_allowed: Names = (
        "hive.execution.engine",
        "mapreduce.job.queuename",
        "tez.queue.name",
        "mem_limit",
        "request_pool",
        "query_timeout_s",
    )
    """Engine options that clients and connectors may set."""
    blocked_networks: Networks = tuple(map(ip_network, _BLOCKED))
    """Addresses that no engine connection may go to."""
    allowed_networks: Networks = ()
    """The only addresses that engine connections may go to; empty: all that are not blocked."""
    allow_service_database_server: Flag = False
    """Whether stored connectors may use other databases on the server of `desktop.database`; interpreters of the
    settings may. The service's own database is refused to all of them."""
    test_timeout_s: Positive = 10
    """Limit of a connection test."""
    grant_to_default_group: Flag = True
    """Whether the default group may use new connectors."""
    local_database_dir: OptionalPlace = None
    """Directory of the files that duckdb and sqlite may open; empty: only `:memory:`."""
