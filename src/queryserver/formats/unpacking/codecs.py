"""What files may be packed with, and how it is recognised (Contract storage 5.3)."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

OUTPUT_BYTES = 64 * 1024
"""Largest piece that an unpacker gives: what a bomb can make of memory at a time."""

_GZIP = b"\x1f\x8b"
_BZ2 = b"BZh"
_AVRO = b"Obj\x01"
_PARQUET = b"PAR1"
_SNAPPY_NAMES = (".snappy", ".sz")

FRAMED_START = b"\xff\x06\x00\x00sNaPpY"
"""A stream identifier chunk (framing_format.txt of snappy)."""

# A copy of three bytes stands for at most 64; a block can grow by a sixth and 32 bytes (snappy.h: MaxCompressedLength).
_MOST_GROWTH = 22
_MAX_LENGTH = 2**32 - 1


class Codec(StrEnum):
    """How a file is to be shown."""

    NONE = "none"
    GZIP = "gzip"
    BZ2 = "bz2"
    AVRO = "avro"
    PARQUET = "parquet"
    SNAPPY = "snappy"


class Unpacker(Protocol):
    """Turns a packed file into the bytes to be shown. Work for a thread, one call at a time.

    Both calls raise DecompressionFailed, DecompressionLimit.
    """

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What the next piece of the file gives, in pieces of some 64 KiB."""
        ...

    def end(self) -> Iterator[bytes]:
        """What is left. Raises DecompressionFailed when the file ends too early."""
        ...


def head_bytes(name: str) -> int:
    """How much of the beginning of a file `detect` looks at: raw snappy has no mark, so more of it must fit."""
    return 4096 if name.lower().endswith(_SNAPPY_NAMES) else 16


def detect(name: str, head: bytes, size_bytes: int) -> Codec:
    """What a file called `name` is packed with, by its name and its first `head_bytes(name)` bytes."""
    lowered = name.lower()
    if head.startswith(_PARQUET):
        return Codec.PARQUET
    if lowered.endswith(".gz") and head.startswith(_GZIP):
        return Codec.GZIP
    if lowered.endswith((".bz2", ".bzip2")) and head.startswith(_BZ2):
        return Codec.BZ2
    if lowered.endswith(".avro") and head.startswith(_AVRO):
        return Codec.AVRO
    if lowered.endswith(_SNAPPY_NAMES) and snappy_form(head, size_bytes) is not None:
        return Codec.SNAPPY
    return Codec.NONE


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
