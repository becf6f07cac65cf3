"""The log file, shared by the processes of a server."""

import fcntl
import os
from io import TextIOWrapper
from logging import LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path


class SharedLogFile(RotatingFileHandler):
    """A file of mode 0640 that is put aside when it is full, by one of the processes that write to it."""

    def __init__(self, file: Path, *, max_bytes: int, backup_count: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(
            file, maxBytes=max_bytes, backupCount=backup_count, encoding="utf-8", errors="backslashreplace"
        )

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)

    def shouldRollover(self, record: LogRecord) -> bool:  # noqa: N802 the name of the standard library
        """Whether the line would not fit any more. When another process put the file aside, the new one is opened."""
        if not self._is_current():
            self._reopen()
        return bool(super().shouldRollover(record))

    def doRollover(self) -> None:  # noqa: N802 the name of the standard library
        """Put the file aside, unless another process has just done so."""
        with open(f"{self.baseFilename}.lock", "a", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_current():
                super().doRollover()
            else:
                self._reopen()

    def _is_current(self) -> bool:
        try:
            return self.stream is not None and os.path.samestat(
                os.fstat(self.stream.fileno()), Path(self.baseFilename).stat()
            )
        except OSError:
            return False

    def _reopen(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.stream = self._open()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o640)
