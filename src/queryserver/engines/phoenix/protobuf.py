"""The wire form of protocol buffers, as far as Avatica's messages need it (Protocol Buffers: Encoding).

A message is a sequence of fields: a tag `number << 3 | wire type`, then a varint, eight bytes, or a length and bytes.
"""

from collections.abc import Iterable, Iterator, Mapping

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1
_MAX_SHIFT = 63

Field = int | bytes


class Malformed(ValueError):
    """The bytes are no message of this protocol."""


def varint(value: int) -> bytes:
    """A number below 2**64; negative ones in two's complement."""
    rest = value & _WORD
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint32, uint64, bool or enum."""
    return varint(field << 3 | VARINT) + varint(value)


def octets(field: int, value: bytes) -> bytes:
    """A field of type bytes or of a message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return octets(field, value.encode(errors="replace"))


def pairs(field: int, value: Mapping[str, str]) -> bytes:
    """A field of type map<string, string>."""
    return b"".join(octets(field, text(1, key) + text(2, item)) for key, item in value.items())


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next byte stands. Raises Malformed."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_SHIFT:
            raise Malformed
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """The fields in order: numbers for varints, bytes for the rest. Raises Malformed."""
    at, end = 0, len(data)
    while at < end:
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Malformed
        if length > end - at:
            raise Malformed
        yield tag >> 3, data[at : at + length]
        at += length


class Message:
    """A message read whole. Absent fields have the empty value of their type, as in proto3. Raises Malformed."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[Field]] = {}
        for field, value in fields(data):
            self._fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        """The last value of a field of an unsigned or boolean type."""
        value = self._fields.get(field, [0])[-1]
        if isinstance(value, bytes):
            raise Malformed
        return value

    def signed(self, field: int) -> int:
        """The last value of a field of type int32 or int64, or of an unsigned one that holds a negative number."""
        return signed(self.number(field))

    def octets(self, field: int) -> bytes:
        """The last value of a field of type bytes."""
        value = self._fields.get(field, [b""])[-1]
        if isinstance(value, int):
            raise Malformed
        return value

    def text(self, field: int) -> str:
        """The last value of a field of type string."""
        return self.octets(field).decode(errors="replace")

    def has(self, field: int) -> bool:
        """Whether the field was sent; a message without content is sent too."""
        return field in self._fields

    def message(self, field: int) -> "Message":
        """The last value of a field of a message type."""
        return Message(self.octets(field))

    def each(self, field: int) -> Iterator[bytes]:
        """All values of a repeated field of type bytes, string or of a message."""
        for value in self._fields.get(field, ()):
            if isinstance(value, int):
                raise Malformed
            yield value

    def messages(self, field: int) -> Iterable["Message"]:
        """All values of a repeated field of a message type."""
        return map(Message, self.each(field))


def signed(value: int) -> int:
    """A 64 bit number in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """The number that a sint32 or sint64 stands for."""
    return (value >> 1) ^ -(value & 1)
