"""Hive, Impala and Spark as older settings files have them: tables `beeswax`, `impala`, `spark`."""

from typing import Literal

from pydantic import Field

from queryserver.settings.section import (
    NO_SECRET,
    Count,
    Flag,
    OptionalPlace,
    Port,
    Positive,
    Secret,
    Section,
    Text,
    Whole,
)


class EngineTlsSettings(Section):
    """Encryption of the connection."""

    enabled: Flag = False
    """Whether TLS is used."""
    cacerts: OptionalPlace = None
    """PEM file of trusted authorities."""
    # Pydantic has a method of the key's own name.
    validate_certificate: Flag = Field(default=True, alias="validate")
    """Whether certificates are checked."""


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
    """Whether results are closed once the client leaves its editor."""
    close_sessions: Flag = False
    """Taken from older files, without effect."""
    max_number_of_sessions: Whole = -1
    """Taken from older files, without effect."""
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
    """Whether results are closed once the client leaves its editor."""
    ssl: EngineTlsSettings = EngineTlsSettings()


class SparkSettings(Section):
    """Spark Thrift Server, for interpreters of the dialect sparksql without options."""

    sql_server_host: Text = "localhost"
    """Host name."""
    sql_server_port: Port = 10000
    """Port."""
    use_sasl: Flag = True
    """Whether the login is SASL."""
