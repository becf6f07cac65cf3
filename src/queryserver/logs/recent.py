"""The last lines of the log: from its file, or from memory where the log goes to a terminal (Contract platform 7.6)."""

import logging
from collections import deque
from pathlib import Path
from threading import Lock

KEPT_BYTES = 1024 * 1024
"""What the memory holds, and what is read of a file at most."""


class RecentLines(logging.Handler):
    """Keeps the newest lines of this process as they were written, up to a number of bytes."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._records: deque[bytes] = deque()
        self._bytes = 0
        self._guard = Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the thread that writes: the line is formed and clean."""
        line = f"{record.getMessage()}\n".encode(errors="backslashreplace")
        with self._guard:
            self._records.append(line)
            self._bytes += len(line)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._records.popleft())

    def tail(self, max_bytes: int) -> bytes:
        """The end, beginning with a whole line."""
        with self._guard:
            content = b"".join(self._records)
        return _whole_lines(content[-max_bytes - 1 :], is_begin=len(content) <= max_bytes)


RECENT = RecentLines()
"""Of this process; `configure_logging` feeds it where there is no file."""


def tail_of(file: Path | None, max_bytes: int) -> bytes:
    """Whole lines from the end of the log, in UTF-8. Blocks. Raises OSError when the file cannot be read."""
    if file is None:
        return RECENT.tail(max_bytes)
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        # One byte more tells whether the first line is whole.
        begin = max(0, size - max_bytes - 1)
        stream.seek(begin)
        return _whole_lines(stream.read(max_bytes + 1), is_begin=size <= max_bytes)


def _whole_lines(content: bytes, *, is_begin: bool) -> bytes:
    """Without what stands before the first line end, unless the log begins here, and after the last one."""
    content = content[: content.rfind(b"\n") + 1]
    return content if is_begin else content[content.find(b"\n") + 1 :]
