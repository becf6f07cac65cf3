"""The three ways in which files hold snappy data, told from their first bytes."""

from enum import StrEnum

FRAMED_START = b"\xff\x06\x00\x00sNaPpY"
"""A stream identifier chunk (framing_format.txt of snappy)."""

# A copy of three bytes stands for at most 64; a block can grow by a sixth and 32 bytes (snappy.h: MaxCompressedLength).
_MOST_GROWTH = 22
_MAX_LENGTH = 2**32 - 1


class SnappyForm(StrEnum):
    """`FRAMED`: chunks with check sums, `.sz`. `HADOOP`: blocks with lengths, as Hadoop's codec writes. `RAW`: one."""

    FRAMED = "framed"
    HADOOP = "hadoop"
    RAW = "raw"


def snappy_form(head: bytes, size_bytes: int) -> SnappyForm | None:
    """Which form a file of `size_bytes` that begins with `head` has; None: it holds no snappy data."""
    if head.startswith(FRAMED_START):
        return SnappyForm.FRAMED
    if is_raw_start(head, size_bytes):
        return SnappyForm.RAW
    return SnappyForm.HADOOP if _is_hadoop_start(head, size_bytes) else None


def is_raw_start(head: bytes, size_bytes: int) -> bool:
    """Whether a raw block of `size_bytes` can begin so: its length, then literals and copies of what came before."""
    preamble = raw_length(head)
    if preamble is None:
        return False
    length, begin = preamble
    if size_bytes > 32 + length + length // 6 or length > _MOST_GROWTH * size_bytes:
        return False
    place, made = begin, 0
    while (step := _step(head, place)) is not None:
        size, count, distance = step
        place, made = place + size, made + count
        if place > size_bytes or made > length or not 0 <= distance <= made - count:
            return False
    return made == length if place == size_bytes else made < length


def _step(head: bytes, place: int) -> tuple[int, int, int] | None:
    """One element: its bytes, the bytes that it makes, how far back it copies from (0: a literal).

    A copy from nowhere is -1. None where the head ends before the element says all that.
    """
    if place >= len(head):
        return None
    tag, kind = head[place] >> 2, head[place] & 0b11
    if kind == 0:
        further = max(tag - 59, 0)
        count = 1 + (int.from_bytes(head[place + 1 : place + 1 + further], "little") if further else tag)
        return (1 + further + count, count, 0) if place + 1 + further <= len(head) else None
    further = (1, 2, 4)[kind - 1]
    if place + 1 + further > len(head):
        return None
    low = int.from_bytes(head[place + 1 : place + 1 + further], "little")
    distance, count = (low | tag >> 3 << 8, 4 + (tag & 0b111)) if kind == 1 else (low, tag + 1)
    return 1 + further, count, distance or -1


def raw_length(block: bytes) -> tuple[int, int] | None:
    """How long the data of a raw block are, and how many bytes tell it; None: this is no length."""
    length = 0
    for place, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (length, place + 1) if length <= _MAX_LENGTH else None
    return None


def _is_hadoop_start(head: bytes, size_bytes: int) -> bool:
    """Length of the data of a block, length of its first raw part, the part: numbers of 32 bits, big end first."""
    if len(head) < 8:
        return head == bytes(4) and size_bytes == 4
    whole, part = int.from_bytes(head[:4]), int.from_bytes(head[4:8])
    if whole == 0 or part == 0 or part > size_bytes - 8:
        return False
    preamble = raw_length(head[8:])
    return preamble is not None and 0 < preamble[0] <= whole and is_raw_start(head[8 : 8 + part], part)
