"""Splitting scripts into statements, with positions, hashes and the choice of the next statement (Contract
editor 5).
"""

import time
from pathlib import Path

import pytest
from tests.timing import at_best, others_waited_s

from queryserver.errors.statements import NoMoreStatements
from queryserver.sql.scanner import expects_result_set, first_keyword, first_word
from queryserver.sql.statements import PreviousStatement, Script, next_statement, statement_hash


def texts(script: str, dialect: str) -> list[str]:
    return [statement.text for statement in Script(script, dialect)]


def places(script: str, dialect: str) -> list[tuple[int, int, int, int]]:
    return [(s.start.row, s.start.column, s.end.row, s.end.column) for s in Script(script, dialect)]


@pytest.mark.item(46)
@pytest.mark.parametrize(
    ("dialect", "script", "expected"),
    [
        ("hive", "SHOW TABLES", [("SHOW TABLES", 0, 0, 0, 10)]),
        ("hive", "SHOW TABLES;", [("SHOW TABLES", 0, 0, 0, 10)]),
        ("hive", "SELECT\n  1\nFROM t", [("SELECT\n  1\nFROM t", 0, 0, 2, 5)]),
        ("hive", "SELECT 1;\nSELECT 2", [("SELECT 1", 0, 0, 0, 9), ("SELECT 2", 1, 0, 1, 8)]),
        ("hive", "SELECT 1; SELECT 2;", [("SELECT 1", 0, 0, 0, 9), ("SELECT 2", 0, 9, 0, 18)]),
        (
            "hive",
            "SELECT 1;\nSELECT 2;\n\n  SELECT 3",
            [("SELECT 1", 0, 0, 0, 9), ("SELECT 2", 1, 0, 1, 9), ("SELECT 3", 3, 0, 3, 10)],
        ),
        ("hive", "select\n 2;  select 3", [("select\n 2", 0, 0, 1, 3), ("select 3", 1, 3, 1, 13)]),
        (
            "hive",
            "-- first; one\nSELECT 1;\n/* two; */ SELECT 2",
            [("-- first; one\nSELECT 1", 0, 0, 1, 9), ("/* two; */ SELECT 2", 2, 0, 2, 19)],
        ),
        ("hive", "SELECT 1;\n-- done", [("SELECT 1", 0, 0, 0, 7)]),
        ("hive", "SELECT `a;b` FROM t; SELECT 2", [("SELECT `a;b` FROM t", 0, 0, 0, 20), ("SELECT 2", 0, 20, 0, 29)]),
        ("postgresql", "SELECT $$a;b$$; SELECT 2", [("SELECT $$a;b$$", 0, 0, 0, 15), ("SELECT 2", 0, 15, 0, 24)]),
    ],
)
def test_statements_have_their_documented_positions(
    dialect: str, script: str, expected: list[tuple[str, int, int, int, int]]
):
    found = [(s.text, s.start.row, s.start.column, s.end.row, s.end.column) for s in Script(script, dialect)]
    assert found == expected


@pytest.mark.item(46)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SHOW TABLES", "3070952e55d733fb5bef249277fb8674989e40b6f86c5cc8b39cc415"),
        ("SELECT 1", "cf10d24b9fdfe97deed2616e91ce08dc4491bbc0d556a1f518647de5"),
        ("SELECT 2", "44e114b10c6b9a129ac35a8b09c4cc6f527b766a992028d1980c7807"),
        ("SELECT 20", "0f4c461928ba24a902a53ff68bcea606b8340da59a780742b14b6a2d"),
    ],
)
def test_statement_has_its_documented_hash(text: str, expected: str):
    assert statement_hash(text) == expected


@pytest.mark.item(46)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_line_ending_starts_a_row(line_end: str):
    script = line_end.join(["SELECT 1;", "", "SELECT 2 -- é😀;", ";SELECT 3"])
    assert texts(script, "hive") == ["SELECT 1", "SELECT 2 -- é😀;", "SELECT 3"]
    assert places(script, "hive") == [(0, 0, 0, 9), (2, 0, 3, 1), (3, 1, 3, 9)]


@pytest.mark.item(46)
def test_columns_count_code_points():
    assert places("SELECT '😀'; SELECT 'é'", "trino") == [(0, 0, 0, 11), (0, 11, 0, 22)]


@pytest.mark.item(46)
def test_empty_parts_move_the_start_but_are_not_statements():
    assert places(" ;; SELECT 1;; ; SELECT 2; ;", "hive") == [(0, 3, 0, 13), (0, 16, 0, 25)]


@pytest.mark.item(6)
@pytest.mark.parametrize(
    "script", ["", " \n\t", ";", ";;\n;", "-- only", "/* only */", "/* open", "-- a\n;/* b */;\n", "\xa0"]
)
@pytest.mark.parametrize("dialect", ["hive", "mysql", "postgresql", "sqlite", "hplsql", "unknown"])
def test_blanks_and_comments_are_not_a_statement(script: str, dialect: str):
    assert texts(script, dialect) == ([script.strip()] if dialect == "hplsql" and ";" in script else [])


@pytest.mark.item(47)
@pytest.mark.parametrize(
    ("dialect", "script", "expected"),
    [
        ("unknown", "SELECT 'it''s;'; SELECT \"a\"\";b\"", ["SELECT 'it''s;'", 'SELECT "a"";b"']),
        ("unknown", r"SELECT 'a\'; SELECT 2", [r"SELECT 'a\'", "SELECT 2"]),
        ("hive", r"""SELECT 'a\';b', "c\";d"; SELECT 2""", ["SELECT 'a\\';b', \"c\\\";d\"", "SELECT 2"]),
        ("phoenix", r"SELECT 'a\\'; SELECT 2", [r"SELECT 'a\\'", "SELECT 2"]),
        ("hive", "SELECT \\; SELECT 2", ["SELECT \\", "SELECT 2"]),
        ("postgresql", r"SELECT E'a\';b'; SELECT 'a\'; SELECT 3", [r"SELECT E'a\';b'", r"SELECT 'a\'", "SELECT 3"]),
        ("postgresql", "SELECT E'a'\n  '\\';b'; SELECT 2", ["SELECT E'a'\n  '\\';b'", "SELECT 2"]),
        ("postgresql", r"SELECT namee'a\'; SELECT 2", [r"SELECT namee'a\'", "SELECT 2"]),
        ("sparksql", r"SELECT r'a\'; SELECT R'b\'; SELECT '\';'", [r"SELECT r'a\'", r"SELECT R'b\'", r"SELECT '\';'"]),
        ("sparksql", r"""SELECT r"a';\"; SELECT 2""", [r"""SELECT r"a';\"""", "SELECT 2"]),
        (
            "sparksql",
            r"SELECT ar'a\';'; SELECT 1r'a\';'; SELECT 3",
            [r"SELECT ar'a\';'", r"SELECT 1r'a\';'", "SELECT 3"],
        ),
        ("sparksql", f"SELECT r'{';' * 9_000}\\'; SELECT 2", [f"SELECT r'{';' * 9_000}\\'", "SELECT 2"]),
        ("hive", r"SELECT r'a\';'; SELECT 2", [r"SELECT r'a\';'", "SELECT 2"]),
        ("duckdb", "SELECT $q$a;$$;b$q$; SELECT 2", ["SELECT $q$a;$$;b$q$", "SELECT 2"]),
        ("postgresql", "SELECT a$b$; SELECT $1; SELECT b$b$", ["SELECT a$b$", "SELECT $1", "SELECT b$b$"]),
        ("postgresql", "SELECT $1$; SELECT $é$;$é$", ["SELECT $1$", "SELECT $é$;$é$"]),
        ("hive", "SELECT $$; SELECT $$", ["SELECT $$", "SELECT $$"]),
        ("sqlite", "SELECT [a;b], `c;``d`; SELECT 2", ["SELECT [a;b], `c;``d`", "SELECT 2"]),
        (
            "duckdb",
            "SELECT [1, 2]; SELECT 1 AS `a;``b`; SELECT `a\\`; SELECT '`'; SELECT 2",
            ["SELECT [1, 2]", "SELECT 1 AS `a;``b`", "SELECT `a\\`", "SELECT '`'", "SELECT 2"],
        ),
        ("duckdb", "SELECT 1; SELECT `open; SELECT 2", ["SELECT 1", "SELECT `open; SELECT 2"]),
        ("postgresql", "SELECT `; SELECT `", ["SELECT `", "SELECT `"]),
        ("postgresql", "SELECT 1 /* a /* ; */ ; */; SELECT 2", ["SELECT 1 /* a /* ; */ ; */", "SELECT 2"]),
        ("hive", "SELECT 1 /* a /* ; */ ; SELECT 2", ["SELECT 1 /* a /* ; */", "SELECT 2"]),
        (
            "mysql",
            "SELECT 5--3; SELECT 1 -- a;\n; SELECT 2 # b;\n+1",
            ["SELECT 5--3", "SELECT 1 -- a;", "SELECT 2 # b;\n+1"],
        ),
        ("trino", "SELECT 5--3; SELECT 1\n; SELECT 2 # b;", ["SELECT 5--3; SELECT 1", "SELECT 2 # b"]),
        ("mysql", "/*!40101 SET a = 1 */; /* c */; SELECT 1", ["/*!40101 SET a = 1 */", "SELECT 1"]),
        ("hive", "/*!40101 SET a = 1 */; SELECT 1", ["SELECT 1"]),
        ("postgresql", "SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("postgresql", "SELECT 1; /* open; SELECT 2", ["SELECT 1"]),
        ("postgresql", "SELECT 1 /* open; SELECT 2\n", ["SELECT 1 /* open; SELECT 2"]),
        (
            "phoenix",
            "SELECT 1 // a;\n+ 6 / 2; // b;\r;SELECT 'http://x;'",
            ["SELECT 1 // a;\n+ 6 / 2", "SELECT 'http://x;'"],
        ),
        (
            "snowflake",
            "// it's;\nSELECT 1/*/;*/; SELECT 2 ///*\n; SELECT 3 //",
            ["// it's;\nSELECT 1/*/;*/", "SELECT 2 ///*", "SELECT 3 //"],
        ),
        ("snowflake", f"SELECT 1 //{'; ' * 9_000}x\n; SELECT 2", [f"SELECT 1 //{'; ' * 9_000}x", "SELECT 2"]),
        ("trino", "SELECT 1 // a; SELECT 2", ["SELECT 1 // a", "SELECT 2"]),
        ("snowflake", "PUT file:///a.csv @st; SELECT 2", ["PUT file:///a.csv @st", "SELECT 2"]),
        (
            "oracle",
            "SELECT q'[it's; ]]', nQ'!a;'b!', Q'{}'; ]' FROM dual'; SELECT 2",
            ["SELECT q'[it's; ]]', nQ'!a;'b!', Q'{}'", "]' FROM dual'", "SELECT 2"],
        ),
        (
            "oracle",
            "SELECT q'(a;')', q'<b;'>', q'ac;'a', q'';''; SELECT eq';', q' ;'; SELECT 3",
            ["SELECT q'(a;')', q'<b;'>', q'ac;'a', q'';''", "SELECT eq';', q' ;'", "SELECT 3"],
        ),
        ("oracle", "SELECT q'[" + "'; " * 9_000 + "]'; SELECT 2", ["SELECT q'[" + "'; " * 9_000 + "]'", "SELECT 2"]),
        ("trino", "SELECT q'[it''s;]'; SELECT 2", ["SELECT q'[it''s;]'", "SELECT 2"]),
        ("hplsql", " DECLARE a INT; SET a = 1;\n", ["DECLARE a INT; SET a = 1;"]),
    ],
)
def test_quotes_and_comments_follow_the_dialect(dialect: str, script: str, expected: list[str]):
    assert texts(script, dialect) == expected


@pytest.mark.item(47)
def test_mysql_delimiter_lines_set_the_terminator_and_are_not_sent():
    script = "SELECT 1;\nDELIMITER //\nCREATE PROCEDURE p() BEGIN SELECT '//'; END//\n-- x\ndelimiter ;\nSELECT 2;"
    assert texts(script, "mysql") == ["SELECT 1", "CREATE PROCEDURE p() BEGIN SELECT '//'; END", "SELECT 2"]
    assert places(script, "mysql") == [(0, 0, 0, 9), (2, 0, 2, 45), (5, 0, 5, 8)]


@pytest.mark.parametrize(
    "script", ["SELECT delimiter //\n, 1", "DELIMITER", "DELIMITER\nx", "delimiters // x", f"DELIMITER {'x' * 16}"]
)
def test_other_uses_of_the_word_delimiter_are_text(script: str):
    assert texts(script, "mysql") == [script]


@pytest.mark.item(47)
@pytest.mark.parametrize(
    "trigger",
    [
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; END",
        "create temp /* ; */ trigger t begin select case when 1 then 2 end; update b set c = 'end;'; -- end;\n end",
        "EXPLAIN CREATE TEMPORARY TRIGGER t BEGIN SELECT 1;; END",
    ],
)
def test_sqlite_trigger_is_one_statement(trigger: str):
    assert texts(f"{trigger}; SELECT 2;", "sqlite") == [trigger, "SELECT 2"]
    assert len(texts(f"{trigger}; SELECT 2;", "duckdb")) > 2


def test_sqlite_trigger_without_a_body_ends_at_its_terminator():
    assert texts("CREATE TRIGGER t; SELECT 1; SELECT 2", "sqlite") == ["CREATE TRIGGER t", "SELECT 1", "SELECT 2"]


@pytest.mark.item(47)
@pytest.mark.parametrize(
    "routine",
    [
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END",
        "create or replace procedure p() begin /* ; */ atomic select case when true then 1 end; select 2; end",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1 AS end; SELECT t.end FROM t; SELECT 'END;'; END",
        "CREATE FUNCTION f() RETURNS int AS $$ SELECT 1; $$ LANGUAGE sql",
    ],
)
def test_postgresql_atomic_body_is_one_statement(routine: str):
    assert texts(f"{routine}; SELECT 2", "postgresql") == [routine, "SELECT 2"]


FIELD = Path(__file__).parents[2] / "field" / "sql"


def test_field_script_has_its_rule_as_the_third_statement():
    *_, rule = found = texts((FIELD / "06_postgresql_create_rule.sql").read_text(), "postgresql")
    assert len(found) == 3
    assert rule == (
        "CREATE RULE rr AS ON INSERT TO rl_a DO ALSO (INSERT INTO rl_b VALUES (new.i); "
        "INSERT INTO rl_b VALUES (new.i + 1))"
    )


@pytest.mark.item(73)
@pytest.mark.parametrize(
    "statement",
    [
        "create or replace rule r as on delete to v do instead (delete from a where (i = old.i); delete from b)",
        "CREATE RULE r AS ON UPDATE TO t DO INSTEAD (\n  SELECT ')'; -- )\n  /* ) */ NOTIFY x;\n  SELECT $a$)$a$;\n)",
        "COPY (INSERT INTO t VALUES (1); SELECT 1) TO STDOUT",
        "WITH d AS (DELETE FROM t RETURNING (a); SELECT 1) SELECT * FROM d",
        f"CREATE RULE r AS ON INSERT TO a DO ALSO ({'((' * 300}SELECT 1{'))' * 300}; {'SELECT (2); ' * 9_000})",
    ],
)
def test_postgresql_statement_is_not_split_within_parentheses(statement: str):
    assert texts(f"SELECT (1); {statement}; SELECT f((2), 3);", "postgresql") == [
        "SELECT (1)", statement, "SELECT f((2), 3)",
    ]  # fmt: skip
    assert len(texts(statement, "trino")) > 1


def test_unbalanced_parentheses_are_tolerated():
    """As in psql, a stray closing parenthesis is ignored, and an unclosed one extends to the end of the script. The
    database server then reports the error.
    """
    assert texts("SELECT 1); SELECT (2; SELECT 3", "postgresql") == ["SELECT 1)", "SELECT (2; SELECT 3"]
    assert texts("SELECT (2; SELECT 3", "mysql") == ["SELECT (2", "SELECT 3"]


def test_transaction_begin_and_end_are_separate_statements():
    assert texts("BEGIN; SELECT 1; END; SELECT 2", "postgresql") == ["BEGIN", "SELECT 1", "END", "SELECT 2"]


def test_access_by_index_equals_iteration():
    script = Script("SELECT 1;\r\nSELECT 2; SELECT 3;\rSELECT '😀'", "hive")
    assert [script[index] for index in range(len(script))] == list(script)
    assert script[-1] == list(script)[-1]
    with pytest.raises(IndexError):
        script[4]


TWO = Script("SELECT 1;\nSELECT 2", "mysql")
ONE = Script("SELECT 9", "mysql")
FIRST, SECOND = (statement_hash(statement.text) for statement in TWO)


@pytest.mark.item(48)
@pytest.mark.item(49)
@pytest.mark.parametrize(
    ("script", "previous", "expected"),
    [
        (TWO, None, 0),
        (TWO, PreviousStatement(0, has_more_statements=True, statement_hash=FIRST), 1),
        (TWO, PreviousStatement(0, has_more_statements=True), 1),
        (TWO, PreviousStatement(0, has_more_statements=True, statement_hash="edited"), 0),
        (TWO, PreviousStatement(1, has_more_statements=False, statement_hash="edited"), 1),
        (TWO, PreviousStatement(7, has_more_statements=True, statement_hash=SECOND), 1),
        (ONE, PreviousStatement(3, has_more_statements=True, statement_hash=SECOND), 0),
        (TWO, PreviousStatement(-5, has_more_statements=True, statement_hash=FIRST), 1),
    ],
)
def test_next_statement_is_the_same_in_both_forms(script: Script, previous: PreviousStatement | None, expected: int):
    assert next_statement(script, previous, full_form=False) == expected
    assert next_statement(script, previous, full_form=True) == expected


@pytest.mark.item(48)
@pytest.mark.item(49)
@pytest.mark.parametrize("statement_hash", [SECOND, ""])
def test_full_form_restarts_after_the_last_statement_and_short_form_ends(statement_hash: str):
    previous = PreviousStatement(1, has_more_statements=False, statement_hash=statement_hash)
    assert next_statement(TWO, previous, full_form=True) == 0
    with pytest.raises(NoMoreStatements):
        next_statement(TWO, previous, full_form=False)


@pytest.mark.parametrize(
    ("dialect", "text", "keyword", "expected"),
    [
        ("hive", "select 1", "SELECT", True),
        ("hive", "-- c\n/* d */ (( select 1) union (select 2))", "SELECT", True),
        ("hive", "WITH a AS (SELECT 1) SELECT * FROM a", "WITH", True),
        ("hive", "FROM t SELECT a", "FROM", True),
        ("postgresql", "FROM t", "FROM", False),
        ("postgresql", "/* /* */ select */ INSERT INTO t VALUES (1)", "INSERT", False),
        ("duckdb", "SUMMARIZE t", "SUMMARIZE", True),
        ("sqlite", "PRAGMA table_info(t)", "PRAGMA", True),
        ("trino", "PRAGMA x", "PRAGMA", False),
        ("mysql", "/*!40101 SELECT 1 */", "SELECT", True),
        ("mysql", "# c\nUPDATE t SET a = 1", "UPDATE", False),
        ("hive", "explain(select 1)", "EXPLAIN", True),
        ("hive", "(", "", False),
        ("hive", "'text'", "", False),
    ],
)
def test_first_keyword_determines_whether_rows_are_expected(dialect: str, text: str, keyword: str, expected: bool):
    assert first_keyword(text, dialect) == keyword
    assert expects_result_set(text, dialect) is expected


@pytest.mark.parametrize(
    ("sql", "keyword"),
    [
        ("", ""),
        ("  select 1", "SELECT"),
        ("(( values (1)))", "VALUES"),
        ("-- a\n insert into t", "INSERT"),
        ("-- only", ""),
        ("/* a /* b */ */ call p()", "CALL"),
        ("/* open", ""),
        ("/**/with x as (select 1)", "WITH"),
        ("# not a comment here", ""),
    ],
)
def test_first_word_is_the_first_keyword(sql: str, keyword: str) -> None:
    assert first_word(sql) == keyword


def test_first_word_skips_line_comments_of_the_dialect() -> None:
    assert first_word("# a\ndelete from t", line_comments=("--", "#")) == "DELETE"


HOSTILE = [
    ("hive", "SELECT 'a;\\'b'; -- c;\n/* d; */ "),
    ("mysql", "';\"--\\`#/*"),
    ("postgresql", "$a$b$c "),
    ("postgresql", "E'\\'/*$;"),
    ("postgresql", "("),
    ("postgresql", "(a;)"),
    ("postgresql", "(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    ("duckdb", "`;'"),
    ("postgresql", "CREATE FUNCTION f() BEGIN ATOMIC CASE "),
    ("sqlite", "CREATE TRIGGER t BEGIN ; END "),
    ("mysql", "DELIMITER aaaaaaaaaaaaaab\naaaa"),
    ("mysql", "\n-- x\nDELIMITER //\n"),
    ("unknown", "a;"),
    ("duckdb", "/*"),
]


@pytest.mark.item(47)
@pytest.mark.security("T23")
@pytest.mark.parametrize(("dialect", "piece"), HOSTILE)
@pytest.mark.slow
def test_splitting_time_is_linear_in_the_length(dialect: str, piece: str):
    def cpu_s(size: int) -> float:
        script = (piece * (size // len(piece) + 1))[:size]
        started = time.thread_time()
        Script(script, dialect)
        return time.thread_time() - started

    cpu_s(20_000)
    short, long = min(cpu_s(100_000) for _ in range(3)), cpu_s(1_600_000)
    assert long < 16 * short * 4 + 0.1


@pytest.mark.item(47)
@pytest.mark.security("T23")
@pytest.mark.parametrize(
    ("dialect", "script", "count"),
    [
        ("mysql", "SELECT ';' /* ; */, \"';\" -- ;\n;" * 330_000, 330_000),
        ("postgresql", ";" * 3_000_000 + "$tag$;" * 1_200_000, 600_000),
        ("hive", "SELECT '" + "\\';" * 3_300_000, 1),
        ("duckdb", "SELECT 1;" + "/*;" * 3_300_000, 1),
    ],
)
@pytest.mark.slow
async def test_splitting_ten_megabytes_does_not_block_other_threads(dialect: str, script: str, count: int):
    async def stalled() -> tuple[float, int]:
        return others_waited_s(lambda: len(Script(script, dialect)))

    # Measured: at most 72 ms. The event loop must not stall for 200 ms; the limit is higher to allow for a busy
    # machine.
    assert await at_best(stalled, below_s=0.5) == count


@pytest.mark.security("T23")
def test_ten_thousand_statements_have_correct_positions():
    statements = Script("SELECT 1; SELECT\r\n2;\n" * 5000, "hive")
    assert len(statements) == 10_000
    assert (statements[-1].start.row, statements[-1].end.row) == (9998, 9999)
