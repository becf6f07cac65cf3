"""sql_type_mapping (Contract importer 6)."""

from typing import get_args

import pytest
from tests.api.driving import Caller
from tests.cases import each

from queryserver.api.schemas.requests.importer import PreviewDialect
from queryserver.imports.model import PREVIEW_DIALECTS

# As the specification lists them.
_HIVE = [
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTERVAL DAY TO SECOND",
    "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TINYINT",
]  # fmt: skip
_IMPALA = [
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING",
    "STRUCT", "TIMESTAMP", "TINYINT",
]  # fmt: skip
_TRINO = [
    "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "INTEGER", "INTERVAL DAY TO SECOND", "JSON", "REAL",
    "ROW", "SMALLINT", "STRING", "TIMESTAMP", "TINYINT", "VARBINARY", "VARCHAR",
]  # fmt: skip
_PHOENIX = [
    "ARRAY", "BIGINT", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "SMALLINT", "STRING", "TIME",
    "TIMESTAMP", "TINYINT", "UNSIGNED_INT", "UNSIGNED_LONG", "UNSIGNED_SMALLINT", "UNSIGNED_TINYINT", "VARBINARY",
    "VARCHAR",
]  # fmt: skip


@pytest.mark.importer(48)
@each(
    ("dialect", "names"),
    [("hive", _HIVE), ("sparksql", _HIVE), ("impala", _IMPALA), ("trino", _TRINO), ("phoenix", _PHOENIX)],
)
async def test_each_dialect_has_its_list(ana: Caller, dialect: str, names: list[str]):
    told = await ana.get("importer/sql_type_mapping/", sql_dialect=dialect)
    assert (told.status_code, told.json()) == (200, names)
    assert (await ana.get("importer/sql_type_mapping", sql_dialect=dialect)).json() == names
    assert names == sorted(set(names))


@pytest.mark.importer(26, 48)
@each("dialect", ["Hive", "oracle", " hive", "hive "])
async def test_other_dialects_are_refused(ana: Caller, dialect: str):
    refused = await ana.get("importer/sql_type_mapping/", sql_dialect=dialect)
    assert refused.status_code == 400
    assert refused.json() == {
        "error": f'"{dialect}" is not a valid choice for sql_dialect. Valid values: {", ".join(PREVIEW_DIALECTS)}.',
        "code": "invalid_dialect",
    }


@pytest.mark.importer(48)
@each("query", [{}, {"sql_dialect": ""}])
async def test_a_dialect_is_required(ana: Caller, query: dict[str, str]):
    refused = await ana.get("importer/sql_type_mapping/", **query)
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "sql_dialect is required.", "code": "missing_parameter"},
    )


async def test_the_dialect_of_a_connector_is_the_default(ana: Caller):
    names = (await ana.get("importer/sql_type_mapping", connector="duckdb")).json()
    assert {"HUGEINT", "INTEGER", "VARCHAR"} & set(names) == {"INTEGER", "VARCHAR"}
    assert (await ana.get("importer/sql_type_mapping", connector="duckdb", sql_dialect="impala")).json() == _IMPALA
    refused = await ana.get("importer/sql_type_mapping", connector="nobody")
    assert (refused.status_code, refused.json()["code"]) == (400, "connector_not_found")


async def test_the_last_of_a_repeated_parameter_counts(ana: Caller):
    told = await ana.send("GET", "importer/sql_type_mapping/?sql_dialect=nothing&sql_dialect=impala&unknown=1")
    assert (told.status_code, told.json()) == (200, _IMPALA)


def test_previews_take_the_dialects_that_have_lists():
    assert get_args(PreviewDialect) == PREVIEW_DIALECTS
