"""Trino metadata: database names (`catalog.schema`), the output of SHOW CREATE, and sample queries for
nested values.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.protocol import SampleKind
from queryserver.engines.trino.catalog import (
    exact_pattern,
    join_database,
    owner,
    properties,
    sample_of_column,
    split_database,
    texts,
)
from queryserver.errors.base import NotSupported


@pytest.mark.parametrize(("database", "expected"),
    [("hive.shop", ("hive", "shop")), ("shop", ("own", "shop")), ('hive."a.b"', ("hive", "a.b")),
    ('"my.hive".shop', ("my.hive", "shop")), ('"a.b"', ("own", "a.b")), ('hive."say ""hi"""', ("hive", 'say "hi"')),
    ("a.b.c", ("own", "a.b.c")), ('x"y', ("own", 'x"y'))])  # fmt: skip
def test_database_name_is_split_into_catalog_and_schema(database: str, expected: tuple[str, str]) -> None:
    assert split_database(database, "own") == expected


@given(st.text(min_size=1), st.text(min_size=1))
def test_joined_catalog_and_schema_can_be_split_again(catalog: str, schema: str) -> None:
    assert split_database(join_database(catalog, schema), "own") == (catalog, schema)


CREATED = """CREATE TABLE hive.shop.items (
   id bigint COMMENT 'WITH (format = ''x'')',
   "with" row(a bigint, b varchar)
)
COMMENT 'All (of) it'
WITH (
   format = 'ORC',
   partitioned_by = ARRAY['dt','it''s'],
   external_location = 's3://b/it''s',
   "bucket.count" = 4
)"""


def test_table_properties_are_parsed() -> None:
    assert properties(CREATED) == {
        "format": "ORC",
        "partitioned_by": "ARRAY['dt','it''s']",
        "external_location": "s3://b/it's",
        "bucket.count": "4",
    }
    assert texts(properties(CREATED)["partitioned_by"]) == ["dt", "it's"]


def test_view_or_plain_table_has_no_properties() -> None:
    assert properties("CREATE VIEW a.b.c SECURITY DEFINER AS\nWITH x AS (SELECT 1 a) SELECT * FROM x") == {}
    assert properties("CREATE TABLE a.b.c (\n   n bigint\n)") == {}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE SCHEMA hive.shop AUTHORIZATION USER etl WITH (location = 's3://b')", ("USER", "etl")),
        ('CREATE SCHEMA hive.shop AUTHORIZATION ROLE "the ""boss"""', ("ROLE", 'the "boss"')),
        ("CREATE SCHEMA memory.default", ("", "")),
    ],
)
def test_schema_owner_is_parsed(statement: str, expected: tuple[str, str]) -> None:
    assert owner(statement) == expected


def test_exact_pattern_escapes_wildcards() -> None:
    assert exact_pattern("a_b%c!") == "a!_b!%c!!"


@pytest.mark.parametrize("path", [["x"], ["item"], ["key", "item"]])
def test_path_missing_from_type_is_not_supported(path: list[str]) -> None:
    with pytest.raises(NotSupported):
        sample_of_column('"t"', "c", "map(varchar, row(a bigint))", path, SampleKind.DEFAULT)
