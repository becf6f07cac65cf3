"""Streams a result as a file, optionally compressed. The text formats are in `encoder.py`."""

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, closing, suppress
from functools import partial
from hashlib import sha256
from typing import Protocol
from uuid import UUID

import pyarrow as pa

from queryserver.errors.base import ServiceUnavailable
from queryserver.formats.arrow import Column, without_dictionaries
from queryserver.formats.download.columnar import ArrowEncoder, FileSchema, ParquetEncoder, common_schema
from queryserver.formats.download.encoder import (
    END_OF_STREAM,
    ContentCoding,
    CsvEncoder,
    DownloadFormat,
    Encoder,
    FileForm,
    JsonLinesEncoder,
    PackedRows,
    ResultSource,
    WriteBuffer,
)
from queryserver.formats.download.xlsx import XlsxEncoder, XlsxLimits, XlsxStreamEncoder

# The usual size of a segment, so that a segment is read at once. The server holds each yielded piece until it is sent.
_READ_BYTES = 4 * 1024 * 1024
_PART_BYTES = 1024 * 1024


class PackedStream:
    """An Arrow IPC stream that is assembled from a schema and stored segments, which must have the same types."""

    def __init__(self, schema: pa.Schema, segments: Sequence[PackedRows]) -> None:
        self._head = schema.serialize().to_pybytes()
        self._segments = segments
        self.size_bytes = len(self._head) + sum(one.batches_bytes for one in segments) + len(END_OF_STREAM)

    @property
    def weight(self) -> int:
        """The approximate memory use in bytes."""
        return 2 * len(self._head) + 512 * len(self._segments)

    def entity_tag(self, operation_id: UUID) -> str:
        """Return a strong entity tag, in quotes. It includes no library versions, because segments never change."""
        return f'"{operation_id}-arrow-lz4-{sha256(self._head).hexdigest()[:16]}"'

    async def pieces(self, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Yield the bytes [start, start + length) of the stream; by default, the whole stream.

        Raises ServiceUnavailable if a segment is shorter than recorded, and errors of the segment store.
        """
        stop = self.size_bytes if length is None else start + length
        # The head is sent together with the first rows, so that a store failure can still be reported as a response.
        head = self._head[start:stop]
        position = len(self._head)
        for segment in self._segments:
            first, last = max(start - position, 0), min(stop - position, segment.batches_bytes)
            position += segment.batches_bytes
            for begin in range(first, last, _READ_BYTES):
                content = head + await _read(segment, begin, min(begin + _READ_BYTES, last))
                head = b""
                for place in range(0, len(content), _PART_BYTES):
                    yield content[place : place + _PART_BYTES]
        if end := head + END_OF_STREAM[max(start - position, 0) : max(stop - position, 0)]:
            yield end


async def _read(segment: PackedRows, start: int, stop: int) -> bytes:
    """Read the bytes [start, stop) of the messages that contain rows."""
    content = await segment.read(len(segment.head) + start, len(segment.head) + stop)
    if len(content) != stop - start:
        raise ServiceUnavailable("A stored segment is incomplete.")
    return content


def packed_stream(columns: tuple[Column, ...], segments: Sequence[PackedRows]) -> PackedStream | None:
    """Combine stored segments into one stream. Blocks.

    Return None if there are no segments, or if their types differ from each other or from `common_schema`.
    """
    if not segments:
        return None
    schemas = [pa.ipc.read_schema(pa.py_buffer(head)) for head in dict.fromkeys(segment.head for segment in segments)]
    common = common_schema(columns, schemas)
    if any(schema.types != common.types for schema in schemas):
        return None
    return PackedStream(common, segments)


_GZIP_LEVEL = 4
"""For 20 MB of CSV, level 1 takes 0.19 s (result: 6.8 MB), level 4 0.36 s (6.1 MB) and level 6 0.89 s (5.5 MB)."""
_GZIP_WINDOW = 31
"""zlib's `wbits` for the largest window and a gzip header, whose timestamp is 0."""
_MEMBER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*[qQ]\s*=\s*([0-9.]{1,6})\s*)?")


_BY_PREFERENCE = (ContentCoding.ZSTD, ContentCoding.GZIP, ContentCoding.IDENTITY)
_OTHER_NAMES = {"x-gzip": "gzip"}
_PARQUET_CODEC = "snappy"
_BATCH_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
_SENT_BYTES = 1024 * 1024


class Compressor(Protocol):
    """Compresses one stream. Methods block."""

    def compress(self, piece: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def preferred_coding(accept_encoding: str) -> ContentCoding:
    """Return the coding with the highest weight in `Accept-Encoding`. Among equal weights, prefer zstd, then gzip, then
    identity.

    Return identity if the header is empty or accepts none of these codings.
    """
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        if match := _MEMBER.fullmatch(member):
            name = match[1].lower()
            weight = 1.0
            if match[2]:
                try:
                    weight = min(float(match[2]), 1.0)
                except ValueError:
                    weight = 0.0
            weights[_OTHER_NAMES.get(name, name)] = weight
    if not weights:
        return ContentCoding.IDENTITY
    rest = weights.get("*")
    ranked = {coding: weights.get(coding.value, rest) for coding in _BY_PREFERENCE}
    if ranked[ContentCoding.IDENTITY] is None:
        # Identity is acceptable unless it is excluded, but any coding that the client names is preferred.
        ranked[ContentCoding.IDENTITY] = 0.0005
    best = max(_BY_PREFERENCE, key=lambda coding: ranked[coding] or 0.0)
    return best if ranked[best] else ContentCoding.IDENTITY


def compress_download(encoder: Encoder, coding: ContentCoding) -> Encoder:
    """Wrap an encoder with a content coding. The same file always gives the same bytes."""
    match coding:
        case ContentCoding.GZIP:
            return _Compressed(encoder, zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW))
        case ContentCoding.ZSTD:
            return _Compressed(encoder, _Zstandard())
        case ContentCoding.IDENTITY:
            return encoder


class _Compressed(Encoder):
    def __init__(self, encoder: Encoder, compressor: Compressor) -> None:
        self._encoder = encoder
        self._compressor = compressor

    def start(self) -> bytes:
        return self._compressor.compress(self._encoder.start())

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return self._compressor.compress(self._encoder.rows(batch))

    def end(self) -> bytes:
        return self._compressor.compress(self._encoder.end()) + self._compressor.flush()

    def close(self) -> None:
        self._encoder.close()


class _Zstandard:
    """Writes one Zstandard frame, using the library that is bundled with Arrow."""

    def __init__(self) -> None:
        self._sink = WriteBuffer()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, mode="w"), "zstd")

    def compress(self, piece: bytes, /) -> bytes:
        self._stream.write(piece)
        return self._sink.take()

    def flush(self) -> bytes:
        self._stream.close()
        return self._sink.take()


async def download(result: ResultSource, form: FileForm, *, threads: Executor) -> AsyncGenerator[bytes]:
    """Yield the file in pieces. The caller must close the iterator. The same result always gives the same bytes.

    Rows are encoded in `threads`. The first piece is yielded only after the first rows have been encoded, so that
    earlier errors can still be reported as a response: InvalidParameter if a limit of xlsx is exceeded, and errors of
    the result store. A later error means that the file is incomplete.
    """
    encoder = compress_download(await _encoder(result, form, threads), form.coding)
    with closing(BackgroundEncoder(encoder, threads)) as work:
        piece, loop = b"", asyncio.get_running_loop()
        async with aclosing(result.tables()) as tables:
            async for table in tables:
                for part in await loop.run_in_executor(threads, slices, table):
                    piece += await work.add(part)
                    if len(piece) >= _PIECE_BYTES:
                        for sent in _sent_pieces(piece):
                            yield sent
                        piece = b""
        piece += await work.finish()
        for sent in _sent_pieces(piece):
            yield sent


async def packed(result: ResultSource, *, threads: Executor) -> PackedStream | None:
    """Return the stored segments as one Arrow stream, or None if a download must convert the rows."""
    async with aclosing(result.packed()) as found:
        segments = [one async for one in found]
    return await asyncio.get_running_loop().run_in_executor(threads, packed_stream, result.columns, segments)


class BackgroundEncoder:
    """Encodes the next rows in a thread while the previous rows are being sent."""

    def __init__(self, encoder: Encoder, threads: Executor) -> None:
        self._encoder = encoder
        self._threads = threads
        self._work = threads.submit(encoder.start)

    async def then(self, call: Callable[[], bytes]) -> bytes:
        """Start `call` in a thread, and return the result of the previous call."""
        done = await self.last()
        self._work = self._threads.submit(call)
        return done

    async def add(self, rows: pa.Table) -> bytes:
        """Start to encode these rows, and return the result of the previous call."""
        return await self.then(partial(_encode, self._encoder, rows))

    async def finish(self) -> bytes:
        """Encode the end of the file, and return all remaining bytes."""
        done = await self.then(self._encoder.end)
        return done + await self.last()

    async def last(self) -> bytes:
        return await asyncio.wrap_future(self._work)

    def close(self) -> None:
        """Close the encoder as soon as no thread is using it."""
        self._work.cancel()
        self._work.add_done_callback(lambda _: self._encoder.close())


async def _encoder(result: ResultSource, form: FileForm, threads: Executor) -> Encoder:
    columns = result.columns
    if (encoder := _text_encoder(columns, form)) is not None:
        return encoder
    if form.format is DownloadFormat.XLSX:
        # A cell that is too long must be detected before the first byte is sent, so the result is read twice.
        limits = XlsxLimits(columns, result.rows)
        loop = asyncio.get_running_loop()
        async with aclosing(result.tables()) as tables:
            async for table in tables:
                for part in await loop.run_in_executor(threads, slices, table):
                    await loop.run_in_executor(threads, _check, limits, part)
        return XlsxEncoder(columns, result.rows, widths=limits.widths, is_huge=limits.is_huge)
    async with aclosing(result.schemas()) as found:
        seen = [one async for one in found]
    schema = await asyncio.get_running_loop().run_in_executor(threads, common_schema, columns, seen)
    return _typed_encoder(columns, form, schema)


def _text_encoder(columns: tuple[Column, ...], form: FileForm) -> Encoder | None:
    """Return the encoder of a text format, or None for other formats."""
    match form.format:
        case DownloadFormat.CSV | DownloadFormat.TSV:
            separator = "," if form.format is DownloadFormat.CSV else "\t"
            return CsvEncoder(columns, separator=separator, guard=form.guard, has_header=form.has_header)
        case DownloadFormat.NDJSON:
            return JsonLinesEncoder(columns)
        case _:
            return None


def _typed_encoder(columns: tuple[Column, ...], form: FileForm, schema: pa.Schema) -> Encoder:
    if form.format is DownloadFormat.PARQUET:
        return ParquetEncoder(columns, schema, codec=form.codec or _PARQUET_CODEC)
    codec = form.codec if form.codec != "none" else ""
    return ArrowEncoder(columns, schema, is_file=form.format is DownloadFormat.FEATHER, codec=codec or None)


class _StreamedEncoder(Encoder):
    """Encodes typed columns whose types are known only when rows arrive."""

    def __init__(self, schema: FileSchema, make: Callable[[pa.Schema], Encoder]) -> None:
        self._schema = schema
        self._make = make
        self._encoder: Encoder | None = None

    def rows(self, batch: pa.RecordBatch) -> bytes:
        self._schema.admit(batch.schema)
        encoder, start = self._begun()
        return start + encoder.rows(batch)

    def end(self) -> bytes:
        encoder, start = self._begun()
        return start + encoder.end()

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()

    def _begun(self) -> tuple[Encoder, bytes]:
        if self._encoder is not None:
            return self._encoder, b""
        self._encoder = self._make(self._schema.schema)
        return self._encoder, self._encoder.start()


class FileEncoders:
    """Creates the encoders of one or more files of the same form, whose rows arrive one batch at a time.

    `known` are the types of all batches, if they are known in advance. Otherwise, the first batch determines the types
    of typed files, and later rows that do not fit raise InvalidParameter.
    """

    def __init__(self, columns: tuple[Column, ...], form: FileForm, known: Sequence[pa.Schema] = ()) -> None:
        self._columns = columns
        self._form = form
        self._schema = FileSchema(columns, known)

    def encoder(self) -> Encoder:
        """Return the encoder of the next file. Blocks."""
        return compress_download(self._plain(), self._form.coding)

    def _plain(self) -> Encoder:
        columns, form = self._columns, self._form
        if (encoder := _text_encoder(columns, form)) is not None:
            return encoder
        if form.format is DownloadFormat.XLSX:
            return XlsxStreamEncoder(columns)
        return _StreamedEncoder(self._schema, partial(_typed_encoder, columns, form))


def _sent_pieces(piece: bytes) -> Iterator[bytes]:
    """Split a piece for sending, because the server holds each part until it is sent."""
    for start in range(0, len(piece), _SENT_BYTES):
        yield piece[start : start + _SENT_BYTES]


def slices(table: pa.Table) -> list[pa.Table]:
    """Slice a table into parts of about 1 MiB. A canceled download waits until one part has been encoded.

    Blocks: computing the size of many small blocks takes milliseconds.
    """
    rows = max(1, table.num_rows * _BATCH_BYTES // max(1, table.nbytes))
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def _encode(encoder: Encoder, part: pa.Table) -> bytes:
    return b"".join([encoder.rows(batch) for batch in _batches(part)])


def _check(limits: XlsxLimits, part: pa.Table) -> None:
    for batch in _batches(part):
        limits.check(batch)


def _batches(part: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield one batch with all rows if Arrow can combine the stored blocks, because small batches slow down readers."""
    with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):  # Arrow cannot combine blocks that contain unions
        part = part.combine_chunks()
    return map(without_dictionaries, part.to_batches())
