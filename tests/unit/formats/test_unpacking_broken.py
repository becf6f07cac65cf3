"""Broken files: every failure is told as one, and costs no memory that stays."""

import gc
import io
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes.long_directory import resident_bytes

from queryserver.domain.errors import DecompressionFailed
from queryserver.formats.unpacking.codecs import Codec
from queryserver.formats.unpacking.parquet import parquet_lines
from queryserver.formats.unpacking.unpackers import unpacker

HERE = Path(__file__).parent
MIB = 1024 * 1024
SYNC_BYTES = 16


@pytest.mark.storage(44)
def test_an_index_without_a_dictionary_is_broken_data() -> None:
    """A page of a dictionary lost its values, which Arrow finds out only when they are used."""
    content = (HERE / "parquet" / "index_out_of_bounds.parquet").read_bytes()
    with pytest.raises(DecompressionFailed):
        list(parquet_lines(io.BytesIO(content)))


@pytest.mark.security("S10")
def test_broken_zstandard_blocks_leave_no_memory_behind() -> None:
    packed = avro_with(pa.Codec("zstd").compress(bytes(7 * MIB), asbytes=True) + b"no frame")
    fail(packed)
    gc.collect()
    before = resident_bytes()
    for _ in range(40):
        fail(packed)
    gc.collect()
    assert resident_bytes() - before < 100 * MIB


def avro_with(block: bytes) -> bytes:
    """A file of one such block, which says that it holds one record."""
    whole = (HERE / "avro" / "zstandard.avro").read_bytes()
    sync = whole[-SYNC_BYTES:]
    header = whole[: whole.index(sync) + SYNC_BYTES]
    return header + number(1) + number(len(block)) + block + sync


def number(value: int) -> bytes:
    """As Avro writes a number that is not negative."""
    value, made = value << 1, bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def fail(packed: bytes) -> None:
    """The failure is that of the block."""
    made = unpacker(Codec.AVRO, size_bytes=len(packed), limit_bytes=64 * MIB)
    assert made is not None
    with pytest.raises(DecompressionFailed, match="cannot be unpacked"):
        list(made.feed(packed))
