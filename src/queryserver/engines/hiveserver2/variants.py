"""Describes kinds of HiveServer2 servers, and their addresses, logins and time limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from queryserver.engines.catalog_queries import backquoted
from queryserver.engines.connections import RETRY_S
from queryserver.engines.hiveserver2.estimates import HIVE_EXPLAIN, IMPALA_EXPLAIN, SPARK_EXPLAIN, ExplainStatement
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.errors.statements import CredentialsRequired
from queryserver.formats.arrow import ROW_SIZE_FACTOR
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules
from queryserver.sql import literals
from queryserver.sql.literals import Literals


@dataclass(frozen=True, slots=True)
class Hs2Variant:
    """The properties of one kind of server. Other code uses them instead of comparing dialect names."""

    dialect: str
    proxy_user_key: str = "hive.server2.proxy.user"  # session option that names the impersonated user
    session_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    setting_prefix: str = ""  # prefix of engine options in the OpenSession configuration
    conf_overlay: Mapping[str, str] | None = None  # options sent with each statement
    quotes_database: bool = False  # the server does not quote the initial database in its USE statement
    long_polls: bool = True  # GetOperationStatus waits some seconds for the statement to end
    empty_result_column: str | None = None  # column that the server returns for a statement without a result set
    logs_by_rpc: bool = False  # read the log with GetLog, which returns the whole log, instead of FetchResults
    close_returns_row_count: bool = False  # CloseImpalaOperation returns the number of changed rows
    progress_by_summary: bool = False  # read the progress with GetExecSummary
    has_reliable_more_rows: bool = False  # `has_more_rows` in replies is reliable
    # The session setting that determines whether the server keeps result rows, and the values that enable this. None if
    # the server itself rejects a request for rows that it has not kept.
    row_retention_setting: tuple[str, frozenset[str]] | None = None
    timeout_keys: tuple[str, str] | None = None  # session options for the query timeout and the idle session timeout
    capabilities: EngineCapabilities = field(default_factory=EngineCapabilities)
    tag_setting: str | None = None  # option of a statement that the server shows in its own views
    tags_by_comment: bool = False  # the server ignores options of statements and shows only the text
    scan_limit_setting: str | None = None  # option of a statement that limits the bytes that it reads
    explain: ExplainStatement | None = None  # returns the sizes of the tables that a statement reads

    literals: Literals | None = None
    """Writes parameters as literals; None if parameters are not supported."""

    def database_name(self, database: str) -> str:
        return backquoted(database) if self.quotes_database else database


HIVE = Hs2Variant(
    dialect="hive",
    setting_prefix="set:hiveconf:",
    row_retention_setting=("hive.fetch.task.caching", frozenset({"true"})),
    capabilities=EngineCapabilities(reports_progress=True, estimates_bytes=True),
    # The name of the DAG in the logs of HiveServer2, in Tez's page and in YARN. Hive permits it in every mode.
    tag_setting="hive.query.name",
    explain=HIVE_EXPLAIN,
    literals=literals.HIVE,
)
HPLSQL = replace(
    HIVE,
    dialect="hplsql",
    literals=None,
    explain=None,
    session_conf=MappingProxyType({"set:hivevar:mode": "HPLSQL"}),
    capabilities=EngineCapabilities(can_explain=False, reports_progress=True),
)
SPARKSQL = Hs2Variant(
    dialect="sparksql",
    setting_prefix="set:hiveconf:",
    quotes_database=True,
    literals=literals.SPARKSQL,
    empty_result_column="Result",
    # With incremental collection, a repeated fetch recomputes the rows, possibly in a different order.
    row_retention_setting=("spark.sql.thriftServer.incrementalCollect", frozenset({"false", "<undefined>"})),
    tags_by_comment=True,
    explain=SPARK_EXPLAIN,
    # If Spark rejects a statement, EXPLAIN returns the error instead of a plan.
    capabilities=EngineCapabilities(
        estimates_bytes=True,
        explain_failure=re.compile(
            r"\A(?:== Physical Plan ==\s+(?:[\w$]+\.)+[\w$]*Exception: |Error occurred during query planning:\s)"
        ),
    ),
)
IMPALA = Hs2Variant(
    dialect="impala",
    proxy_user_key="impala.doas.user",
    # The coordinator keeps this many rows, so that FETCH_FIRST works after another process reattaches.
    conf_overlay=MappingProxyType({"impala.resultset.cache.size": "10000"}),
    long_polls=False,
    logs_by_rpc=True,
    close_returns_row_count=True,
    progress_by_summary=True,
    has_reliable_more_rows=True,
    timeout_keys=("QUERY_TIMEOUT_S", "IDLE_SESSION_TIMEOUT"),
    # Impala 3.1 and later show it in the profile and on the page of the query.
    tag_setting="CLIENT_IDENTIFIER",
    scan_limit_setting="SCAN_BYTES_LIMIT",
    explain=IMPALA_EXPLAIN,
    literals=literals.IMPALA,
    capabilities=EngineCapabilities(reports_progress=True, estimates_bytes=True),
)

VARIANTS: Mapping[str, Hs2Variant] = MappingProxyType({one.dialect: one for one in (HIVE, HPLSQL, SPARKSQL, IMPALA)})


CELL_BYTES = 16 * 1024 * 1024
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)b?", re.IGNORECASE)


def size_bytes(value: str) -> int | None:
    """Return a size as Impala writes it, such as `1000`, `1.5g` or `2GB`; None for other texts and for 0, no limit."""
    match = _SIZE.fullmatch(value.strip())
    return int(float(match[1]) * 1024 ** " kmgtp".index(match[2].lower() or " ")) or None if match else None


class Mechanism(StrEnum):
    NONE = "NONE"  # SASL PLAIN with an unchecked password
    NOSASL = "NOSASL"
    PLAIN = "PLAIN"
    LDAP = "LDAP"  # same as PLAIN
    GSSAPI = "GSSAPI"
    JWT = "JWT"  # the caller's own token, over HTTP


@dataclass(frozen=True, slots=True)
class Member:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hs2Login:
    """The member that a connection is opened to, and the user. For JWT, `password` is the token."""

    member: Member
    user: str
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS options.

    `ca` contains the trusted certificate authorities in PEM; if empty, the system's authorities are trusted.
    """

    validate: bool = True
    ca: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits for calls.

    `execute_s` includes the time in which Hive compiles the statement, and `fetch_s` the time in which a server may
    compute rows.
    """

    connect_s: float = 10.0
    execute_s: float = 300.0
    status_s: float = 90.0
    fetch_s: float = 600.0
    other_s: float = 30.0
    end_s: float = 3.0  # for cancel and close calls
    retry_s: float = RETRY_S  # how long a call about a statement is retried after the first network failure
    settle_s: float = 1.0  # minimum time for the server to finish a fetch whose connection broke


@dataclass(frozen=True, slots=True)
class Hs2Address:
    """A group of equivalent servers, called members. A session stays on one member.

    If `username` is empty, callers log in under their own names. If `impersonation` is set, the service logs in and
    acts on behalf of the caller. `session_conf` contains engine options. A timeout of 0 selects the engine's own
    timeout.
    """

    members: tuple[Member, ...]
    mechanism: Mechanism = Mechanism.NONE
    http_path: str | None = None  # None selects binary transport
    username: str = ""
    password: str = field(default="", repr=False)
    impersonation: bool = False
    kerberos_service: str = "hive"
    kerberos_host: str = ""  # host name in the server's principal; the member's host if empty
    tls: Tls | None = None
    database: str = "default"
    session_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    query_timeout_s: int = 0
    session_timeout_s: int = 0
    tags_statements: bool = True  # statements carry their user and operation
    limits: Limits = Limits()
    cell_max_bytes: int = CELL_BYTES  # maximum size of a result value
    rules: AddressRules = field(default_factory=AddressRules)

    @property
    def reply_max_bytes(self) -> int:
        """Maximum size of a reply: the largest row, plus an allowance for batches of many small rows."""
        return max(ROW_SIZE_FACTOR * self.cell_max_bytes, 16 * 1024 * 1024) + 8 * 1024 * 1024

    def scan_limit(self, variant: Hs2Variant, options: SessionOptions) -> int | None:
        """Return the limit on bytes that the session's own options set for each of its statements, if any."""
        name = (variant.scan_limit_setting or "").lower()
        chosen = {key.lower(): value for key, value in {**self.session_conf, **options.settings}.items()}
        return size_bytes(chosen.get(name, ""))

    @property
    def wants_credentials(self) -> bool:
        """Whether callers must provide a user name and password."""
        return self.mechanism in {Mechanism.PLAIN, Mechanism.LDAP} and not self.username

    @property
    def needs_caller(self) -> bool:
        """Whether only callers can log in, not the service itself."""
        return self.wants_credentials or self.mechanism is Mechanism.JWT

    def login(self, member: Member, user: User, options: SessionOptions) -> Hs2Login:
        """Return the login for a session.

        Raises CredentialsRequired if the caller must provide credentials or a token.
        """
        if self.mechanism is Mechanism.JWT:
            if not options.external_token:
                raise CredentialsRequired("This data source requires the caller's own token.")
            return Hs2Login(member, user.username, options.external_token)
        if options.credentials is not None:
            return Hs2Login(member, options.credentials.username, options.credentials.password)
        if self.wants_credentials:
            raise CredentialsRequired("This data source requires a username and password.")
        return Hs2Login(member, self.username or user.username, self.password)

    def proxy_user(self, user: User, options: SessionOptions) -> str | None:
        """Return the user to impersonate; None if statements should run as the user who logs in."""
        acts = self.impersonation and options.credentials is None and bool(self.username)
        return user.username if acts and user.username != self.username else None
