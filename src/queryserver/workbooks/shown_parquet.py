"""The worker side of displaying Parquet files. The server sends chunks of the file on request."""

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from queryserver.errors.files import DecompressionLimit
from queryserver.formats.parquet import SeekableFile, parquet_lines
from queryserver.workbooks.frames import MAX_READ_BYTES, PIECE_HEAD, WANTED, frame


class RequestedFile(SeekableFile):
    """A file of `size_bytes`. Requests are sent to `output` as frames, chunks arrive from `answers`."""

    def __init__(self, answers: BinaryIO, output: BinaryIO, size_bytes: int) -> None:
        super().__init__()
        self._answers = answers
        self._output = output
        self._size = size_bytes

    def _end(self, offset: int) -> int:
        return self._size + offset

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes. Raises DecompressionLimit, and BrokenPipeError if the server has disconnected."""
        left = max(self._size - self._place, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted > MAX_READ_BYTES:
            raise DecompressionLimit(f"A part of the file has more than {MAX_READ_BYTES} bytes.")
        if not wanted:
            return b""
        self._output.write(frame(WANTED, [self._place, wanted]))
        self._output.flush()
        head = self._answers.read(PIECE_HEAD.size)
        if len(head) < PIECE_HEAD.size:
            raise BrokenPipeError
        content = self._answers.read(*PIECE_HEAD.unpack(head))
        self._place += len(content)
        return content


def shown_lines(file: RequestedFile) -> Iterator[bytes]:
    """Yield the rows as JSON Lines. Raises DecompressionFailed, DecompressionLimit."""
    # Each Arrow thread would take a part of this process's limited address space.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    return parquet_lines(file)
