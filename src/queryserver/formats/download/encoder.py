"""What a download needs, what it is made by, and what the formats share."""

import io
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import pyarrow as pa

from queryserver.domain.result import Column


class ResultSource(Protocol):
    """A finished result that can be read more than once."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """In order; every table has one field for each, in this order, under whatever name."""
        ...

    @property
    def rows(self) -> int:
        """How many rows all tables have together."""
        ...

    def tables(self) -> AsyncGenerator[pa.Table]:
        """All rows, in order. The Arrow type of a column may differ from table to table."""
        ...

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """The schemas of `tables`, where that is cheaper than reading them; each at least once, in any order."""
        ...


class Encoder(Protocol):
    """One file in the making. Everything here is work for a thread, one call at a time."""

    def start(self) -> bytes:
        """The first bytes."""
        ...

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """The next bytes; none while they are collected. No column is dictionary-encoded."""
        ...

    def end(self) -> bytes:
        """The last bytes."""
        ...

    def close(self) -> None:
        """Let go of everything, also when the file was not finished. Idempotent."""
        ...


class Drain(io.RawIOBase):
    """Takes what a library writes, until it is fetched."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        """True: this is all it can do."""
        return True

    def write(self, piece: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Keep a copy; the caller may reuse its buffer."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def unique_names(names: Sequence[str]) -> list[str]:
    """Names with `_2`, `_3`, … at repeated ones. A name that is there once stays as it is."""
    taken = set(names)
    seen: set[str] = set()
    unique: list[str] = []
    for name in names:
        chosen, number = name, 2
        if name in seen:
            while (chosen := f"{name}_{number}") in taken:
                number += 1
            taken.add(chosen)
        seen.add(name)
        unique.append(chosen)
    return unique
