"""Statements that end the process of DuckDB 2.0.0, or take memory without a limit, are refused by their text.

What a refusal would miss ends the process, so each statement is run by a program of its own.
"""

import asyncio
import json
import sys
from pathlib import Path

import duckdb
import pytest
from tests.cases import each
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run

from queryserver.engines.duckdb.defects import refuse_defects, refuse_sizes
from queryserver.engines.duckdb.engine import DuckdbEngine
from queryserver.engines.duckdb.guard import tokens_of
from queryserver.errors.statements import EngineError

CELL_BYTES = 16 * 1024 * 1024


def refused(statement: str) -> bool:
    try:
        refuse_defects(tokens_of(statement))
        refuse_sizes(tokens_of(statement), CELL_BYTES)
    except EngineError:
        return True
    return False


def nested(depth: int, pattern: str) -> str:
    text = "1"
    for level in range(depth):
        text = pattern.format(inner=text, level=level)
    return f"SELECT {text}"


OPERATORS_BY_NAME = (
    """SELECT "="({'a': 1}, 5)""",
    """SELECT "<"({'a': 1}, 5)""",
    """SELECT "!="({'a': 1}, 5)""",
    """SELECT "=" /* c */ ({'a': 1}, 5)""",
    """SELECT "="('', 1.5)""",
    """SELECT "+"(1, 2)""",
    """SELECT main."="({'a': 1}, 5)""",
    """SELECT system.main."="({'a': 1}, 5)""",
    """SELECT ({'a': 1})."="(5)""",
    """SELECT "is distinct from"({'a': 1}, 5)""",
    """SELECT "IS NOT DISTINCT FROM"({'a': 1}, 5)""",
    """SELECT {'a': 1} OPERATOR(=) 5""",
    """SELECT {'a': 1} OPERATOR(main.=) 5""",
    """SELECT list_transform([1], lambda x: "="({'a': x}, 5))""",
    """CREATE VIEW v AS SELECT "="({'a': 1}, 5) x""",
    """CREATE MACRO m(x) AS "="(x, 5)""",
    """CREATE MACRO m(x) AS TABLE SELECT "="(x, 5)""",
    """CREATE TABLE t (a INT DEFAULT ("="({'a': 1}, 5)::INT))""",
    """PREPARE p AS SELECT "="({'a': 1}, 5)""",
    """EXPLAIN ANALYZE SELECT "="({'a': 1}, 5)""",
    """FROM query('SELECT "="({''a'': 1}, 5)')""",
)
SIZES = (
    "VALUES (len(range(400000000)))",
    "SELECT 1 LIMIT (SELECT len(range(500000000)))",
    "SELECT len(generate_series(1, 400_000_000))",
    "SELECT x FROM t, u WHERE len(range(-400000000, 0)) > 1",
    "SELECT 1 IS DISTINCT FROM range(400000000)",
    "SELECT (400000000).range()",
    "SELECT list_resize([1], 400000000)",
    "SELECT main.array_resize([1], 4e8, 0)",
    "SELECT format('{:1000000000}', 'x')",
    "SELECT format('{0:>1000000000}', 'x')",
    "SELECT format('{:{}}', 'x', 1000000000)",
    "SELECT '{:1000000000}'.format('x')",
    "SELECT printf('%1000000000d', 1)",
    "SELECT printf('%-*d', 1000000000, 1)",
    "SELECT repeat('x', 1000000000)",
)
LONG = (
    "SELECT a" + ".a" * 30_000,
    "SELECT a" + ' . "a"' * 65,
    "SELECT a" + "./* c */a" * 65,
    nested(150, "list_transform([1], lambda x{level}: {inner})"),
    nested(10, "list_transform([1], x{level} -> {inner})"),
    nested(9, "[{inner} FOR x{level} IN [1]]"),
    nested(9, "list_filter([1], lambda x{level}: [{inner} FOR y IN [1]] = [1])"),
)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@each("statement", (*(text for text in OPERATORS_BY_NAME if "query(" not in text), *SIZES, *LONG))
def test_a_text_that_ends_the_process_or_takes_memory_without_a_limit_is_refused(statement: str) -> None:
    assert refused(statement)


@each("statement", (
    "SELECT 1 = 2, 1 + 2, -(1), 1 IS DISTINCT FROM (2), NOT (1 = 2)",
    "SELECT \"Price (€)\", 'a' AS \"+\" FROM t",
    'SELECT "2024"(1), "größe"(1), m(1)',
    'INSERT INTO main."=" (a) VALUES (1)',
    'CREATE TABLE IF NOT EXISTS own.main."+"(a INT)',
    'SELECT * FROM t AS "--"(a)',
    "SELECT count(*) FROM range(1000000000)",
    "SELECT count(*) FROM t, range(1000000000)",
    "SELECT count(*) FROM t JOIN generate_series(1, 1000000000) ON true",
    "FROM main.range(1000000000)",
    "SELECT len(range(1000)), range(1700000000, 1700000010), range(0, 1000000000, 1000)",
    "SELECT format('{}', 1000000000), format('{:10}', 'x'), printf('%d%%', 1000000000), printf('1000000000')",
    "SELECT a.b.c.d, x" + "." + ".".join("b" * 60) + " FROM t",
    "SELECT ((((((((((j -> 'a') -> 'b') -> 'c') -> 'd') -> 'e') -> 'f') -> 'g') -> 'h') -> 'i') -> 'j') FROM t",
    nested(8, "list_transform([1], lambda x{level}: {inner})"),
    "SELECT " + ", ".join(["list_transform(l, lambda x: x + 1)"] * 50),
))  # fmt: skip
def test_a_usual_text_is_not_refused(statement: str) -> None:
    assert not refused(statement)


def test_each_function_that_is_named_by_an_operator_is_refused() -> None:
    with duckdb.connect() as connection:
        names = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()
    by_signs = [name for (name,) in names if not name.replace("_", "").isalnum()]
    assert len(by_signs) > 30
    assert [name for name in by_signs if not refused(f'SELECT "{name}"(1, 2)')] == []


PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run
from queryserver.engines.duckdb.engine import DuckdbEngine

async def main():
    engine = DuckdbEngine(path="own.duckdb", root=Path(sys.argv[1]))
    for statement in json.load(sys.stdin):
        async with engine.session(USER, NO_OPTIONS) as session:
            print(type(await failure(session, statement)).__name__, flush=True)
            assert (await run(session, "SELECT 1")).cell == 1
    await engine.close()

asyncio.run(main())
"""


async def answers(root: Path, statements: list[str]) -> list[str]:
    """What a program of its own has for each; it ends with an error where one ends the database or the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(root), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )  # fmt: skip
    output, _ = await process.communicate(json.dumps(statements).encode())
    assert process.returncode == 0, output
    return output.decode().split()


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_a_call_of_an_operator_by_name_is_an_error_of_its_statement(tmp_path: Path) -> None:
    assert await answers(tmp_path, list(OPERATORS_BY_NAME)) == ["StatementRejected"] * len(OPERATORS_BY_NAME)


@pytest.mark.platform(77)
@pytest.mark.security("T7")
async def test_a_view_or_macro_that_an_older_program_stored_ends_nothing(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "own.duckdb") as stored:
        stored.execute("""CREATE VIEW v AS SELECT "="({'a': 1}, 5) x""")
        stored.execute("CREATE VIEW over_v AS SELECT * FROM v")
        stored.execute("""CREATE MACRO m(x) AS "="({'a': x}, 5)""")
        stored.execute("""CREATE TABLE t (n INT, x BOOLEAN DEFAULT ("="({'a': 1}, 5)))""")
    naming = ["FROM v", "FROM own.main.over_v", "FROM 'v'", "SELECT M(1)", "INSERT INTO t (n) VALUES (1)",
              "FROM query_table('v')", "CREATE VIEW w AS FROM over_v"]  # fmt: skip
    assert await answers(tmp_path, naming) == ["StatementRejected"] * len(naming)


async def test_sizes_are_refused_in_the_texts_that_a_statement_runs(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        for text in ("SELECT len(range(400000000)) AS n", "FROM query(''SELECT len(range(400000000)) AS n'')"):
            error = await failure(session, f"FROM query('{text}')")
            assert "more than 10000000 elements" in error.message
        assert (await run(session, "FROM query('SELECT len(range(4)) AS n')")).cell == 4
    await engine.close()


async def test_a_refused_view_can_be_dropped_and_made_again(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "own.duckdb") as stored:
        stored.execute("""CREATE VIEW v AS SELECT "="({'a': 1}, 5) x""")
        stored.execute("CREATE VIEW other AS SELECT 7 AS n")
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "FROM other")).cell == 7
        assert "definition of v" in (await failure(session, "FROM v")).message
        await run(session, "DROP VIEW v")
        await run(session, "CREATE VIEW v AS SELECT 8 AS n")
        assert (await run(session, "FROM v")).cell == 8
    await engine.close()


async def test_an_internal_error_of_the_planner_ends_no_session(tmp_path: Path) -> None:
    engine = DuckdbEngine(path="own.duckdb", root=tmp_path)
    async with engine.session(USER, NO_OPTIONS) as other, engine.session(USER, NO_OPTIONS) as session:
        assert "INTERNAL Error" in (await failure(session, "SELECT reservoir_quantile(5, NULL::INT[])")).message
        assert (await run(session, "SELECT 1")).cell == 1
        assert (await run(other, "SELECT 1")).cell == 1
    await engine.close()
