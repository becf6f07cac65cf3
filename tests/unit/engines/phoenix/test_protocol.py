"""The Avatica protocol: messages, parameters, rows and errors."""

import datetime as dt
import struct
from decimal import Decimal

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.loading_facts import TEXTS

from queryserver.engines.phoenix.protocol import (
    AvaticaColumn,
    HttpRefusal,
    Malformed,
    Message,
    Phase,
    ServerError,
    StatementMissing,
    avatica_errors,
    fields,
    number,
    octets,
    pairs,
    parameter_rows,
    read_varint,
    server_text,
    signed,
    text,
    varint,
    with_row_numbers,
    zigzag,
)
from queryserver.engines.phoenix.statement import AvaticaRowReader, cell_value, declare, typed_value
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)


def test_encoding_matches_protobuf_reference() -> None:
    """The examples are from the Protocol Buffers encoding guide."""
    assert number(1, 150) == bytes.fromhex("089601")
    assert text(2, "testing") == bytes.fromhex("120774657374696e67")
    assert octets(3, number(1, 150)) == bytes.fromhex("1a03089601")
    assert number(1, -2) == bytes.fromhex("08feffffffffffffffff01")


@given(st.integers(0, 2**64 - 1))
def test_varint_round_trips(value: int) -> None:
    assert read_varint(b"x" + varint(value) + b"y", 1) == (value, 1 + len(varint(value)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_round_trip(value: int) -> None:
    assert Message(number(5, value)).signed(5) == value
    assert signed(value % 2**64) == value
    assert zigzag((value << 1) ^ (value >> 63)) == value


def test_last_of_repeated_values_counts_and_all_can_be_listed() -> None:
    message = Message(text(1, "a") + text(1, "b") + number(2, 7))
    assert message.text(1) == "b"
    assert list(message.each(1)) == [b"a", b"b"]
    assert (message.number(2), message.number(3), message.text(4)) == (7, 0, "")
    assert (message.has(2), message.has(3)) == (True, False)


def test_map_is_encoded_as_key_value_pairs() -> None:
    message = Message(pairs(2, {"a": "1", "b": ""}))
    assert [(pair.text(1), pair.text(2)) for pair in message.messages(2)] == [("a", "1"), ("b", "")]


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x09abc", b"\x0b", b"\x08" + b"\xff" * 11, b"\x0a\xff\xff"])
def test_truncated_or_unknown_field_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(fields(data))


def test_field_of_unexpected_kind_is_malformed() -> None:
    with pytest.raises(Malformed):
        Message(number(1, 1)).octets(1)
    with pytest.raises(Malformed):
        Message(text(1, "a")).number(1)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_malformed(data: bytes) -> None:
    try:
        list(fields(data))
    except Malformed:
        return


REP, STRING, STRING_VALUE, NUMBER_VALUE = 1, 21, 3, 4
GREGORIAN = dt.datetime(1582, 10, 15)  # noqa: DTZ001 imported timestamps are naive


def parameters(*values: pa.Array) -> list[list[bytes]]:
    """Encode the rows of the columns; return the encoded parameters of each row."""
    batch = pa.RecordBatch.from_arrays(list(values), names=[f"c{place}" for place in range(len(values))])
    return [list(Message(row).each(1)) for row in parameter_rows(batch.schema.names, batch)]


def parameter(value: object, kind: pa.DataType) -> bytes:
    ((written,),) = parameters(pa.array([value], kind))
    return written


@pytest.mark.importer(57)
@pytest.mark.parametrize(
    "text", [*TEXTS, "\0", "a\0b", "${x}", "?", "'" * 1000, "\U0010ffff", "é" * 300_000, "NULL"]
)  # fmt: skip
def test_hostile_text_is_sent_unchanged(text: str) -> None:
    written = Message(parameter(text, pa.string()))
    assert written.number(REP) == STRING
    assert written.octets(STRING_VALUE) == text.encode()


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=("Cs",))), min_size=1))
def test_arbitrary_texts_round_trip(texts: list[str | None]) -> None:
    rows = parameters(pa.array(texts, pa.string()), pa.array(range(len(texts)), pa.int64()))
    assert [[typed_value(cell) for cell in row] for row in rows] == [[text, n] for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 0, 127, None]),
        (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1, None]),
        (pa.uint64(), [0, 2**63 - 1, None]),
        (pa.float64(), [0.0, -1.5, 5e-324, 1.7976931348623157e308, None]),
        (pa.bool_(), [True, False, None]),
        (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("-1234567890123456789012345678.0123456789"), None]),
        (pa.null(), [None]),
    ],
    ids=str,
)
def test_typed_values_round_trip(kind: pa.DataType, values: list[object]) -> None:
    assert [typed_value(cell) for (cell,) in parameters(pa.array(values, kind))] == values


@pytest.mark.parametrize("numbers", [[-(2**63), -2, -1, 0, 1, 2**63 - 1]])
def test_integers_use_zigzag_encoding(numbers: list[int]) -> None:
    """Protobuf's `sint64` encodes 0, -1, 1, -2 as 0, 1, 2, 3."""
    for value in numbers:
        coded = Message(parameter(value, pa.int64())).number(NUMBER_VALUE)
        assert coded == (2 * value if value >= 0 else -2 * value - 1)


def test_small_decimals_are_sent_without_exponent() -> None:
    """Java would accept an exponent, but Phoenix itself never writes one."""
    assert Message(parameter(Decimal("1E-10"), pa.decimal128(38, 10))).text(STRING_VALUE) == "0.0000000001"


def test_timestamps_before_gregorian_calendar_are_sent_as_milliseconds() -> None:
    """Earlier dates are not sent as text, because Java would parse the text according to the Julian calendar."""
    late = dt.datetime.fromisoformat("2024-02-29 10:20:30.000005")
    assert Message(parameter(late, pa.timestamp("us"))).text(STRING_VALUE) == "2024-02-29 10:20:30.000005"
    assert Message(parameter(GREGORIAN, pa.timestamp("us"))).text(STRING_VALUE) == "1582-10-15 00:00:00"
    early = Message(parameter(GREGORIAN - dt.timedelta(milliseconds=1), pa.timestamp("us")))
    assert not early.has(STRING_VALUE)
    assert early.number(NUMBER_VALUE) == 2 * 12_219_292_800_001 - 1


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.uint64(), 2**63, "greater than 9223372036854775807"),
        (pa.float64(), float("nan"), "finite"),
        (pa.float32(), float("-inf"), "finite"),
        (pa.time64("us"), dt.time(10, 20, 30, 40), "milliseconds"),
        (pa.timestamp("us"), GREGORIAN - dt.timedelta(microseconds=1), "milliseconds"),
    ],
    ids=str,
)
def test_error_for_unrepresentable_value_names_the_column(kind, value, words) -> None:
    with pytest.raises(StatementRejected, match=rf'"c0".*{words}'):
        parameters(pa.array([None, value], kind))


def test_row_numbers_follow_row_values() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", None])], names=["s"])
    rows = with_row_numbers(parameter_rows(["s"], batch), 41)
    assert [[typed_value(cell) for cell in Message(row).each(1)] for row in rows] == [["a", 41], [None, 42]]


_GONE = ServerError(
    "x", ["org.apache.calcite.avatica.NoSuchConnectionException: Connection not found\n\tat a.B(C.java:1)"]
)
_LIMIT = ServerError(
    "x", ["java.sql.SQLTimeoutException: ERROR 6000 (TIM01): Operation timed out.\n\tat a.B(C.java:1)"]
)


def _told(error: Exception, phase: Phase) -> EngineError:
    with pytest.raises(EngineError) as caught, avatica_errors(phase):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "opening", "before", "sent"),
    [
        (httpx.ConnectError("refused"), EngineUnavailable, SessionLost, OutcomeUnknown),
        (TimeoutError(), EngineUnavailable, SessionLost, OutcomeUnknown),
        (httpx.ReadError("x"), EngineUnavailable, SessionLost, OutcomeUnknown),
        (Malformed(), EngineUnavailable, SessionLost, OutcomeUnknown),
        (HttpRefusal(503), EngineUnavailable, SessionLost, OutcomeUnknown),
        (HttpRefusal(401), CredentialsRequired, CredentialsRequired, CredentialsRequired),
        (_GONE, SessionLost, SessionLost, OutcomeUnknown),
        (_LIMIT, EngineTimeout, EngineTimeout, EngineTimeout),
        (StatementMissing(), OutcomeUnknown, OutcomeUnknown, OutcomeUnknown),
    ],
)
def test_failure_meaning_depends_on_statement_phase(error, opening, before, sent) -> None:
    kinds = tuple(type(_told(error, phase)) for phase in (Phase.OPENING, Phase.BEFORE, Phase.SENT))
    assert kinds == (opening, before, sent)


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            "java.X: org.apache.phoenix.X: ERROR 1012 (42M03): Table undefined. tableName=X\n\tat a.B(C:1)\n",
            "ERROR 1012 (42M03): Table undefined. tableName=X",
        ),
        ("java.X: org.apache.Phoenix\n\tat a.B(C:1)\nCaused by: java.X: a.b.C: disk full\n\tat d.E(F:2)", "disk full"),
        ("java.sql.SQLException: first line\nsecond line\n\tat a.B(C.java:1)\n\t... 7 more", "first line\nsecond line"),
        ("java.lang.NullPointerException\n\tat a.B(C.java:1)", "Phoenix returned no error message."),
    ],
)
def test_error_text_loses_java_class_names_and_traces(trace: str, said: str) -> None:
    assert server_text("", [trace]) == said


def test_phoenix_error_is_rejected_statement() -> None:
    error = _told(ServerError("x", ["java.sql.SQLException: ERROR 601 (42P00): Syntax error."]), Phase.SENT)
    assert isinstance(error, StatementRejected)
    assert error.message == "ERROR 601 (42P00): Syntax error."


def test_missing_permission_is_statement_denied() -> None:
    trace = "org.apache.hadoop.hbase.security.AccessDeniedException: Insufficient permissions for user ada"
    error = _told(ServerError("x", [trace]), Phase.SENT)
    assert isinstance(error, StatementDenied)
    assert error.message == "Insufficient permissions for user ada"


def _row(*values: bytes) -> bytes:
    return b"".join(octets(1, octets(4, value)) for value in values)


def _decimal(value: str) -> bytes:
    return number(1, 26) + text(3, value)


def _price() -> AvaticaRowReader:
    return AvaticaRowReader([declare(AvaticaColumn("P", "DECIMAL", 10, 2))])


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (number(1, 24) + number(7, 1), None),
        (number(1, 21) + text(3, "Zoë"), "Zoë"),
        (number(1, 12), 0),
        (number(1, 8), False),
        (number(1, 8) + number(2, 1), True),
        (number(1, 13) + number(4, 2**64 - 1), -(2**63)),
        (number(1, 15) + b"\x31" + struct.pack("<d", 1.5), 1.5),
        (number(1, 20) + text(3, "AP8=") + octets(5, b"\0\xff"), b"\0\xff"),
        (_decimal("1E+3"), Decimal(1000)),
        (number(1, 18) + number(4, 2 * 86_400_000), 1),
        (number(1, 16) + number(4, 2 * 86_400_001), 1),
    ],
)
def test_typed_value_is_decoded_by_its_representation(data: bytes, value: object) -> None:
    assert typed_value(data) == value


def test_array_sent_in_both_fields_is_read_once() -> None:
    item = number(1, 12) + number(4, 2)
    assert cell_value(octets(1, item) + octets(2, item) + number(3, 1)) == [1]
    assert cell_value(octets(1, item) + octets(1, item) + number(3, 1)) == [1, 1]
    assert cell_value(number(3, 1)) == []
    assert cell_value(octets(1, item)) == 1


def test_decimal_keeps_declared_scale() -> None:
    batch = _price().read([_row(_decimal("1.5")), _row(_decimal("1E+3"))])
    assert batch.column(0).to_pylist() == [Decimal("1.50"), Decimal("1000.00")]


def test_decimal_exceeding_scale_in_first_rows_makes_column_text() -> None:
    reader = _price()
    assert reader.read([_row(_decimal("1.555"))]).column(0).to_pylist() == ["1.555"]
    assert reader.read([_row(_decimal("1E+3"))]).column(0).type == pa.string()


def test_decimal_exceeding_scale_in_later_rows_fails_statement() -> None:
    reader = _price()
    reader.read([_row(_decimal("1.5"))])
    with pytest.raises(
        StatementRejected, match=r"column P contains a value that type DECIMAL\(10,2\) cannot represent"
    ):
        reader.read([_row(_decimal("1.555"))])


def test_row_with_extra_values_is_malformed() -> None:
    with pytest.raises(Malformed):
        _price().read([_row(_decimal("1"), _decimal("2"))])
