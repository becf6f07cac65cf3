"""One Arrow type per column for the whole result, whatever the values are."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from queryserver.engines.postgresql.engine import ColumnReader
from queryserver.engines.postgresql.values import DATE_INFINITY, DeclaredType, Kind, numeric_shape
from queryserver.engines.sessions import record_batch
from queryserver.errors.statements import StatementRejected
from queryserver.formats.columns import ResultType

INTEGER = DeclaredType(Kind.INT4, ResultType.INT, "integer")
DATE = DeclaredType(Kind.DATE, ResultType.DATE, "date")
PRICE = DeclaredType(Kind.NUMERIC, ResultType.DECIMAL, "numeric(10,2)", precision=10, scale=2)
NUMBERS = DeclaredType(Kind.ARRAY, ResultType.ARRAY, "integer[]", element=INTEGER)
RECORD = DeclaredType(Kind.RECORD, ResultType.STRUCT, "record")


def test_a_column_of_nulls_has_its_declared_type() -> None:
    assert ColumnReader("a", PRICE).read((None, None)).type == pa.decimal128(10, 2)


def test_a_value_out_of_the_calendar_in_the_first_chunk_makes_the_column_text() -> None:
    reader = ColumnReader("a", DATE)
    assert reader.read((0, DATE_INFINITY, None)).to_pylist() == ["2000-01-01", "infinity", None]
    assert reader.read((1,)).to_pylist() == ["2000-01-02"]


def test_a_value_out_of_the_calendar_later_names_the_column_and_the_cure() -> None:
    reader = ColumnReader("until", DATE)
    assert reader.read((0,)).to_pylist() == [dt.date(2000, 1, 1)]
    with pytest.raises(StatementRejected, match=r'column "until" .* type date .* cast the column to text'):
        reader.read((DATE_INFINITY,))


def test_a_numeric_nan_makes_the_column_text() -> None:
    assert ColumnReader("a", PRICE).read(("1.50", "NaN")).to_pylist() == ["1.50", "NaN"]
    assert ColumnReader("a", PRICE).read(("1.50",)).to_pylist() == [Decimal("1.50")]


def test_the_first_chunk_decides_the_dimensions_of_arrays() -> None:
    reader = ColumnReader("a", NUMBERS)
    assert reader.read(("{{1,2}}", "{}", None)).to_pylist() == [[[1, 2]], [], None]
    assert reader.read(("{{3}}",)).type == pa.list_(pa.list_(pa.int32()))
    with pytest.raises(StatementRejected):
        reader.read(("{3}",))


def test_arrays_of_mixed_dimensions_are_text() -> None:
    assert ColumnReader("a", NUMBERS).read(("{1}", "{{1}}")).to_pylist() == ["{1}", "{{1}}"]


def test_fields_of_an_anonymous_record_are_numbered_text() -> None:
    assert ColumnReader("a", RECORD).read((None, "(1,,x)")).to_pylist() == [
        None,
        {"field0": "1", "field1": None, "field2": "x"},
    ]


def test_anonymous_records_of_nothing_but_null_are_text() -> None:
    assert ColumnReader("a", RECORD).read((None,)).type == pa.string()


def test_names_may_occur_twice_and_no_rows_have_their_types() -> None:
    batch = record_batch([], ["a", "a"], [ColumnReader("a", kind).read for kind in (INTEGER, DATE)])
    assert batch.schema.names == ["a", "a"]
    assert batch.schema.types == [pa.int32(), pa.date32()]


@pytest.mark.parametrize(
    ("modifier", "shape"), [(655366, (10, 2)), (2490372, (38, 0)), (196612 + 5, (3, 5)), (133118, (2, -6))]
)
def test_the_modifier_of_numeric(modifier, shape) -> None:
    assert numeric_shape(modifier) == shape
