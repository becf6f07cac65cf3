"""format lays a script out and changes nothing else (Contract editor 8.4)."""

import pytest
from tests.api.driving import Caller
from tests.cases import each


@pytest.mark.item(56)
class TestFormat:
    async def test_keywords_are_upper_case_and_clauses_on_their_own_lines(self, ana: Caller):
        body = await ana.told("editor/format", statements="select a, b from shop.items where a > 1 order by b")
        assert body == {
            "status": 0,
            "formatted_statements": "SELECT a,\n       b\nFROM shop.items\nWHERE a > 1\nORDER BY b",
        }

    async def test_the_number_of_statements_stays(self, ana: Caller):
        body = await ana.told("editor/format", statement="select 1; select 2;\n\n-- the end\nselect 3;")
        assert body["formatted_statements"] == "SELECT 1;\nSELECT 2;\n\n-- the end\n\nSELECT 3;"

    async def test_each_statement_begins_a_line(self, ana: Caller):
        body = await ana.told("editor/format", statements="select 1;select 2;")
        assert body["formatted_statements"] == "SELECT 1;\nSELECT 2;"

    async def test_quotes_and_comments_are_unchanged(self, ana: Caller):
        script = "select 'from  a''  where', \"select  x\" /* from   b */ from c -- where   d"
        body = await ana.told("editor/format", statements=script)
        for piece in ("'from  a''  where'", '"select  x"', "/* from   b */", "-- where   d"):
            assert piece in body["formatted_statements"]

    async def test_the_dialect_s_own_quotes_count(self, ana: Caller):
        script = r"select 'it\'s ;  from', `order  by` from t"
        body = await ana.told("editor/format", statements=script, dialect="hive")
        assert body["formatted_statements"] == "SELECT 'it\\'s ;  from',\n       `order  by`\nFROM t"

    @each("script", ["select " + "(" * 200 + "1" + ")" * 200, "select '  from", "select 1, " * 3000])
    async def test_what_cannot_be_formatted_comes_back_unchanged(self, ana: Caller, script: str):
        body = await ana.told("editor/format", statements=script)
        assert body["formatted_statements"] == script

    @each("fields", [{}, {"statements": ""}, {"statements": "  \n"}, {"dialect": "hive"}])
    async def test_statements_are_required(self, ana: Caller, fields: dict[str, str]):
        answer = await ana.post("editor/format", **fields)
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")

    async def test_too_long_a_script_is_refused(self, ana: Caller):
        answer = await ana.post("editor/format", statements="x" * (10 * 1024 * 1024 + 1))
        assert answer.status_code == 413
