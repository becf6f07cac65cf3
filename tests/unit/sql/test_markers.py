"""Parameter markers in statements, and statements with bound values (docs/clients.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import Character, LineColumn
from queryserver.sql.literals import MYSQL
from queryserver.sql.markers import BoundStatement, ScriptMarkers, StatementParameters, count_markers, find_markers
from queryserver.sql.parameters import read_parameters
from queryserver.sql.positions import Position
from queryserver.sql.statements import Script, choose


def marks(statement: str, dialect: str) -> str:
    """Return the statement with each `?` marker replaced with `{}`."""
    places = [place for place in find_markers(statement, dialect, named=False) if not place.is_literal]
    for place in reversed(places):
        statement = f"{statement[: place.start]}{{}}{statement[place.stop :]}"
    return statement


def bound(statement: str, values: object, dialect: str = "duckdb", *, before: int = 0) -> BoundStatement:
    return BoundStatement(statement, dialect, StatementParameters(read_parameters(values), before))


@pytest.mark.parametrize(("dialect", "statement", "expected"), [
    ("duckdb", "SELECT '?', \"?\" -- ?\n, ? /* ? /* ? */ ? */", "SELECT '?', \"?\" -- ?\n, {} /* ? /* ? */ ? */"),
    ("hive", r"SELECT '\'?', ?, `?`", r"SELECT '\'?', {}, `?`"),
    ("postgresql", "SELECT $a$?$a$, E'\\'?', ?, a$b$?", "SELECT $a$?$a$, E'\\'?', {}, a$b${}"),
    ("postgresql", "SELECT a ?? b, a ??| c, ???", "SELECT a ?? b, a ??| c, ??{}"),
    ("sqlite", "SELECT [a?], `?`, ?", "SELECT [a?], `?`, {}"),
    ("mysql", "SELECT 5--?\n, # ?\n ? /*! , ? */", "SELECT 5--{}\n, # ?\n {} /*! , {} */"),
    *[
        (dialect, r"SELECT 'it\'s really? ' AND b = ?", r"SELECT 'it\'s really? ' AND b = {}")
        for dialect in ("clickhouse", "bigquery", "snowflake", "databricks", "mariadb", "sparksql")
    ],
    ("clickhouse", "SELECT $a$?'$a$, `?`, ? # ?", "SELECT $a$?'$a$, `?`, {} # ?"),
    ("sparksql", r"SELECT r'a\', ?, '?', r:c, 5r'\'?'", r"SELECT r'a\', {}, '?', r:c, 5r'\'?'"),
    *[
        (dialect, "SELECT ? // it's ?\n, ? / 2, 'a//?', ?", "SELECT {} // it's ?\n, {} / 2, 'a//?', {}")
        for dialect in ("phoenix", "snowflake")
    ],
    ("oracle", "SELECT q'[it's ?]', ?, Nq'!'?!', eq'?', ?", "SELECT q'[it's ?]', {}, Nq'!'?!', eq'?', {}"),
    ("trino", r"SELECT '\', ?, '?'", r"SELECT '\', {}, '?'"),
    ("", "SELECT '?", "SELECT '?"),
    ("", "?" + "x" * 10_000 + "'" + "?" * 10_000 + "' ?", "{}" + "x" * 10_000 + "'" + "?" * 10_000 + "' {}"),
])  # fmt: skip
def test_question_marks_in_quotes_and_comments_are_not_markers(dialect: str, statement: str, expected: str):
    assert marks(statement, dialect) == expected


@pytest.mark.parametrize(("statement", "names"), [
    ("SELECT :a, :b_1,:a", ["a", "b_1", "a"]),
    ("SELECT x::int, :a::int, a[1:n], a[:n], {'k':v}, f(x):y, t.c:d, `q`:r", ["a", "n"]),
    ("SET @a := 5, b:=:c", ["c"]),
    ("SELECT ':a' -- :b\n /* :c */ : d, :1, :é", []),
    ("(:a)+:b>:c", ["a", "b", "c"]),
])  # fmt: skip
def test_names_are_markers_unless_a_word_precedes(statement: str, names: list[str]):
    assert [place.name for place in find_markers(statement, "mysql", named=True)] == names


@pytest.mark.parametrize(("dialect", "statement", "names"), [
    ("snowflake", "SELECT :a // it's :b\n, :c", ["a", "c"]),
    ("phoenix", "SELECT :a //:b", ["a"]),
    ("snowflake", "PUT file:///a.csv :b", ["b"]),
    ("oracle", "SELECT q'{:a'}', q'a:bb' || :c, q'a:ba' || :c, Q'[':d]'", ["c"]),
])  # fmt: skip
def test_names_in_dialect_specific_quotes_and_comments_are_not_markers(dialect: str, statement: str, names: list[str]):
    assert [place.name for place in find_markers(statement, dialect, named=True)] == names


def test_each_statement_uses_its_part_of_the_values():
    script = "SELECT ?; SELECT '?'; SELECT ?, ?"
    texts = [one.text for one in Script(script, "duckdb")]
    assert count_markers(texts, "duckdb", 2, named=False) == ScriptMarkers(total=3, before=1, own=2)
    values = bound(texts[2], [1, 2, 3], before=1)
    assert values.render(lambda number, one: f"<{number} {one.value}>") == "SELECT <0 2> , <1 3>"
    choice = choose(script, "duckdb", None, full_form=True, named=False)
    assert choice is not None
    assert choice.markers == ScriptMarkers(total=3, before=0, own=1)


@pytest.mark.parametrize(("dialect", "text"), [
    ("sql", r"SELECT 'it\'s really? ' AND b = ?"),
    ("redshift", r"SELECT 'it\'s really? ' AND b = ?"),
    ("sql", r'SELECT "\"", ?'),
    ("bigquery", "SELECT '''it's ?''', ?"),
    ("snowflake", r'SELECT "a\", ?'),
])  # fmt: skip
def test_text_with_ambiguous_quotes_accepts_no_values(dialect: str, text: str):
    choice = choose(f"SELECT 1; {text}", dialect, None, full_form=True, named=False)
    assert choice is not None
    values = read_parameters([1] * choice.markers.total)
    with pytest.raises(InvalidParameter, match="double the quote"):
        choice.markers.require(values)
    count_markers([r"SELECT 'it''s?', '\ ', ?"], dialect, 0, named=False).require(read_parameters([1]))


def test_repeated_name_is_rendered_with_one_number():
    values = bound("SELECT :b, :a, :b", {"a": 1, "b": 2})
    assert values.render(lambda number, _: f"${number + 1}") == "SELECT $1 , $2 , $1"
    assert [one.value for one in values.values] == [2, 1]
    assert [one.value for one in values.values_in_order] == [2, 1, 2]


def test_blanks_separate_a_value_from_its_neighbors():
    assert bound("IN?AND b", [5]).render(lambda _n, _one: "(5)") == "IN (5) AND b"


def test_bound_value_never_forms_a_comment():
    """In MySQL, `--` starts a comment only if whitespace follows."""
    assert bound("a-?AND b", [-5]).render(lambda _n, _one: "-5") == "a-(-5) AND b"
    text = "a = 5--? AND tenant = ?"
    values = bound(text, [3, 1], "mysql")
    assert values.render(MYSQL.write) == "a = 5--(3) AND tenant = 1"
    assert values.position(Character(len("a = 5--(3) AND "))) == Position(1, text.index("tenant") + 1)


def test_doubled_question_mark_is_unescaped_for_a_value_list():
    assert bound("a ?? b AND c = ?", [1]).render(lambda _n, _one: "x") == "a ? b AND c = x"
    assert bound("a ?? b AND c = :n", {"n": 1}).render(lambda _n, _one: "x") == "a ?? b AND c = x"


def test_each_marker_requires_a_value():
    with pytest.raises(InvalidParameter):
        bound("SELECT ?, ?", [1])
    with pytest.raises(InvalidParameter):
        bound("SELECT :a", {"b": 1})


def test_position_refers_to_the_text_with_markers():
    values = bound("SELECT ?,\r\n ?, x )\n", ["a\nlong\ntext", "b"])
    written = values.render(lambda _number, one: f"'{one.value}'")
    at = written.index("x )")
    assert values.position(Character(at)) == Position(2, 5)
    assert values.position(Character(at + 2)) == Position(2, 7)
    assert values.position(Character(written.index("text"))) == Position(1, 8)
    assert values.position(LineColumn(4, None)) == Position(2, None)
    assert values.position(None) is None


@given(st.lists(st.sampled_from(["?", "x", "\n", "\r\n", "'?'", " ", "é", "??"]), max_size=12), st.data())
def test_positions_outside_values_map_to_their_origin(parts: list[str], data: st.DataObject):
    """A character outside the inserted values maps to its position in the original statement."""
    statement = "".join(parts) + "@"
    values = bound(statement, ["v"] * marks(statement, "duckdb").count("{}"))
    width = data.draw(st.integers(1, 9))
    written = values.render(lambda _number, _one: "v" * width)
    expected = bound(statement, ["v"] * len(values.values_in_order))
    found = values.position(Character(written.index("@")))
    assert found == expected.position(Character(statement.index("@")))


def test_engine_messages_show_markers_instead_of_values():
    values = bound("SELECT *\nFROM t WHERE a = ?", ["s3cret"])
    values.render(lambda _number, one: f"'{one.value}'")
    line = "Compiling command(queryId=1): FROM t WHERE a = 's3cret'"
    assert values.mask_values(line) == "Compiling command(queryId=1): FROM t WHERE a = ?"
    assert "s3cret" not in values.mask_values('invalid input syntax: "s3cret"')
    assert "s3cret" not in repr(values)


def test_quoted_value_is_masked_in_both_quote_forms():
    values = bound("SELECT ?, ?", ["O'Brien", "x" * 5_000])
    shown = values.mask_values(f"near 'O''Brien', \"O'Brien\" or '{'x' * 5_000}'; not 'Brien'")
    assert shown == "near '…', \"…\" or '…'; not 'Brien'"


def test_short_statement_line_is_kept_in_logs():
    values = bound("SELECT\n?\nFROM t", [1])
    values.render(lambda _number, _one: "1")
    assert values.mask_values("Stage-1 of 1: 10:11:12") == "Stage-1 of 1: 10:11:12"


def test_statement_with_very_many_values_is_masked_as_a_whole():
    count = 5_000
    values = bound("SELECT " + ", ".join("?" * count), [f"value {number}" for number in range(count)])
    text = values.render(lambda _number, one: f"'{one.value}'")
    assert values.mask_values(f"Compiling: {text}") == f"Compiling: {values.statement}"
    assert values.mask_values("'value 7'") == "'value 7'"
