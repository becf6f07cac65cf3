"""Where the log goes, for structlog and the standard library alike."""

import atexit
import logging
import queue
import sys
from collections.abc import MutableMapping
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any, Literal

import structlog

from queryserver.logs.access import ACCESS_LOGGER
from queryserver.logs.audit import AUDIT_LOGGER
from queryserver.logs.cleaning import Redactor
from queryserver.logs.files import SharedLogFile
from queryserver.logs.lines import FIELDS, LineFormatter
from queryserver.logs.recent import RECENT
from queryserver.settings.desktop import LoggingSettings

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
