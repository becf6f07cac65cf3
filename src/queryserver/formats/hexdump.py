"""Bytes for people: 16 a line, as numbers and as text (Contract storage 5.3)."""

_LINE_BYTES = 16
_PRINTABLE = bytes(byte if 0x20 <= byte <= 0x7E else ord(".") for byte in range(256))
_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\"}


def hexdump(content: bytes, offset: int) -> bytes:
    """A JSON array of lines `[offset, words of two bytes, printable text]`; `content` begins at `offset`.

    Written at once: as lists a megabyte would be 600,000 objects, and some seconds of collecting garbage.
    """
    printable = content.translate(_PRINTABLE).decode("ascii")
    lines = [
        _LINES[len(line)] % (offset + start, *line, printable[start : start + _LINE_BYTES].translate(_ESCAPED))
        for start in range(0, len(content), _LINE_BYTES)
        if (line := content[start : start + _LINE_BYTES])
    ]
    return f"[{','.join(lines)}]".encode()


def _line_of(size: int) -> str:
    words = ["[%d,%d]"] * (size // 2) + ["[%d]"] * (size % 2)
    return f'[%d,[{",".join(words)}],"%s"]'


_LINES = [_line_of(size) for size in range(_LINE_BYTES + 1)]
