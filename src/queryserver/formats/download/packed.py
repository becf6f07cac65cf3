"""Stored segments as one Arrow stream, their rows packed as they are: nothing is unpacked, joined or packed again.

The stream is a schema, the messages of every segment without its own schema and end, and an end. Its size is known
before a row is read, and a part of it costs no more than its own segments.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pyarrow as pa

from queryserver.errors.base import ServiceUnavailable

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A stored segment: an IPC stream of `size_bytes`, whose first `head_bytes` are its schema.

    `content` gives its bytes, which are in memory while inside.
    """

    schema: pa.Schema
    head_bytes: int
    size_bytes: int
    content: Callable[[], AbstractAsyncContextManager[bytes]]

    @property
    def batches_bytes(self) -> int:
        """The size of its messages of rows."""
        return self.size_bytes - self.head_bytes - len(END_OF_STREAM)


class PackedStream:
    """The segments of a result, all of whose columns have the types of `schema`."""

    def __init__(self, schema: pa.Schema, segments: Sequence[PackedRows]) -> None:
        self._head = schema.serialize().to_pybytes()
        self._segments = segments
        self.size_bytes = len(self._head) + sum(one.batches_bytes for one in segments) + len(END_OF_STREAM)

    async def pieces(self, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """The bytes [start, start + length), by default all. Raises what the store of the segments does.

        Raises ServiceUnavailable when a segment has another size than its record says.
        """
        stop = self.size_bytes if length is None else start + length
        # Goes with the first rows: until they are read, a failure of the store can still be the answer.
        head = self._head[start:stop]
        position = len(self._head)
        for segment in self._segments:
            first, last = max(start - position, 0), min(stop - position, segment.batches_bytes)
            position += segment.batches_bytes
            if first >= last:
                continue
            async with segment.content() as content:
                if len(content) != segment.size_bytes:
                    raise ServiceUnavailable("A stored segment is damaged.")
                for piece in _within(content, segment.head_bytes + first, segment.head_bytes + last):
                    yield head + piece if head else piece
                    head = b""
        if end := head + END_OF_STREAM[max(start - position, 0) : max(stop - position, 0)]:
            yield end


def packed_stream(schema: pa.Schema, segments: Sequence[PackedRows]) -> PackedStream | None:
    """None: a column has another type in some segment, which must be converted."""
    if not segments or any(segment.schema.types != schema.types for segment in segments):
        return None
    return PackedStream(schema, segments)


def _within(content: bytes, start: int, stop: int) -> Iterator[bytes]:
    """The bytes of `content` in [start, stop), in pieces of at most 1 MiB: a sender keeps one until it is taken."""
    for begin in range(start, stop, _PIECE_BYTES):
        yield content[begin : min(begin + _PIECE_BYTES, stop)]
