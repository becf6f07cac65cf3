"""The sizes in the plans of Hive 4.0.1, Spark 3.5.9 and Impala."""

import json
from collections.abc import Callable

import pytest

from queryserver.engines.estimates import CostEstimate
from queryserver.engines.hiveserver2.estimates import hive_estimate, impala_estimate, spark_estimate
from queryserver.engines.hiveserver2.variants import HIVE, HPLSQL, IMPALA, SPARKSQL, Hs2Variant

KNOWN = "Num rows: 2 Data size: 178 Basic stats: COMPLETE Column stats: COMPLETE"
GUESSED = "Num rows: 9 Data size: 1000 Basic stats: PARTIAL Column stats: NONE"
MISSING = "Num rows: 1 Data size: 0 Basic stats: NONE Column stats: NONE"


def hive_scan(statistics: str | None, database: str = "default") -> dict[str, object]:
    """Return an operator as EXPLAIN FORMATTED describes it."""
    scan: dict[str, object] = {"alias:": "t", "database:": database, "children": {"Filter Operator": {}}}
    return {"TableScan": scan if statistics is None else {**scan, "Statistics:": statistics}}


def hive_plan(*maps: dict[str, object], fetch: dict[str, object] | None = None) -> str:
    vertices = {f"Map {number}": {"Map Operator Tree:": [one]} for number, one in enumerate(maps)}
    fetched = {"Fetch Operator": {"limit:": "-1", "Processor Tree:": fetch or {}}}
    return json.dumps({"STAGE PLANS": {"Stage-1": {"Tez": {"Vertices:": vertices}}, "Stage-0": fetched}})


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (hive_plan(hive_scan(KNOWN), hive_scan(GUESSED)), CostEstimate(scanned_bytes=1178, rows=11)),
        (hive_plan(hive_scan(KNOWN), hive_scan(MISSING)), None),
        (hive_plan(fetch=hive_scan(None)), None),
        (hive_plan(fetch=hive_scan(None, "_dummy_database")), CostEstimate(scanned_bytes=0, rows=0)),
        ("{}", None),
        ("[]", None),
        ("STAGE DEPENDENCIES:\n  Stage-0 is a root stage", None),
    ],
)
def test_hive_estimate_is_the_data_size_of_all_scans(plan: str, expected: CostEstimate | None):
    assert hive_estimate(plan) == expected


def test_deeply_nested_hive_plan_is_read():
    text = '{"children": ' * 500 + json.dumps(hive_scan(KNOWN)) + "}" * 500
    assert hive_estimate('{"STAGE PLANS": ' + text + "}") == CostEstimate(scanned_bytes=178, rows=2)


RELATION = "Relation spark_catalog.default.t[a#1,s#2] parquet"
HIVE_RELATION = (
    "HiveTableRelation [`spark_catalog`.`default`.`h`, x.y.LazySimpleSerDe, Data Cols: [a#3], Partition Cols: []]"
)


def spark_plan(*lines: str) -> str:
    return "\n".join(("== Optimized Logical Plan ==", *lines, "", "== Physical Plan ==", "*(1) ColumnarToRow", ""))


@pytest.mark.parametrize(
    ("lines", "scanned_bytes"),
    [
        ((f"{RELATION}, Statistics(sizeInBytes=5.3 KiB)",), 5427),
        (
            (
                "Join Inner, (a#3 = a#1), Statistics(sizeInBytes=8.0 EiB)",
                ":- Filter isnotnull(a#3), Statistics(sizeInBytes=7.0 KiB)",
                f":  +- {HIVE_RELATION}, Statistics(sizeInBytes=7.0 KiB, rowCount=1000)",
                f"+- {RELATION}, Statistics(sizeInBytes=1910.0 B)",
            ),
            7 * 1024 + 1910,
        ),
        (("Range (0, 10, step=1, splits=None), Statistics(sizeInBytes=80.0 B, rowCount=10)",), 0),
        (("Project [1 AS 1], Statistics(sizeInBytes=1.0 B)", "+- OneRowRelation, Statistics(sizeInBytes=1.0 B)"), 0),
        (
            (
                "InsertIntoHadoopFsRelationCommand file:/w/t, false, Parquet, [a, s]",
                "+- WriteFiles, Statistics(sizeInBytes=7.7 KiB)",
                f"   +- {HIVE_RELATION}, Statistics(sizeInBytes=2.0 GiB)",
            ),
            2 * 1024**3,
        ),
        ((f"{RELATION}, Statistics(sizeInBytes=8.0 EiB)",), None),
        (("CreateHiveTableAsSelectCommand [Database: default, TableName: z]", f"   +- {RELATION}"), None),
        (("InMemoryRelation [a#1], StorageLevel(disk), Statistics(sizeInBytes=4.0 B)",), None),
        (("DescribeTableCommand `spark_catalog`.`default`.`t1`, false",), None),
        (("Filter (s#2 = ", "== Physical Plan ==", "), Statistics(sizeInBytes=1.0 B)", f"+- {RELATION}"), None),
    ],
)
def test_spark_estimate_is_the_size_of_all_tables(lines: tuple[str, ...], scanned_bytes: int | None):
    estimate = spark_estimate(spark_plan(*lines))
    assert estimate == (None if scanned_bytes is None else CostEstimate(scanned_bytes=scanned_bytes))


def test_failed_explain_of_spark_is_no_estimate():
    assert spark_estimate("org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] `t`") is None


IMPALA_PLAN = """Max Per-Host Resource Reservation: Memory=34.27MB Threads=5
Per-Host Resource Estimates: Memory=2.06GB

PLAN-ROOT SINK
|
02:HASH JOIN [LEFT SEMI JOIN, BROADCAST]
|  hash predicates: col01 = col01
|
|--03:EXCHANGE [BROADCAST]
|  |
|  01:SCAN HDFS [db.b]
|     HDFS partitions=1/1 files=1 size=4.11MB
|     predicates: col02 % 2 = 0
|
00:SCAN {kind} [db.a]
   {size}
"""


@pytest.mark.parametrize(
    ("kind", "size", "scanned_bytes"),
    [
        ("HDFS", "HDFS partitions=25254/25254 files=31069 size=887.23GB", int(4.11 * 2**20) + int(887.23 * 2**30)),
        ("S3", "S3 partitions=2/24 files=3 size=478B", int(4.11 * 2**20) + 478),
        ("HDFS", "partitions=1/1 files=3 size=3.41KB", int(4.11 * 2**20) + int(3.41 * 1024)),
        ("KUDU", "row-size=4B cardinality=1.50M", None),
    ],
)
def test_impala_estimate_is_the_size_of_the_files(kind: str, size: str, scanned_bytes: int | None):
    estimate = impala_estimate(IMPALA_PLAN.format(kind=kind, size=size))
    assert estimate == (None if scanned_bytes is None else CostEstimate(scanned_bytes=scanned_bytes))


def test_impala_plan_without_scans_reads_nothing():
    assert impala_estimate("PLAN-ROOT SINK\n|\n00:UNION\n") == CostEstimate(scanned_bytes=0)
    assert impala_estimate("Some other text") is None


@pytest.mark.parametrize(
    ("variant", "statement", "explained"),
    [
        (HIVE, "/* x */ SELECT a FROM t -- y", "EXPLAIN FORMATTED SELECT a FROM t -- y"),
        (SPARKSQL, "(SELECT 1)", "EXPLAIN COST (SELECT 1)"),
        (IMPALA, "INSERT INTO t SELECT 1", "EXPLAIN INSERT INTO t SELECT 1"),
        (HIVE, "ANALYZE SELECT 1", None),
        (HIVE, "EXPLAIN SELECT 1", None),
        (HIVE, "SET x = 1", None),
        (SPARKSQL, "CACHE TABLE t", None),
        (IMPALA, "", None),
    ],
)
def test_only_statements_that_may_read_tables_are_explained(variant: Hs2Variant, statement: str, explained: str | None):
    assert variant.explain is not None
    assert variant.explain.of(statement, variant.dialect) == explained


def test_scripts_of_hplsql_are_never_explained():
    assert HPLSQL.explain is None
    assert not HPLSQL.capabilities.estimates_bytes


@pytest.mark.parametrize("read", [hive_estimate, spark_estimate, impala_estimate])
def test_empty_plan_is_no_estimate(read: Callable[[str], CostEstimate | None]):
    assert read("") is None
