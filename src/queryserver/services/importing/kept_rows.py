"""Converted rows between counting and loading, so that no file need be read a second time (Contract importer 13.2)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import BinaryIO, TypeVar

import pyarrow as pa
import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_BYTES = 1024 * 1024 * 1024
"""What one import may keep on disk."""


class KeptRows:
    """Batches in a file without a name, which goes with the process whatever happens. Use `opened`.

    Where they do not fit, nothing is kept: then `is_whole` is False, and the file has to be read again.
    """

    def __init__(
        self, file: BinaryIO, threads: Executor, max_bytes: int, require_room: Callable[[int], object]
    ) -> None:
        self._file = file
        self._threads = threads
        self._max_bytes = max_bytes
        self._require_room = require_room
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._batches = 0
        self.is_whole = True

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        open_file: Callable[[], BinaryIO],
        threads: Executor,
        *,
        max_bytes: int = MAX_BYTES,
        require_room: Callable[[int], object] = lambda _: None,
    ) -> "AsyncGenerator[KeptRows]":
        """An empty file of `open_file`, closed at the end.

        `require_room` is called in a thread before bytes are written; what it raises is raised (InsufficientStorage).
        """
        await _run(threads, lambda: require_room(0))
        file = await _opened(open_file, threads)
        try:
            yield cls(file, threads, max_bytes, require_room)
        finally:
            # Behind what is still being written. Nobody waits for the disk to give the room back.
            threads.submit(file.close)

    async def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch behind the others; all have one schema."""
        if self.is_whole:
            await _run(self._threads, lambda: self._write(batch))

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """All that was kept, in its order; may be asked for again. Only if `is_whole`."""
        if self._batches == 0:
            return
        reader = await _run(self._threads, self._read)
        for _ in range(self._batches):
            yield await _run(self._threads, reader.read_next_batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        self._require_room(batch.nbytes)
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema)
            self._writer.write_batch(batch)
            self._batches += 1
            if self._file.tell() > self._max_bytes:
                self._give_up()
        except OSError as error:
            log.info("rows of an import not kept", reason=error.strerror)
            self._give_up()

    def _give_up(self) -> None:
        self.is_whole, self._writer = False, None
        self._file.truncate(0)

    def _read(self) -> pa.RecordBatchStreamReader:
        self._file.flush()
        self._file.seek(0)
        return pa.ipc.open_stream(pa.PythonFile(self._file, "r"))


async def _opened(open_file: Callable[[], BinaryIO], threads: Executor) -> BinaryIO:
    """The file; one that comes too late for its caller is closed."""
    opening = threads.submit(open_file)
    try:
        return await asyncio.wrap_future(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: "Future[BinaryIO]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _run(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
