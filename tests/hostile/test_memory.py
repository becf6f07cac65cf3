"""Attacks on the server process's memory: huge cells, rows, pages and log lines."""

import io
import json
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import failure, run
from tests.contract.postgresql_basis import address_of
from tests.fakes.downloads import StoredTables, column
from tests.refusals import raises_code

from queryserver.engines.postgresql import wire as message_guard
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import EngineSession
from queryserver.errors.files import DecompressionLimit, StorageUnavailable
from queryserver.errors.statements import EngineError, OutcomeUnknown, RowTooLarge
from queryserver.formats.arrow import ResultType
from queryserver.formats.download.encoder import DownloadFormat, FileForm
from queryserver.formats.download.stream import download
from queryserver.formats.parquet import parquet_lines
from queryserver.platform.logs import AuditTrail
from queryserver.statements.downloads import Downloads

MIB = 1024 * 1024
LIMIT = 1 * MIB


async def read(session: EngineSession, sql: str) -> int:
    """Run a statement; return the number of rows. Raises the statement's error if it fails."""
    handle = await session.submit(sql)
    status = await session.poll(handle, wait_s=60)
    if status.error is not None:
        raise status.error
    rows = 0
    async for batch in session.batches(handle):
        rows += batch.num_rows
    await session.close(handle)
    return rows


ApiOpener = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def opened(tmp_path: Path, database_dsn: str, users_dsn: str) -> ApiOpener:
    """A function that opens separate applications with the given editor settings."""

    def opener(**editor: Any) -> AbstractAsyncContextManager[Api]:
        return open_api(make_settings(tmp_path, database_dsn, users_dsn, **editor))

    return opener


async def outcome(caller: Caller, dialect: str, sql: str) -> tuple[str, str]:
    """Run a statement that must fail; return its code and message."""
    operation = (await caller.execute(dialect, sql))["history_uuid"]
    await caller.ended(operation)
    body = (await caller.post("editor/fetch_result_data", operationId=operation)).json()
    return body["code"], body["message"]


def grown(text_bytes: int) -> dict[str, Any]:
    """Return editor settings that limit cells to this size, and batches to 64 KiB."""
    return {"cell_max_bytes": text_bytes, "batch_max_bytes": 64 * 1024}


class TestPostgresql:
    @pytest.fixture
    async def session(self, users_dsn: str) -> AsyncGenerator[EngineSession]:
        engine = PostgresqlEngine(replace(address_of(users_dsn), cell_max_bytes=LIMIT))
        async with engine.session(USER, NO_OPTIONS) as session:
            yield session
        await engine.close()

    @pytest.mark.parametrize(
        ("sql", "row", "column"),
        [
            ("SELECT 1 AS a, repeat('x', 100000000) AS big", 0, "big"),
            (
                "SELECT n, repeat('x', CASE n WHEN 7 THEN 1048577 ELSE 1 END) AS big FROM generate_series(0, 99) n",
                7,
                "big",
            ),
            (
                "SELECT n, 1 AS t, CASE n WHEN 9 THEN repeat('y', 1048577) END AS big FROM generate_series(0, 99) n",
                9,
                "big",
            ),
            ("SELECT decode(repeat('ff', 5000000), 'hex') AS big", 0, "big"),
        ],
        ids=["first", "later", "third", "bytes"],
    )
    async def test_huge_cell_is_refused_by_its_header(
        self, session: EngineSession, sql: str, row: int, column: str
    ) -> None:
        with raises_code(
            "cell_too_large", match=f"in row {row} of column {column} is larger than the limit of {LIMIT} "
        ):
            await read(session, sql)

    async def test_row_of_many_cells_is_refused(self, session: EngineSession) -> None:
        row = ", ".join(["repeat('x', 900000)"] * 50)
        with pytest.raises(RowTooLarge, match=f"Row 1 is larger than the limit of {2 * LIMIT} bytes"):
            await read(session, f"SELECT {', '.join(['NULL'] * 50)} UNION ALL SELECT {row}")

    async def test_cell_at_the_limit_is_read(self, session: EngineSession) -> None:
        result = await run(session, f"SELECT repeat('x', {LIMIT}) AS big, 1 AS a")
        assert [(len(big), a) for big, a in result.rows] == [(LIMIT, 1)]

    async def test_huge_non_row_message_ends_connection(self, session: EngineSession) -> None:
        loud = "DO $$ BEGIN RAISE NOTICE '%', repeat('x', 100000000); END $$"
        assert isinstance(await failure(session, loud), OutcomeUnknown)

    async def test_many_notices_are_kept_in_part(self, session: EngineSession) -> None:
        loud = "DO $$ BEGIN FOR i IN 1..100 LOOP RAISE NOTICE '%', repeat('x', 100000); END LOOP; END $$"
        handle = await session.submit(loud)
        await session.poll(handle, wait_s=60)
        assert sum(map(len, await session.logs(handle, start=0))) <= 2 * MIB

    @pytest.mark.parametrize("width", [10, 5_000, 200_000, 900_000])
    async def test_growing_rows_in_a_chunk_arrive_complete_and_in_order(
        self, session: EngineSession, width: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(message_guard, "CHUNK_BYTES", 1 * MIB)
        count = min(20_000, 40_000_000 // width)
        sql = (
            f"SELECT n, repeat('x', CASE WHEN n < {count // 4} THEN 3 ELSE {width} END) AS t"
            f" FROM generate_series(1, {count}) n"
        )
        handle = await session.submit(sql)
        await session.poll(handle, wait_s=60)
        numbers: list[int] = []
        async for batch in session.batches(handle):
            assert batch.nbytes <= 6 * MIB
            numbers += batch.column("n").to_pylist()
        assert numbers == list(range(1, count + 1))
        await session.close(handle)
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]

    async def test_abandoned_rows_are_dropped(self, session: EngineSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(message_guard, "CHUNK_BYTES", 1 * MIB)
        for _ in range(3):
            handle = await session.submit("SELECT repeat('x', 100000) AS t FROM generate_series(1, 5000)")
            await session.poll(handle, wait_s=60)
            batches = session.batches(handle)
            assert (await anext(batches)).num_rows
            await session.close(handle)
            assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]

    async def test_error_after_a_split_chunk_is_the_error_of_the_server(
        self, session: EngineSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(message_guard, "CHUNK_BYTES", 1 * MIB)
        sql = "SELECT repeat('x', 100000 / (150 - n)) AS t FROM generate_series(1, 256) n"
        with pytest.raises(EngineError, match="division by zero"):
            await read(session, sql)
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


class TestStatements:
    """Oversized data fails the statement on every engine. The error contains the code, the row and the column."""

    @pytest.mark.parametrize(
        ("dialect", "sql", "place"),
        [
            ("sqlite", "SELECT 1 AS a, zeroblob(200000000) AS big", ""),
            ("sqlite", "SELECT 1 AS a, zeroblob(70000) AS big", " in row 0 of column big"),
            ("postgresql", "SELECT 1 AS a, repeat('x', 500000000) AS big", " in row 0 of column big"),
            (
                "postgresql",
                "SELECT n, repeat('x', n * 10000) AS big FROM generate_series(1, 9) n",
                " in row 6 of column big",
            ),
            ("duckdb", "SELECT [true for i in range(10000)] AS big", " in row 0 of column big"),
            ("mysql", "rows 2 wide 70000", " in row 0 of column"),
        ],
        ids=["sqlite_blob", "sqlite_row", "postgresql_cell", "postgresql_row", "nested", "any_engine"],
    )
    async def test_large_cell_fails_its_statement(self, opened: ApiOpener, dialect: str, sql: str, place: str) -> None:
        async with opened(cell_max_bytes=65536) as api:
            ana = await api.user()
            code, message = await outcome(ana, dialect, sql)
            assert code == "cell_too_large"
            assert f"A value{place}" in message
            assert (await ana.result(dialect, "rows 1" if dialect == "mysql" else "SELECT 1 AS a"))["data"]

    async def test_row_of_many_large_cells_fails_its_statement(self, opened: ApiOpener) -> None:
        async with opened(cell_max_bytes=65536) as api:
            row = ", ".join(f"repeat('x', 60000) AS c{number}" for number in range(3))
            code, message = await outcome(await api.user(), "postgresql", f"SELECT {row}")
            assert code == "row_too_large"
            assert message.startswith("Row 0 is larger than the limit of 131072 bytes for one row, ")
            assert "`editor.cell_max_bytes`" in message

    async def test_engine_log_line_stays_within_log_limits(self, opened: ApiOpener) -> None:
        async with opened() as api:
            ana = await api.user()
            loud = "DO $$ BEGIN FOR i IN 1..20 LOOP RAISE NOTICE '%', repeat('x', 5000000); END LOOP; END $$"
            operation = (await ana.run("postgresql", loud))["history_uuid"]
            logs = (await ana.on(operation, "get_logs"))["logs"]
            assert len(logs) < 2 * MIB


class TestPages:
    """Pages, samples and downloads stay within their byte limits, even if they consist of a single row."""

    async def test_page_ends_before_exceeding_row_and_reports_it(self, opened: ApiOpener) -> None:
        async with opened(**grown(MIB)) as api:
            ana = await api.user()
            sql = "SELECT n, repeat('x', CASE n WHEN 3 THEN 100000 ELSE 10 END) AS t FROM generate_series(1, 5) n"
            operation = (await ana.run("postgresql", sql))["history_uuid"]
            page = await ana.page(operation)
            assert ([row[0] for row in page["data"]], page["has_more"]) == ([1, 2], True)
            assert page["message"] == (
                "The batch ends before row 2, because that row would make it exceed 65536 bytes"
                " (`max_bytes`, or else `editor.batch_max_bytes`)."
            )
            refused = await ana.post("editor/fetch_result_data", operationId=operation)
            assert (refused.status_code, refused.json()["code"]) == (413, "row_too_large")
            assert refused.json()["details"]["next_start_row"] == 3
            rest = await ana.page(operation, start_row=3)
            assert ([row[0] for row in rest["data"]], rest["has_more"], "message" in rest) == ([4, 5], False, False)
            lines = (await ana.get(f"editor/download/{operation}", format="csv")).text.splitlines()
            assert [len(line) for line in lines] == [3, 12, 12, 100_002, 12, 12]

    async def test_sample_of_huge_rows_is_refused(self, opened: ApiOpener) -> None:
        async with opened(**grown(MIB)) as api:
            ana = await api.user()
            await ana.run("postgresql", "CREATE TABLE wide AS SELECT repeat('x', 100000) AS t")
            answer = await ana.post("editor/sample/public/wide", snippet=json.dumps({"type": "postgresql"}))
            assert (answer.status_code, answer.json()["code"]) == (413, "row_too_large")

    async def test_page_memory_is_released(self, opened: ApiOpener) -> None:
        async with opened() as api:
            ana = await api.user()
            sql = "SELECT repeat(chr(1), 1000000) AS t FROM generate_series(1, 4)"
            operation = (await ana.run("postgresql", sql))["history_uuid"]
            page = await ana.page(operation, start_row=0)
            assert len(page["data"]) == 2
            assert api.services.statements.result_reader.budget.used_bytes == 0

    @pytest.mark.slow
    async def test_ten_thousand_columns_are_read(self, opened: ApiOpener) -> None:
        async with opened() as api:
            ana = await api.user()
            row = ", ".join(f"{number} AS c{number}" for number in range(10_000))
            page = await ana.result("duckdb", f"SELECT {row}")
            assert page["data"] == [list(range(10_000))]
            assert [column["name"] for column in page["meta"]] == [f"c{number}" for number in range(10_000)]


class TestDownloads:
    async def test_map_without_known_types_can_be_downloaded(self, opened: ApiOpener) -> None:
        async with opened() as api:
            ana = await api.user()
            operation = (await ana.run("duckdb", "SELECT MAP {} AS m, [MAP {}] AS l"))["history_uuid"]
            file = await ana.get(f"editor/download/{operation}", format="parquet")
            assert file.status_code == 200
            assert pq.read_table(io.BytesIO(file.content)).to_pylist() == [{"m": [], "l": [[]]}]

    async def test_download_chunks_are_small_for_cells_of_any_size(self) -> None:
        cells = pa.table({"c": ["x" * 5_000_000, '"' * 3_000_000]})
        with ThreadPoolExecutor(1) as threads:
            for wanted in (DownloadFormat.CSV, DownloadFormat.NDJSON, DownloadFormat.PARQUET, DownloadFormat.ARROW):
                source = StoredTables([column("c", ResultType.STRING)], [cells])
                sizes = [len(piece) async for piece in download(source, FileForm(wanted), threads=threads)]
                assert max(sizes) <= MIB

    async def test_audit_line_records_failed_download(self, monkeypatch: pytest.MonkeyPatch) -> None:
        outcomes: list[str] = []

        class OutcomeRecorder(AuditTrail):
            def record(self, *_event: object, outcome: str = "ok", **_facts: object) -> None:
                outcomes.append(outcome)

        async def broken() -> AsyncGenerator[bytes]:
            raise ValueError
            yield b""

        async def broken_later() -> AsyncGenerator[bytes]:
            yield b"first"
            raise StorageUnavailable("gone")

        monkeypatch.setattr("queryserver.statements.downloads.AUDIT", OutcomeRecorder())
        downloads = Downloads(None, None, enabled=True)  # type: ignore[arg-type]
        with pytest.raises(ValueError):  # noqa: PT011 the library's own, and ours
            [piece async for piece in downloads.audited(USER, uuid4(), broken())]
        with pytest.raises(StorageUnavailable):
            [piece async for piece in downloads.audited(USER, uuid4(), broken_later())]
        assert outcomes == ["internal_error", "ok", "storage_unavailable"]


@pytest.mark.slow
def test_parquet_file_of_20000_columns_is_read_in_few_chunks() -> None:
    written = io.BytesIO()
    pq.write_table(pa.table({f"c{number}": [number] for number in range(20_000)}), written)

    class CountingFile(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            return super().read(size)

    file = CountingFile(written.getvalue())
    lines = b"".join(parquet_lines(file))
    assert json.loads(lines) == {f"c{number}": number for number in range(20_000)}
    assert file.reads < 100


def test_parquet_file_with_many_long_columns_is_refused_before_reading() -> None:
    written = io.BytesIO()
    long = pa.array(range(5_000))
    pq.write_table(pa.table({f"c{number}": long for number in range(4_200)}), written, use_dictionary=False)
    with pytest.raises(DecompressionLimit, match="has 4200 columns; with columns of this size, at most 4096"):
        next(iter(parquet_lines(io.BytesIO(written.getvalue()))))
