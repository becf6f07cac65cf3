"""Where in the statement an engine found an error (Contract editor 3.4)."""

import json

from tests.api.driving import Caller
from tests.cases import each

REAL = ("duckdb", "sqlite", "postgresql")
SCRIPT = "SELECT 1; -- 😀\n SELECT 'é' AS a,\n  2 AS b )"
"""The second statement begins in the first row of the script, with its comment."""


def place(body: dict) -> tuple[object, object]:
    return body["line"], body["column"]


async def test_every_answer_about_a_failed_statement_has_its_place(ana: Caller):
    for dialect in REAL:
        first = await ana.run(dialect, SCRIPT)
        body = await ana.told(f"editor/execute/{dialect}", operationId=first["history_uuid"], wait=60)
        # Relative to the statement, whose own place in the script is in the handle.
        assert body["handle"]["statement"] == SCRIPT.partition("; ")[2]
        assert place(body) == (3, 10), dialect
        operation = body["history_uuid"]
        for call in ("check_status", "fetch_result_data", "fetch_result_metadata", "fetch_result_size"):
            assert place(await ana.on(operation, call)) == (3, 10)
        assert place(await ana.told(f"editor/watch/{operation}")) == (3, 10)
        entry = (await ana.history(doc_type=dialect, limit=1))["history"][0]
        assert place(entry["data"]) == (3, 10)
        events = (await ana.get(f"editor/events/{operation}")).text
        ended = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
        assert place(ended[0]) == place(ended[-1]) == (3, 10)


async def test_a_plan_that_is_refused_has_its_place_in_the_script_s_statement(ana: Caller):
    for dialect in REAL:
        body = await ana.told(f"editor/explain/{dialect}", statement="-- é\n/* 😀 */ SELECT 'é' AS a, 2 AS b )")
        assert (body["status"], *place(body)) == (1, 2, 33), dialect
        body = await ana.told(f"editor/explain/{dialect}", statement="SELECT 1,\n 2 AS b )")
        assert place(body) == (2, 9)


@each(
    ("dialect", "statement", "found"),
    [
        # Not parsed but bound: DuckDB's relations say no place, and its texts count columns of a screen.
        ("duckdb", "-- c\n/* 中 */ SELECT '中😀', nofn(1)", (2, 22)),
        ("duckdb", "INSERT INTO nowhere VALUES (1)", (None, None)),
        ("duckdb", "SELECT CAST(x AS INT)\nFROM (VALUES ('1'), ('a')) AS t(x)", (1, 8)),
        ("sqlite", "SELECT 'é',\n nofn(1)", (2, 2)),
        ("sqlite", "SELECT * FROM nowhere", (None, None)),
        ("postgresql", "SELECT 'é😀',\n nofn(1)", (2, 2)),
        ("postgresql", "SELECT 1 / 0", (None, None)),
        ("mysql", "fail no such table", (None, None)),
    ],
)
async def test_places_beyond_syntax(ana: Caller, dialect: str, statement: str, found: tuple[object, object]):
    body = await ana.run(dialect, statement)
    assert (body["code"], place(body)) == ("engine_error", found)


async def test_other_ends_have_no_place(ana: Caller):
    body = await ana.run("mysql", "rows 1")
    await ana.on(body["history_uuid"], "close_statement")
    closed = await ana.on(body["history_uuid"], "check_status")
    assert (closed["code"], place(closed)) == ("closed", (None, None))
    assert place((await ana.history(limit=1))["history"][0]["data"]) == (None, None)
