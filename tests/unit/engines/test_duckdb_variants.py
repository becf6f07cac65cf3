"""VARIANT as a type is refused; as any other name it is a name like others."""

from pathlib import Path

import pytest
from tests.cases import each
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import failure, run

from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.guard import refuse_variants, tokens_of
from queryserver.errors.statements import StatementRejected
from queryserver.identity.model import User

TYPES = (
    "SELECT 1::VARIANT",
    'SELECT 1::"variant"',
    "SELECT CAST('1'::JSON AS Variant)",
    "SELECT TRY_CAST(1 AS VARIANT)",
    "SELECT VARIANT '1'",
    "SELECT 1::system.main.variant",
    "SELECT CAST(1 AS system.main.variant)",
    "SELECT [1]::VARIANT[]",
    "SELECT 1 :: /* a */ VARIANT",
    "SELECT {'a':1}::STRUCT(a VARIANT)",
    "SELECT NULL::STRUCT(b INT, a VARIANT)",
    "SELECT NULL::MAP(VARCHAR, VARIANT)",
    "SELECT CAST(NULL AS MAP(VARCHAR, VARIANT))",
    "SELECT NULL::UNION(a VARIANT)",
    "CREATE TABLE x1 (a VARIANT)",
    "CREATE OR REPLACE TEMP TABLE x2 (b INT, a VARIANT[])",
    'CREATE TABLE IF NOT EXISTS main.x3 ("a" VARIANT)',
    "CREATE TABLE x4 (a MAP(VARCHAR, VARIANT))",
    "CREATE TABLE x5 (a STRUCT(b VARIANT))",
    "CREATE TYPE y1 AS VARIANT",
    "CREATE TYPE y2 AS VARIANT[]",
    "CREATE TYPE y3 AS STRUCT(a VARIANT)",
    "CREATE MACRO z1(a VARIANT) AS a",
    "CREATE MACRO z2(a) AS a, (b VARIANT, c) AS b",
    "CREATE MACRO z3(a) AS a::VARIANT",
    "ALTER TABLE v9 ADD COLUMN x VARIANT",
    "ALTER TABLE v9 ADD x VARIANT",
    'ALTER TABLE v9 ADD COLUMN "add" VARIANT',
    "ALTER TABLE v9 ADD COLUMN add VARIANT",
    "ALTER TABLE v9 ADD add VARIANT",
    "ALTER TABLE v9 ALTER n TYPE VARIANT",
    "ALTER TABLE v9 ALTER COLUMN n SET DATA TYPE VARIANT",
    "EXPLAIN CREATE TABLE x6 (a VARIANT)",
    "PREPARE p AS SELECT ?::VARIANT",
    "FROM query('SELECT 1::VARIANT')",
    "CREATE TABLE x7 AS SELECT 1::VARIANT v",
    "SELECT x::variant FROM (SELECT 1 x)",
    "CREATE TABLE x8 (n INTEGER, variant VARIANT)",
    "CREATE TABLE x9 (variant VARIANT)",
    "ALTER TABLE v9 ADD COLUMN variant VARIANT",
    "CREATE TABLE x10 (a variant DEFAULT 1)",
    "CREATE TABLE x11 (a INTEGER, b system.main.variant)",
    "SELECT (SELECT 1)::variant",
    "CREATE TEMP MACRO z4(a VARIANT := 1) AS a",
    "CREATE FUNCTION z5(b, a VARIANT) AS TABLE SELECT a",
)

NAMES = (
    "CREATE TABLE variant (variant INTEGER, name VARCHAR)",
    "INSERT INTO variant (variant, name) VALUES (1, 'variant')",
    "SELECT variant FROM variant",
    "SELECT v.variant, variant.name FROM variant v, variant",
    "SELECT 1 AS variant",
    "SELECT 1 variant",
    "SELECT name variant FROM variant",
    "SELECT CAST(variant AS VARCHAR) AS variant FROM variant",
    "SELECT variant::VARCHAR FROM variant",
    "SELECT (SELECT 1 variant) AS x",
    "SELECT 1 x UNION (SELECT 2 variant)",
    "SELECT map([variant], [variant]) FROM variant",
    "SELECT {'variant': 1}, struct_pack(variant := 2)",
    "SELECT ({'variant': 1}).variant",
    "SELECT * FROM (SELECT 1 AS variant) WHERE variant IN (1, 2) ORDER BY variant",
    "SELECT row(variant, 1) FROM variant",
    "SELECT NULL::STRUCT(variant INTEGER)",
    "CREATE TABLE w (id INTEGER, variant VARCHAR DEFAULT 'x', PRIMARY KEY (id, variant))",
    "CREATE TABLE w2 (id INTEGER PRIMARY KEY, variant INTEGER, CHECK (variant > 0))",
    "CREATE TABLE w3 AS SELECT id, variant FROM w",
    "CREATE TABLE w4 AS (SELECT id variant FROM w)",
    "ALTER TABLE w2 ADD COLUMN b INTEGER",
    "ALTER TABLE w3 ADD COLUMN IF NOT EXISTS variant INTEGER",
    "ALTER TABLE w3 DROP COLUMN variant",
    "ALTER TABLE w3 ADD COLUMN variant INTEGER",
    "ALTER TABLE w3 ALTER COLUMN variant TYPE BIGINT",
    "ALTER TABLE w3 ALTER variant SET DEFAULT 1",
    "ALTER TABLE w3 RENAME COLUMN variant TO x",
    "ALTER TABLE w3 RENAME x TO variant",
    "ALTER TABLE w3 DROP variant",
    "CREATE VIEW vv AS SELECT variant, count(*) variant FROM variant GROUP BY variant",
    "CREATE MACRO mm(variant) AS variant + 1",
    "UPDATE variant SET variant = 2 WHERE variant = 1 RETURNING variant",
    "SELECT 'VARIANT', '::VARIANT'",
    "WITH variant AS (SELECT 1 a) SELECT * FROM variant",
    "SELECT CASE WHEN variant = 1 THEN variant ELSE variant END variant FROM variant",
    "SELECT sum(variant) OVER (PARTITION BY variant ORDER BY variant) FROM variant",
    "SELECT t.* EXCLUDE (variant) FROM variant t",
    "CREATE INDEX iv ON variant (variant)",
    "DESCRIBE variant",
    "SUMMARIZE variant",
    "PRAGMA table_info('variant')",
    "SELECT list_transform([1], lambda variant: variant + 1)",
    "PIVOT variant ON variant USING count(*)",
    "CREATE TABLE w6 (variant) AS SELECT 1",
    "DROP TABLE variant",
    "CREATE TYPE ty AS ENUM ('variant')",
    'SELECT from_json(\'{"variant":1}\', \'{"variant":"INTEGER"}\')',
)

FUNCTIONS = (
    "SELECT variant_group_array(1)",
    "SELECT variant_bytes_to_variant('a'::BLOB)",
    "SELECT json_structure('[[1]]')",
    "SELECT json_group_structure('1')",
)


@each("statement", TYPES)
def test_the_type_is_refused(statement: str) -> None:
    if statement.startswith("FROM query("):
        statement = statement.removeprefix("FROM query('").removesuffix("')")
    with pytest.raises(StatementRejected, match="the type VARIANT"):
        refuse_variants(tokens_of(statement))


@pytest.mark.parametrize("statement", FUNCTIONS)
async def test_functions_that_end_the_process_or_the_database_are_refused(tmp_path: Path, statement: str) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        assert "switched off" in (await failure(session, statement)).message
    await engine.close()


async def test_a_statement_with_the_type_is_refused_wherever_it_is_run(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    deep = "(repeat('[', 300000) || repeat(']', 300000))::JSON"
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        for statement in (
            f"SELECT {deep}::VARIANT::JSON",
            "FROM query('SELECT 1::VARIANT')",
            "EXPLAIN SELECT 1::VARIANT",
        ):
            assert "the type VARIANT" in (await failure(session, statement)).message
        assert (await run(session, "SELECT 1")).cell == 1
    await engine.close()


async def test_a_table_a_column_and_an_alias_may_have_the_name(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        for statement in NAMES:
            await run(session, statement)
    await engine.close()


async def test_a_table_may_be_called_like_a_function_with_rules(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(User(1, "ana"), NO_OPTIONS) as session:
        await run(session, "CREATE TABLE query (id INTEGER)")
        await run(session, "INSERT INTO query (id) VALUES (7)")
        assert (await run(session, "SELECT id FROM query")).cell == 7
    await engine.close()
