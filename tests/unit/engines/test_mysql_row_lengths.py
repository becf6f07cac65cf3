"""The lengths of the values of a row, by as much of it as has come."""

import pytest

from queryserver.engines.mysql.connection import first_long_value

LONG = b"\xfe" + (500_000_000).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("row", "number"),
    [
        (LONG, 0),
        (LONG + b"xxxx", 0),
        (b"\x03abc" + LONG, 1),
        (b"\xfb\xfc\x04\x00abcd" + LONG, 2),
        (b"\xfd\xff\xff\x0f", None),
        (b"\xfd\x01\x00\x10", 0),
        (LONG[:5], None),
        (b"\x09abc", None),
        (b"", None),
    ],
    ids=["first", "begun", "second", "behind_null", "at_the_limit", "above_the_limit", "half_length", "short", "empty"],
)
def test_the_first_long_value_is_found(row: bytes, number: int | None) -> None:
    assert first_long_value(row, 0xFFFFF) == number
