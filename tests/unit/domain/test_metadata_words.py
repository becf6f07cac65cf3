"""Small rules of metadata: order of names, storage paths, statements that change objects, statements to explain."""

import pytest

from queryserver.errors.base import InvalidParameter
from queryserver.platform.text import natural_key
from queryserver.search.model import storage_path
from queryserver.sql.splitter import changes_objects, explainable


@pytest.mark.item(60)
def test_numbers_in_names_count_as_numbers_and_case_does_not():
    names = ["t10", "T2", "t1", "a", "10", "2", "t", "B", "é", "", "t1a2"]
    assert sorted(names, key=natural_key) == ["", "2", "10", "a", "B", "t", "t1", "t1a2", "T2", "t10", "é"]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("hdfs://nn:8020/warehouse/x", "/warehouse/x"),
        ("hdfs:/warehouse/x", "/warehouse/x"),
        ("/warehouse/x", "/warehouse/x"),
        ("hdfs://nn", "/"),
        ("s3a://bucket/x=1/y", "s3a://bucket/x=1/y"),
        ("abfs://box@store/x", "abfs://box@store/x"),
        ("ofs://om/volume/bucket", "ofs://om/volume/bucket"),
        ("file:/tmp/x", ""),
        ("jdbc:mysql://host/db", ""),
        ("//host/x", ""),
        ("", ""),
    ],
)
def test_a_location_becomes_the_path_of_the_storage_part(location: str, path: str):
    assert storage_path(location) == path


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("CREATE TABLE t (a int)", True),
        ("/* a */ drop view v", True),
        ("ANALYZE TABLE t COMPUTE STATISTICS", True),
        ("COMMENT ON TABLE t IS 'x'", True),
        ("MSCK REPAIR TABLE t", True),
        ("INVALIDATE METADATA", True),
        ("COMMIT", True),
        ("UPDATE STATISTICS t", True),
        ("SELECT * INTO new FROM old", True),
        ("EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1", True),
        ("an unknown word", True),
        ("SELECT 'x'", False),
        ("INSERT INTO t VALUES (1)", False),
        ("UPDATE t SET a = 1", False),
        ("SHOW CREATE TABLE t", False),
        ("SET x = 1", False),
    ],
)
def test_statements_that_may_change_objects_are_known(statement: str, changes: bool):
    assert changes_objects(statement, "postgresql") is changes


@pytest.mark.item(56)
@pytest.mark.parametrize(
    ("statement", "dialect", "explained"),
    [
        ("/* a */ SELECT 1", "postgresql", "SELECT 1"),
        ("((SELECT 1))", "mysql", "((SELECT 1))"),
        ("WITH a AS (SELECT 1) DELETE FROM t", "postgresql", "WITH a AS (SELECT 1) DELETE FROM t"),
        ("SELECT analyze FROM t", "trino", "SELECT analyze FROM t"),
        ("SELEC 1", "hive", "SELEC 1"),
    ],
)
def test_statements_are_explained_without_what_comes_before_them(statement: str, dialect: str, explained: str):
    assert explainable(statement, dialect) == explained


@pytest.mark.item(56)
@pytest.mark.parametrize(
    ("statement", "dialect"),
    [
        ("explain select 1", "sqlite"),
        ("/*!80018 ANALYZE */ SELECT 1", "mysql"),
        ("(/*! ANALYZE */ SELECT 1)", "mysql"),
        ("EXTENDED ANALYZE SELECT 1", "hive"),
        ("something ANALYZE SELECT 1", "hive"),
        ("REOPTIMIZATION SELECT 1", "hive"),
        ("(TYPE DISTRIBUTED) SELECT 1", "trino"),
        ("`ANALYZE` SELECT 1", "mysql"),
        ("", "duckdb"),
    ],
)
def test_nothing_that_could_run_stands_behind_explain(statement: str, dialect: str):
    with pytest.raises(InvalidParameter):
        explainable(statement, dialect)
