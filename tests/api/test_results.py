"""Rows, cells, limits, and numbers that exceed double precision (Contract editor 6)."""

import asyncio
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, POSTGRESQL, SQLITE, Dialect, every_dialect, literal
from tests.api.driving import Api, Caller, verdict

META = {"comment": ""}


async def finished(ana: Caller, dialect: object, statement: str, **fields: Any) -> str:
    """Run a statement until its result is available; return the operation id."""
    body = await ana.run(dialect, statement, **fields)
    assert (body["status"], body["query_status"]["state"]) == (0, "available"), body
    return body["history_uuid"]


class TestPaging:
    @pytest.mark.item(17)
    @every_dialect
    async def test_823_rows_take_nine_batches(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(823))
        pages = [await ana.page(operation, rows=100) for _ in range(9)]
        assert [len(page["data"]) for page in pages] == [100] * 8 + [23]
        assert [page["has_more"] for page in pages] == [True] * 8 + [False]
        assert [page["start_row"] for page in pages] == list(range(0, 900, 100))
        assert {page["rows_total"] for page in pages} == {823}
        assert [row for page in pages for row in page["data"]] == [[n] for n in range(823)]

    @pytest.mark.item(17)
    async def test_default_batch_size_is_100(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 101")
        assert len((await ana.page(operation))["data"]) == 100

    @pytest.mark.item(18)
    @every_dialect
    async def test_exact_multiple_ends_with_a_full_batch(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(200))
        pages = [await ana.page(operation, rows=100) for _ in range(3)]
        assert [(len(page["data"]), page["has_more"]) for page in pages] == [(100, True), (100, False), (0, False)]

    @pytest.mark.item(19)
    @every_dialect
    async def test_start_over_returns_to_row_0(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(30))
        await ana.page(operation, rows=10)
        again = await ana.page(operation, rows=10, startOver="true")
        assert (again["start_row"], again["data"]) == (0, [[n] for n in range(10)])
        assert (await ana.page(operation, rows=10))["start_row"] == 10

    @pytest.mark.item(20)
    @every_dialect
    async def test_start_row_is_repeatable_and_keeps_the_cursor(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(100))
        await ana.page(operation, rows=5)
        fields = {"operationId": operation, "start_row": 50, "rows": 10}
        first = await ana.post("editor/fetch_result_data", **fields)
        assert first.content == (await ana.post("editor/fetch_result_data", **fields)).content
        assert first.content == (await ana.post("editor/fetch_result_data", **fields, startOver="true")).content
        assert first.json()["result"]["data"] == [[n] for n in range(50, 60)]
        assert (await ana.page(operation, rows=5))["start_row"] == 5

    @pytest.mark.item(20)
    @pytest.mark.parametrize(
        ("statement", "rows"), [("rows 100", 100), ("rows 3000 wide 1000", 3000)]
    )  # one result is stored in the record, the other in segments
    async def test_fetch_past_the_end_returns_an_empty_batch(self, ana: Caller, statement: str, rows: int):
        operation = await finished(ana, "mysql", statement)
        for start_row in (rows, rows + 1, 10**12, 2**63 - 1):
            page = await ana.page(operation, start_row=start_row)
            assert (page["data"], page["has_more"], page["start_row"]) == ([], False, start_row)

    @pytest.mark.item(21)
    @every_dialect
    async def test_concurrent_fetches_share_the_rows(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(500))
        pages = await asyncio.gather(*(ana.page(operation, rows=50) for _ in range(12)))
        assert sorted(row[0] for page in pages for row in page["data"]) == list(range(500))
        assert all(page["data"] == [[page["start_row"] + n] for n in range(len(page["data"]))] for page in pages)

    @pytest.mark.item(22)
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("rows", "0"),
            ("rows", "-1"),
            ("rows", "x"),
            ("rows", "1.5"),
            ("start_row", "-1"),
            ("start_row", "x"),
            ("startOver", "maybe"),
            ("escape", "2"),
        ],
    )
    async def test_out_of_range_fields_are_refused_by_name(self, ana: Caller, field: str, value: str):
        operation = (await ana.execute("mysql", "rows 1"))["history_uuid"]
        answer = await ana.post("editor/fetch_result_data", operationId=operation, **{field: value})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")
        assert field in answer.json()["message"]

    @pytest.mark.item(22)
    async def test_batch_may_have_a_hundred_thousand_rows(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 100001", limit=200_000)
        page = await ana.page(operation, rows=100_000)
        assert (len(page["data"]), page["has_more"]) == (100_000, True)

    @pytest.mark.item(22)
    @pytest.mark.parametrize("rows", ["100001", "1000000", "9" * 30])
    async def test_oversized_row_count_is_capped_with_an_exact_has_more(self, ana: Caller, rows: str):
        operation = await finished(ana, "mysql", "rows 200000", limit=200_000)
        pages = [await ana.page(operation, rows=rows) for _ in range(3)]
        assert [(len(page["data"]), page["has_more"]) for page in pages] == [
            (100_000, True),
            (100_000, False),
            (0, False),
        ]
        first = await ana.run("mysql", "rows 100001", rows=rows, limit=200_000)
        assert (len(first["result"]["data"]), first["result"]["has_more"]) == (100_000, True)

    async def test_start_row_beyond_64_bits_is_an_empty_batch_or_refused(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 1")
        answer = await ana.post("editor/fetch_result_data", operationId=operation, start_row=str(2**63))
        assert answer.status_code in {200, 400}

    async def test_batch_respects_its_byte_limit_and_reports_it(self, small_api: ApiOpener):
        async with small_api(batch_max_bytes=64 * 1024) as api:
            ana = await api.user()
            operation = await finished(ana, "mysql", "rows 30 wide 10000")
            seen: list[Any] = []
            while True:
                page = await ana.page(operation, rows=10_000)
                assert len(str(page["data"])) <= 64 * 1024
                assert page["data"]
                assert ("make it exceed 65536 bytes" in page.get("message", "")) is page["has_more"]
                seen += page["data"]
                if not page["has_more"]:
                    break
            assert seen == [[str(n).rjust(10_000)] for n in range(30)]
            wide = await finished(ana, "mysql", "rows 2 wide 100000")
            for asked, row in (({}, 0), ({"start_row": "1"}, 1)):
                answer = await ana.post("editor/fetch_result_data", operationId=wide, **asked)
                assert (answer.status_code, answer.json()["code"]) == (413, "row_too_large")
                assert answer.json()["details"] == {"row": row, "limit_bytes": 65536, "next_start_row": row + 1}
            assert (await ana.page(wide, start_row=2))["data"] == []

    async def test_client_may_request_smaller_batches_of_at_least_one_row(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 10 wide 1000")
        page = await ana.page(operation, rows=10, start_row=0, max_bytes=3500)
        assert (len(page["data"]), page["has_more"]) == (3, True)
        assert "make it exceed 3500 bytes" in page["message"]
        assert len((await ana.page(operation, rows=10, start_row=3, max_bytes=10))["data"]) == 1
        assert [len((await ana.page(operation, max_bytes=2500))["data"]) for _ in range(2)] == [2, 2]
        answer = await ana.post("editor/fetch_result_data", operationId=operation, max_bytes=0)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")

    async def test_fetch_during_execution_returns_an_empty_batch(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30 then rows 5"))["history_uuid"]
        page = await ana.page(operation)
        assert (page["data"], page["has_more"], page["rows_total"], page["meta"]) == ([], True, None, [])
        size = (await ana.on(operation, "fetch_result_size"))["result"]
        assert (size["rows"], size["size"], size["message"]) == (None, None, "Result status is not available")
        await ana.on(operation, "cancel_statement")

    @pytest.mark.item(52)
    @every_dialect
    async def test_size_and_metadata_agree_with_the_rows(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(823))
        size = (await ana.on(operation, "fetch_result_size"))["result"]
        assert (size["rows"], size["truncated"], size["message"]) == (823, False, "")
        assert size["size"] > 0
        page = await ana.page(operation, rows=10_000)
        assert len(page["data"]) == 823
        assert (await ana.on(operation, "fetch_result_metadata"))["result"]["meta"] == page["meta"]


class TestMeta:
    @pytest.mark.item(30)
    @pytest.mark.parametrize("escape", ["true", "false"])
    @every_dialect
    async def test_empty_result_has_columns(self, ana: Caller, dialect: Dialect, escape: str):
        page = await ana.result(dialect, "SELECT 1 AS a, 'x' AS b WHERE 1 = 0", escape=escape)
        assert [column["name"] for column in page["meta"]] == ["a", "b"]
        assert (page["data"], page["type"], page["has_more"]) == ([], "table", False)
        assert page["isEscaped"] is (escape == "true")

    @pytest.mark.item(31)
    @every_dialect
    async def test_meta_is_identical_in_all_batches_even_after_nulls(self, ana: Caller, dialect: Dialect):
        statement = f"SELECT CASE WHEN n < 150 THEN NULL ELSE n END AS n FROM ({dialect.rows(200)}) AS t"
        operation = await finished(ana, dialect, statement)
        pages = [await ana.page(operation, rows=50) for _ in range(4)]
        assert [page["meta"] for page in pages] == [pages[0]["meta"]] * 4
        assert pages[0]["meta"][0]["type"] == dialect.integer_type
        assert [row[0] for page in pages for row in page["data"]] == [None] * 150 + list(range(150, 200))

    @pytest.mark.item(31)
    @pytest.mark.parametrize(
        ("dialect", "expression", "kind", "native"),
        [
            (DUCKDB, "1::INTEGER", "INT_TYPE", "INTEGER"),
            (DUCKDB, "12.5::DECIMAL(10,2)", "DECIMAL_TYPE", "DECIMAL(10,2)"),
            (DUCKDB, "[1]", "ARRAY_TYPE", "INTEGER[]"),
            (DUCKDB, "now()", "TIMESTAMPLOCALTZ_TYPE", "TIMESTAMP WITH TIME ZONE"),
            (POSTGRESQL, "1::smallint", "SMALLINT_TYPE", "smallint"),
            (POSTGRESQL, "'x'::varchar(20)", "VARCHAR_TYPE", "varchar(20)"),
            (POSTGRESQL, "'x'::char(3)", "CHAR_TYPE", "char(3)"),
            (POSTGRESQL, "12.5::numeric(10,2)", "DECIMAL_TYPE", "numeric(10,2)"),
            (POSTGRESQL, "'{}'::jsonb", "STRING_TYPE", "jsonb"),
            (POSTGRESQL, "now()", "TIMESTAMPLOCALTZ_TYPE", "timestamp with time zone"),
            (SQLITE, "1", "BIGINT_TYPE", ""),
            (SQLITE, "1.5", "DOUBLE_TYPE", ""),
            (SQLITE, "x'00'", "BINARY_TYPE", ""),
        ],
    )
    async def test_columns_have_a_standard_type_and_the_engines_type(self, ana, dialect, expression, kind, native):
        page = await ana.result(dialect, f"SELECT {expression} AS v")
        assert page["meta"] == [{"name": "v", "type": kind, "native_type": native, **META}]


DUCKDB_CELLS = [
    ("true", True),
    ("9223372036854775807", 9223372036854775807),
    ("18446744073709551615::UBIGINT", 18446744073709551615),
    ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
    ("1.5::DOUBLE", 1.5),
    ("12.5::DECIMAL(10,2)", "12.50"),
    ("'nan'::DOUBLE", "NaN"),
    ("'inf'::DOUBLE", "Infinity"),
    ("'-inf'::FLOAT", "-Infinity"),
    ("TIMESTAMP '2024-01-31 10:20:30'", "2024-01-31 10:20:30"),
    ("TIMESTAMP '2024-01-31 10:20:30.5'", "2024-01-31 10:20:30.500000"),
    ("TIMESTAMPTZ '2024-01-31 10:20:30+00'", "2024-01-31 10:20:30+00:00"),
    ("DATE '2024-01-31'", "2024-01-31"),
    ("TIME '10:20:30.25'", "10:20:30.250000"),
    ("INTERVAL '1 day 02:03:04'", "1 day 02:03:04"),
    ("'\\x00\\xFF'::BLOB", "AP8="),
    ("[1, NULL, 3]", [1, None, 3]),
    ("MAP {'a': 1}", {"a": 1}),
    ("MAP {1: 'x'}", {"1": "x"}),
    ("{'b': 1, 'a': [{'c': 12.5::DECIMAL(5,2)}]}", {"b": 1, "a": [{"c": "12.50"}]}),
    ("'{\"a\": [1]}'::JSON", '{"a": [1]}'),
    ("union_value(n := 1)", 1),
]

POSTGRESQL_CELLS = [
    ("true", True),
    ("9223372036854775807", 9223372036854775807),
    ("1.5::float8", 1.5),
    ("12.5::numeric(10,2)", "12.50"),
    ("'NaN'::numeric", "NaN"),
    ("'nan'::float8", "NaN"),
    ("'inf'::float8", "Infinity"),
    ("'-inf'::real", "-Infinity"),
    ("timestamp '2024-01-31 10:20:30'", "2024-01-31 10:20:30"),
    ("timestamp '2024-01-31 10:20:30.5'", "2024-01-31 10:20:30.500000"),
    ("timestamptz '2024-01-31 10:20:30.5+00'", "2024-01-31 10:20:30.500000+00:00"),
    ("date '2024-01-31'", "2024-01-31"),
    ("date 'infinity'", "infinity"),
    ("time '10:20:30'", "10:20:30"),
    ("interval '1 day 02:03:04'", "1 day 02:03:04"),
    ("'\\x00ff'::bytea", "AP8="),
    ("array[1, null, 3]", [1, None, 3]),
    ("'{\"a\": [1]}'::jsonb", '{"a": [1]}'),
]

SQLITE_CELLS = [
    ("9223372036854775807", 9223372036854775807),
    ("1.5", 1.5),
    ("9e999", "Infinity"),
    ("-9e999", "-Infinity"),
    ("x'00ff'", "AP8="),
    ("'text'", "text"),
]


class TestCells:
    @pytest.mark.item(26)
    @every_dialect
    async def test_null_differs_from_the_text_null(self, ana: Caller, dialect: Dialect):
        page = await ana.result(dialect, "SELECT NULL AS a, 'NULL' AS b")
        assert page["data"] == [[None, "NULL"]]

    @pytest.mark.item(27, 28)
    @pytest.mark.parametrize(
        ("dialect", "expression", "value"),
        [
            *((DUCKDB, *cell) for cell in DUCKDB_CELLS),
            *((POSTGRESQL, *cell) for cell in POSTGRESQL_CELLS),
            *((SQLITE, *cell) for cell in SQLITE_CELLS),
        ],
    )
    async def test_raw_cells_keep_their_values(self, ana: Caller, dialect: Dialect, expression: str, value: Any):
        page = await ana.result(dialect, f"SELECT {expression} AS v, NULL AS n")
        assert page["data"] == [[value, None]]
        assert type(page["data"][0][0]) is type(value)
        assert page["isEscaped"] is False

    @pytest.mark.item(27)
    @every_dialect
    async def test_large_integers_keep_all_digits_in_json(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, "SELECT 9223372036854775807 AS v")
        answer = await ana.post("editor/fetch_result_data", operationId=operation)
        assert b'"data":[[9223372036854775807]]' in answer.content

    @pytest.mark.item(28)
    async def test_declared_booleans_of_sqlite_are_booleans(self, ana: Caller):
        table = f"flags_{ana.username}"
        for statement in (f"CREATE TABLE {table} (f BOOLEAN)", f"INSERT INTO {table} VALUES (1), (0), (2), (NULL)"):
            assert (await ana.run(SQLITE, statement))["status"] == 0
        assert (await ana.result(SQLITE, f"SELECT f FROM {table}"))["data"] == [[True], [False], [2], [None]]

    @pytest.mark.item(29)
    @every_dialect
    async def test_text_is_escaped_only_on_request(self, ana: Caller, dialect: Dialect):
        text = "<b>&\"' x"
        statement = f'SELECT {literal(text)} AS "<a>", NULL AS n'
        raw = await ana.result(dialect, statement)
        assert (raw["data"], raw["isEscaped"]) == ([[text, None]], False)
        hue = await ana.result(dialect, statement, escape="true")
        assert (hue["data"], hue["isEscaped"]) == ([["&lt;b&gt;&amp;&quot;&#x27;&nbsp;x", "NULL"]], True)
        assert hue["meta"] == raw["meta"]
        assert hue["meta"][0]["name"] == "<a>"

    @pytest.mark.item(29)
    @pytest.mark.parametrize(
        ("dialect", "expression", "value"),
        [
            (DUCKDB, "29.0::DOUBLE", "29.0"),
            (DUCKDB, "1e20::DOUBLE", "1e+20"),
            (DUCKDB, "'nan'::DOUBLE", "nan"),
            (DUCKDB, "'-inf'::DOUBLE", "-inf"),
            (DUCKDB, "5", 5),
            (DUCKDB, "true", True),
            (DUCKDB, "[1, 2]", "[1,2]"),
            (DUCKDB, "{'a': 'x y'}", "{&quot;a&quot;:&quot;x&nbsp;y&quot;}"),
            (DUCKDB, "'<\\xFF'::BLOB", "&lt;\ufffd"),
            (POSTGRESQL, "29::float8", "29.0"),
            (POSTGRESQL, "timestamp '2024-01-31 10:20:30'", "2024-01-31&nbsp;10:20:30"),
            (POSTGRESQL, "12.5::numeric(10,2)", "12.50"),
            (SQLITE, "29.0", "29.0"),
        ],
    )
    async def test_escaped_cells_follow_the_hue_format(
        self, ana: Caller, dialect: Dialect, expression: str, value: Any
    ):
        page = await ana.result(dialect, f"SELECT {expression} AS v", escape="true")
        assert page["data"] == [[value]]


class TestCaps:
    @pytest.mark.item(32)
    @every_dialect
    async def test_limit_truncates_only_longer_results(self, ana: Caller, dialect: Dialect):
        cut = await finished(ana, dialect, dialect.rows(11), limit=10)
        page = await ana.page(cut)
        assert (len(page["data"]), page["truncated"], page["truncated_reason"]) == (10, True, "row_limit")
        assert (page["has_more"], page["rows_total"]) == (False, 10)
        assert (await ana.ended(cut))["query_status"]["truncated"] is True
        assert (await ana.on(cut, "fetch_result_size"))["result"]["truncated"] is True
        whole = await ana.page(await finished(ana, dialect, dialect.rows(10), limit=10))
        assert (len(whole["data"]), whole["truncated"], whole["truncated_reason"]) == (10, False, None)

    @pytest.mark.item(33)
    @every_dialect
    async def test_all_rows_are_kept_by_default(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, dialect.rows(6000))
        size = (await ana.on(operation, "fetch_result_size"))["result"]
        assert (size["rows"], size["truncated"]) == (6000, False)
        page = await ana.page(operation, start_row=4990, rows=2000)
        assert [row[0] for row in page["data"]] == list(range(4990, 6000))
        assert page["has_more"] is False

    @pytest.mark.item(33)
    async def test_enforced_default_limit_keeps_5000_rows(self, small_api: ApiOpener):
        async with small_api(enforce_default_limit=True) as api:
            ana = await api.user()
            size = (await ana.on(await finished(ana, DUCKDB, DUCKDB.rows(6000)), "fetch_result_size"))["result"]
            assert (size["rows"], size["truncated"]) == (5000, True)
            default = (
                "the default limit of this server (editor.default_limit)."
                " To get more, execute the statement with limit=… (up to 1000000)."
            )
            await self._require_cut(ana, {}, "default_limit", default)
            whole = (await ana.ended(await finished(ana, DUCKDB, DUCKDB.rows(5000))))["query_status"]
            assert (whole["truncated"], whole["truncated_by"], whole["message"]) == (False, None, "")

    @pytest.mark.item(17)
    @pytest.mark.item(32)
    @pytest.mark.parametrize(
        ("setting", "cut_by", "kept"),
        [
            ({"result_max_rows": 20, "default_limit": 0}, "result_max_rows", 20),
            ({"default_limit": 20, "enforce_default_limit": True}, "default_limit", 20),
            ({"result_max_bytes": 100_000}, "result_max_bytes", None),
        ],
    )
    async def test_paging_to_the_end_reveals_truncation_by_the_server(
        self, small_api: ApiOpener, setting: dict[str, Any], cut_by: str, kept: int | None
    ):
        async with small_api(**setting) as api:
            ana = await api.user()
            begun = await ana.run("mysql", "rows 1000 wide 1000", rows=10_000)
            kept = kept or begun["query_status"]["rows"]
            first, operation = begun["result"], begun["history_uuid"]
            assert (len(first["data"]), first["has_more"], first["truncated_by"]) == (kept, True, cut_by)
            for fields in ({}, {}, {"start_row": kept}, {"start_row": kept + 7}):
                end = await ana.on(operation, "fetch_result_data", **fields)
                assert (end["status"], end["code"], "result" in end) == (1, "truncated", False)
                assert f"(editor.{cut_by})" in end["message"]
                assert end["message"].endswith(f"execute the statement with limit={kept}.")
                status = end["query_status"]
                assert (status["state"], status["rows"], status["truncated_by"]) == ("available", kept, cut_by)
            last = await ana.page(operation, start_row=kept - 1)
            assert (len(last["data"]), last["has_more"]) == (1, True)
            pages = [await ana.page(operation, rows=kept // 2, startOver=not n) for n in range(2)]
            assert [page["has_more"] for page in pages] == [True, True]

    @pytest.mark.item(32)
    async def test_truncation_in_a_whole_script_is_reported(self, small_api: ApiOpener):
        async with small_api(result_max_rows=20, default_limit=0) as api:
            ana = await api.user()
            for dialect in ("mysql", DUCKDB):
                rows = "rows 30" if dialect == "mysql" else DUCKDB.rows(30)
                begun = await ana.run(dialect, f"{rows}; {rows}", run_all="true")
                assert begun["query_status"]["truncated_by"] == "result_max_rows"
                page = await ana.page(begun["history_uuid"], rows=100)
                assert (len(page["data"]), page["has_more"]) == (20, True)
                end = await ana.on(begun["history_uuid"], "fetch_result_data")
                assert (end["status"], end["code"]) == (1, "truncated")

    @pytest.mark.item(17)
    @pytest.mark.item(32)
    async def test_result_limited_by_the_caller_ends_without_a_message(self, small_api: ApiOpener):
        async with small_api(result_max_rows=20, default_limit=0) as api:
            ana = await api.user()
            for limit in (10, 20):
                operation = await finished(ana, "mysql", "rows 30", limit=limit)
                page, end = await ana.page(operation, rows=100), await ana.page(operation)
                assert (len(page["data"]), page["has_more"], page["truncated_by"]) == (limit, False, "limit")
                assert (end["data"], end["has_more"]) == ([], False)
            whole = await finished(ana, "mysql", "rows 20")
            page, end = await ana.page(whole, rows=100), await ana.page(whole)
            assert (page["has_more"], page["truncated"], end["data"], end["has_more"]) == (False, False, [], False)

    async def test_truncation_message_names_cause_and_remedy(self, ana: Caller):
        own = "the limit of the call. To get more, execute the statement with a larger limit (up to 1000000)."
        await self._require_cut(ana, {"limit": 5000}, "limit", own)

    @staticmethod
    async def _require_cut(ana: Caller, fields: dict[str, int], cut_by: str, advice: str) -> None:
        operation = await finished(ana, DUCKDB, DUCKDB.rows(5001), **fields)
        status = (await ana.ended(operation))["query_status"]
        message = f"Only the first 5000 rows were kept: {advice}"
        assert (status["truncated"], status["truncated_reason"]) == (True, "row_limit")
        assert (status["truncated_by"], status["message"]) == (cut_by, message)
        page = await ana.page(operation)
        assert (page["truncated"], page["truncated_by"], page["message"]) == (True, cut_by, message)
        assert (await ana.on(operation, "fetch_result_size"))["result"]["message"] == message
        assert (await ana.on(operation, "get_logs"))["logs"].split("\n").count(message) == 1

    async def test_statement_limit_above_the_default_is_honored(self, small_api: ApiOpener):
        async with small_api(enforce_default_limit=True, default_limit=10, result_max_rows=20) as api:
            ana = await api.user()
            for dialect in (DUCKDB, SQLITE, POSTGRESQL):
                numbers = f"SELECT n FROM ({dialect.rows(40)}) AS s"
                for statement, fields, rows, cut_by in (
                    (numbers, {}, 10, "default_limit"),
                    (f"{numbers} LIMIT 5", {}, 5, None),
                    (f"{numbers} LIMIT 15 -- all", {}, 15, None),
                    (f"{numbers} LIMIT 30", {}, 20, "result_max_rows"),
                    (f"{numbers} LIMIT 15", {"limit": 12}, 12, "limit"),
                    (f"SELECT n FROM ({numbers} LIMIT 15) AS o", {}, 10, "default_limit"),
                ):
                    status = (await ana.run(dialect, statement, **fields))["query_status"]
                    assert (status["rows"], status["truncated_by"]) == (rows, cut_by), (dialect, statement, status)
            cut = await ana.run(DUCKDB, DUCKDB.rows(40) + " LIMIT 30")
            assert cut["query_status"]["message"].startswith(
                "Only the first 20 rows were kept: a result has at most 20 rows on this server"
                " (editor.result_max_rows)."
            )

    async def test_next_script_statement_inherits_a_limit_but_not_the_default(self, small_api: ApiOpener):
        async with small_api(enforce_default_limit=True, default_limit=10, result_max_rows=20) as api:
            ana = await api.user()
            script = f"{DUCKDB.rows(30)}; {DUCKDB.rows(30)} LIMIT 15"
            for fields, expected in (({}, [10, 15]), ({"limit": 12}, [12, 12])):
                first = await ana.run(DUCKDB, script, **fields)
                second = await ana.post_ok("editor/execute", operationId=first["history_uuid"], wait=60)
                assert [body["query_status"]["rows"] for body in (first, second)] == expected

    @pytest.mark.item(33)
    async def test_engine_receives_the_statement_without_a_limit(self, ana: Caller):
        await finished(ana, "mysql", "rows 6001")
        assert ana.api.fakes["mysql"].executions.count("rows 6001") == 1

    @pytest.mark.item(34)
    async def test_byte_limit_also_truncates(self, small_api: ApiOpener):
        async with small_api(result_max_bytes=100_000) as api:
            ana = await api.user()
            operation = await finished(ana, "mysql", "rows 1000 wide 1000")
            page = await ana.page(operation)
            assert (page["truncated"], page["truncated_reason"]) == (True, "byte_limit")
            assert page["truncated_by"] == "result_max_bytes"
            assert "a result has at most 100000 bytes on this server (editor.result_max_bytes)." in page["message"]
            assert 50 <= page["rows_total"] <= 100
            assert page["data"] == [[str(n).rjust(1000)] for n in range(page["rows_total"])]

    async def test_data_change_completes_regardless_of_the_limit(self, ana: Caller):
        table = f"changed_{ana.username}"
        await ana.run(POSTGRESQL, f"CREATE TABLE {table} (a int)")
        change = f"INSERT INTO {table} SELECT generate_series(1, 2000) RETURNING a"
        page = await ana.page(await finished(ana, POSTGRESQL, change, limit=10))
        assert (len(page["data"]), page["truncated"]) == (10, True)
        # If the statement were executed again, it would repeat the change.
        assert "The statement was executed completely. If it only reads data, execute" in page["message"]
        assert (await ana.result(POSTGRESQL, f"SELECT count(*) FROM {table}"))["data"] == [[2000]]


LARGE = 2**63 - 1

STATEMENTS = {
    "duckdb": f"SELECT {LARGE}::BIGINT AS big, 7::INTEGER AS small, 1.50::DECIMAL(4,2) AS exact,"
    f" [{LARGE}::BIGINT] AS list, 1.5::DOUBLE AS double, 2::UBIGINT AS unsigned",
    "postgresql": f"SELECT {LARGE}::bigint AS big, 7::integer AS small, 1.50::numeric(4,2) AS exact,"
    f" ARRAY[{LARGE}::bigint] AS list, 1.5::float8 AS double, 2::bigint AS unsigned",
}

NUMBERS = [LARGE, 7, "1.50", [LARGE], 1.5, 2]
TEXTS = [str(LARGE), 7, "1.50", [str(LARGE)], 1.5, "2"]
AS_TEXT = [True, False, True, True, False, True]


def flags(meta: list[dict[str, Any]]) -> list[object]:
    return [column.get("as_text") for column in meta]


async def test_big_numbers_is_accepted_by_every_call_returning_cells(ana: Caller):
    for dialect, statement in STATEMENTS.items():
        executed = await ana.run(dialect, statement, rows=10, big_numbers="text")
        assert executed["result"]["data"] == [TEXTS]
        assert flags(executed["result"]["meta"]) == AS_TEXT
        operation = executed["history_uuid"]
        plain = await ana.page(operation, start_row=0)
        assert (plain["data"], flags(plain["meta"])) == ([NUMBERS], [None] * 6)
        for form in ({"big_numbers": "text"}, {"big_numbers": "text", "escape": True}):
            page = await ana.page(operation, start_row=0, **form)
            assert (page["data"][0][0], flags(page["meta"])) == (str(LARGE), AS_TEXT)
            assert [column["type"] for column in page["meta"]] == [column["type"] for column in plain["meta"]]
        body = await ana.on(operation, "fetch_result_metadata", big_numbers="text")
        assert flags(body["result"]["meta"]) == AS_TEXT
        refused = await ana.post("editor/fetch_result_data", operationId=operation, big_numbers="words")
        assert verdict(refused) == (400, -1, "invalid_parameter")
        assert refused.json()["message"] == "big_numbers must be 'number' or 'text'."


async def test_big_numbers_is_accepted_by_samples(ana: Caller):
    await ana.run("sqlite", "CREATE TABLE IF NOT EXISTS wide_numbers (big BIGINT, word TEXT)")
    await ana.run("sqlite", f"INSERT INTO wide_numbers VALUES ({LARGE}, 'a')")
    for fields, rows, as_text in (
        ({}, [[LARGE, "a"]], [None, None]),
        ({"big_numbers": "text"}, [[str(LARGE), "a"]], [True, False]),
    ):
        sample = await ana.post_ok("editor/sample/main/wide_numbers", snippet='{"type": "sqlite"}', **fields)
        assert (sample["rows"], flags(sample["full_headers"])) == (rows, as_text)
    await ana.run("sqlite", "DROP TABLE wide_numbers")


async def test_user_preference_applies_without_the_field(api: Api):
    ana, ben = await api.user(), await api.user()
    assert (await ana.get("iam/preferences")).json() == {"status": 0, "preferences": {"big_numbers": "number"}}
    changed = await ana.post_ok("iam/preferences", big_numbers="text")
    assert changed["preferences"] == (await ana.get("iam/preferences")).json()["preferences"] == {"big_numbers": "text"}
    # An update without fields changes nothing.
    assert (await ana.post_ok("iam/preferences"))["preferences"] == {"big_numbers": "text"}
    statement = STATEMENTS["duckdb"]
    operation = (await ana.run("duckdb", statement))["history_uuid"]
    assert (await ana.page(operation))["data"] == [TEXTS]
    assert (await ana.page(operation, start_row=0, big_numbers="number"))["data"] == [NUMBERS]
    assert (await ana.run("duckdb", statement, rows=1))["result"]["data"] == [TEXTS]
    assert (await ben.result("duckdb", statement))["data"] == [NUMBERS]
    assert (await ana.post_ok("iam/preferences", big_numbers="number"))["preferences"] == {"big_numbers": "number"}
    assert (await ana.page(operation, start_row=0))["data"] == [NUMBERS]
    refused = await ana.post("iam/preferences", big_numbers="maybe")
    assert verdict(refused) == (400, -1, "invalid_parameter")
    assert (await api.stranger.get("iam/preferences")).status_code == 401


async def test_preference_of_another_version_is_ignored(api: Api):
    ana = await api.user()
    await api.database.execute(
        "update users set preferences = $2 where username = $1", ana.username, {"big_numbers": "roman", "other": [1]}
    )
    assert (await ana.get("iam/preferences")).json()["preferences"] == {"big_numbers": "number"}
    assert (await ana.post_ok("iam/preferences", big_numbers="text"))["preferences"] == {"big_numbers": "text"}
