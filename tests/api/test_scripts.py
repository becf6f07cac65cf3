"""Scripts with several statements, and the formatting of SQL (Contract editor 5, 8.4)."""

import json
import random
import time
from typing import Any

import pytest
from tests.api.dialects import DUCKDB, POSTGRESQL, SQLITE, Dialect, every_dialect
from tests.api.driving import Caller, verdict
from tests.timing import at_best, soon

from queryserver.sql.statements import statement_hash

HASHES = {
    "SHOW TABLES": "3070952e55d733fb5bef249277fb8674989e40b6f86c5cc8b39cc415",
    "SELECT 1": "cf10d24b9fdfe97deed2616e91ce08dc4491bbc0d556a1f518647de5",
    "SELECT 2": "44e114b10c6b9a129ac35a8b09c4cc6f527b766a992028d1980c7807",
    "SELECT 20": "0f4c461928ba24a902a53ff68bcea606b8340da59a780742b14b6a2d",
}

# The table in Contract editor 5.2: a dialect, a script, and the text, start and end of each of its statements.
POSITIONS: list[tuple[str, str, list[tuple[str, tuple[int, int], tuple[int, int]]]]] = [
    ("mysql", "SHOW TABLES", [("SHOW TABLES", (0, 0), (0, 10))]),
    ("mysql", "SHOW TABLES;", [("SHOW TABLES", (0, 0), (0, 10))]),
    ("mysql", "SELECT\n  1\nFROM t", [("SELECT\n  1\nFROM t", (0, 0), (2, 5))]),
    ("mysql", "SELECT 1;\nSELECT 2", [("SELECT 1", (0, 0), (0, 9)), ("SELECT 2", (1, 0), (1, 8))]),
    ("mysql", "SELECT 1; SELECT 2;", [("SELECT 1", (0, 0), (0, 9)), ("SELECT 2", (0, 9), (0, 18))]),
    (
        "mysql",
        "SELECT 1;\nSELECT 2;\n\n  SELECT 3",
        [("SELECT 1", (0, 0), (0, 9)), ("SELECT 2", (1, 0), (1, 9)), ("SELECT 3", (3, 0), (3, 10))],
    ),
    ("mysql", "select\n 2;  select 3", [("select\n 2", (0, 0), (1, 3)), ("select 3", (1, 3), (1, 13))]),
    (
        "mysql",
        "-- first; one\nSELECT 1;\n/* two; */ SELECT 2",
        [("-- first; one\nSELECT 1", (0, 0), (1, 9)), ("/* two; */ SELECT 2", (2, 0), (2, 19))],
    ),
    ("mysql", "SELECT 1;\n-- done", [("SELECT 1", (0, 0), (0, 7))]),
    (
        "hive",
        "SELECT `a;b` FROM t; SELECT 2",
        [("SELECT `a;b` FROM t", (0, 0), (0, 20)), ("SELECT 2", (0, 20), (0, 29))],
    ),
    ("postgresql", "SELECT $$a;b$$; SELECT 2", [("SELECT $$a;b$$", (0, 0), (0, 15)), ("SELECT 2", (0, 15), (0, 24))]),
]


async def all_handles(ana: Caller, dialect: str, script: str) -> list[dict[str, Any]]:
    """Run the statements of a script one after another with the short form of execute; return their handles."""
    bodies = [await ana.run(dialect, script)]
    while bodies[-1]["handle"]["has_more_statements"]:
        previous = bodies[-1]["history_uuid"]
        bodies.append(await ana.post_ok(f"editor/execute/{dialect}", operationId=previous, wait=30))
    refused = await ana.refused(f"editor/execute/{dialect}", operationId=bodies[-1]["history_uuid"])
    assert refused == (409, -1, "no_more_statements")
    return [body["handle"] for body in bodies]


def position(point: dict[str, int]) -> tuple[int, int]:
    return point["row"], point["column"]


class TestSplitting:
    @pytest.mark.item(46)
    @pytest.mark.parametrize(("dialect", "script", "expected"), POSITIONS)
    async def test_statements_have_their_texts_and_positions(
        self, ana: Caller, dialect: str, script: str, expected: list[Any]
    ):
        handles = await all_handles(ana, dialect, script)
        assert [(one["statement"], position(one["start"]), position(one["end"])) for one in handles] == expected
        assert [one["statement_id"] for one in handles] == list(range(len(expected)))
        assert {one["statements_count"] for one in handles} == {len(expected)}
        assert [one["has_more_statements"] for one in handles] == [True] * (len(expected) - 1) + [False]
        assert [one["previous_statement_hash"] for one in handles] == [
            statement_hash(one["statement"]) for one in handles
        ]

    @pytest.mark.item(46)
    @pytest.mark.parametrize("text", HASHES)
    async def test_hash_is_sha224_of_the_statement(self, ana: Caller, text: str):
        handle = (await ana.execute("mysql", f" {text} ; "))["handle"]
        assert (handle["statement"], handle["previous_statement_hash"]) == (text, HASHES[text])

    @pytest.mark.item(46)
    async def test_columns_count_code_points_with_all_line_ending_styles(self, ana: Caller):
        handles = await all_handles(ana, "mysql", "text 😀é;\r\ntext 2;\rtext 3")
        seen = [(position(one["start"]), position(one["end"])) for one in handles]
        assert seen == [((0, 0), (0, 8)), ((1, 0), (1, 7)), ((2, 0), (2, 6))]

    @pytest.mark.item(47)
    @pytest.mark.parametrize(
        ("dialect", "statement", "cells"),
        [
            (DUCKDB, 'SELECT \';\' AS a, "b;" FROM (SELECT 1 AS "b;") /* ; /* ; */ */ -- ;\n', [";", 1]),
            (DUCKDB, "SELECT $x$ ; $$ ' $x$", [" ; $$ ' "]),
            (POSTGRESQL, "SELECT ';''' , E'\\';', $t$;$t$ /* ; /* ; */ */ -- ;\n", [";'", "';", ";"]),
            (SQLITE, "SELECT ';''', `b;`, [c;] FROM (SELECT 1 AS \"b;\", 2 AS \"c;\") /* ; */ -- ;\n", [";'", 1, 2]),
        ],
    )
    async def test_quoted_terminator_does_not_split(self, ana, dialect, statement, cells):
        body = await ana.run(dialect, statement + "; SELECT 2")
        assert body["handle"]["statements_count"] == 2
        assert (await ana.page(body["history_uuid"]))["data"] == [cells]

    @pytest.mark.item(47)
    @pytest.mark.parametrize("dialect", ["duckdb", "sqlite", "postgresql", "mysql", "hive"])
    async def test_splitting_time_is_linear(self, ana: Caller, dialect: str):
        chosen = random.Random(5)
        pieces = ["'", '"', "`", "$$", "$a$", "--", "\n", "/*", "*/", ";", "\\", "x", " ", "[", "]", "#"]
        script = "SELECT 1;" + "".join(chosen.choices(pieces, k=500_000))

        async def compared() -> tuple[float, None]:
            took: list[float] = []
            for part in (script[: len(script) // 4], script):
                began = time.monotonic()
                body = await ana.execute(dialect, part)
                took.append(time.monotonic() - began)
                assert body["handle"]["statement"] == "SELECT 1"
            return took[1] / max(took[0], 0.05), None

        # The whole script is four times as long as its first part.
        await at_best(compared, below_s=4 * 3)


class TestContinuing:
    @pytest.mark.item(48)
    @every_dialect
    async def test_short_form_runs_statements_one_by_one(self, ana: Caller, dialect: Dialect):
        handles = await all_handles(ana, dialect.name, "SELECT 1;\nSELECT 2;\nSELECT 20")
        assert [one["statement"] for one in handles] == ["SELECT 1", "SELECT 2", "SELECT 20"]
        assert [one["previous_statement_hash"] for one in handles] == [HASHES[one["statement"]] for one in handles]

    @pytest.mark.item(48)
    async def test_short_form_reruns_an_edited_statement(self, ana: Caller):
        first = await ana.run("duckdb", "SELECT 1;\nSELECT 2")
        second = await ana.post_ok("editor/execute/duckdb", operationId=first["history_uuid"], wait=30)
        assert second["handle"]["statement_id"] == 1
        refused = await ana.refused("editor/execute/duckdb", operationId=second["history_uuid"])
        assert refused == (409, -1, "no_more_statements")
        edited = await ana.post_ok(
            "editor/execute/duckdb", operationId=second["history_uuid"], statement="SELECT 1;\nSELECT 20", wait=30
        )
        assert (edited["handle"]["statement_id"], edited["handle"]["statement"]) == (1, "SELECT 20")

    @pytest.mark.item(48)
    async def test_next_statement_requires_the_previous_to_have_finished(self, ana: Caller):
        first = (await ana.execute("mysql", "sleep 30; rows 1"))["history_uuid"]
        assert await ana.refused("editor/execute/mysql", operationId=first) == (409, -1, "previous_not_finished")
        await ana.on(first, "cancel_statement")
        second = await ana.post_ok("editor/execute/mysql", operationId=first, wait=30)
        assert (second["status"], second["handle"]["statement"]) == (0, "rows 1")

    @pytest.mark.item(48)
    @every_dialect
    async def test_client_may_continue_after_a_failure(self, ana: Caller, dialect: Dialect):
        first = await ana.run(dialect, "SELECT * FROM no_such_table; SELECT 2")
        assert first["status"] == 1
        second = await ana.post_ok("editor/execute", operationId=first["history_uuid"], wait=30)
        assert (second["status"], second["handle"]["statement"]) == (0, "SELECT 2")

    @pytest.mark.item(48)
    async def test_values_inherited_by_the_short_form_cannot_be_overridden(self, ana: Caller):
        first = (await ana.run("duckdb", "SELECT 1; SELECT 2", limit=7))["history_uuid"]
        conflict = (400, -1, "conflicting_parameters")
        assert await ana.refused("editor/execute/sqlite", operationId=first) == conflict
        assert await ana.refused("editor/execute/duckdb", operationId=first, session_id=2**31 - 1) == conflict
        for unknown in ("0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10", "x"):
            assert await ana.refused("editor/execute/duckdb", operationId=unknown) == (404, 2, "operation_not_found")

    @pytest.mark.item(48)
    async def test_limit_and_timeout_are_inherited(self, ana: Caller):
        first = (await ana.run("mysql", "rows 1; rows 20; rows 30", limit=7))["history_uuid"]
        second = await ana.post_ok("editor/execute/mysql", operationId=first, wait=30)
        assert (second["query_status"]["rows"], second["query_status"]["truncated"]) == (7, True)
        third = await ana.post_ok("editor/execute/mysql", operationId=second["history_uuid"], wait=30, limit=9)
        assert third["query_status"]["rows"] == 9

    @pytest.mark.item(49)
    @pytest.mark.parametrize(
        ("script", "handle", "expected"),
        [
            ("SELECT 1;\nSELECT 2", {}, 0),
            ("SELECT 1;\nSELECT 2", {"guid": "unknown"}, 0),
            ("SELECT 1;\nSELECT 2", {"statement_id": 0, "has_more_statements": True, "hash": "SELECT 1"}, 1),
            ("SELECT 1;\nSELECT 2", {"statement_id": 0, "has_more_statements": True}, 1),
            ("SELECT 20;\nSELECT 2", {"statement_id": 0, "has_more_statements": True, "hash": "SELECT 1"}, 0),
            ("SELECT 1;\nSELECT 2", {"statement_id": 1, "has_more_statements": False, "hash": "SELECT 2"}, 0),
            ("SELECT 1;\nSELECT 20", {"statement_id": 1, "has_more_statements": False, "hash": "SELECT 2"}, 1),
            ("SELECT 1", {"statement_id": 4, "has_more_statements": True, "hash": "SELECT 1"}, 0),
            ("SELECT 1;\nSELECT 2", {"statement_id": 7, "has_more_statements": True, "hash": "SELECT 2"}, 1),
        ],
    )
    @every_dialect
    async def test_previous_handle_selects_the_statement_in_the_full_form(self, ana, dialect, script, handle, expected):
        sent = {key: value for key, value in handle.items() if key != "hash"}
        if "hash" in handle:
            sent["previous_statement_hash"] = HASHES[handle["hash"]]
        snippet = {"type": dialect.name, "statement": script, "result": {"handle": sent}}
        for given in (snippet, json.dumps(snippet)):
            body = (await ana.post_json("editor/execute", snippet=given, wait=30)).json()
            assert (body["status"], body["handle"]["statement_id"]) == (0, expected)

    @pytest.mark.item(49)
    async def test_full_form_requires_the_operation_of_its_guid_to_have_finished(self, ana: Caller):
        first = await ana.execute("mysql", "sleep 30; rows 1")
        snippet = {"type": "mysql", "statement": "sleep 30; rows 1", "result": {"handle": first["handle"]}}
        assert verdict(await ana.post_json("editor/execute", snippet=snippet)) == (409, -1, "previous_not_finished")
        await ana.on(first["history_uuid"], "cancel_statement")
        body = (await ana.post_json("editor/execute", snippet=snippet, wait=30)).json()
        assert (body["status"], body["handle"]["statement"]) == (0, "rows 1")
        assert body["handle"]["session_id"] == first["handle"]["session_id"]

    @pytest.mark.item(50)
    @pytest.mark.parametrize("form", ["short", "full"])
    @every_dialect
    async def test_script_statements_share_their_session(self, ana: Caller, dialect: Dialect, form: str):
        table = f"temporary_{ana.username}"
        script = f"CREATE TEMPORARY TABLE {table} (a INTEGER); INSERT INTO {table} VALUES (5); SELECT a FROM {table}"
        body = await ana.run(dialect, script)
        while body["handle"]["has_more_statements"]:
            assert body["status"] == 0, body
            if form == "short":
                body = await ana.post_ok("editor/execute", operationId=body["history_uuid"], wait=30)
            else:
                snippet = {"type": dialect.name, "statement": script, "result": {"handle": body["handle"]}}
                body = (await ana.post_json("editor/execute", snippet=snippet, wait=30)).json()
        assert (await ana.page(body["history_uuid"]))["data"] == [[5]]
        assert (await ana.run(dialect, f"SELECT a FROM {table}"))["code"] == "engine_error"

    @pytest.mark.item(50)
    async def test_set_applies_only_within_the_script(self, ana: Caller):
        body = await ana.run(POSTGRESQL, "SET work_mem = '1234kB'; SHOW work_mem")
        body = await ana.post_ok("editor/execute", operationId=body["history_uuid"], wait=30)
        assert (await ana.page(body["history_uuid"]))["data"] == [["1234kB"]]
        assert (await ana.result(POSTGRESQL, "SHOW work_mem"))["data"] != [["1234kB"]]

    @every_dialect
    async def test_ten_thousand_statements_are_counted_and_the_first_runs(self, ana: Caller, dialect: Dialect):
        body = await soon(lambda: ana.run(dialect, "SELECT 1;\n" * 10_000), within_s=10)
        assert (body["status"], body["handle"]["statements_count"]) == (0, 10_000)


@pytest.mark.item(56)
class TestFormat:
    async def test_keywords_are_uppercased_and_clauses_start_new_lines(self, ana: Caller):
        body = await ana.post_ok("editor/format", statements="select a, b from shop.items where a > 1 order by b")
        assert body == {
            "status": 0,
            "formatted_statements": "SELECT a,\n       b\nFROM shop.items\nWHERE a > 1\nORDER BY b",
        }

    async def test_formatting_keeps_the_number_of_statements(self, ana: Caller):
        body = await ana.post_ok("editor/format", statement="select 1; select 2;\n\n-- the end\nselect 3;")
        assert body["formatted_statements"] == "SELECT 1;\nSELECT 2;\n\n-- the end\n\nSELECT 3;"

    async def test_each_statement_starts_a_new_line(self, ana: Caller):
        body = await ana.post_ok("editor/format", statements="select 1;select 2;")
        assert body["formatted_statements"] == "SELECT 1;\nSELECT 2;"

    async def test_quotes_and_comments_are_unchanged(self, ana: Caller):
        script = "select 'from  a''  where', \"select  x\" /* from   b */ from c -- where   d"
        body = await ana.post_ok("editor/format", statements=script)
        for piece in ("'from  a''  where'", '"select  x"', "/* from   b */", "-- where   d"):
            assert piece in body["formatted_statements"]

    async def test_dialect_specific_quotes_are_respected(self, ana: Caller):
        script = r"select 'it\'s ;  from', `order  by` from t"
        body = await ana.post_ok("editor/format", statements=script, dialect="hive")
        assert body["formatted_statements"] == "SELECT 'it\\'s ;  from',\n       `order  by`\nFROM t"

    @pytest.mark.parametrize("script", ["select " + "(" * 200 + "1" + ")" * 200, "select '  from", "select 1, " * 3000])
    async def test_unformattable_text_is_returned_unchanged(self, ana: Caller, script: str):
        body = await ana.post_ok("editor/format", statements=script)
        assert body["formatted_statements"] == script

    @pytest.mark.parametrize("fields", [{}, {"statements": ""}, {"statements": "  \n"}, {"dialect": "hive"}])
    async def test_statements_field_is_required(self, ana: Caller, fields: dict[str, str]):
        answer = await ana.post("editor/format", **fields)
        assert (answer.status_code, answer.json()["code"]) == (400, "missing_parameter")

    async def test_oversized_script_is_refused(self, ana: Caller):
        answer = await ana.post("editor/format", statements="x" * (10 * 1024 * 1024 + 1))
        assert answer.status_code == 413
