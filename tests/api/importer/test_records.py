"""Parquet, Arrow, Avro and JSON Lines on their way into tables (Contract importer 8a)."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather
from tests.api.driving import Caller
from tests.api.importer.asking import guess, header, names, preview, types
from tests.api.importer.conftest import refusal, uploaded
from tests.api.importer.tables import Tables, ask, failed, imported, open_tables, rows
from tests.cases import each
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres

AVRO = Path(__file__).parents[2] / "unit" / "formats" / "avro"

TABLE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int8()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
        "ok": [True, False, None],
        "day": [date(2024, 1, 15), None, date(1, 1, 1)],
        "at": pa.array([datetime(2024, 1, 15, 10, 30, tzinfo=UTC), None, None], pa.timestamp("ns", "Europe/Berlin")),
        "clock": [time(10, 20, 30), None, None],
        "name": ["anna", " ", None],
        "tags": [["a", "b"], [], None],
        "who": [{"x": 1}, None, {"x": 2}],
        "raw": pa.array([b"\x00\x01", None, b""], pa.binary()),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "wide": pa.array([2**63, None, 2**64 - 1], pa.uint64()),
    }
)
POSTGRESQL = [
    "BIGINT", "SMALLINT", "NUMERIC", "BOOLEAN", "DATE", "TIMESTAMP", "TIME", "TEXT", "TEXT", "TEXT", "BYTEA", "TEXT",
    "NUMERIC",
]  # fmt: skip


def parquet(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def arrow_file(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(table, sink, compression="lz4")
    return sink.getvalue()


def arrow_stream(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


COLUMNAR: dict[str, tuple[str, Callable[[], bytes]]] = {
    "parquet": ("parquet", parquet),
    "feather": ("arrow", arrow_file),
    "stream": ("arrow", arrow_stream),
}


@pytest.fixture(scope="module")
async def tables(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory, users_url: str
) -> AsyncIterator[Tables]:
    async for dsn in new_database(postgres, template=migrated_template):
        async for opened in open_tables(tmp_path_factory.mktemp("records"), dsn, users_url):
            yield opened


@pytest.fixture
async def ana(tables: Tables) -> Caller:
    return await tables.api.user("ana")


async def table_of(ana: Caller, connector: str, table: str, path: str, kind: str, **fields: Any) -> Any:
    """The result of an import without has_header, for such files name their columns."""
    return await imported(ana, connector, table, file_path=path, file_type=kind, has_header="", **fields)


@each("form", COLUMNAR)
async def test_files_of_typed_columns_keep_their_types_and_values(ana: Caller, form: str):
    kind, content = COLUMNAR[form]
    path = await uploaded(ana, content())
    assert (await guess(ana, path)).json() == {"type": kind}
    assert (await header(ana, path, kind)).json() == {"has_header": True}
    shown = (await preview(ana, path, kind, sql_dialect="postgresql", has_header=None)).json()
    assert (names(shown), types(shown)) == (TABLE.schema.names, POSTGRESQL)
    assert (shown["columns"][2]["precision"], shown["columns"][2]["scale"]) == (12, 2)
    assert shown["preview_data"][0][:7] == ["1", "1", "1.50", "true", "2024-01-15", "2024-01-15 10:30:00", "10:20:30"]
    assert shown["preview_data"][0][7:11] == ["anna", '["a","b"]', '{"x":1}', "AAE="]
    # What the preview says may be sent back as it is.
    done = await table_of(ana, "postgresql", f"t_{form}", path, kind, columns=shown["columns"])
    assert (done["rows_read"], done["rows_loaded"]) == (3, 3)
    found = await rows(ana, "postgresql", f"t_{form}", order="small")
    assert found[0][:5] == [1, 1, "1.50", True, "2024-01-15"]
    assert found[0][7:] == ["anna", '["a","b"]', '{"x":1}', "AAE=", "a", str(2**63)]
    assert [row[7] for row in found] == ["anna", " ", None]
    assert (found[1][0], found[2][4], found[2][12]) == (2, "0001-01-01", str(2**64 - 1))
    if form != "parquet":
        return
    # Other types than those of the file are reached by way of the texts.
    chosen = [
        {"source": "id", "type": "VARCHAR(1)"},
        {"source": "price", "type": "numeric(4,3)"},
        {"source": "day", "type": "TIMESTAMP"},
        {"source": "small", "type": "DOUBLE"},
    ]
    await table_of(ana, "duckdb", f"d_{form}", path, kind, columns=chosen)
    assert (await rows(ana, "duckdb", f"d_{form}", order="small"))[0] == ["1", "1.500", "2024-01-15 00:00:00", 1.0]
    bad = {"file_path": path, "file_type": kind, "columns": [{"source": "name", "type": "VARCHAR(3)"}]}
    assert '"anna" has more than 3 characters' in (await failed(ana, "duckdb", "nothing", **bad))[1]


LINES = [
    {"id": 1, "name": "anna", "day": "2024-01-15", "price": 1.5, "tags": ["a", {"b": None}], "ok": True, "code": "007"},
    {"id": 2, "name": "", "day": None, "price": 2, "ok": False, "code": "null", "big": 2**70},
    {"code": " x "},
]


async def test_json_lines(ana: Caller):
    content = ("\ufeff" + "\r\n\n".join(map(json.dumps, LINES))).encode()
    path = await uploaded(ana, content)
    assert (await guess(ana, path)).json() == {"type": "ndjson"}
    shown = (await preview(ana, path, "ndjson", sql_dialect="duckdb")).json()
    assert names(shown) == ["id", "name", "day", "price", "tags", "ok", "code", "big"]
    assert types(shown) == ["INTEGER", "VARCHAR", "DATE", "DOUBLE", "VARCHAR", "BOOLEAN", "VARCHAR", "DECIMAL"]
    assert shown["preview_data"][2] == ["", "", "", "", "", "", " x ", ""]
    await table_of(ana, "duckdb", "lines", path, "ndjson", columns=shown["columns"])
    assert await rows(ana, "duckdb", "lines") == [
        [1, "anna", "2024-01-15", 1.5, '["a",{"b":null}]', True, "007", None],
        [2, "", None, 2.0, None, False, "null", str(2**70)],
        [None, None, None, None, None, None, " x ", None],
    ]


async def test_lines_that_are_no_objects_or_have_other_fields_are_bad_rows(ana: Caller):
    # The sample ends behind 10,000 records.
    content = b'{"n": 1}\n' * 10_001 + b'{"n": 1, "late": 2}\n[1]\n{"n": "x"}\n{"n": 7}\n'
    fields = {"file_path": await uploaded(ana, content), "file_type": "ndjson"}
    _, message, log = await failed(ana, "duckdb", "bad_lines", **fields)
    assert "3 of 10005 rows are bad" in message
    assert 'record 10002: the record has a field "late"' in log
    assert "record 10003: the line is no JSON object" in log
    assert 'record 10004, column "n": "x" is not an integer' in log
    done = await imported(ana, "duckdb", "bad_lines", max_bad_rows="3", **fields)
    assert (done["rows_loaded"], done["rows_bad"]) == (10_002, 3)


async def test_avro(ana: Caller):
    path = await uploaded(ana, (AVRO / "zstandard.avro").read_bytes())
    assert (await guess(ana, path)).json() == {"type": "avro"}
    shown = (await preview(ana, path, "avro", sql_dialect="duckdb")).json()
    found = dict(zip(names(shown), types(shown), strict=True))
    wanted = {
        "id": "BIGINT", "ok": "BOOLEAN", "f": "FLOAT", "g": "DOUBLE", "price": "DECIMAL", "day": "DATE",
        "clock": "TIME", "at": "TIMESTAMP", "local": "TIMESTAMP", "tags": "VARCHAR", "inner": "VARCHAR",
        "suit": "VARCHAR",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    done = await table_of(ana, "duckdb", "avro", path, "avro")
    assert done["rows_bad"] == 0
    chosen = 'id, price, CAST("at" AS VARCHAR), CAST("local" AS VARCHAR), tags, raw'
    assert (await rows(ana, "duckdb", "avro", columns=chosen, order="abs(id)"))[1] == [
        -1000000000, "-1.25", "2024-01-31 10:20:30.12", "1969-12-31 23:59:59.5", '["a"]', "Af8=",
    ]  # fmt: skip


@pytest.mark.security("T14")
async def test_broken_and_hostile_files_are_refused(ana: Caller):
    whole = parquet()
    stream = arrow_stream(pa.table({"s": ["abc", "def"]}))
    place = stream.index(b"\x03\x00\x00\x00\x06\x00\x00\x00")
    cases = [
        ("parquet", whole[:-20], "file_corrupt"),
        ("parquet", b"PAR1" + bytes(100) + b"PAR1", "file_corrupt"),
        ("arrow", arrow_file()[:200], "file_corrupt"),
        # Offsets of texts beyond the texts: Arrow itself would read there.
        ("arrow", stream[:place] + b"\xff\xff\xff\x0f" + stream[place + 4 :], "file_corrupt"),
        ("avro", (AVRO / "null.avro").read_bytes()[:-30], "file_corrupt"),
        ("avro", b"Obj\x01\x00" + bytes(100), "file_corrupt"),
        ("parquet", b"a,b\n1,2\n", "format_mismatch"),
        ("arrow", whole, "format_mismatch"),
        ("ndjson", b"a,b\n1,2\n", "format_mismatch"),
        ("csv", whole, "format_mismatch"),
        ("ndjson", b'{"a": "' + b"x" * (16 * 1024 * 1024) + b'"}', "record_too_long"),
        ("ndjson", json.dumps({f"c{place}": place for place in range(2001)}).encode(), "too_many_columns"),
        ("parquet", parquet(pa.table({f"c{place}": [1] for place in range(2001)})), "too_many_columns"),
    ]
    answers = await asyncio.gather(*(refused(ana, kind, content) for kind, content, _ in cases))
    assert answers == [(400, code) for _, _, code in cases]


async def refused(ana: Caller, kind: str, content: bytes) -> tuple[int, str]:
    return refusal(await preview(ana, await uploaded(ana, content), kind))


async def test_a_remote_file_is_read_where_it_lies(tables: Tables, ana: Caller):
    path = tables.shared_file("a.parquet", parquet())
    remote = {"import_type": "remote"}
    assert (await guess(ana, path, **remote)).json() == {"type": "parquet"}
    done = await imported(ana, "duckdb", "remote", file_path=path, file_type="parquet", **remote)
    assert done["rows_loaded"] == 3


async def test_columns_of_one_name_are_told_apart(ana: Caller):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    await table_of(ana, "duckdb", "twins", await uploaded(ana, arrow_stream(table)), "arrow")
    assert (await ana.result("duckdb", 'SELECT a, "A_2" FROM twins'))["data"] == [[1, 2]]
    assert refusal(await ask(ana, "duckdb", "other", file_path=await uploaded(ana), has_header="")) == (
        400,
        "missing_parameter",
    )
