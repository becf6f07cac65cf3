"""Rows of the server's messages as Arrow columns, whichever way they are converted."""

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.postgresql import rows as rows_module
from queryserver.engines.postgresql.connection import column_reader
from queryserver.engines.postgresql.rows import WireRows, wire_batch, wire_columns, wire_format
from queryserver.engines.postgresql.values import DeclaredType, ValueKind
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import ResultType

BOOL, BYTEA, BIGINT, SMALLINT, INT, TEXT, OID, REAL, DOUBLE, NUMERIC = 16, 17, 20, 21, 23, 25, 26, 700, 701, 1700
NUMBERS = {SMALLINT: "!h", INT: "!i", OID: "!I", BIGINT: "!q", REAL: "!f", DOUBLE: "!d"}
VALUES = {
    BOOL: st.booleans(),
    BYTEA: st.binary(max_size=20),
    TEXT: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    SMALLINT: st.integers(-(2**15), 2**15 - 1),
    INT: st.integers(-(2**31), 2**31 - 1),
    OID: st.integers(0, 2**32 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    REAL: st.floats(width=32, allow_nan=False),
    DOUBLE: st.floats(allow_nan=False),
    NUMERIC: st.decimals(allow_nan=False, allow_infinity=False).map(str),
}


Table = tuple[list[int], list[tuple[object, ...]]]
"""Type OIDs and rows."""


def encoded(oid: int, value: object) -> bytes:
    if value is None:
        return struct.pack("!i", -1)
    match value:
        case bool():
            raw = b"\1" if value else b"\0"
        case str():
            raw = value.encode()
        case bytes():
            raw = value
        case _:
            raw = struct.pack(NUMBERS[oid], value)
    return struct.pack("!i", len(raw)) + raw


def received(oids: Sequence[int], rows: Sequence[tuple[object, ...]]) -> WireRows:
    found = WireRows()
    for row in rows:
        body = struct.pack("!h", len(oids)) + b"".join(map(encoded, oids, row))
        found.starts.append(found.size)
        found.add(b"D" + struct.pack("!i", len(body) + 4) + body)
    return found


@st.composite
def tables(draw: st.DrawFn) -> Table:
    oids = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    columns = [draw(st.sampled_from((VALUES[oid], st.none() | VALUES[oid], st.none()))) for oid in oids]
    return oids, draw(st.lists(st.tuples(*columns), max_size=8))


@pytest.mark.parametrize("plain_rows", [0, 1_000])
@given(table=tables())
def test_every_value_arrives_as_it_was_sent(plain_rows: int, table: Table):
    oids, rows = table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "_MAX_PLAIN_ROWS", plain_rows)
        columns = list(wire_columns(received(oids, rows), [wire_format(oid) for oid in oids]))
    for column in columns:
        column.validate(full=True)
    assert [column.type for column in columns] == [wire_format(oid).arrow for oid in oids]
    assert list(zip(*[column.to_pylist() for column in columns], strict=True)) == rows


def test_more_rows_than_a_usual_chunk_are_converted():
    rows = [(number, f"text {number}") for number in range(25_000)]
    columns = wire_columns(received([INT, TEXT], rows), [wire_format(INT), wire_format(TEXT)])
    assert list(zip(*[column.to_pylist() for column in columns], strict=True)) == rows


@pytest.mark.parametrize("count", [1, 500])
def test_text_that_is_not_utf8_is_refused_with_the_name_of_its_column(count: int):
    oids = [INT, BYTEA]
    reader = column_reader("note", DeclaredType(ValueKind.TEXT, ResultType.STRING, "text"))
    readers = [column_reader("id", DeclaredType(ValueKind.NUMBER, ResultType.INT, "integer")), reader]
    rows = received(oids, [(number, b"\xe9") for number in range(count)])
    with pytest.raises(StatementRejected, match='column "note" contains text that is not valid UTF-8'):
        wire_batch(rows, ["id", "note"], [wire_format(INT), wire_format(TEXT)], readers)


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("place", [0, 150, 299])
@pytest.mark.parametrize("field", [struct.pack("!i", 9_000) + b"text", struct.pack("!i", 2) + b"\1\2", b""],
    ids=["longer than its row", "of another size", "missing"])  # fmt: skip
def test_row_without_the_described_fields_is_refused(count: int, place: int, field: bytes):
    """A server, or a proxy in front of it, may be faulty. Arrow would read memory beyond the rows."""
    rows = WireRows()
    for number in range(count):
        is_wrong = number == min(place, count - 1)
        body = struct.pack("!h", 2) + encoded(TEXT, "text") + (field if is_wrong else encoded(INT, number))
        rows.starts.append(rows.size)
        rows.add(b"D" + struct.pack("!i", len(body) + 4) + body)
    for formats in ([TEXT, INT], [TEXT, TEXT]):
        if formats == [TEXT, TEXT] and len(field) == 6:
            continue  # a text may have two bytes
        with pytest.raises(StatementRejected, match="does not have the described fields"):
            list(wire_columns(rows, [wire_format(oid) for oid in formats]))


def test_types_without_a_binary_format_of_ours_arrive_as_text():
    assert wire_format(3802).arrow == pa.string()
    assert wire_format(99_999).arrow == pa.string()
