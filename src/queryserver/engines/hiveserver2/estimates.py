"""Reads from the plans of Hive, Spark and Impala how many bytes a statement is expected to read."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import orjson

from queryserver.engines.estimates import CostEstimate
from queryserver.errors.base import InvalidParameter
from queryserver.sql.scanner import first_keyword
from queryserver.sql.statements import explainable

_KEYWORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM", "INSERT", "CREATE", "UPDATE", "DELETE", "MERGE"})
MAX_PLAN_ROWS = 100_000
MAX_PLAN_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExplainStatement:
    """The statement that returns a server's plan with sizes, and the function that reads the plan's text.

    `conf_overlay` contains options that apply to this statement only. `read` returns None if the plan contains no
    sizes, or not those of all tables.
    """

    prefix: str
    read: Callable[[str], CostEstimate | None]
    conf_overlay: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, statement: str, dialect: str) -> str | None:
        """Return the statement that explains `statement`; None if it reads no tables or cannot be explained."""
        if first_keyword(statement, dialect) not in _KEYWORDS:
            return None
        try:
            return f"{self.prefix} {explainable(statement, dialect)}"
        except InvalidParameter:
            return None


_HIVE_STATISTICS = re.compile(r"Num rows: (\d+) Data size: (\d+) Basic stats: (COMPLETE|PARTIAL)\b")
_HIVE_NO_TABLE = "_dummy_database"


def hive_estimate(plan: str) -> CostEstimate | None:
    """Read the plan of `EXPLAIN FORMATTED`: the data sizes of all table scans.

    A data size is the planner's estimate for the columns and partitions that are read, from the table's statistics or
    the size of its files. It is that of the decoded data, which is larger than compressed files. Hive computes none
    for queries that it answers without a job.
    """
    try:
        parsed: object = orjson.loads(plan)
    except orjson.JSONDecodeError:
        return None
    stages = cast("dict[str, Any]", parsed).get("STAGE PLANS") if isinstance(parsed, dict) else None
    scanned_bytes = rows = 0
    for scan in _table_scans(stages):
        if scan.get("database:") == _HIVE_NO_TABLE:
            continue
        statistics = _HIVE_STATISTICS.match(str(scan.get("Statistics:", "")))
        if statistics is None:
            return None
        rows += int(statistics[1])
        scanned_bytes += int(statistics[2])
    return None if stages is None else CostEstimate(scanned_bytes=scanned_bytes, rows=rows)


def _table_scans(plan: object) -> Iterator[dict[str, Any]]:
    """Yield the members of each `TableScan`. Not recursive, because operators nest as deeply as the query is long."""
    waiting = [plan]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            members = cast("dict[str, Any]", part)
            if isinstance(scan := members.get("TableScan"), dict):
                yield cast("dict[str, Any]", scan)
            waiting += members.values()
        elif isinstance(part, list):
            waiting += cast("list[object]", part)


_SPARK_PLAN = re.compile(r"\A== Optimized Logical Plan ==\n(.*?)\n\n?== Physical Plan ==\n", re.DOTALL)
_SPARK_NODE = re.compile(r"(?P<depth>[\s:+|-]*)(?P<name>\w+)")
_SPARK_SIZE = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E\+?\d+)?) (B|[KMGTPE]iB)(?:, rowCount=(\d+))?\)\Z")
_SPARK_NO_TABLES = frozenset({"LocalRelation", "OneRowRelation", "Range"})
_SPARK_TABLES = frozenset({"Relation", "HiveTableRelation", "RelationV2", "DataSourceV2ScanRelation"})
_SPARK_UNKNOWN_BYTES = 2**62
"""Spark takes almost 2⁶³ bytes for the size of a table without statistics (`spark.sql.defaultSizeInBytes`)."""


def spark_estimate(plan: str) -> CostEstimate | None:
    """Read the plan of `EXPLAIN COST`: the sizes of the tables in the optimized logical plan.

    A size is that of the files in the partitions that are read, or of the table's statistics. Each cached or unknown
    relation, and each table without a size, makes the result None.
    """
    match = _SPARK_PLAN.match(plan)
    if match is None or plan.count("== Physical Plan ==") > 1:  # a literal could contain this line
        return None
    lines = [line for line in match[1].splitlines() if line.strip()]
    depths = [_depth(line) for line in lines]
    scanned_bytes = 0
    for line, depth, following in zip(lines, depths, [*depths[1:], -1], strict=True):
        node = _SPARK_NODE.match(line)
        if following > depth or node is None or node["name"] in _SPARK_NO_TABLES:
            continue
        size = _SPARK_SIZE.search(line)
        if node["name"] not in _SPARK_TABLES or size is None:
            return None
        scanned_bytes += (table_bytes := _bytes(size[1], size[2]))
        if table_bytes >= _SPARK_UNKNOWN_BYTES:
            return None
    return CostEstimate(scanned_bytes=scanned_bytes)


def _depth(line: str) -> int:
    node = _SPARK_NODE.match(line)
    return len(node["depth"]) if node else 0


_IMPALA_SCAN = re.compile(r"^[|\s-]*\d+:SCAN \w+", re.MULTILINE)
_IMPALA_SIZE = re.compile(r"^[|\s]*(?:\w+ )?partitions=\d+/\d+ files=\d+ size=([\d.]+)([KMGTP]?B)\b", re.MULTILINE)
_IMPALA_PLAN = "PLAN-ROOT SINK"


def impala_estimate(plan: str) -> CostEstimate | None:
    """Read the plan of EXPLAIN: the sizes of the files in the partitions that are scanned.

    Impala reports none for tables of Kudu and HBase; the result is then None. Columns that are not read are included.
    """
    sizes = _IMPALA_SIZE.findall(plan)
    if len(sizes) != len(_IMPALA_SCAN.findall(plan)) or not ("SCAN" in plan or _IMPALA_PLAN in plan):
        return None
    return CostEstimate(scanned_bytes=sum(_bytes(number, unit) for number, unit in sizes))


def _bytes(number: str, unit: str) -> int:
    """Return a size such as `1.5 MiB` or `1.50MB`, which all three engines count in powers of 1024."""
    return int(float(number) * 1024 ** "BKMGTPE".index(unit[0]))


HIVE_EXPLAIN = ExplainStatement("EXPLAIN FORMATTED", hive_estimate)
SPARK_EXPLAIN = ExplainStatement("EXPLAIN COST", spark_estimate)
# At level 0, which a session may have set, plans have no sizes.
IMPALA_EXPLAIN = ExplainStatement("EXPLAIN", impala_estimate, MappingProxyType({"EXPLAIN_LEVEL": "1"}))
