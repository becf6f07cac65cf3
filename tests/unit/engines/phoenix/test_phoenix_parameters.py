"""Values as parameters of Avatica, read again by the reader of its answers."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each
from tests.contract.loading_facts import TEXTS

from queryserver.engines.phoenix.protocol import Message, numbered, parameter_rows
from queryserver.engines.phoenix.statement import typed_value
from queryserver.errors.statements import StatementRejected

REP, STRING, STRING_VALUE, NUMBER_VALUE = 1, 21, 3, 4
GREGORIAN = dt.datetime(1582, 10, 15)  # noqa: DTZ001 timestamps of imports have no zone


def parameters(*values: pa.Array) -> list[list[bytes]]:
    """The parameters of each row."""
    batch = pa.RecordBatch.from_arrays(list(values), names=[f"c{place}" for place in range(len(values))])
    return [list(Message(row).each(1)) for row in parameter_rows(batch.schema.names, batch)]


def parameter(value: object, kind: pa.DataType) -> bytes:
    ((written,),) = parameters(pa.array([value], kind))
    return written


@pytest.mark.importer(57)
@each(
    "text", [*TEXTS, "\0", "a\0b", "${x}", "?", "'" * 1000, "\U0010ffff", "é" * 300_000, "NULL"]
)  # fmt: skip
def test_texts_are_carried_as_they_are(text: str) -> None:
    written = Message(parameter(text, pa.string()))
    assert written.number(REP) == STRING
    assert written.octets(STRING_VALUE) == text.encode()


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=("Cs",))), min_size=1))
def test_any_texts_come_back(texts: list[str | None]) -> None:
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
def test_values_come_back(kind: pa.DataType, values: list[object]) -> None:
    assert [typed_value(cell) for (cell,) in parameters(pa.array(values, kind))] == values


@pytest.mark.parametrize("numbers", [[-(2**63), -2, -1, 0, 1, 2**63 - 1]])
def test_numbers_are_zigzag(numbers: list[int]) -> None:
    """As `sint64` is defined: 0, -1, 1, -2 are 0, 1, 2, 3."""
    for value in numbers:
        coded = Message(parameter(value, pa.int64())).number(NUMBER_VALUE)
        assert coded == (2 * value if value >= 0 else -2 * value - 1)


def test_small_decimals_have_no_exponent() -> None:
    """Java would take one, Phoenix's own texts have none."""
    assert Message(parameter(Decimal("1E-10"), pa.decimal128(38, 10))).text(STRING_VALUE) == "0.0000000001"


def test_moments_of_our_calendar_go_as_texts_and_earlier_ones_as_milliseconds() -> None:
    """Java reads texts of earlier days by the Julian calendar."""
    late = dt.datetime.fromisoformat("2024-02-29 10:20:30.000005")
    assert Message(parameter(late, pa.timestamp("us"))).text(STRING_VALUE) == "2024-02-29 10:20:30.000005"
    assert Message(parameter(GREGORIAN, pa.timestamp("us"))).text(STRING_VALUE) == "1582-10-15 00:00:00"
    early = Message(parameter(GREGORIAN - dt.timedelta(milliseconds=1), pa.timestamp("us")))
    assert not early.has(STRING_VALUE)
    assert early.number(NUMBER_VALUE) == 2 * 12_219_292_800_001 - 1


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.uint64(), 2**63, "above 9223372036854775807"),
        (pa.float64(), float("nan"), "finite"),
        (pa.float32(), float("-inf"), "finite"),
        (pa.time64("us"), dt.time(10, 20, 30, 40), "milliseconds"),
        (pa.timestamp("us"), GREGORIAN - dt.timedelta(microseconds=1), "milliseconds"),
    ],
    ids=str,
)
def test_values_that_phoenix_would_change_are_refused_with_their_column(
    kind: pa.DataType, value: object, words: str
) -> None:
    with pytest.raises(StatementRejected, match=rf'"c0".*{words}'):
        parameters(pa.array([None, value], kind))


def test_rows_are_numbered_behind_their_values() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", None])], names=["s"])
    rows = numbered(parameter_rows(["s"], batch), 41)
    assert [[typed_value(cell) for cell in Message(row).each(1)] for row in rows] == [["a", 41], [None, 42]]
