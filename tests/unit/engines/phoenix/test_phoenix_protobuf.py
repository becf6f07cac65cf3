"""The wire form of protocol buffers (Protocol Buffers: Encoding)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.phoenix.protocol import (
    Malformed,
    Message,
    fields,
    number,
    octets,
    pairs,
    read_varint,
    signed,
    text,
    varint,
    zigzag,
)


def test_bytes_are_those_of_the_reference() -> None:
    """The examples of the encoding's own description."""
    assert number(1, 150) == bytes.fromhex("089601")
    assert text(2, "testing") == bytes.fromhex("120774657374696e67")
    assert octets(3, number(1, 150)) == bytes.fromhex("1a03089601")
    assert number(1, -2) == bytes.fromhex("08feffffffffffffffff01")


@given(st.integers(0, 2**64 - 1))
def test_a_varint_reads_back(value: int) -> None:
    assert read_varint(b"x" + varint(value) + b"y", 1) == (value, 1 + len(varint(value)))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_read_back(value: int) -> None:
    assert Message(number(5, value)).signed(5) == value
    assert signed(value % 2**64) == value
    assert zigzag((value << 1) ^ (value >> 63)) == value


def test_the_last_of_several_values_counts_and_all_can_be_had() -> None:
    message = Message(text(1, "a") + text(1, "b") + number(2, 7))
    assert message.text(1) == "b"
    assert list(message.each(1)) == [b"a", b"b"]
    assert (message.number(2), message.number(3), message.text(4)) == (7, 0, "")
    assert (message.has(2), message.has(3)) == (True, False)


def test_a_map_is_pairs_of_key_and_value() -> None:
    message = Message(pairs(2, {"a": "1", "b": ""}))
    assert [(pair.text(1), pair.text(2)) for pair in message.messages(2)] == [("a", "1"), ("b", "")]


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x09abc", b"\x0b", b"\x08" + b"\xff" * 11, b"\x0a\xff\xff"])
def test_what_is_cut_or_of_no_known_kind_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(fields(data))


def test_a_field_of_another_kind_is_malformed() -> None:
    with pytest.raises(Malformed):
        Message(number(1, 1)).octets(1)
    with pytest.raises(Malformed):
        Message(text(1, "a")).number(1)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    try:
        list(fields(data))
    except Malformed:
        return
