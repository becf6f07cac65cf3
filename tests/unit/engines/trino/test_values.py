"""Conversion of unusual values in Trino's JSON to Arrow."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from queryserver.engines.trino.values import TrinoValueError, declare, record_batch, result_columns
from queryserver.formats.arrow import ResultType


def _signature(raw_type: str, *arguments: object) -> dict[str, object]:
    """Return a type signature.

    Each argument is a number, a type, or a field as a pair of name and type.
    """
    described = []
    for argument in arguments:
        if isinstance(argument, int):
            described.append({"kind": "LONG", "value": argument})
        elif isinstance(argument, tuple):
            name = {"fieldName": {"name": argument[0]}} if argument[0] else {}
            described.append({"kind": "NAMED_TYPE", "value": {**name, "typeSignature": argument[1]}})
        else:
            described.append({"kind": "TYPE", "value": argument})
    return {"rawType": raw_type, "arguments": described}


def _read(signature: dict[str, object], *values: object) -> pa.Array:
    declared = declare([{"name": "a", "type": "t", "typeSignature": signature}])
    return record_batch(["a"], declared, [[value] for value in values]).column(0)


def test_nan_and_infinity_are_parsed_for_real_and_double() -> None:
    for raw_type in ("real", "double"):
        array = _read(_signature(raw_type), 1.5, "NaN", "Infinity", "-Infinity", None)
        assert str(array.to_pylist()) == "[1.5, nan, inf, -inf, None]"


def test_dates_of_any_year_keep_their_day() -> None:
    array = _read(_signature("date"), "2024-02-29", "-0044-03-15", "+12345-01-01", None)
    days = array.view(pa.int32()).to_pylist()
    assert days == [19782, -735525, 3789391, None]


@pytest.mark.parametrize(("digits", "unit"), [(0, "ms"), (3, "ms"), (4, "us"), (6, "us")])
def test_timestamps_of_any_year_keep_their_instant(digits: int, unit: str) -> None:
    fraction = "." + "5" * digits if digits else ""
    array = _read(_signature("timestamp", digits), f"1969-12-31 23:59:59{fraction}", f"+12345-01-01 00:00:00{fraction}")
    ticks = int("5" * digits or "0") * 10 ** ((3 if unit == "ms" else 6) - digits)
    second = 1_000 if unit == "ms" else 1_000_000
    assert array.type == pa.timestamp(unit)
    assert array.view(pa.int64()).to_pylist() == [ticks - second, 3789391 * 86400 * second + ticks]


def test_timestamps_finer_than_microseconds_become_text() -> None:
    array = _read(_signature("timestamp", 9), "2024-01-31 10:20:30.000000000", "2024-01-31 10:20:30.100000000", None)
    assert array.to_pylist() == ["2024-01-31 10:20:30", "2024-01-31 10:20:30.100000000", None]


def test_map_keys_have_their_declared_type() -> None:
    cases = [
        ("boolean", "true", True),
        ("bigint", "7", 7),
        ("double", "NaN", None),
        ("date", "2024-01-31", dt.date(2024, 1, 31)),
    ]
    for raw_type, key, expected in cases:
        ((found, value),) = _read(_signature("map", _signature(raw_type), _signature("bigint")), {key: 1})[0].as_py()
        assert value == 1
        assert found == expected or (expected is None and found != found)


def test_row_typed_map_keys_become_text() -> None:
    row = _signature("row", ("a", _signature("bigint")))
    assert _read(_signature("map", row, _signature("bigint")), {"[1]": 2}, None).to_pylist() == [[("[1]", 2)], None]


def test_rows_keep_field_order_and_names() -> None:
    row = _signature("row", ("a", _signature("decimal", 4, 1)), ("", _signature("varchar", 3)))
    array = _read(row, ["1.5", "x"], None, [None, None])
    assert [array.type.field(n).name for n in range(2)] == ["a", ""]
    assert array.field(0).to_pylist() == [Decimal("1.5"), None, None]
    assert array.is_null().to_pylist() == [False, True, False]


def test_deeply_nested_values_are_converted() -> None:
    row = _signature("row", ("n", _signature("bigint")))
    array = _read(_signature("array", _signature("map", _signature("varchar"), row)), [{"k": [1]}, None], [], None)
    assert array.to_pylist() == [[[("k", {"n": 1})], None], [], None]


def test_objects_of_unknown_types_become_json_text() -> None:
    assert _read(_signature("BingTile"), {"x": 1}, "plain", None).to_pylist() == ['{"x":1}', "plain", None]


@pytest.mark.parametrize(("signature", "value"),
    [(_signature("bigint"), "x"), (_signature("bigint"), 2**70), (_signature("varbinary"), "not base64!"),
    (_signature("date"), "today"), (_signature("timestamp", 3), "now"), (_signature("decimal", 4, 2), "much"),
    (_signature("array", _signature("bigint")), 5),
    (_signature("row", ("a", _signature("bigint"))), [1, 2])])  # fmt: skip
def test_value_not_matching_its_type_is_refused(signature: dict[str, object], value: object) -> None:
    with pytest.raises(TrinoValueError):
        _read(signature, value)


def test_row_with_wrong_width_is_refused() -> None:
    declared = declare([{"name": "a", "type": "bigint", "typeSignature": _signature("bigint")}])
    with pytest.raises(TrinoValueError):
        record_batch(["a"], declared, [[1], [1, 2]])


@pytest.mark.parametrize(("raw_type", "numbers", "expected"),
    [("varchar", (2147483647,), ResultType.STRING), ("varchar", (3,), ResultType.VARCHAR),
    ("HyperLogLog", (), ResultType.BINARY), ("qdigest", (), ResultType.BINARY),
    ("Geometry", (), ResultType.USER_DEFINED)])  # fmt: skip
def test_trino_types_map_to_contract_types(raw_type: str, numbers: tuple[int, ...], expected: ResultType) -> None:
    columns = [{"name": "a", "type": raw_type, "typeSignature": _signature(raw_type, *numbers)}]
    assert [column.type for column in result_columns(columns, declare(columns))] == [expected]
