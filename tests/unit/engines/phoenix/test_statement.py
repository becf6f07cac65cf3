"""Values of Avatica as Arrow has them."""

import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.cases import each

from queryserver.engines.phoenix.protocol import AvaticaColumn, Malformed, number, octets, text
from queryserver.engines.phoenix.statement import AvaticaRowReader, cell_value, declare, typed_value
from queryserver.errors.statements import StatementRejected


def _row(*values: bytes) -> bytes:
    return b"".join(octets(1, octets(4, value)) for value in values)


def _decimal(value: str) -> bytes:
    return number(1, 26) + text(3, value)


def _price() -> AvaticaRowReader:
    return AvaticaRowReader([declare(AvaticaColumn("P", "DECIMAL", 10, 2))])


@each(
    ("data", "value"),
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
)
def test_a_typed_value_is_read_by_its_representation(data: bytes, value: object) -> None:
    assert typed_value(data) == value


def test_an_array_that_is_sent_both_ways_is_read_once() -> None:
    item = number(1, 12) + number(4, 2)
    assert cell_value(octets(1, item) + octets(2, item) + number(3, 1)) == [1]
    assert cell_value(octets(1, item) + octets(1, item) + number(3, 1)) == [1, 1]
    assert cell_value(number(3, 1)) == []
    assert cell_value(octets(1, item)) == 1


def test_a_decimal_keeps_the_declared_scale() -> None:
    batch = _price().read([_row(_decimal("1.5")), _row(_decimal("1E+3"))])
    assert batch.column(0).to_pylist() == [Decimal("1.50"), Decimal("1000.00")]


def test_a_decimal_beyond_the_scale_in_the_first_rows_makes_text_of_the_column() -> None:
    reader = _price()
    assert reader.read([_row(_decimal("1.555"))]).column(0).to_pylist() == ["1.555"]
    assert reader.read([_row(_decimal("1E+3"))]).column(0).type == pa.string()


def test_a_decimal_beyond_the_scale_after_others_fails_the_statement() -> None:
    reader = _price()
    reader.read([_row(_decimal("1.5"))])
    with pytest.raises(StatementRejected, match=r"column P holds a value that type DECIMAL\(10,2\) cannot carry"):
        reader.read([_row(_decimal("1.555"))])


def test_a_row_of_another_width_is_malformed() -> None:
    with pytest.raises(Malformed):
        _price().read([_row(_decimal("1"), _decimal("2"))])
