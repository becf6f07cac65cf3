"""Logging: redaction, line formats, audit events and log files. `configure_logging` sets everything up."""

import asyncio
import atexit
import fcntl
import io
import json
import logging
import os
import queue
import re
import socket
import sys
import traceback
import zipfile
from collections import deque
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from logging import LogRecord
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal

import structlog

from queryserver.errors.base import NotFound, QueryServerError
from queryserver.platform.settings.desktop import LoggingSettings

MASK = "********"
FIELDS = "event_fields"
"""Name of the log record attribute that holds the fields of a structlog event."""
AUDIT_LOGGER = "queryserver.audit"
ACCESS_LOGGER = "queryserver.access"
VERBOSE_LOGGERS = ("httpx", "httpcore", "botocore", "aiobotocore", "asyncio", "alembic.runtime", "mcp")
"""Loggers that report each call and connection, which is useful only at level DEBUG."""
RECENT_BYTES = 1024 * 1024
"""Maximum size of the recent lines kept in memory, and of what is read from a log file."""

# Longer lines are truncated, because such texts do not belong in a log and redacting them is slow.
MAX_LINE_CHARACTERS = 32 * 1024

_NAMES = (
    r"password|passwd|passphrase|pwd|secret|token|\bticket|credentials?|signature|\bsig"
    r"|(?:api|access|account|secret|private)[_-]?key(?:[_-]?id)?"
)
# A JSON string inside a JSON string; a quoted string, including Python bytes, as drivers log headers; or a bare word.
_VALUE = r"""\\"(?:[^"\\]|\\[^"])*\\"|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*'|[^\s,;&"'}\])]+"""

# Each pattern starts with fixed text and repeats only characters that its next part cannot match, so matching takes
# linear time.
_NAMED = re.compile(rf"({_NAMES})(\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})({_VALUE})", re.IGNORECASE)
_NAMED_WORDS = ("pass", "pwd", "secret", "token", "ticket", "credential", "sig", "key")
# Each match of a pattern contains at least one of the pattern's lower-case words. Checking for the words first reduces
# the time for a typical line from 92 to 8 µs.
_OTHER_SECRETS = (
    # an Authorization header, with any quoting
    (("bearer", "basic"), re.compile(r"\b(bearer|basic)\s{1,4}[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    (("eyj",), re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)*"), MASK),
    # an API token
    (("qst_",), re.compile(r"(?<![A-Za-z0-9])qst_[A-Za-z0-9_-]{6,}"), f"qst_{MASK}"),
    # the key of an uploaded file (Contract importer 14.2)
    (
        ("upload",),
        re.compile(r"(?<=upload)(/|%2[Ff])([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{39}(?![A-Za-z0-9_-])"),
        rf"\1\2{MASK}",
    ),
    # the credentials in a URL: scheme://user:password@host
    (("://",), re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@"), rf"\1:{MASK}@"),
    # parameters of signed URLs that `_NAMES` does not cover
    (
        ("credential=", "awsaccesskeyid=", "se=", "skoid="),
        re.compile(r"([?&](?:x-amz-|x-goog-)?(?:credential|awsaccesskeyid|se|skoid)=)[^&\s\"']+", re.IGNORECASE),
        rf"\1{MASK}",
    ),
)

_SHOWN_BYTES = 32 * 1024


class Redactor:
    """Masks secrets in a log line, by built-in patterns and those in `desktop.logging.redact`. Truncates long lines."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._extra = [re.compile(pattern) for pattern in extra]

    def __call__(self, line: str) -> str:
        if len(line) > MAX_LINE_CHARACTERS:
            line = f"{line[:MAX_LINE_CHARACTERS]}… ({len(line)} characters)"
        # Case-insensitive patterns also match non-ASCII letters that `lower` does not map to ASCII (U+017F matches s).
        searched = line.lower() if line.isascii() else None
        for words, pattern, masked in _OTHER_SECRETS:
            if searched is None or any(word in searched for word in words):
                line = pattern.sub(masked, line)
        # This pattern comes last: in `token: Bearer x` it would mask only the word Bearer and leave the token visible.
        if searched is None or any(word in searched for word in _NAMED_WORDS):
            line = _NAMED.sub(_masked_value, line)
        for pattern in self._extra:
            line = pattern.sub(MASK, line)
        return line


def _masked_value(found: re.Match[str]) -> str:
    """Mask the value and keep the name. A quoted value keeps its quotes, so that JSON stays valid."""
    name, between, value = found.groups()
    quote = value[: value.startswith("\\") + 1] if value.startswith(('"', "'", '\\"')) else ""
    return f"{name}{between}{quote}{MASK}{quote}"


def escaped(text: str) -> str:
    """Escape unprintable characters, so that the text stays on one line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class LineFormatter(logging.Formatter):
    """Formats a record as one line. In text format, each traceback line follows on a separate line, marked with `|`."""

    def __init__(self, form: Literal["text", "json"], redact: Redactor) -> None:
        super().__init__()
        self._write = _text if form == "text" else _json
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        # Sorted, because the order of context variables is arbitrary.
        ids = dict(sorted(structlog.contextvars.get_contextvars().items()))
        fields: Mapping[str, Any] = {**ids, **getattr(record, FIELDS, {})}
        error = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(error)).rstrip() if error is not None else ""
        return self._redact(self._write(record, fields, trace))


def _text(record: logging.LogRecord, fields: Mapping[str, Any], trace: str) -> str:
    parts = [_time(record), f"{record.levelname:<8}", f"{record.name}:", escaped(record.getMessage())]
    parts += [f"{name}={_value(value)}" for name, value in fields.items()]
    lines = [f"    | {escaped(line)}" for line in trace.splitlines()]
    return "\n".join([" ".join(parts), *lines])


def _json(record: logging.LogRecord, fields: Mapping[str, Any], trace: str) -> str:
    line = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": record.getMessage(),
        **fields,
        **({"exception": trace} if trace else {}),
    }
    # Only ASCII, so that every byte of the log is printable.
    return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: Any) -> str:
    text = str(value)
    return escaped(json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text else text)


OK = "ok"
_MAX_FIELD_CHARACTERS = 150
_NO_FACTS: Mapping[str, str | int] = MappingProxyType({})
BY_SERVER: Mapping[str, str] = MappingProxyType({"by": "server"})
"""Facts for changes that the server makes on its own, for example during a login."""


class AuditTrail:
    """Writes an audit event for each action, whether performed or refused, to the logger `queryserver.audit`.

    Events contain neither secrets nor statement texts. Both line formats escape unprintable characters, so that no name
    or path can forge a line (Rule T29). Never raises.
    """

    def record(
        self,
        user: str,
        operation: str,
        subject: str = "",
        *,
        outcome: str = OK,
        client: str = "",
        facts: Mapping[str, str | int] = _NO_FACTS,
    ) -> None:
        """Write an event, for example `record(user, "statement.start", connector)`. Long names are truncated.

        `user` is the caller, or the name submitted at a login. `subject` is the changed or used object. `outcome` is
        `ok` or an error code. `facts` are additional fields.
        """
        user = user[:_MAX_FIELD_CHARACTERS]
        fields = {"user": user, "effective_user": user, "outcome": outcome}
        further = {"client": client or None, "subject": subject[:_MAX_FIELD_CHARACTERS] or None}
        _write_event(operation, {**fields, **further}, facts)

    def record_path(
        self,
        user: str,
        operation: str,
        path: str,
        *,
        outcome: str = OK,
        effective_user: str | None = None,
        size_bytes: int | None = None,
        facts: Mapping[str, str | int] = _NO_FACTS,
    ) -> None:
        """Write an event whose object is logged in the field `path`: the normalized path of a file, or a connector."""
        user = user[:_MAX_FIELD_CHARACTERS]
        fields = {"user": user, "effective_user": effective_user or user, "path": path or None, "outcome": outcome}
        _write_event(operation, {**fields, "size": size_bytes}, facts)

    @contextmanager
    def event(
        self, user: str, operation: str, subject: str = "", *, facts: Mapping[str, str | int] = _NO_FACTS
    ) -> Generator[None]:
        """Write one event when the context ends. Its outcome is `ok`, the error code, or `interrupted`."""
        outcome = "interrupted"
        try:
            yield
            outcome = OK
        except Exception as error:  # internal errors are audited too
            outcome = _error_code(error)
            raise
        finally:
            self.record(user, operation, subject, outcome=outcome, facts=facts)

    @contextmanager
    def failures(
        self, user: str, operation: str, subject: str = "", *, facts: Mapping[str, str | int] = _NO_FACTS
    ) -> Generator[None]:
        """Write an event with the error code if the context fails, but not if it succeeds or is interrupted."""
        try:
            yield
        except Exception as error:  # internal errors are audited too
            self.record(user, operation, subject, outcome=_error_code(error), facts=facts)
            raise


def _write_event(operation: str, fields: Mapping[str, str | int | None], facts: Mapping[str, str | int]) -> None:
    known = {name: value for name, value in fields.items() if value is not None}
    logging.getLogger(AUDIT_LOGGER).info(operation, extra={FIELDS: {**known, **facts}})


def _error_code(error: Exception) -> str:
    return error.code if isinstance(error, QueryServerError) else QueryServerError.code


AUDIT = AuditTrail()
"""The audit trail that all services share. `configure_logging` sets its destination."""


class SharedLogFile(RotatingFileHandler):
    """A log file with mode 0640 that several processes write to. When it is full, one of them rotates it."""

    def __init__(self, file: Path, *, max_bytes: int, backup_count: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(
            file, maxBytes=max_bytes, backupCount=backup_count, encoding="utf-8", errors="backslashreplace"
        )

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_open_private)

    def shouldRollover(self, record: LogRecord) -> bool:  # noqa: N802 the name of the standard library
        """Return whether to rotate. Also reopens the file if another process has rotated it."""
        if not self._is_current():
            self._reopen()
        return bool(super().shouldRollover(record))

    def doRollover(self) -> None:  # noqa: N802 the name of the standard library
        """Rotate the file, unless another process has just rotated it."""
        with open(f"{self.baseFilename}.lock", "a", opener=_open_private) as lock:
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


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o640)


class RecentLines:
    """The most recent formatted lines of this process, up to `RECENT_BYTES`."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._guard = Lock()

    def add(self, text: str) -> None:
        line = f"{text}\n".encode(errors="backslashreplace")
        with self._guard:
            self._lines.append(line)
            self._bytes += len(line)
            while self._bytes > RECENT_BYTES:
                self._bytes -= len(self._lines.popleft())

    def tail(self, max_bytes: int) -> bytes:
        with self._guard:
            content = b"".join(self._lines)
        return _whole_lines(content[-max_bytes - 1 :], is_begin=len(content) <= max_bytes)


RECENT = RecentLines()
"""The recent log lines of this process, collected only while it does not log to a file."""


def log_tail(file: Path | None, max_bytes: int) -> bytes:
    """Return complete lines from the end of the log, as UTF-8. Blocks. Raises OSError if the file cannot be read."""
    if file is None:
        return RECENT.tail(max_bytes)
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        # One additional byte shows whether the first line is complete.
        begin = max(0, size - max_bytes - 1)
        stream.seek(begin)
        return _whole_lines(stream.read(max_bytes + 1), is_begin=size <= max_bytes)


def _whole_lines(content: bytes, *, is_begin: bool) -> bytes:
    """Remove an incomplete last line and, unless the content is the beginning of the log, an incomplete first line."""
    content = content[: content.rfind(b"\n") + 1]
    return content if is_begin else content[content.find(b"\n") + 1 :]


def log_call(fields: Mapping[str, object]) -> None:
    logging.getLogger(ACCESS_LOGGER).info("call", extra={FIELDS: fields})


# A blocked terminal or pipe must not stall the server, so further lines are dropped while this many are waiting.
_MAX_WAITING_LINES = 10_000

_writers: list[QueueListener] = []


def configure_logging(settings: LoggingSettings) -> None:
    """Send all logs of this process to the configured destinations, replacing earlier destinations.

    The calling thread formats each line and another thread writes it, so that no disk or terminal blocks the event
    loop.
    """
    stop_logging()
    entrance = _queue_handler(settings, settings.format, settings.file)
    _replace_handlers(logging.getLogger(), entrance, settings.level)
    for name in VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(settings.level if settings.level == "DEBUG" else "WARNING")
    logging.captureWarnings(capture=True)
    # Audit events are written at every log level, and to one destination only.
    audit = entrance if settings.audit_file is None else _queue_handler(settings, "json", settings.audit_file)
    _replace_handlers(logging.getLogger(AUDIT_LOGGER), audit, "INFO").propagate = False
    has_file = settings.access_log and settings.access_file is not None
    access = _queue_handler(settings, settings.format, settings.access_file) if has_file else entrance
    _replace_handlers(logging.getLogger(ACCESS_LOGGER), access, "INFO").propagate = False
    level = logging.getLevelNamesMapping()[settings.level]
    structlog.configure(
        processors=[_to_standard_library],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def stop_logging() -> None:
    """Write the pending lines and stop the writer threads."""
    while _writers:
        writer = _writers.pop()
        writer.stop()
        for sink in writer.handlers:
            sink.close()


class _LineQueueHandler(QueueHandler):
    """Formats lines in the calling context, because the ids of the call are available only there."""

    def __init__(self, waiting: "queue.SimpleQueue[logging.LogRecord]", *, has_file: bool) -> None:
        super().__init__(waiting)
        self._has_file = has_file
        self._waiting = waiting
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the record without blocking. Drops it if too many lines are waiting."""
        if self._waiting.qsize() >= _MAX_WAITING_LINES:
            self._dropped += 1
            return
        self._waiting.put(record)
        if not self._has_file:
            RECENT.add(record.getMessage())
        if self._dropped and self._waiting.qsize() < _MAX_WAITING_LINES // 2:
            dropped, self._dropped = self._dropped, 0
            logging.getLogger(__name__).warning("%d lines of the log were dropped: nobody read them", dropped)


def _queue_handler(settings: LoggingSettings, form: Literal["text", "json"], file: Path | None) -> _LineQueueHandler:
    """Create a handler that queues lines in this format, and a thread that writes them."""
    waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    entrance = _LineQueueHandler(waiting, has_file=file is not None)
    entrance.setFormatter(LineFormatter(form, Redactor(settings.redact)))
    sink: logging.Handler
    if file is None:
        sink = logging.StreamHandler(sys.stderr)
    else:
        sink = SharedLogFile(file, max_bytes=settings.max_bytes, backup_count=settings.backup_count)
    writer = QueueListener(waiting, sink)
    writer.start()
    _writers.append(writer)
    return entrance


def _replace_handlers(logger: logging.Logger, entrance: logging.Handler, level: str) -> logging.Logger:
    for handler in logger.handlers[:]:
        if isinstance(handler, _LineQueueHandler):
            logger.removeHandler(handler)
    logger.addHandler(entrance)
    logger.setLevel(level)
    return logger


def _to_standard_library(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    message = str(event.pop("event", ""))
    exc_info = event.pop("exc_info", None)
    return (message,), {"extra": {FIELDS: dict(event)}, "exc_info": exc_info}


atexit.register(stop_logging)


class ServerLogs:
    """Reads the end of the log file, or this process's recent log lines. Secrets were redacted before writing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.host_name = socket.gethostname()

    async def lines(self, *, newest_first: bool) -> Sequence[str]:
        """Return the complete lines in the last 32 KiB, with line endings. Raises NotFound if the file is missing."""
        content = await asyncio.to_thread(self._tail, _SHOWN_BYTES)
        lines = content.decode(errors="replace").split("\n")[:-1]
        return [f"{line}\n" for line in (reversed(lines) if newest_first else lines)]

    async def archive(self) -> tuple[str, bytes]:
        """Return the name and content of a ZIP file with the last MiB of the log.

        Raises NotFound if the log file is missing.
        """
        moment, target = datetime.now(UTC), io.BytesIO()

        def pack() -> None:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                member = zipfile.ZipInfo("queryserver.log", moment.timetuple()[:6])
                archive.writestr(member, self._tail(RECENT_BYTES), zipfile.ZIP_DEFLATED)

        await asyncio.to_thread(pack)
        return f"queryserver-logs-{moment:%Y%m%dT%H%M%S}.zip", target.getvalue()

    def _tail(self, max_bytes: int) -> bytes:
        try:
            return log_tail(self._file, max_bytes)
        except OSError:
            raise NotFound("The log file does not exist.") from None
