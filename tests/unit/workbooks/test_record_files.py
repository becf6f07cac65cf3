"""Record files, read as batches and as previews (Contract importer 8a)."""

import io
import json

import pyarrow as pa
import pytest
from tests.refusals import raises_code

from queryserver.formats.arrow import BaseType
from queryserver.formats.table_files import SAMPLE_TEXT_BYTES, FileType
from queryserver.workbooks import frames
from queryserver.workbooks.frames import HEAD, PREVIEW, RecordPortion, decode_batch, encode_batch
from queryserver.workbooks.record_files import arrow_file, avro_file, parse_record, record_frames


def stream_of(table: pa.Table) -> io.BytesIO:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    sink.seek(0)
    return sink


def test_batch_of_large_rows_is_split_into_small_parts() -> None:
    texts = pa.array(["x" * 60_000] * 300)
    for values in (texts, texts.cast(pa.string_view()), texts.dictionary_encode()):
        batches = list(arrow_file(stream_of(pa.table({"s": values}))).batches())
        assert sum(batch.rows.num_rows for batch in batches) == 300
        assert max(batch.rows.nbytes for batch in batches) < 5 * 1024 * 1024


def test_all_arrow_binary_types_are_binary() -> None:
    plain = pa.array([b"\xff", None], pa.binary())
    file = arrow_file(stream_of(pa.table({"b": plain.cast(pa.binary_view()), "l": plain.cast(pa.large_binary())})))
    assert [column.type.base for column in file.columns] == [BaseType.BINARY] * 2
    assert next(iter(file.batches())).rows.to_pylist() == [{"0": b"\xff", "1": b"\xff"}, {"0": None, "1": None}]


def test_row_beyond_the_frame_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BYTES", 1000)
    with raises_code("record_too_long"):
        encode_batch(b"B", RecordPortion(pa.RecordBatch.from_pydict({"0": ["x" * 1000]})))


def preview_frame(file: io.BytesIO, kind: FileType) -> dict[str, object]:
    (found,) = record_frames(file, kind, None)
    assert found.startswith(PREVIEW)
    return dict(json.loads(found[HEAD.size :]))


def test_preview_text_is_limited_to_the_sample_size() -> None:
    text = "x" * (SAMPLE_TEXT_BYTES // 4)
    shown = preview_frame(stream_of(pa.table({"s": [text] * 10})), FileType.ARROW)
    assert (shown["rows"], shown["warnings"]) == ([[text]] * 4, [{"code": "truncated_sample", "count": 1, "rows": []}])


def test_lone_surrogate_invalidates_only_its_line() -> None:
    assert parse_record(b'{"a": "\\ud83d"}') is None
    assert parse_record(b'{"\\ude00": 1}') is None
    assert parse_record(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_json_lines_columns_are_typed_by_the_records_that_have_them() -> None:
    lines = [json.dumps({f"c{number % 500}": number}) for number in range(2000)]
    shown = preview_frame(io.BytesIO("\n".join(lines).encode()), FileType.NDJSON)
    columns, rows = shown["columns"], shown["rows"]
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    assert {column["type"]["base"] for column in columns} == {"Int32"}
    assert (len(columns), len(rows), rows[1][:3]) == (500, 50, ["", "1", ""])


def test_json_lines_fractions_keep_their_digits() -> None:
    """The preview suggests doubles, but a user who converts the column to decimals or strings needs all digits."""
    digits = "0.12345678901234567890123"
    lines = f'{{"a": 1.10, "b": {digits}, "c": 1E+5, "d": [1.5]}}'.encode()
    shown = preview_frame(io.BytesIO(lines), FileType.NDJSON)
    columns = shown["columns"]
    assert isinstance(columns, list)
    assert [column["type"]["base"] for column in columns] == ["Float64", "Float64", "Float64", "String"]
    assert shown["rows"] == [["1.10", digits, "1E+5", "[1.5]"]]
    batch, _end = record_frames(io.BytesIO(lines), FileType.NDJSON, ["a", "b", "c", "d"])
    portion = decode_batch(batch[HEAD.size :])
    rows, unreadable = portion.rows, portion.unreadable
    assert (list(rows.to_pylist()[0].values()), unreadable) == (["1.10", digits, "1E+5", "[1.5]"], [])


def avro(*types: object) -> io.BytesIO:
    fields = [{"name": f"c{place}", "type": kind} for place, kind in enumerate(types)]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    size = bytes([(2 * len(schema) & 0x7F) | 0x80, 2 * len(schema) >> 7])
    head = b"Obj\x01\x04\x16avro.schema" + size + schema + b"\x14avro.codec\x08null\x00" + b"S" * 16
    return io.BytesIO(head + b"\x02" + bytes([2 * len(types)]) + b"\x0a" * len(types) + b"S" * 16)


def test_avro_logical_types_apply_where_permitted() -> None:
    """For a logical type on the wrong base type, the specification requires that readers ignore it and return plain
    numbers.
    """
    file = avro(
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "date"},
        {"type": "int", "logicalType": "timestamp-millis"},
        {"type": {"type": "int"}},
    )
    records = avro_file(file)
    bases = [column.type.base for column in records.columns]
    assert bases == [BaseType.DATE, BaseType.INT64, BaseType.INT32, BaseType.INT32]
    (batch,) = records.batches()
    assert batch.rows.to_pylist() == [{"0": "1970-01-06", "1": "5", "2": "5", "3": "5"}]
