"""Conversion of Parquet to JSON Lines, with every encoding, page version and codec."""

import io
import json
from datetime import date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from queryserver.formats.parquet import parquet_lines

FIELD = Path(__file__).parents[2] / "field" / "import"

TEXTS = ["a", "bb", None, "", "ünï", "bbb"] * 50
BASE64 = {"a": "YQ==", "bb": "YmI=", "": "", "ünï": "w7xuw68=", "bbb": "YmJi"}
SAME = len(TEXTS)
COLUMNS = {
    "text": (pa.array(TEXTS), TEXTS),
    "long": (pa.array(TEXTS, pa.large_string()), TEXTS),
    "bytes": (pa.array([text and text.encode() for text in TEXTS]), list(map(BASE64.get, TEXTS))),
    "fixed": (pa.array([b"abc"] * SAME, pa.binary(3)), ["YWJj"] * SAME),
    "integer": (pa.array(range(SAME), pa.int64()), list(range(SAME))),
    "small": (pa.array(range(SAME), pa.int32()), list(range(SAME))),
    "double": (pa.array([1.5, None] * (SAME // 2)), [1.5, None] * (SAME // 2)),
    "float": (pa.array([1.5, None] * (SAME // 2), pa.float32()), [1.5, None] * (SAME // 2)),
    "boolean": (pa.array([True, None] * (SAME // 2)), [True, None] * (SAME // 2)),
    "decimal": (pa.array([Decimal("1.25"), None] * (SAME // 2), pa.decimal128(20, 2)), ["1.25", None] * (SAME // 2)),
    "moment": (pa.array([datetime(2024, 1, 31, 10, 20, 30)] * SAME), ["2024-01-31 10:20:30"] * SAME),  # noqa: DTZ001
    "clock": (pa.array([time(10, 20, 30)] * SAME), ["10:20:30"] * SAME),
    "day": (pa.array([date(2024, 1, 31)] * SAME), ["2024-01-31"] * SAME),
    "list": (pa.array([[text] for text in TEXTS]), [[text] for text in TEXTS]),
    "struct": (pa.array([{"y": text} for text in TEXTS]), [{"y": text} for text in TEXTS]),
}
ENCODINGS = (
    "PLAIN", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT", "RLE",
)  # fmt: skip
PATHS = {"list": "list.list.element", "struct": "struct.y"}
POSSIBLE = 42
"""The number of valid combinations of column type and encoding."""


def lines_of(content: bytes) -> list[dict]:
    return [json.loads(line) for line in b"".join(parquet_lines(io.BytesIO(content))).splitlines()]


def written(table: pa.Table, **options) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


@pytest.mark.importer(64)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_columns_are_read_in_every_valid_encoding(version):
    read = 0
    for (name, (values, expected)), encoding in product(COLUMNS.items(), ENCODINGS):
        options = {"column_encoding": {PATHS.get(name, name): encoding}, "data_page_version": version}
        try:
            content = written(pa.table({name: values}), use_dictionary=False, data_page_size=64, **options)
        except (OSError, pa.ArrowException):  # the format does not allow this combination
            continue
        assert [line[name] for line in lines_of(content)] == expected, (name, encoding)
        read += 1
    assert read == POSSIBLE


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_columns_are_read_in_every_codec_with_and_without_dictionaries(codec, dictionary, version):
    table = pa.table({name: values for name, (values, _) in COLUMNS.items()})
    options = {"compression": codec, "use_dictionary": dictionary, "data_page_version": version}
    found = lines_of(written(table, row_group_size=70, data_page_size=64, **options))
    assert {name: [line[name] for line in found] for name in COLUMNS} == {
        name: expected for name, (_, expected) in COLUMNS.items()
    }


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_categories_may_use_plain_value_encodings(encoding):
    """The Arrow schema in the file requests dictionary columns, which Arrow cannot build from these encodings."""
    values = pa.array(TEXTS)
    nested = pa.StructArray.from_arrays([values.dictionary_encode()], ["y"])
    table = pa.table({"x": values.dictionary_encode(), "s": nested, "n": range(SAME)})
    content = written(table, use_dictionary=False, column_encoding={"x": encoding, "s.y": encoding})
    assert lines_of(content) == [{"x": text, "s": {"y": text}, "n": at} for at, text in enumerate(TEXTS)]


def test_column_may_have_dictionaries_in_some_row_groups_only():
    names = [f"{number:050}" for number in range(4000)]
    content = written(pa.table({"s": names + ["same"] * 4000}), row_group_size=4000, dictionary_pagesize_limit=1000)
    assert [line["s"] for line in lines_of(content)] == [*names, *["same"] * 4000]


def test_field_files_are_readable():
    delta = (FIELD / "parquet_delta_byte_array.parquet").read_bytes()
    assert [line["s"] for line in lines_of(delta)] == ["a", "b", "c"]
    assert lines_of((FIELD / "parquet_negative_time.parquet").read_bytes()) == [{"t": "-00:00:05"}]
