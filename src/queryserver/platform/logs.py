"""The log: one line per event, with the ids of its call and statement, without secrets."""

import atexit
import fcntl
import logging
import os
import queue
import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from io import TextIOWrapper
from logging import LogRecord
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import structlog

from queryserver.platform.audit import AUDIT_LOGGER
from queryserver.platform.log_lines import FIELDS, LineFormatter, Redactor
from queryserver.platform.settings.desktop import LoggingSettings


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


ACCESS_LOGGER = "queryserver.access"

_logger = logging.getLogger(ACCESS_LOGGER)


def log_call(fields: Mapping[str, object]) -> None:
    """Write one line; where to is a matter of `configure_logging`."""
    _logger.info("call", extra={FIELDS: fields})


# A terminal or pipe that nobody reads must not hold up the server: beyond this many waiting lines they are dropped.
_MOST_WAITING = 10_000

TALKATIVE = ("httpx", "httpcore", "botocore", "aiobotocore", "asyncio", "alembic.runtime")
"""Loggers that tell of each call and each connection; below DEBUG that is noise."""

_writers: list[QueueListener] = []


def configure_logging(settings: LoggingSettings) -> None:
    """Send all logs of this process where the settings say. Called again, it replaces what was set before.

    Lines are formed by whoever logs and written by a thread, so that no disk or terminal holds up the event loop.
    """
    stop_logging()
    entrance = _entrance(settings, settings.format, settings.file)
    _connect(entrance, settings.level)
    # Events of the audit are written at every level of the log, and once.
    audit = entrance if settings.audit_file is None else _entrance(settings, "json", settings.audit_file)
    _replace_handlers(logging.getLogger(AUDIT_LOGGER), audit, "INFO").propagate = False
    has_file = settings.access_log and settings.access_file is not None
    access = _entrance(settings, settings.format, settings.access_file) if has_file else entrance
    _replace_handlers(logging.getLogger(ACCESS_LOGGER), access, "INFO").propagate = False
    level = logging.getLevelNamesMapping()[settings.level]
    structlog.configure(
        processors=[_to_standard_library],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def stop_logging() -> None:
    """Write what is waiting, and stop writing."""
    while _writers:
        writer = _writers.pop()
        writer.stop()
        for sink in writer.handlers:
            sink.close()


class _Entrance(QueueHandler):
    """Forms the line at once: the ids of the call are known only here."""

    def __init__(self, waiting: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(waiting)
        self._waiting = waiting
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._dropped += 1
            return
        if self._dropped and self._waiting.qsize() < _MOST_WAITING // 2:
            dropped, self._dropped = self._dropped, 0
            logging.getLogger(__name__).warning("%d lines of the log were dropped: nobody read them", dropped)


def _entrance(settings: LoggingSettings, form: Literal["text", "json"], file: Path | None) -> _Entrance:
    """Where lines of that form are handed over to a thread that writes them."""
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(_MOST_WAITING)
    entrance = _Entrance(waiting)
    entrance.setFormatter(LineFormatter(form, Redactor(settings.redact)))
    sink: logging.Handler
    if file is None:
        sink = logging.StreamHandler(sys.stderr)
    else:
        sink = SharedLogFile(file, max_bytes=settings.max_bytes, backup_count=settings.backup_count)
    writer = QueueListener(waiting, sink, *([RECENT] if file is None else []))
    writer.start()
    _writers.append(writer)
    return entrance


def _connect(entrance: logging.Handler, level: str) -> None:
    _replace_handlers(logging.getLogger(), entrance, level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(level if level == "DEBUG" else "WARNING")
    logging.captureWarnings(capture=True)


def _replace_handlers(logger: logging.Logger, entrance: logging.Handler, level: str) -> logging.Logger:
    for handler in logger.handlers[:]:
        if isinstance(handler, _Entrance):
            logger.removeHandler(handler)
    logger.addHandler(entrance)
    logger.setLevel(level)
    return logger


def _to_standard_library(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    message = str(event.pop("event", ""))
    exc_info = event.pop("exc_info", None)
    return (message,), {"extra": {FIELDS: dict(event)}, "exc_info": exc_info}


atexit.register(stop_logging)
