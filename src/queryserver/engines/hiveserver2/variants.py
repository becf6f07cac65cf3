"""What the servers that speak HiveServer2 do differently."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from queryserver.engines.quoting import identifier
from queryserver.interfaces.engine import EngineCapabilities


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The setting of a session that decides whether its server keeps the rows of results, and its values for yes."""

    setting: str
    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class Variant:
    """Facts about one kind of server. Nobody else compares dialect names."""

    dialect: str
    proxy_user_key: str = "hive.server2.proxy.user"
    """Session option that names the user to act for."""
    session_conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    setting_prefix: str = ""
    """What stands before the names of engine options in the configuration of OpenSession."""
    conf_overlay: Mapping[str, str] | None = None
    """Options of each statement."""
    quotes_database: bool = False
    """The name of the first database is pasted into a USE by the server, so it must come quoted."""
    long_polls: bool = True
    """GetOperationStatus is held by the server until the end of the statement, some seconds at most."""
    empty_result_column: str | None = None
    """The column that a statement without result set is said to have."""
    logs_by_rpc: bool = False
    """The log comes whole from GetLog, instead of line by line from FetchResults."""
    close_tells_rows: bool = False
    """CloseImpalaOperation tells how many rows a change has touched."""
    progress_by_summary: bool = False
    """GetExecSummary tells the progress."""
    tells_more_rows: bool = False
    """`has_more_rows` is true to its name."""
    kept_rows: KeptRows | None = None
    """None: the server refuses by itself to give rows again that it does not keep."""
    timeout_keys: tuple[str, str] | None = None
    """Session options for the time-outs of queries and of idle sessions."""
    capabilities: EngineCapabilities = field(default_factory=EngineCapabilities)

    def database_name(self, database: str) -> str:
        """How the first database of a session is told."""
        return identifier(database, mark="`") if self.quotes_database else database


_HIVE_KEEPS = KeptRows("hive.fetch.task.caching", frozenset({"true"}))
HIVE = Variant(
    dialect="hive",
    setting_prefix="set:hiveconf:",
    kept_rows=_HIVE_KEEPS,
    capabilities=EngineCapabilities(reports_progress=True),
)
HPLSQL = Variant(
    dialect="hplsql",
    setting_prefix="set:hiveconf:",
    session_conf=MappingProxyType({"set:hivevar:mode": "HPLSQL"}),
    kept_rows=_HIVE_KEEPS,
    capabilities=EngineCapabilities(can_explain=False, reports_progress=True),
)
SPARKSQL = Variant(
    dialect="sparksql",
    setting_prefix="set:hiveconf:",
    quotes_database=True,
    empty_result_column="Result",
    # With incremental collection a second reading computes the rows anew, in any order.
    kept_rows=KeptRows("spark.sql.thriftServer.incrementalCollect", frozenset({"false", "<undefined>"})),
    # Spark answers EXPLAIN of a statement that it refuses with its complaint in place of the plan.
    capabilities=EngineCapabilities(
        explain_failure=re.compile(
            r"\A(?:== Physical Plan ==\s+(?:[\w$]+\.)+[\w$]*Exception: |Error occurred during query planning:\s)"
        )
    ),
)
IMPALA = Variant(
    dialect="impala",
    proxy_user_key="impala.doas.user",
    # Rows that the coordinator keeps so that FETCH_FIRST works after a re-attach.
    conf_overlay=MappingProxyType({"impala.resultset.cache.size": "10000"}),
    long_polls=False,
    logs_by_rpc=True,
    close_tells_rows=True,
    progress_by_summary=True,
    tells_more_rows=True,
    timeout_keys=("QUERY_TIMEOUT_S", "IDLE_SESSION_TIMEOUT"),
    capabilities=EngineCapabilities(reports_progress=True),
)

VARIANTS: Mapping[str, Variant] = MappingProxyType({one.dialect: one for one in (HIVE, HPLSQL, SPARKSQL, IMPALA)})
