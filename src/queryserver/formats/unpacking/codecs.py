"""What files may be packed with, and how it is recognised (Contract storage 5.3)."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

from queryserver.formats.unpacking.snappy_forms import snappy_form

OUTPUT_BYTES = 64 * 1024
"""Largest piece that an unpacker gives: what a bomb can make of memory at a time."""

_GZIP = b"\x1f\x8b"
_BZ2 = b"BZh"
_AVRO = b"Obj\x01"
_PARQUET = b"PAR1"
_SNAPPY_NAMES = (".snappy", ".sz")


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
