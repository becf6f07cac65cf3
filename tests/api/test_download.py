"""Downloads of results as files (Contract editor 8.2)."""

import csv
import io
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, POSTGRESQL, SQLITE, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict
from tests.api.serving import served

from queryserver.platform.caches import LruCache

FORMATS = ("csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson")
PLAIN = {"Accept-Encoding": "identity"}
CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8; header=present",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
    "feather": "application/vnd.apache.arrow.file",
    "ndjson": "application/x-ndjson",
}


LAYOUTS = (
    "SELECT n, md5(n::VARCHAR) AS t, n / 7.0::DOUBLE AS d, n::DECIMAL(9, 2) AS c, [n, NULL] AS l FROM ({rows}) AS r",
    "SELECT n, n AS n, TIMESTAMP '2020-01-01' + to_seconds(n) AS at, n::HUGEINT * 10 AS huge FROM ({rows}) AS r",
    "SELECT n % 2 = 0 AS f, TIMESTAMPTZ '2020-01-01 00:00+00' AS z, INTERVAL 1 DAY AS i FROM ({rows}) AS r",
    "SELECT CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END::ENUM('a', 'b') AS e FROM ({rows}) AS r",
    "SELECT n FROM ({rows}) AS r WHERE n < 0",
    "SELECT n FROM ({rows}) AS r WHERE n < 3",
)
"""Statements whose columns are copied unchanged or converted by downloads. They return many, few or no rows."""


async def finished(ana: Caller, dialect: object, statement: str, **fields: Any) -> str:
    body = await ana.run(dialect, statement, **fields)
    assert (body["status"], body["query_status"]["state"]) == (0, "available"), body
    return body["history_uuid"]


def stored_files(api: Api, operation: str) -> list[Path]:
    """Return the files of a result's segments in order. The result must have fewer than ten segments."""
    folders = [path for path in api.services.settings.results_dir.rglob(f"*{operation}*") if path.is_dir()]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())


async def file_of(ana: Caller, operation: str, kind: str, **query: Any) -> bytes:
    answer = await ana.get(f"editor/download/{operation}", format=kind, **query)
    assert answer.status_code == 200, answer.text
    return answer.content


def rows_of(kind: str, content: bytes) -> list[list[Any]]:
    """Return the rows of a file, without the column names. The cells of text formats are strings."""
    match kind:
        case "csv":
            return list(csv.reader(io.StringIO(content.decode(), newline="")))[1:]
        case "tsv":
            return list(csv.reader(io.StringIO(content.decode(), newline=""), delimiter="\t"))[1:]
        case "xlsx":
            sheet = openpyxl.load_workbook(io.BytesIO(content), read_only=True)["result"]
            return [list(row) for row in sheet.iter_rows(min_row=2, values_only=True)]
        case "parquet":
            return [list(row.values()) for row in pq.read_table(io.BytesIO(content)).to_pylist()]
        case "arrow":
            return [list(row.values()) for row in pa.ipc.open_stream(content).read_all().to_pylist()]
        case "feather":
            return [list(row.values()) for row in pa.ipc.open_file(content).read_all().to_pylist()]
        case _:
            return [list(json.loads(line).values()) for line in content.decode().splitlines()]


class TestContent:
    @pytest.mark.item(54)
    @pytest.mark.parametrize("kind", FORMATS)
    @every_dialect
    async def test_every_format_contains_exactly_the_stored_rows(self, ana: Caller, dialect: Dialect, kind: str):
        statement = f"SELECT n, CASE WHEN n % 2 = 0 THEN NULL ELSE 'é;,' || n END AS t FROM ({dialect.rows(823)}) AS r"
        operation = await finished(ana, dialect, statement)
        stored = (await ana.page(operation, rows=10_000))["data"]
        assert len(stored) == 823
        rows = rows_of(kind, await file_of(ana, operation, kind))
        if kind in {"csv", "tsv"}:
            stored = [["" if cell is None else str(cell) for cell in row] for row in stored]
        assert rows == stored

    @pytest.mark.item(54)
    async def test_downloads_do_not_execute_the_statement_again(self, ana: Caller):
        statement = f"text once {ana.username}"
        operation = await finished(ana, "mysql", statement)
        files = [await file_of(ana, operation, kind) for kind in FORMATS for _ in range(2)]
        assert all(files)
        assert ana.api.fakes["mysql"].executions.count(statement) == 1

    @pytest.mark.item(54)
    @pytest.mark.parametrize("dialect", [DUCKDB, POSTGRESQL, SQLITE], ids=str)
    async def test_null_and_empty_text_differ(self, ana: Caller, dialect: Dialect):
        operation = await finished(ana, dialect, "SELECT NULL AS a, '' AS b, 'x\"y' AS c")
        assert await file_of(ana, operation, "csv") == b'a,b,c\r\n,"","x""y"\r\n'
        assert await file_of(ana, operation, "tsv") == b'a\tb\tc\r\n\t""\t"x""y"\r\n'

    @pytest.mark.item(54)
    async def test_guard_neutralizes_only_formulas(self, ana: Caller):
        texts = ["=1+1", "+1", "-1", "@a", "\tx", "\rx", "a=1", "1"]
        statement = " UNION ALL ".join(f"SELECT '{text}' AS t, -1 AS n" for text in texts)
        operation = await finished(ana, POSTGRESQL, statement)
        guarded = rows_of("csv", await file_of(ana, operation, "csv", guard="true"))
        assert guarded == [[f"'{text}", "-1"] for text in texts[:6]] + [["a=1", "-1"], ["1", "-1"]]
        assert rows_of("csv", await file_of(ana, operation, "csv")) == [[text, "-1"] for text in texts]

    @pytest.mark.item(54)
    async def test_sheets_contain_no_formulas(self, ana: Caller):
        operation = await finished(ana, POSTGRESQL, "SELECT '=1+1' AS t, 12345678901234567 AS big, 7 AS n")
        book = openpyxl.load_workbook(io.BytesIO(await file_of(ana, operation, "xlsx")))
        assert book.sheetnames == ["result"]
        cells = book["result"][2]
        assert [cell.value for cell in cells] == ["=1+1", "12345678901234567", 7]
        assert [cell.data_type for cell in cells] == ["s", "s", "n"]

    async def test_typed_formats_keep_types(self, ana: Caller):
        statement = (
            "SELECT 12.50::DECIMAL(10,2) AS d, TIMESTAMP '2024-01-31 10:20:30.5' AS t, [1, 2] AS l, {'a': 1} AS s"
        )
        operation = await finished(ana, DUCKDB, statement)
        expected = [[Decimal("12.50"), datetime(2024, 1, 31, 10, 20, 30, 500000), [1, 2], {"a": 1}]]  # noqa: DTZ001 a value without zone
        for kind in ("parquet", "arrow", "feather"):
            assert rows_of(kind, await file_of(ana, operation, kind)) == expected
        lines = await file_of(ana, operation, "ndjson")
        assert json.loads(lines) == {"d": "12.50", "t": "2024-01-31 10:20:30.500000", "l": [1, 2], "s": {"a": 1}}

    async def test_duplicate_column_names_are_numbered_in_ndjson(self, ana: Caller):
        operation = await finished(ana, POSTGRESQL, "SELECT 1 AS a, 2 AS a, 3 AS a")
        assert json.loads(await file_of(ana, operation, "ndjson")) == {"a": 1, "a_2": 2, "a_3": 3}

    @pytest.mark.parametrize("kind", FORMATS)
    @every_dialect
    async def test_empty_result_is_a_valid_file(self, ana: Caller, dialect: Dialect, kind: str):
        operation = await finished(ana, dialect, "SELECT 1 AS a, 'x' AS b WHERE 1 = 0")
        assert rows_of(kind, await file_of(ana, operation, kind)) == []


class TestHeaders:
    @pytest.mark.parametrize("kind", FORMATS)
    async def test_headers_state_file_name_and_size(self, ana: Caller, kind: str):
        body = await ana.run("mysql", "rows 11", limit=10)
        answer = await ana.get(f"editor/download/{body['history_uuid']}", format=kind)
        headers = answer.headers
        assert headers["content-type"] == CONTENT_TYPES[kind]
        assert headers["content-disposition"] == f'attachment; filename="query-{body["history_id"]}.{kind}"'
        assert headers["etag"]
        assert (headers["x-result-rows"], headers["x-result-truncated"]) == ("10", "true")
        assert headers["x-result-truncated-reason"] == "row_limit"

    async def test_csv_is_the_default_format(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 2")
        answer = await ana.get(f"editor/download/{operation}")
        assert answer.content == b"n\r\n0\r\n1\r\n"
        assert answer.headers["x-result-truncated"] == "false"
        assert "x-result-truncated-reason" not in answer.headers


class TestParts:
    async def test_interrupted_download_can_be_resumed(self, ana: Caller):
        operation = await finished(ana, DUCKDB, f"SELECT n, md5(n::VARCHAR) AS t FROM ({DUCKDB.rows(3000)}) AS r")
        for kind in FORMATS:
            path = f"editor/download/{operation}"
            whole = await ana.get(path, headers=PLAIN, format=kind)
            assert whole.headers["accept-ranges"] == "bytes"
            tag, size, cut = whole.headers["etag"], len(whole.content), len(whole.content) * 2 // 3
            for known in (True, False):
                if not known:
                    ana.api.services.statements.downloads.sizes = LruCache[str, int](4096)
                rest = await ana.get(path, headers={"Range": f"bytes={cut}-", "If-Range": tag}, format=kind)
                assert rest.status_code == 206
                assert rest.headers["content-range"] == f"bytes {cut}-{size - 1}/{size}"
                assert rest.headers["content-length"] == str(size - cut)
                assert (rest.headers["etag"], rest.content) == (tag, whole.content[cut:]), kind

    async def test_range_requests_return_the_requested_bytes(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 2")
        path, content = f"editor/download/{operation}", b"n\r\n0\r\n1\r\n"
        tag = (await ana.get(path, headers=PLAIN)).headers["etag"]
        for headers, status, expected in (
            ({"Range": "bytes=0-0"}, 206, b"n"),
            ({"Range": "bytes=3-5"}, 206, b"0\r\n"),
            ({"Range": "bytes=-3"}, 206, b"1\r\n"),
            ({"Range": "bytes=-100"}, 206, content),
            ({"Range": "bytes=0-"}, 206, content),
            ({"Range": "bytes=8-100"}, 206, b"\n"),
            ({"Range": "bytes=0-1,3-4"}, 200, content),
            ({"Range": "lines=0-1"}, 200, content),
            ({"Range": "bytes=0-0", "If-Range": '"other"'}, 200, content),
            ({"Range": "bytes=0-0", "If-Range": f"W/{tag}"}, 200, content),
            ({"If-None-Match": tag}, 304, b""),
            ({"If-None-Match": '"other"'}, 200, content),
        ):
            answer = await ana.get(path, headers=PLAIN | headers)
            assert (answer.status_code, answer.content) == (status, expected), headers
            assert answer.headers["etag"] == tag
        beyond = await ana.get(path, headers={"Range": "bytes=9-"})
        assert verdict(beyond) == (416, -1, "range_not_satisfiable")
        assert beyond.headers["content-range"] == "bytes */9"

    async def test_each_content_coding_has_its_own_etag(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 1000")
        tags = set()
        for kind in FORMATS:
            path = f"editor/download/{operation}"
            plain = await ana.get(path, headers=PLAIN, format=kind)
            packed = await ana.get(path, headers={"Accept-Encoding": "gzip"}, format=kind)
            assert plain.content == packed.content
            assert (plain.headers["vary"], packed.headers["vary"]) == ("Accept-Encoding",) * 2
            expected = None if kind in {"xlsx", "parquet"} else "gzip"
            assert packed.headers.get("content-encoding") == expected
            tags |= {plain.headers["etag"], packed.headers["etag"]}
            part = await ana.get(path, headers={"Accept-Encoding": "gzip", "Range": "bytes=0-2"}, format=kind)
            assert (part.headers.get("content-encoding"), part.content) == (None, plain.content[:3])
            assert part.headers["etag"] == plain.headers["etag"]
        assert len(tags) == 2 * len(FORMATS) - 2

    async def test_range_request_occupies_a_stream_slot(self, small_api: ApiOpener):
        async with small_api(max_streams_per_user=1) as api:
            ana = await api.user()
            operation = await finished(ana, "mysql", "rows 30000 wide 500", limit=30_000)
            path = f"/api/v1/editor/download/{operation}"
            for _ in range(2):
                assert (await ana.get(path.removeprefix("/api/v1/"), headers={"Range": "bytes=5-6"})).status_code == 206
            async with api.http.stream("GET", path, headers={**ana.headers, **PLAIN}):
                answer = await ana.get(f"editor/download/{operation}", headers={"Range": "bytes=5-6"})
                assert verdict(answer) == (429, -1, "too_many_streams")


class TestPackedArrow:
    """Downloads with `compression=lz4`. They send the stored segments unchanged (ADR 65)."""

    @pytest.mark.parametrize("select", LAYOUTS)
    async def test_packed_arrow_contains_the_rows_of_the_plain_stream(self, ana: Caller, select: str):
        operation = await finished(ana, DUCKDB, select.format(rows=DUCKDB.rows(60_000)), limit=100_000)
        packed = pa.ipc.open_stream(await file_of(ana, operation, "arrow", compression="lz4")).read_all()
        assert packed.equals(pa.ipc.open_stream(await file_of(ana, operation, "arrow")).read_all())
        packed.validate(full=True)

    async def test_packed_arrow_has_a_known_size_and_supports_ranges(self, ana: Caller):
        operation = await self._stored(ana)
        path, asked = f"editor/download/{operation}", {"format": "arrow", "compression": "lz4"}
        whole = await ana.get(path, **asked)
        size, tag = len(whole.content), whole.headers["etag"]
        assert (whole.headers["content-length"], whole.headers.get("content-encoding")) == (str(size), None)
        assert size < len(await file_of(ana, operation, "arrow")) * 0.9
        head = await ana.send("HEAD", path, params=asked)
        assert (head.headers["content-length"], head.headers["etag"]) == (str(size), tag)
        step = size // 7
        parts = [
            await ana.get(path, headers={"Range": f"bytes={start}-{start + step - 1}", "If-Range": tag}, **asked)
            for start in range(0, size, step)
        ]
        assert {part.status_code for part in parts} == {206}
        assert b"".join([part.content for part in parts]) == whole.content
        for wanted, start in (("0-0", 0), ("-1", -1), ("-9", -9), (f"{size - 8}-", -8)):
            answer = await ana.get(path, headers={"Range": f"bytes={wanted}"}, **asked)
            assert answer.content == whole.content[start:][: len(answer.content)]
            assert len(answer.content) == max(1, -start)
        assert verdict(await ana.get(path, headers={"Range": f"bytes={size}-"}, **asked))[0] == 416
        assert (await ana.get(path, headers={"If-None-Match": tag}, **asked)).status_code == 304
        plain = await ana.get(path, headers=PLAIN, format="arrow")
        assert plain.headers["etag"] != tag

    async def test_range_reads_only_its_own_segments(self, ana: Caller):
        operation = await self._stored(ana)
        path, asked = f"editor/download/{operation}", {"format": "arrow", "compression": "lz4"}
        whole = (await ana.get(path, **asked)).content
        first, *_, last = stored_files(ana.api, operation)
        last.write_bytes(last.read_bytes()[:-9])
        assert (await ana.get(path, headers={"Range": "bytes=0-99999"}, **asked)).content == whole[:100_000]
        first.unlink()
        unavailable = (503, -1, "service_unavailable")
        for part in ("0-99999", "-100"):
            assert verdict(await ana.get(path, headers={"Range": f"bytes={part}"}, **asked)) == unavailable
        assert verdict(await ana.get(path, **asked)) == unavailable

    @pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "arrow"])
    async def test_other_formats_refuse_lz4(self, ana: Caller, kind: str):
        operation = await finished(ana, "mysql", "rows 2")
        answer = await ana.get(f"editor/download/{operation}", format=kind, compression="lz4")
        assert verdict(answer) == (400, -1, "invalid_parameter")

    async def _stored(self, ana: Caller) -> str:
        """Create a result with several segments; return its operation id."""
        select = f"SELECT n, 'a label of number ' || n AS t FROM ({DUCKDB.rows(900_000)}) AS r"
        operation = await finished(ana, DUCKDB, select, limit=900_000)
        assert len(stored_files(ana.api, operation)) > 2
        return operation


class TestRefusals:
    @pytest.mark.item(55)
    async def test_unfinished_canceled_and_closed_statements_are_refused(self, ana: Caller):
        running = (await ana.execute("mysql", "sleep 30 then rows 1"))["history_uuid"]
        assert await self._refused(ana, running) == (409, 1, "not_finished")
        await ana.on(running, "cancel_statement")
        assert await self._refused(ana, running) == (409, 1, "canceled")
        closed = await finished(ana, "mysql", "rows 1")
        await ana.on(closed, "close_statement")
        assert await self._refused(ana, closed) == (410, -3, "closed")
        expired = await finished(ana, "mysql", "rows 1")
        await ana.api.database.execute(
            "update statements set expires_at = now() - interval '1s' where id = $1", expired
        )
        await ana.api.services.statements.retention.expire()
        assert await self._refused(ana, expired) == (410, -3, "expired")

    async def test_result_truncated_by_the_server_requires_permission(self, small_api: ApiOpener):
        async with small_api(enforce_default_limit=True) as api:
            await self._require_permission(await api.user())

    async def _require_permission(self, ana: Caller) -> None:
        cut = await finished(ana, DUCKDB, DUCKDB.rows(5001))
        assert await self._refused(ana, cut) == (409, 1, "truncated")
        message = (await ana.get(f"editor/download/{cut}")).json()["message"]
        assert message.startswith(
            "Only the first 5000 rows were kept: the default limit of this server (editor.default_limit)."
        )
        assert "limit=… (up to 1000000)" in message
        assert message.endswith("add allow_truncated=true.")
        answer = await ana.get(f"editor/download/{cut}", allow_truncated="true")
        assert len(rows_of("csv", answer.content)) == 5000
        assert answer.headers["x-result-truncated-reason"] == "row_limit"
        # Statements that an earlier version has recorded have no cause of truncation.
        await ana.api.database.execute("update statements set limit_source = null where id = $1", cut)
        assert (await ana.get(f"editor/download/{cut}")).status_code == 200
        # If the caller's own limit has truncated the result, no permission is required.
        asked_for = await finished(ana, DUCKDB, DUCKDB.rows(5001), limit=5000)
        answer = await ana.get(f"editor/download/{asked_for}")
        assert (answer.status_code, answer.headers["x-result-truncated"]) == (200, "true")
        assert len(rows_of("csv", answer.content)) == 5000

    @pytest.mark.item(55)
    @pytest.mark.parametrize(
        ("statement", "expected"),
        [
            ("CREATE TEMPORARY TABLE t (a INTEGER)", (409, 1, "no_result_set")),
            ("SELECT * FROM no_such_table", (409, 1, "engine_error")),
        ],
    )
    @every_dialect
    async def test_statement_that_never_had_a_result_is_refused(
        self, ana: Caller, dialect: Dialect, statement: str, expected: Any
    ):
        operation = (await ana.run(dialect, statement))["history_uuid"]
        assert await self._refused(ana, operation) == expected

    @pytest.mark.item(55)
    async def test_timed_out_statement_is_refused(self, ana: Caller):
        operation = (await ana.run("mysql", "sleep 30 then rows 1", timeout=1))["history_uuid"]
        assert await self._refused(ana, operation) == (409, -4, "statement_timeout")

    @pytest.mark.item(55)
    @pytest.mark.parametrize("query", [{"format": "x"}, {"format": "CSV "}, {"guard": "maybe"}])
    async def test_invalid_parameters_are_named(self, ana: Caller, query: dict[str, str]):
        operation = await finished(ana, "mysql", "rows 1")
        answer = await ana.get(f"editor/download/{operation}", **query)
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert next(iter(query)) in answer.json()["message"]

    async def test_cell_too_large_for_a_sheet_is_refused(self, ana: Caller):
        operation = await finished(ana, "mysql", "rows 1 wide 40000")
        answer = await ana.get(f"editor/download/{operation}", format="xlsx")
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert "32" in answer.json()["message"]

    @staticmethod
    async def _refused(ana: Caller, operation: str) -> tuple[int, int, str]:
        answers = [await ana.get(f"editor/download/{operation}", format=kind) for kind in FORMATS]
        assert len({answer.content for answer in answers}) == 1
        return verdict(answers[0])


class TestBrokenTransfers:
    @pytest.mark.item(55)
    @pytest.mark.parametrize("kind", ["csv", "ndjson", "arrow"])
    async def test_failing_stream_lacks_the_last_chunk(self, ana: Caller, kind: str):
        operation = await self._large(ana)
        # The beginning of the last segment remains readable. It includes the schema.
        last = stored_files(ana.api, operation)[-1]
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
        unavailable = (503, -1, "service_unavailable")
        assert await ana.refused("editor/fetch_result_data", operationId=operation, start_row=29_999) == unavailable
        async with served(ana.api) as address, httpx.AsyncClient(base_url=address) as http:
            path = f"/api/v1/editor/download/{operation}?format={kind}"
            async with http.stream("GET", path, headers={**ana.headers, **PLAIN}) as answer:
                assert answer.status_code == 200
                received, is_whole = await self._received(answer)
        assert not is_whole
        assert len(received) > 1_000_000
        assert b"Traceback" not in received
        assert b"result store" not in received

    async def test_store_failure_before_the_first_byte_returns_503(self, ana: Caller):
        operation = await self._large(ana)
        for file in stored_files(ana.api, operation):
            file.unlink()
        unavailable = (503, -1, "service_unavailable")
        assert verdict(await ana.get(f"editor/download/{operation}")) == unavailable
        assert await ana.refused("editor/fetch_result_data", operationId=operation) == unavailable
        assert await ana.state(operation) == "available"

    async def test_range_download_stops_at_a_truncated_segment(self, ana: Caller):
        operation = await self._large(ana)
        path = f"editor/download/{operation}"
        last = stored_files(ana.api, operation)[-1]
        last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
        unavailable = (503, -1, "service_unavailable")
        assert verdict(await ana.get(path, headers={"Range": "bytes=0-9"})) == unavailable, "the size is not known"
        tag = (await ana.send("HEAD", path, headers=PLAIN)).headers["etag"]
        ana.api.services.statements.downloads.sizes.put(tag, 20_000_000)
        first = await ana.get(path, headers={"Range": "bytes=0-9"})
        assert (first.status_code, len(first.content)) == (206, 10)
        assert verdict(await ana.get(path, headers={"Range": "bytes=-5"})) == unavailable
        async with served(ana.api) as address, httpx.AsyncClient(base_url=address) as http:
            headers = {**ana.headers, "Range": "bytes=5-"}
            async with http.stream("GET", f"/api/v1/{path}", headers=headers) as answer:
                assert (answer.status_code, answer.headers["content-length"]) == (206, "19999995")
                _, is_whole = await self._received(answer)
        assert not is_whole

    async def test_disconnected_client_frees_its_stream_slot(self, small_api: ApiOpener):
        async with small_api(max_streams_per_user=1) as api:
            ana = await api.user()
            operation = await self._large(ana)
            path = f"/api/v1/editor/download/{operation}"
            for _ in range(3):
                async with api.http.stream("GET", path, headers={**ana.headers, **PLAIN}) as answer:
                    assert answer.status_code == 200
                    assert await anext(answer.aiter_raw())
            async with api.http.stream("GET", path, headers={**ana.headers, **PLAIN}):
                assert verdict(await ana.get(f"editor/download/{operation}")) == (429, -1, "too_many_streams")

    @staticmethod
    async def _received(answer: httpx.Response) -> tuple[bytes, bool]:
        """Return the received bytes, and whether the response was complete."""
        received = bytearray()
        try:
            async for piece in answer.aiter_raw():
                received += piece
        except httpx.RemoteProtocolError:
            return bytes(received), False
        return bytes(received), True

    @staticmethod
    async def _large(ana: Caller) -> str:
        return await finished(ana, "mysql", "rows 30000 wide 500", limit=30_000)
