"""The check sum of snappy's frames: CRC-32C (Castagnoli), reflected, in steps of 16 bits."""

from array import array
from collections.abc import Sequence
from functools import cache

_POLYNOMIAL = 0x82F63B78


@cache
def _steps() -> Sequence[int]:
    """What two bytes do to the sum: 65,536 entries, made once."""
    single = [_single(value) for value in range(256)]
    table = array("L")
    for value in range(65536):
        total = (value >> 8) ^ single[value & 0xFF]
        table.append((total >> 8) ^ single[total & 0xFF])
    return table


def masked_crc32c(content: bytes) -> int:
    """The sum as frames hold it: turned by 15 bits and moved (framing_format.txt, section 3)."""
    total = crc32c(content)
    return (((total >> 15) | (total << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """The plain sum."""
    steps = _steps()
    total = 0xFFFFFFFF
    even = len(content) & ~1
    for pair in memoryview(content)[:even].cast("H"):
        total = (total >> 16) ^ steps[(total ^ pair) & 0xFFFF]
    if even != len(content):
        # `steps` moves by two bytes; the last one is moved by itself.
        total = (total >> 8) ^ _single(total ^ content[-1])
    return total ^ 0xFFFFFFFF


def _single(value: int) -> int:
    total = value & 0xFF
    for _ in range(8):
        total = (total >> 1) ^ (_POLYNOMIAL if total & 1 else 0)
    return total
