"""Reads each workbook or record file in a separate worker process, to limit the damage that a malicious file can do."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from queryserver import errors
from queryserver.errors.base import QueryServerError, TooManyRequests
from queryserver.formats.table_files import FileType, TypedText
from queryserver.workbooks import frames


@dataclass(frozen=True, slots=True)
class SheetRows:
    """The first rows of a worksheet."""

    rows: Sequence[Sequence[TypedText]]
    is_whole: bool
    """Whether the worksheet has no more rows."""
    without_value: tuple[int, Sequence[int]] = (0, ())
    """How many rows have a formula without a stored value, and the numbers (starting at 1) of the first ten."""
    positions: Sequence[int] = ()
    """The positions in the sheet, starting at 0, of the first rows (at most 200)."""
    skipped: int = 0
    """How many rows at the start of the sheet were skipped."""


ReadAt = Callable[[int, int], Awaitable[bytes]]
"""A function of `offset` and `length` that returns up to `length` bytes of a file, starting at `offset`."""


log = structlog.get_logger(__name__)

_PROGRAM = "from queryserver.workbooks.worker import main; main()"
_SLOT_WAIT_S = 60
_LARGE_BYTES = 512 * 1024
"""Frames from this size on are parsed in a thread, because each MiB blocks the event loop for about 10 ms."""

_KNOWN_ERRORS = (
    errors.CodecNotAvailable,
    errors.DecompressionFailed,
    errors.DecompressionLimit,
    errors.FileCorrupt,
    errors.file_empty,
    errors.file_encrypted,
    errors.FileTooComplex,
    errors.format_mismatch,
    errors.record_too_long,
    errors.sheet_not_found,
    errors.too_many_columns,
)
_WITH_MESSAGE = {kind.code: kind for kind in _KNOWN_ERRORS}
_WITHOUT_MESSAGE = {kind().code: kind for kind in (errors.UnsupportedFormat, errors.import_file_not_found)}

_Frame = tuple[bytes, bytes]


class ProcessWorkbooks:
    """Reads workbooks and record files on the local disk, and Avro and Parquet files in stores.

    Up to `processes` previews and the same number of full reads run concurrently. Files are parsed only in the workers;
    this process receives the values.
    """

    def __init__(self, *, processes: int = 2) -> None:
        self.processes = processes
        self._previews = asyncio.Semaphore(processes)
        self._readings = asyncio.Semaphore(processes)
        self._running: set[asyncio.subprocess.Process] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in list(self._running):
            await _end(process)

    async def sheet_names(self, path: Path) -> Sequence[str]:
        """Return the names of the worksheets in workbook order, including hidden sheets but not chart sheets."""
        async with self._preview_slot(), aclosing(self._frames({"path": str(path)})) as answer:
            async for kind, body in answer:
                if kind == frames.NAMES:
                    return json.loads(body)
        raise _unexpected_answer("names")

    async def first_rows(self, path: Path, sheet: str, *, limit: int, skip: int = 0) -> SheetRows:
        """Return at most `limit` non-empty rows after the sheet's first `skip` rows. All returned rows have the same
        width.

        Raises sheet_not_found.
        """
        rows: frames.Rows = []
        request: frames.WorkerRequest = {"path": str(path), "sheet": sheet, "limit": limit, "skip": skip}
        async with self._preview_slot(), aclosing(self._frames(request)) as answer:
            async for kind, body in answer:
                if kind == frames.END:
                    is_whole, count, numbers, positions = json.loads(body)
                    return SheetRows(rows, is_whole, (count, numbers), positions[: len(rows)], skip)
                rows += await _decode_rows(body)
        raise _unexpected_answer("rows")

    async def rows(self, path: Path, sheet: str, *, skip: int = 0) -> AsyncGenerator[Sequence[Sequence[TypedText]]]:
        """Yield all non-empty rows after the sheet's first `skip` rows, a few hundred at a time, in bounded memory.

        Raises sheet_not_found.
        """
        request: frames.WorkerRequest = {"path": str(path), "sheet": sheet, "skip": skip}
        async with self._readings, aclosing(self._frames(request)) as answer:
            async for kind, body in answer:
                if kind == frames.END:
                    return
                yield await _decode_rows(body)
        raise _unexpected_answer("rows")

    async def record_preview(self, path: Path, kind: FileType) -> Mapping[str, Any]:
        """Return the columns and first rows of a record file: an Analysis as a dict.

        This method and `record_batches` also raise format_mismatch, file_empty, too_many_columns and record_too_long.
        """
        request: frames.WorkerRequest = {"path": str(path), "records": kind}
        async with self._preview_slot(), aclosing(self._frames(request)) as answer:
            async for found, body in answer:
                if found == frames.PREVIEW:
                    return await asyncio.to_thread(json.loads, body)
        raise _unexpected_answer("preview")

    async def record_batches(
        self, path: Path, kind: FileType, fields: Sequence[str]
    ) -> AsyncGenerator[frames.RecordPortion]:
        """Yield all rows of a record file in bounded memory. Raises FileCorrupt if its column names are not
        `fields`.
        """
        request: frames.WorkerRequest = {"path": str(path), "records": kind, "fields": fields}
        async with self._readings, aclosing(self._frames(request)) as answer:
            async for found, body in answer:
                if found == frames.END:
                    return
                try:
                    yield await asyncio.to_thread(frames.decode_batch, body)
                except ValueError:
                    raise _unexpected_answer("batches") from None
        raise _unexpected_answer("batches")

    async def avro_lines(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the records of an Avro file, given as a stream of chunks, as JSON Lines in chunks of about 64 KiB.

        Raises the errors of `pieces`, DecompressionFailed, CodecNotAvailable, FileTooComplex and TooManyRequests.
        """
        answer = self._frames({"path": None, "records": FileType.AVRO}, pieces=pieces)
        async with aclosing(self._lines(answer)) as lines:
            async for made in lines:
                yield made

    async def parquet_lines(self, read_at: ReadAt, size_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the rows of a Parquet file as JSON Lines in chunks of about 64 KiB.

        Raises the errors of `read_at`, DecompressionFailed, DecompressionLimit, FileTooComplex and TooManyRequests.
        """
        request: frames.WorkerRequest = {"path": None, "records": FileType.PARQUET, "size_bytes": size_bytes}
        answer = self._frames(request, read_at=read_at)
        async with aclosing(self._lines(answer)) as lines:
            async for made in lines:
                yield made

    async def _lines(self, frames_of_worker: AsyncGenerator[_Frame]) -> AsyncGenerator[bytes]:
        async with self._preview_slot(), aclosing(frames_of_worker) as answer:
            async for kind, body in answer:
                if kind == frames.END:
                    return
                yield body
        raise _unexpected_answer("lines")

    @asynccontextmanager
    async def _preview_slot(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(_SLOT_WAIT_S):
                await self._previews.acquire()
        except TimeoutError:
            raise TooManyRequests("Too many files are being read.") from None
        try:
            yield
        finally:
            self._previews.release()

    async def _frames(
        self,
        request: frames.WorkerRequest,
        *,
        pieces: AsyncIterator[bytes] | None = None,
        read_at: ReadAt | None = None,
    ) -> AsyncGenerator[_Frame]:
        """Start a worker and yield the frames of its response. The worker is killed on exit.

        A file in a store has no path; it is passed as `pieces` (a stream) or `read_at` (random access).
        """
        # How long it takes to read a file in a store depends on the store, so such files have the longer limit.
        is_short = request["path"] is not None and request.get("fields") is None
        time_s = frames.TIME_S if is_short else frames.RECORDS_TIME_S
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-c",
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        self._running.add(process)
        try:
            async with (
                _feeding(process, json.dumps(request).encode() + b"\n", pieces, stays_open=read_at is not None),
                aclosing(_exchange_frames(process, time_s, read_at)) as answer,
            ):
                async for frame in answer:
                    yield frame
        finally:
            await _end(process)
            self._running.discard(process)


@asynccontextmanager
async def _feeding(
    process: asyncio.subprocess.Process, request: bytes, pieces: AsyncIterator[bytes] | None, *, stays_open: bool
) -> AsyncGenerator[None]:
    """Send the request and the stream `pieces` to the worker while the context is open. If `pieces` fails, its error
    replaces the resulting error of the worker.

    If `stays_open` is set, the worker's input is not closed afterward, because the worker's chunk requests are answered
    there.
    """
    feeding = asyncio.create_task(_feed(process, request, pieces, stays_open=stays_open))
    try:
        yield
    except QueryServerError:
        if feeding.done() and (error := feeding.exception()):
            raise error from None
        raise
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


async def _feed(
    process: asyncio.subprocess.Process, request: bytes, pieces: AsyncIterator[bytes] | None, *, stays_open: bool
) -> None:
    assert process.stdin is not None  # noqa: S101 it was started with pipes
    is_whole = False
    try:
        process.stdin.write(request)
        if pieces is not None:
            async for piece in pieces:
                process.stdin.write(piece)
                await process.stdin.drain()
        is_whole = True
    except (BrokenPipeError, ConnectionResetError):
        # The worker has ended, and its last frame contains the reason.
        is_whole = True
    finally:
        if not (stays_open and is_whole):
            process.stdin.close()
        # The worker must not mistake a partial file for a complete one.
        if not is_whole and process.returncode is None:
            process.kill()


async def _exchange_frames(
    process: asyncio.subprocess.Process, time_s: int, read_at: ReadAt | None
) -> AsyncGenerator[_Frame]:
    """Yield the frames of a worker, and send it the chunks of the stored file that it requests. Raises the error that a
    FAILED frame reports.

    `time_s` limits the time spent waiting for the worker. Waiting for the caller or the store does not count.
    """
    assert process.stdout is not None  # noqa: S101 it was started with pipes
    left_s = float(time_s)
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            async with asyncio.timeout(left_s):
                kind, size = frames.HEAD.unpack(await process.stdout.readexactly(frames.HEAD.size))
                if kind not in frames.FRAME_KINDS or size > frames.MAX_BYTES:
                    raise _unexpected_answer("frames")
                body = await process.stdout.readexactly(size)
        except TimeoutError:
            raise errors.FileTooComplex(f"The file could not be read within {time_s} seconds.") from None
        except asyncio.IncompleteReadError:
            raise await _sudden_end(process) from None
        left_s -= loop.time() - began
        if kind == frames.FAILED:
            raise _failure(body)
        if kind != frames.CHUNK_REQUEST:
            yield kind, body
        elif read_at is None:
            raise _unexpected_answer("frames")
        else:
            await _send_chunk(process, read_at, body)


async def _send_chunk(process: asyncio.subprocess.Process, read_at: ReadAt, body: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 it was started with pipes
    try:
        offset, length = map(int, json.loads(body))
    except (ValueError, TypeError):
        raise _unexpected_answer("requests") from None
    if offset < 0 or not 0 < length <= frames.MAX_READ_BYTES:
        raise _unexpected_answer("requests")
    content = await read_at(offset, length)
    try:
        process.stdin.write(frames.CHUNK_HEAD.pack(len(content)))
        process.stdin.write(content)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        """The worker has ended, and its last frame contains the reason."""


async def _decode_rows(body: bytes) -> frames.Rows:
    return frames.decode_rows(body) if len(body) < _LARGE_BYTES else await asyncio.to_thread(frames.decode_rows, body)


async def _sudden_end(process: asyncio.subprocess.Process) -> QueryServerError:
    code = await process.wait()
    if code < 0:  # killed by a signal: the worker exceeded its CPU time limit or ran out of memory
        log.info("workbook worker was killed", signal=-code)
        return errors.FileTooComplex("Reading the file exceeds the memory or time limit.")
    log.error("workbook worker exited without a response", code=code)
    return errors.DetectionFailed("The file could not be read.")


def _failure(body: bytes) -> QueryServerError:
    code, message = json.loads(body)
    if code in _WITHOUT_MESSAGE:
        return _WITHOUT_MESSAGE[code]()
    if code in _WITH_MESSAGE:
        return _WITH_MESSAGE[code](message)
    log.error("workbook worker failed", failure=message)
    return errors.DetectionFailed("The file could not be read.")


def _unexpected_answer(expected: str) -> errors.DetectionFailed:
    log.error("workbook worker sent an unexpected response", expected=expected)
    return errors.DetectionFailed("The file could not be read.")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the worker and its child processes, and wait until it has exited."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Drain the output: while the stream's buffer is full, asyncio pauses reading and does not detect the end of the
        # pipe.
        while process.stdout is not None and await process.stdout.read(_LARGE_BYTES):
            pass
        await process.wait()
