"""Stored segments as one Arrow stream, their rows packed as they are: nothing is unpacked, joined or packed again.

The stream is a schema, the messages of every segment without its own schema and end, and an end. Its size is known
before a row is read, and a part of it costs no more than its own bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from hashlib import sha256
from uuid import UUID

import pyarrow as pa

from queryserver.errors.base import ServiceUnavailable
from queryserver.formats.columns import Column
from queryserver.formats.download.columnar import common_schema
from queryserver.formats.download.encoder import END_OF_STREAM, PackedRows

# What is read at a time: a segment of usual size. A sender keeps a piece until it is taken.
_READ_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


class PackedStream:
    """The segments of a result, whose columns have one type each in all of them, behind a schema."""

    def __init__(self, schema: pa.Schema, segments: Sequence[PackedRows]) -> None:
        self._head = schema.serialize().to_pybytes()
        self._segments = segments
        self.size_bytes = len(self._head) + sum(one.batches_bytes for one in segments) + len(END_OF_STREAM)

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        return 2 * len(self._head) + 512 * len(self._segments)

    def entity_tag(self, operation_id: UUID) -> str:
        """A strong tag, in quotes: the segments never change, so servers of other versions send the same bytes."""
        return f'"{operation_id}-arrow-lz4-{sha256(self._head).hexdigest()[:16]}"'

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
            for begin in range(first, last, _READ_BYTES):
                content = head + await _read(segment, begin, min(begin + _READ_BYTES, last))
                head = b""
                for place in range(0, len(content), _PIECE_BYTES):
                    yield content[place : place + _PIECE_BYTES]
        if end := head + END_OF_STREAM[max(start - position, 0) : max(stop - position, 0)]:
            yield end


async def _read(segment: PackedRows, start: int, stop: int) -> bytes:
    """Bytes of its messages of rows."""
    content = await segment.read(len(segment.head) + start, len(segment.head) + stop)
    if len(content) != stop - start:
        raise ServiceUnavailable("A stored segment is incomplete.")
    return content


def packed_stream(columns: tuple[Column, ...], segments: Sequence[PackedRows]) -> PackedStream | None:
    """None where a download must convert: a column has another type in some segment, or in what Parquet can hold.

    Work for a thread.
    """
    if not segments:
        return None
    schemas = [pa.ipc.read_schema(pa.py_buffer(head)) for head in dict.fromkeys(segment.head for segment in segments)]
    common = common_schema(columns, schemas)
    if any(schema.types != common.types for schema in schemas):
        return None
    return PackedStream(common, segments)
