"""Bytes for people: 16 a line, as numbers and as text (Contract storage 5.3)."""

_LINE_BYTES = 16
_PRINTABLE = bytes(byte if 0x20 <= byte <= 0x7E else ord(".") for byte in range(256))

Line = tuple[int, list[list[int]], str]
"""Offset of the first byte, words of two bytes, the printable text."""


def hexdump(content: bytes, offset: int) -> list[Line]:
    """The lines of `content`, whose first byte stands at `offset`."""
    printable = content.translate(_PRINTABLE).decode("ascii")
    return [
        (offset + start, _words(content[start : start + _LINE_BYTES]), printable[start : start + _LINE_BYTES])
        for start in range(0, len(content), _LINE_BYTES)
    ]


def _words(line: bytes) -> list[list[int]]:
    return [list(line[start : start + 2]) for start in range(0, len(line), 2)]
