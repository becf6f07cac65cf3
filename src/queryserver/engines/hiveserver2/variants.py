"""Differences of the servers that speak HiveServer2; their addresses, logins and time limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from queryserver.engines.catalog_queries import backquoted
from queryserver.engines.connections import RETRY_S
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.errors.statements import CredentialsRequired
from queryserver.formats.columns import ROW_CELLS
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules
from queryserver.sql import literals
from queryserver.sql.literals import Literals


@dataclass(frozen=True, slots=True)
class Hs2Variant:
    """Facts about one kind of server. No other code compares dialect names."""

    dialect: str
    proxy_user_key: str = "hive.server2.proxy.user"  # session option that names the user to act for
    session_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    setting_prefix: str = ""  # before the names of engine options in the configuration of OpenSession
    conf_overlay: Mapping[str, str] | None = None  # options of each statement
    quotes_database: bool = False  # the server puts the name of the first database into a USE: it must come quoted
    long_polls: bool = True  # GetOperationStatus waits for the end of the statement, for at most some seconds
    empty_result_column: str | None = None  # the column of a statement without result set
    logs_by_rpc: bool = False  # the log comes whole from GetLog, instead of line by line from FetchResults
    close_tells_rows: bool = False  # CloseImpalaOperation gives the number of changed rows
    progress_by_summary: bool = False  # GetExecSummary gives the progress
    tells_more_rows: bool = False  # `has_more_rows` is reliable
    # The session setting that decides whether the server keeps the rows of results, and its values for yes. None: the
    # server itself refuses to repeat rows that it does not keep.
    kept_rows: tuple[str, frozenset[str]] | None = None
    timeout_keys: tuple[str, str] | None = None  # session options: time-outs of queries and of idle sessions
    capabilities: EngineCapabilities = field(default_factory=EngineCapabilities)

    literals: Literals | None = None
    """How values of parameters are written; None: there can be none."""

    def database_name(self, database: str) -> str:
        return backquoted(database) if self.quotes_database else database


HIVE = Hs2Variant(
    dialect="hive",
    setting_prefix="set:hiveconf:",
    kept_rows=("hive.fetch.task.caching", frozenset({"true"})),
    capabilities=EngineCapabilities(reports_progress=True),
    literals=literals.HIVE,
)
HPLSQL = replace(
    HIVE,
    dialect="hplsql",
    literals=None,
    session_conf=MappingProxyType({"set:hivevar:mode": "HPLSQL"}),
    capabilities=EngineCapabilities(can_explain=False, reports_progress=True),
)
SPARKSQL = Hs2Variant(
    dialect="sparksql",
    setting_prefix="set:hiveconf:",
    quotes_database=True,
    literals=literals.SPARKSQL,
    empty_result_column="Result",
    # With incremental collection a second fetch computes the rows anew, in any order.
    kept_rows=("spark.sql.thriftServer.incrementalCollect", frozenset({"false", "<undefined>"})),
    # Spark answers EXPLAIN of a statement that it refuses with its error in place of the plan.
    capabilities=EngineCapabilities(
        explain_failure=re.compile(
            r"\A(?:== Physical Plan ==\s+(?:[\w$]+\.)+[\w$]*Exception: |Error occurred during query planning:\s)"
        )
    ),
)
IMPALA = Hs2Variant(
    dialect="impala",
    proxy_user_key="impala.doas.user",
    # The coordinator keeps this many rows so that FETCH_FIRST works after a re-attach.
    conf_overlay=MappingProxyType({"impala.resultset.cache.size": "10000"}),
    long_polls=False,
    logs_by_rpc=True,
    close_tells_rows=True,
    progress_by_summary=True,
    tells_more_rows=True,
    timeout_keys=("QUERY_TIMEOUT_S", "IDLE_SESSION_TIMEOUT"),
    literals=literals.IMPALA,
    capabilities=EngineCapabilities(reports_progress=True),
)

VARIANTS: Mapping[str, Hs2Variant] = MappingProxyType({one.dialect: one for one in (HIVE, HPLSQL, SPARKSQL, IMPALA)})


CELL_BYTES = 16 * 1024 * 1024


class Mechanism(StrEnum):
    NONE = "NONE"  # SASL PLAIN with the user name only
    NOSASL = "NOSASL"
    PLAIN = "PLAIN"
    LDAP = "LDAP"  # as PLAIN: user name and password
    GSSAPI = "GSSAPI"
    JWT = "JWT"  # the caller's own token, over http


@dataclass(frozen=True, slots=True)
class Member:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hs2Login:
    """The member and the user of a connection. With JWT `password` is the token."""

    member: Member
    user: str
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """`ca` is PEM text of the authorities to trust; empty for those of the system."""

    validate: bool = True
    ca: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call, in seconds. Hive compiles within `execute`; a server may compute rows within `fetch`."""

    connect_s: float = 10.0
    execute_s: float = 300.0
    status_s: float = 90.0
    fetch_s: float = 600.0
    other_s: float = 30.0
    end_s: float = 3.0  # cancel and close
    retry_s: float = RETRY_S  # how long calls about a statement are repeated from the first network failure on
    settle_s: float = 1.0  # how long a server may at least work on a request for rows whose connection broke


@dataclass(frozen=True, slots=True)
class Hs2Address:
    """A group of servers that answer alike; a session stays with its member.

    Without `username` each caller logs in under their own name. With `impersonation` the service logs in and acts for
    the caller. `session_conf` are engine options; time-outs of 0 are the engine's own.
    """

    members: tuple[Member, ...]
    mechanism: Mechanism = Mechanism.NONE
    http_path: str | None = None  # None: binary transport
    username: str = ""
    password: str = field(default="", repr=False)
    impersonation: bool = False
    kerberos_service: str = "hive"
    kerberos_host: str = ""  # of the server's principal; empty: that of the member
    tls: Tls | None = None
    database: str = "default"
    session_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    query_timeout_s: int = 0
    session_timeout_s: int = 0
    limits: Limits = Limits()
    cell_max_bytes: int = CELL_BYTES  # largest value of a result
    rules: AddressRules = field(default_factory=AddressRules)

    @property
    def reply_max_bytes(self) -> int:
        """The longest answer that is kept: the largest row, and more for batches of many small rows."""
        return max(ROW_CELLS * self.cell_max_bytes, 16 * 1024 * 1024) + 8 * 1024 * 1024

    @property
    def wants_credentials(self) -> bool:
        """Callers must give a user and a password."""
        return self.mechanism in {Mechanism.PLAIN, Mechanism.LDAP} and not self.username

    @property
    def needs_caller(self) -> bool:
        """Only callers can log in, not the service."""
        return self.wants_credentials or self.mechanism is Mechanism.JWT

    def login(self, member: Member, user: User, options: SessionOptions) -> Hs2Login:
        """The login of a session. Raises CredentialsRequired."""
        if self.mechanism is Mechanism.JWT:
            if not options.external_token:
                raise CredentialsRequired("This data source needs the caller's own token.")
            return Hs2Login(member, user.username, options.external_token)
        if options.credentials is not None:
            return Hs2Login(member, options.credentials.username, options.credentials.password)
        if self.wants_credentials:
            raise CredentialsRequired("This data source needs a user and a password.")
        return Hs2Login(member, self.username or user.username, self.password)

    def proxied(self, user: User, options: SessionOptions) -> str | None:
        """The user to act for; None: the user of the login."""
        acts = self.impersonation and options.credentials is None and bool(self.username)
        return user.username if acts and user.username != self.username else None
