"""Imports of files into tables (Contract importer 13; checklist 52 to 60)."""

import asyncio
import importlib.util
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from openpyxl import Workbook
from tests.api.driving import Caller
from tests.api.importer.asking import header, names, preview, types
from tests.api.importer.conftest import refusal, uploaded
from tests.api.importer.tables import (
    CONTENT,
    Tables,
    ask,
    failed,
    imported,
    open_tables,
    quoted,
    rows,
    started,
    tables_like,
)
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres

FIELD = Path(__file__).parents[2] / "field" / "import"
_numbers = count(1)


@pytest.fixture(scope="session")
async def tables(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory, users_url: str
) -> AsyncIterator[Tables]:
    """An application with its own service database, which all tests of a process share.

    The database is not shared between processes, because only one process per service database may hold the DuckDB
    file.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        async for opened in open_tables(tmp_path_factory.mktemp("tables"), dsn, users_url):
            yield opened


@pytest.fixture
async def ana(tables: Tables) -> Caller:
    return await tables.api.user("ana")


@pytest.fixture(params=["duckdb", "sqlite", "postgresql"])
def connector(request: pytest.FixtureRequest) -> str:
    return request.param


def new_table() -> str:
    """A table name that no other test uses."""
    return f"t{next(_numbers)}_import"


@pytest.fixture
def table() -> str:
    return new_table()


@pytest.mark.importer(52)
class TestAnswer:
    async def test_import_is_an_operation_whose_result_has_four_counts(self, ana, connector, table):
        answer = await ask(ana, connector, table, file_path=(path := await uploaded(ana, CONTENT)))
        body = answer.json()
        assert answer.status_code == 202
        assert set(body) == {"status", "history_uuid", "history_id", "path", "table"}
        assert (body["status"], body["path"], body["table"]) == (0, path, table)
        end = await ana.ended(body["history_uuid"])
        assert (end["status"], end["query_status"]["status"]) == (0, "available")
        page = await ana.page(body["history_uuid"])
        assert [column["name"] for column in page["meta"]] == ["rows_read", "rows_loaded", "rows_bad", "table"]
        assert page["data"] == [[3, 3, 0, table]]

    async def test_columns_have_the_preview_types(self, ana: Caller, connector: str, table: str):
        await imported(ana, connector, table)
        found = await rows(ana, connector, table)
        assert [row[:2] for row in found] == [[1, "anna"], [2, None], [3, "carl"]]
        assert [row[2] for row in found] == [1.5, 2.25, None]
        assert [str(row[3])[:10] if row[3] else None for row in found] == ["2025-01-15", None, "2025-01-17"]

    @pytest.mark.importer(67)
    async def test_preview_columns_with_long_names_make_a_table(self, ana: Caller, table: str):
        content = (FIELD / "long_header_names_postgresql.csv").read_bytes()
        line, _, row = content.decode().partition("\n")
        content = f"{line},{line.partition(',')[2]}\n{row.strip()},B\n".encode()
        path = await uploaded(ana, content)
        shown = (await preview(ana, path, sql_dialect="postgresql")).json()["columns"]
        names = [column["name"] for column in shown]
        assert [len(name.encode()) for name in names] == [2, 63, 63]
        await imported(ana, "postgresql", table, file_path=path, columns=shown)
        assert await rows(ana, "postgresql", table, ",".join(f'"{name}"' for name in names)) == [[1, "A", "B"]]
        await imported(ana, "postgresql", f"{table}_2", file_path=path)
        assert await rows(ana, "postgresql", f"{table}_2", ",".join(f'"{name}"' for name in names)) == [[1, "A", "B"]]

    @pytest.mark.importer(65, 66)
    async def test_japanese_windows_text_with_a_dos_end_mark_is_imported(self, ana: Caller, table: str):
        content = "氏名,住所,数量\r\n髙橋,東京都①番,1\r\n山﨑,大阪府,2\r\n\x1a".encode("cp932")
        done = await imported(ana, "duckdb", table, file_path=await uploaded(ana, content))
        assert (done["rows_loaded"], done["rows_bad"]) == (2, 0)
        assert await rows(ana, "duckdb", table, order="3") == [["髙橋", "東京都①番", 1], ["山﨑", "大阪府", 2]]

    @pytest.mark.importer(67)
    async def test_table_name_too_long_for_postgresql_is_refused(self, ana: Caller):
        refused = await ask(ana, "postgresql", "t" * 64, file_path=await uploaded(ana, CONTENT))
        assert refusal(refused) == (400, "invalid_parameter")

    async def test_submit_alias_and_json_bodies_are_accepted(self, ana: Caller, table: str):
        fields = {"file_path": await uploaded(ana, CONTENT), "import_type": "local", "file_type": "csv"}
        for call, name in (("importer/submit", table), ("importer/create_table/", f"{table}_2")):
            more = {"has_header": True, "connector": "duckdb", "table": name, "columns": [{"source": 1}]}
            answer = await ana.post_json(call, **fields, **more)
            assert answer.status_code == 202, answer.text
            await ana.ended(answer.json()["history_uuid"])
            assert await rows(ana, "duckdb", name) == [[1], [2], [3]]

    async def test_history_shows_a_readable_statement(self, ana: Caller, table: str):
        path = await uploaded(ana, CONTENT, "my\nsales; DROP TABLE x.csv")
        await imported(ana, "duckdb", table, file_path=path)
        entry = (await ana.history(doc_type="duckdb"))["history"][0]["data"]["statement"]
        assert entry.startswith("-- Import of ")
        assert f'CREATE TABLE "{table}" (\n  "id" INTEGER,' in entry

    async def test_result_names_database_and_table(self, ana: Caller, table: str):
        done = await imported(ana, "duckdb", table, database="main")
        assert done["table"] == f"main.{table}"
        assert len(await rows(ana, "duckdb", table)) == 3

    async def test_upload_can_be_imported_repeatedly(self, ana: Caller, table: str):
        path = await uploaded(ana, CONTENT)
        for name in (table, f"{table}_again"):
            assert (await imported(ana, "sqlite", name, file_path=path))["rows_loaded"] == 3

    async def test_repeated_idempotency_key_returns_the_same_operation(self, ana: Caller, table: str):
        fields = {
            "file_path": await uploaded(ana, CONTENT), "import_type": "local", "file_type": "csv",
            "has_header": "1", "connector": "duckdb", "table": table,
        }  # fmt: skip
        headers = {"Idempotency-Key": f"key-{table}"}
        first = await ana.send("POST", "importer/create_table", data=fields, headers=headers)
        await ana.ended(first.json()["history_uuid"])
        again = await ana.send("POST", "importer/create_table", data=fields, headers=headers)
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
        other = await ana.send("POST", "importer/create_table", data={**fields, "table": "x"}, headers=headers)
        assert refusal(other)[0] == 400

    async def test_metadata_show_the_new_table_immediately(self, ana: Caller, table: str):
        async def known() -> set[str]:
            body = await ana.post_ok("editor/autocomplete/main", snippet='{"type": "duckdb"}')
            return {one["name"] for one in body["tables_meta"]}

        assert table not in await known()
        await imported(ana, "duckdb", table)
        assert table in await known()


@pytest.mark.importer(53)
class TestColumns:
    async def test_columns_can_be_renamed_retyped_dropped_and_reordered(self, ana: Caller, connector: str, table: str):
        texts = {"duckdb": "VARCHAR", "sqlite": "TEXT", "postgresql": "TEXT"}
        await imported(
            ana, connector, table,
            columns=[{"source": "name", "name": "who"}, {"source": 1, "name": "number", "type": texts[connector]}],
        )  # fmt: skip
        assert await rows(ana, connector, table, '"who", "number"', '"number"') == [
            ["anna", "1"], [None, "2"], ["carl", "3"],
        ]  # fmt: skip

    async def test_numeric_source_is_a_position_and_text_source_prefers_a_name(self, ana: Caller, table: str):
        columns = [{"source": 1, "name": "first"}, {"source": "1", "name": "second"}, {"source": "3", "name": "third"}]
        path = await uploaded(ana, b"2,1,x\n10,20,30\n")
        await imported(ana, "duckdb", table, columns=columns, file_path=path)
        assert await rows(ana, "duckdb", table, "first, second, third") == [[10, 20, 30]]

    async def test_unusual_names_are_accepted(self, ana: Caller, connector: str, table: str):
        names = ['say "hi"', "two words", "naïve ☃", "sel`ect", "a'b", "semi;colon--"]
        content = b"a,b,c,d,e,f\n1,2,3,4,5,6\n"
        odd = f'{table} "of" b;x'
        columns = [{"source": at, "name": name} for at, name in enumerate(names, 1)]
        await imported(ana, connector, odd, columns=columns, file_path=await uploaded(ana, content))
        page = await ana.result(connector, f'SELECT * FROM "{odd.replace(chr(34), chr(34) * 2)}"')
        assert [column["name"] for column in page["meta"]] == names
        assert page["data"] == [[1, 2, 3, 4, 5, 6]]

    async def test_decimals_keep_every_digit(self, ana: Caller, table: str):
        content = b"n\n12345678901234567890.5\n-0.25\n"
        column = {"source": 1, "type": "NUMERIC", "precision": 38, "scale": 2}
        await imported(ana, "postgresql", table, columns=[column], file_path=await uploaded(ana, content))
        assert await rows(ana, "postgresql", table, '"n"::text') == [["-0.25"], ["12345678901234567890.50"]]

    @pytest.mark.parametrize(
        "columns",
        [
            '[{"source": 9}]', '[{"source": "nobody"}]', '[{"source": 0}]', '[{"name": "x"}]', "[]", "{}", "[1]",
            '[{"source": 1, "name": " "}]', '[{"source": 1, "name": "x"}, {"source": 2, "name": "X"}]',
            '[{"source": 1, "type": "BLOB"}]', '[{"source": 1, "type": "GEOMETRY"}]', '[{"source": 1, "type": 5}]',
            '[{"source": 1, "type": "DECIMAL"}]', '[{"source": 1, "type": "DECIMAL", "precision": 39, "scale": 0}]',
            '[{"source": 1, "type": "DECIMAL", "precision": 5, "scale": 6}]',
            '[{"source": 1, "nullable": "maybe"}]',
        ],
    )  # fmt: skip
    async def test_invalid_columns_are_refused(self, ana: Caller, table: str, columns: str):
        assert refusal(await ask(ana, "duckdb", table, columns=columns)) == (400, "invalid_columns")

    @pytest.mark.importer(77)
    @pytest.mark.parametrize(
        ("columns", "position"),
        [
            ('[{"source": 1}, {"source": 2, "type": "GEOMETRY"}]', 2),
            ('[{"source": 2, "name": "x"}, {"source": 1, "name": "X"}]', 2),
            ('[{"source": 2, "nullable": "maybe"}, {"source": 1}]', 1),
            ("[]", None),
        ],
    )
    async def test_refusal_names_the_position_of_the_refused_column(
        self, ana: Caller, table: str, columns: str, position: int | None
    ):
        answer = await ask(ana, "duckdb", table, columns=columns)
        assert refusal(answer) == (400, "invalid_columns")
        assert answer.json().get("column") == position

    @pytest.mark.parametrize("columns", ["[{", '[{"source": 1, "name": "a\\u0000b"}]'])
    async def test_columns_with_invalid_json_are_refused(self, ana: Caller, table: str, columns: str):
        assert refusal(await ask(ana, "duckdb", table, columns=columns)) == (400, "invalid_json")

    async def test_offsets_are_converted_to_utc_and_null_words_to_null(self, ana: Caller, connector: str, table: str):
        content = b't,s,e\n2025-01-15T12:00:00+02:00,\\N,""\n2025-01-15 10:30,null,"x"\n'
        await imported(ana, connector, table, file_path=await uploaded(ana, content))
        found = await rows(ana, connector, table)
        assert [str(row[0]).replace("T", " ")[:19] for row in found] == ["2025-01-15 10:00:00", "2025-01-15 10:30:00"]
        assert [row[1:] for row in found] == [[None, ""], [None, "x"]]


@pytest.mark.importer(54)
class TestBadRows:
    content = b"id,n\n1,10\n2,oops\n3,30\n4,40,50\n5\n"
    columns = ({"source": 1}, {"source": 2, "type": "INTEGER"})

    async def test_too_many_bad_rows_create_no_table(self, ana: Caller, connector: str, table: str):
        path = await uploaded(ana, self.content)
        for allowed in ("0", "1"):
            code, message, log = await failed(
                ana, connector, table, file_path=path, columns=list(self.columns), max_bad_rows=allowed
            )
            assert code == "rejected"
            assert message.startswith(f"2 of 5 rows are bad; at most {allowed} are allowed: ")
            assert 'record 3, column "n": "oops" is not an integer' in log
            assert "record 5: the row has more fields" in log
        assert await tables_like(ana, connector, table) == []
        assert await tables_like(ana, connector, "_qs_import_") == []

    @pytest.mark.parametrize("allowed", ["2", "-1"])
    async def test_allowed_bad_rows_are_skipped_and_reported(self, ana: Caller, connector: str, allowed: str):
        table = new_table()
        path = await uploaded(ana, self.content)
        done = await imported(ana, connector, table, file_path=path, columns=list(self.columns), max_bad_rows=allowed)
        assert (done["rows_read"], done["rows_loaded"], done["rows_bad"]) == (5, 3, 2)
        assert '"oops" is not an integer' in done["log"]
        assert await rows(ana, connector, table) == [[1, 10], [3, 30], [5, None]]

    async def test_null_in_a_non_nullable_column_is_a_bad_row(self, ana: Caller, table: str):
        columns = [{"source": 1, "nullable": False}, {"source": "name", "nullable": False}]
        code, _, log = await failed(ana, "duckdb", table, columns=columns)
        assert code == "rejected"
        assert 'record 3, column "name": the value is missing' in log

    async def test_log_lists_at_most_a_hundred_bad_rows(self, ana: Caller, table: str):
        content = b"n\n" + b"1\n" * 10 + b"".join(b"x%d\n" % n for n in range(130))
        done = await imported(
            ana, "duckdb", table, file_path=await uploaded(ana, content),
            columns=[{"source": 1, "type": "INTEGER"}], max_bad_rows="200",
        )  # fmt: skip
        assert done["rows_bad"] == 130
        assert done["log"].count("Bad row: ") == 100
        assert "30 more bad rows" in done["log"]


class TestLayout:
    @pytest.mark.importer(62, 69, 70, 71)
    async def test_table_matches_the_preview(self, ana: Caller, connector: str, table: str):
        content = b'Report\n\n# note\nid,text,n\n1,"say \\"hi\\"",NA,\n2,a\\,b,5,\n# other, note\n3,c,7\n'
        path = await uploaded(ana, content)
        columns = (await preview(ana, path, sql_dialect=None, connector=connector)).json()["columns"]
        done = await imported(ana, connector, table, file_path=path, columns=columns)
        assert (done["rows_read"], done["rows_loaded"], done["rows_bad"]) == (3, 3, 0)
        assert await rows(ana, connector, table) == [[1, 'say "hi"', None], [2, "a,b", 5], [3, "c", 7]]
        assert "Skipped the first 3 lines." in done["log"]
        assert "Left out 1 comment line: #" in done["log"]
        assert """Read 1 cell of column "n" as NULL: 'NA'.""" in done["log"]

    @pytest.mark.importer(69, 71)
    async def test_layout_and_null_words_can_be_specified(self, ana: Caller, table: str):
        path = await uploaded(ana, b"a,b\n1,x\n%,%\n2,y\n")
        given = {"skip_rows": "1", "has_header": "false", "comment": "%", "null_words": '["x"]'}
        done = await imported(ana, "duckdb", table, file_path=path, **given)
        assert done["rows_loaded"] == 2
        assert await rows(ana, "duckdb", table) == [[1, None], [2, "y"]]
        assert """Read 1 cell of column "column_2" as NULL: 'x'.""" in done["log"]
        assert "column_1" not in done["log"]

    @pytest.mark.importer(54)
    async def test_few_bad_rows_are_skipped_and_named_by_default(self, ana: Caller, table: str):
        content = b"id,n\n" + b"".join(b"%d,1\n" % n for n in range(40)) + b"x,2,3\n"
        done = await imported(ana, "duckdb", table, file_path=await uploaded(ana, content))
        assert (done["rows_read"], done["rows_loaded"], done["rows_bad"]) == (41, 40, 1)
        assert "Bad row: record 42: the row has more fields than the file has columns" in done["log"]


def data_file(package: str, folder: str) -> Path:
    """Return the path of a folder with data files in an installed package. The package is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / folder


class TestWrittenForms:
    CONTENT = (
        b"day;at;euro;dollar;when\n15/01/2024;1/15/2024 1:05 PM;1.234,50;1,234.50;01/02/2024\n"
        b"01/02/2024;1/2/2024 12:00 AM;2,5;3;03/04/2024\n;;;;\n"
    )
    FIELDS: ClassVar[dict[str, str]] = {"file_type": "delimiter_format", "field_separator": ";"}

    async def test_preview_columns_can_be_sent_back(self, ana: Caller, connector: str, table: str):
        """Every dialect is tested, with formats that are detected unambiguously and with formats that are given."""
        path = await uploaded(ana, self.CONTENT)
        query = {"sql_dialect": None, "connector": connector, "date_format": "%d/%m/%Y", **self.FIELDS}
        shown = (await preview(ana, path, **query)).json()
        assert [column["format"] for column in shown["columns"]] == [
            "%d/%m/%Y", "%m/%d/%Y %I:%M %p", "1.234,5", "1,234.5", "%d/%m/%Y",
        ]  # fmt: skip
        assert shown["preview_data"][0][2] == "1.234,50"
        await imported(ana, connector, table, file_path=path, columns=shown["columns"], **self.FIELDS)
        found = await rows(ana, connector, table, order="day NULLS LAST")
        assert [row[2:4] for row in found] == [[1234.5, 1234.5], [2.5, 3.0], [None, None]]
        assert [[str(cell)[:16] for cell in (row[0], row[1], row[4])] for row in found[:2]] == [
            ["2024-01-15", "2024-01-15 13:05", "2024-02-01"],
            ["2024-02-01", "2024-01-02 00:00", "2024-04-03"],
        ]

    async def test_sample_data_sets_are_imported(self, ana: Caller, table: str):
        """The first data set has dates such as `Jan 1 2000`. The other one has years in its header, and numbers with
        commas.
        """
        stocks = data_file("vega_datasets", "_data/stocks.csv")
        fertility = data_file("statsmodels", "datasets/fertility/fertility.csv")
        await imported(ana, "duckdb", table, file_path=await uploaded(ana, stocks.read_bytes()))
        sql = f"SELECT typeof(max(date)), min(date), max(date), count(*) FROM {table}"
        assert (await ana.result("duckdb", sql))["data"] == [["DATE", "2000-01-01", "2010-03-01", 560]]
        path = await uploaded(ana, fertility.read_bytes())
        assert (await header(ana, path)).json() == {"has_header": True}
        shown = (await preview(ana, path, sql_dialect="duckdb")).json()
        found = dict(zip(names(shown), types(shown), strict=True))
        assert (found["Country Name"], found["1960"], found["2000"]) == ("VARCHAR", "DECIMAL", "DECIMAL")

    async def test_preview_columns_with_plain_formats_can_be_sent_back(self, ana: Caller, connector: str, table: str):
        content = b"n,f,d,ok,day,at,t,s,empty\n1,1.5,1.2345678901234567,true,2024-01-15,2024-01-15T10:30,10:30,x,\n"
        path = await uploaded(ana, content)
        shown = (await preview(ana, path, sql_dialect=None, connector=connector)).json()
        found = list[Any]()
        for name, columns in ((table, None), (f"{table}_2", shown["columns"])):
            await imported(ana, connector, name, file_path=path, **({"columns": columns} if columns else {}))
            found.append(await rows(ana, connector, name))
        assert found[0] == found[1]

    async def test_row_in_another_format_is_bad(self, ana: Caller, table: str):
        content = b"day\n" + b"15/01/2024\n" * 10_001 + b"2024-01-15\n31/02/2024\n"
        path = await uploaded(ana, content)
        _, message, log = await failed(ana, "duckdb", table, file_path=path, max_bad_rows=0)
        assert '"2024-01-15" is not in the format %d/%m/%Y' in log
        assert 'record 10004, column "day"' in log
        assert "2 of 10003 rows are bad" in message
        done = await imported(
            ana, "duckdb", table, file_path=path, columns=[{"source": 1, "type": "VARCHAR", "format": "%d/%m/%Y"}]
        )
        assert done["rows_bad"] == 0

    async def test_types_may_include_their_parameters(self, ana: Caller, connector: str, table: str):
        chosen = [
            {"source": "price", "type": "numeric(12,3)"},
            {"source": "name", "type": "Varchar( 5 )"},
            {"source": "id", "type": "DECIMAL", "precision": 5},
        ]
        await imported(ana, connector, table, columns=chosen)
        assert await rows(ana, connector, table, order="id") == [
            ["1.500", "anna", "1"], ["2.250", None, "2"], [None, "carl", "3"],
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "column",
        [
            {"type": "numeric(39,2)"},
            {"type": "numeric(2,3)"},
            {"type": "numeric(12,2)", "precision": 11},
            {"type": "varchar(0)"},
            {"type": "varchar(10485761)"},
            {"type": "varchar(20) DEFAULT 1"},
            {"type": "geometry"},
            {"type": "DATE", "format": "%q"},
            {"type": "DATE", "format": "1.234,5"},
            {"type": "DATE", "format": "%d/%m/%Y %H:%M"},
            {"type": "BIGINT", "format": "%d/%m/%Y"},
            {"type": "BOOLEAN", "format": "1.234,5"},
        ],
        ids=str,
    )
    async def test_invalid_types_and_formats_are_refused(self, ana: Caller, table: str, column: dict[str, Any]):
        answer = await ask(ana, "duckdb", table, columns=[{"source": 1, **column}])
        assert refusal(answer) == (400, "invalid_columns")
        assert column["type"] != "geometry" or "NUMERIC(p,s)" in answer.json()["error"]


@pytest.mark.importer(55)
class TestExistingTable:
    async def test_existing_table_is_refused_before_the_response(self, ana: Caller, connector: str, table: str):
        await imported(ana, connector, table)
        assert refusal(await ask(ana, connector, table)) == (400, "table_exists")
        assert len(await rows(ana, connector, table)) == 3

    async def test_append_adds_rows_and_creates_a_missing_table(self, ana: Caller, connector: str, table: str):
        for expected in (3, 6):
            done = await imported(ana, connector, table, if_exists="append")
            assert (done["rows_loaded"], len(await rows(ana, connector, table))) == (3, expected)

    async def test_replace_substitutes_the_existing_table(self, ana, connector, table):
        for content in (b"a\n7\n", CONTENT):
            done = await imported(ana, connector, table, if_exists="replace", file_path=await uploaded(ana, content))
        assert done["rows_loaded"] == 3
        assert [row[:2] for row in await rows(ana, connector, table)] == [[1, "anna"], [2, None], [3, "carl"]]
        entries = (await ana.history(doc_type=connector))["history"]
        assert any(f'CREATE OR REPLACE TABLE "{table}" (' in entry["data"]["statement"] for entry in entries)
        assert await tables_like(ana, connector, "qs_import_") == []

    async def test_replace_keeps_the_table_on_bad_rows_and_never_drops_views(
        self, ana: Caller, connector: str, table: str
    ):
        await imported(ana, connector, table)
        bad = {"file_path": await uploaded(ana, b"id\nx\n"), "columns": [{"source": 1, "type": "BIGINT"}]}
        if connector == "sqlite":
            bad["columns"] = [{"source": 1, "type": "REAL"}]
        await failed(ana, connector, table, if_exists="replace", **bad)
        assert len(await rows(ana, connector, table)) == 3
        await ana.result(connector, f"CREATE VIEW {quoted(table + '_v')} AS SELECT 5 AS five")
        await failed(ana, connector, f"{table}_v", if_exists="replace")
        assert await rows(ana, connector, f"{table}_v") == [[5]]

    async def test_failed_append_keeps_existing_rows(self, ana: Caller, connector: str, table: str):
        await imported(ana, connector, table)
        path = await uploaded(ana, b"id,other\n9,9\n")
        operation = await started(ana, connector, table, if_exists="append", file_path=path)
        end = await ana.ended(operation)
        assert end["query_status"]["state"] == "failed"
        assert [row[0] for row in await rows(ana, connector, table)] == [1, 2, 3]
        assert await tables_like(ana, connector, "_qs_import_") == []


@pytest.mark.importer(57)
class TestText:
    async def test_sql_in_names_and_cells_is_never_executed(self, ana: Caller, connector: str, table: str):
        await imported(ana, connector, victim := f"{table}_victim")
        evil = f"x'); DROP TABLE {victim}; --"
        content = f'{evil}\n"{evil}"\n'.encode()
        await imported(ana, connector, evil, file_path=await uploaded(ana, content), file_type="tsv")
        assert len(await rows(ana, connector, victim)) == 3
        assert await rows(ana, connector, evil) == [[evil]]

    @pytest.mark.importer(61)
    async def test_formulas_are_stored_unchanged(self, ana: Caller, connector: str, table: str):
        await imported(ana, connector, table, file_path=await uploaded(ana, b"a,b\n=1+1,@x\n"))
        assert await rows(ana, connector, table) == [["=1+1", "@x"]]


class TestRefusals:
    @pytest.mark.importer(58)
    @pytest.mark.security("T20")
    @pytest.mark.parametrize("name", ["closed", "nobody", "mysql", "postgresql-closed"])
    async def test_inaccessible_connector_is_not_found(self, ana: Caller, table: str, name: str):
        assert refusal(await ask(ana, name, table)) == (400, "connector_not_found")

    async def test_api_token_imports_only_into_its_connectors(self, tables: Tables, ana: Caller, table: str):
        new = {"name": table, "scopes": ["import", "query"], "connectors": ["sqlite"]}
        token = (await ana.post_json("token/api_tokens/new", **new)).json()
        program = Caller(tables.api, ana.username, {"Authorization": f"Bearer {token['value']}"})
        assert refusal(await ask(program, "duckdb", table)) == (400, "connector_not_found")
        await imported(program, "sqlite", table)
        lacking = await program.get("storage/filesystems")
        assert (lacking.status_code, lacking.json()["code"]) == (403, "insufficient_scope")

    async def test_dialect_without_import_support_is_refused(self, ana: Caller, table: str):
        assert refusal(await ask(ana, "odd", table)) == (400, "invalid_dialect")

    @pytest.mark.parametrize("name", ["frozen", "login"])
    async def test_connector_that_accepts_no_tables_is_refused(self, ana: Caller, table: str, name: str):
        assert refusal(await ask(ana, name, table)) == (400, "permission_denied")

    @pytest.mark.importer(10)
    @pytest.mark.security("T20")
    async def test_other_users_upload_is_not_found(self, tables: Tables, ana: Caller, table: str):
        bob = await tables.api.user("bob")
        path = await uploaded(ana, CONTENT)
        assert refusal(await ask(bob, "duckdb", table, file_path=path)) == (400, "file_not_found")

    @pytest.mark.importer(16)
    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"connector": ""}, "missing_parameter"),
            ({"table": ""}, "missing_parameter"),
            ({"has_header": ""}, "missing_parameter"),
            ({"file_path": ""}, "missing_parameter"),
            ({"table": "x" * 129}, "invalid_parameter"),
            ({"table": "a\0b"}, "invalid_parameter"),
            ({"database": "x" * 129}, "invalid_parameter"),
            ({"if_exists": "overwrite"}, "invalid_parameter"),
            ({"date_format": "%q"}, "invalid_parameter"),
            ({"number_format": "1.2.3"}, "invalid_parameter"),
            ({"max_bad_rows": "-2"}, "invalid_parameter"),
            ({"max_bad_rows": "many"}, "invalid_parameter"),
            ({"file_type": "excel"}, "sheet_required"),
            ({"file_type": "excel", "sheet_name": "x"}, "format_mismatch"),
            ({"file_type": "delimiter_format"}, "separator_required"),
            ({"encoding": "klingon"}, "invalid_parameter"),
            ({"file_path": "/etc/passwd"}, "file_not_found"),
        ],
    )
    async def test_invalid_parameters_are_refused_before_the_response(self, ana, table, fields, code):
        path = await uploaded(ana, CONTENT)
        given = {"connector": "duckdb", "table": table, "file_path": path, **fields}
        assert refusal(await ask(ana, given.pop("connector"), given.pop("table"), **given)) == (400, code)


@pytest.mark.importer(59)
class TestSources:
    async def test_remote_and_local_files_make_the_same_table(self, tables, ana, connector, table):
        content = CONTENT + b'4,"d ""q"", x",4,2025-02-01\n'
        await imported(ana, connector, table, file_path=await uploaded(ana, content))
        path = tables.shared_file(f"{table}.csv", content)
        await imported(ana, connector, f"{table}_remote", file_path=path, import_type="remote")
        assert await rows(ana, connector, table) == await rows(ana, connector, f"{table}_remote")
        assert (tables.root / "shared" / f"{table}.csv").read_bytes() == content

    async def test_import_accepts_the_preview_encodings_and_separators(self, ana: Caller, table: str):
        content = "näme||wert\r\nä||1\r\nö||2\r\n".encode("utf-16")
        done = await imported(
            ana, "duckdb", table, file_path=await uploaded(ana, content),
            file_type="delimiter_format", field_separator="||", record_separator="\\r\\n",
        )  # fmt: skip
        assert done["rows_loaded"] == 2
        assert await rows(ana, "duckdb", table, order="2") == [["ä", 1], ["ö", 2]]

    @pytest.mark.importer(42)
    async def test_worksheet_is_imported(self, ana: Caller, connector: str, table: str):
        book = Workbook()
        sheet = book.active
        assert sheet is not None
        sheet.title = "Data"
        for row in (
            ("id", "name", "price", "at", "ok"),
            (1, "007", 1.5, datetime(2025, 1, 15, 10, 30, tzinfo=UTC).replace(tzinfo=None), True),
            (2, None, 2, None, False),
        ):
            sheet.append(row)
        book.save(content := io.BytesIO())
        path = await uploaded(ana, content.getvalue(), "book.xlsx")
        done = await imported(ana, connector, table, file_path=path, file_type="excel", sheet_name="Data")
        assert (done["rows_read"], done["rows_loaded"]) == (2, 2)
        first, second = await rows(ana, connector, table)
        assert (first[:3], second[:3]) == ([1, "007", 1.5], [2, None, 2.0])
        assert str(first[3]).replace("T", " ").startswith("2025-01-15 10:30:00")
        assert [bool(row[4]) for row in (first, second)] == [True, False]

    async def test_concurrent_imports_succeed(self, ana: Caller, table: str):
        names = [f"{table}_{n}" for n in range(4)]
        done = await asyncio.gather(*(imported(ana, "postgresql", name) for name in names))
        assert [one["table"] for one in done] == names
