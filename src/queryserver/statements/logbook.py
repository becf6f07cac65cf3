"""Collects statement logs, writes audit events, and prepares engine texts for storage."""

import re
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager

import structlog

from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.tree import Settings
from queryserver.statements.model import OnEnd, Resumption, StatementEnd

# Control characters could forge lines in a terminal; tabs are harmless and common in engine logs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# PostgreSQL stores neither NUL nor lone surrogates, but engine messages may contain both.
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_SECRET = re.compile(r"(?i)\b(password|passwd|secret|token|credential\w*)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|\S+)")

_LONGEST = 64 * 1024


def clean(line: str) -> str:
    """Remove control characters from a log line, and mask secrets."""
    return _SECRET.sub(r"\1\2********", _CONTROL.sub(" ", shorten(line)))


def storable(text: str) -> str:
    """Shorten and clean a text for a record; engine messages may repeat 10 MB of SQL."""
    return _UNSTORABLE.sub("\ufffd", shorten(text))


def shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Logbook:
    """Collects lines between two reports, and drops the oldest lines beyond `max_bytes`; numbering continues."""

    def __init__(self, max_bytes: int, *, stored: Resumption | None = None, stored_lines: int = 0) -> None:
        self._max_bytes = max_bytes
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._dropped = 0
        self._next_line = stored.log_lines if stored else stored_lines
        self._pieces: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0
        self.engine_lines = stored.checkpoint.log_lines if stored else 0

    def add(self, line: str) -> None:
        """Add a line of this service."""
        self._pending.append(clean(line))

    def add_engine(self, lines: Iterable[str]) -> None:
        """Add engine log lines; multi-line texts are split."""
        for text in lines:
            self.engine_lines += 1
            # A text may have 100 MB; characters beyond the log's limit would be dropped anyway.
            for line in text[: self._max_bytes].splitlines() or [""]:
                cleaned = clean(line)
                size = len(cleaned.encode()) + 1
                # The limit of the whole log also applies between two reports; the first lines are kept.
                if self._pending_bytes + size > self._max_bytes:
                    self._dropped += 1
                else:
                    self._pending.append(cleaned)
                    self._pending_bytes += size

    @contextmanager
    def take(self) -> Generator[tuple[int, list[str]]]:
        """Yield the new lines and the number of the first, to be written in the block; a failure leaves them new."""
        if self._dropped:
            self._pending.append(f"{self._dropped} log lines were dropped: too many came at once.")
        start, lines, size = self._next_line, self._pending, self._pending_bytes
        self._pending, self._pending_bytes, self._dropped = [], 0, 0
        try:
            yield start, lines
        except BaseException:  # including a cancel, since unwritten lines must not be lost
            self._pending = lines + self._pending
            self._pending_bytes += size
            raise
        self._next_line += len(lines)
        if lines:
            size = sum(len(line.encode()) + 1 for line in lines)
            self._pieces.append((self._next_line, size))
            self._kept_bytes += size

    def discard(self) -> None:
        """Drop unreported lines."""
        self._pending, self._pending_bytes, self._dropped = [], 0, 0

    @property
    def has_news(self) -> bool:
        return bool(self._pending or self._dropped)

    def overflow(self) -> int | None:
        """Drop lines beyond the limit; returns the number of the first line kept, None if all lines fit."""
        first_kept = None
        while self._kept_bytes > self._max_bytes and len(self._pieces) > 1:
            first_kept, size = self._pieces.popleft()
            self._kept_bytes -= size
        if first_kept is not None:
            self._pending.append(f"Log lines before number {first_kept} were dropped: the log reached its size limit.")
        return first_kept


log = structlog.get_logger(__name__)


def statement_ends(settings: Settings) -> OnEnd:
    """Return a callback that writes an audit event for each end, and a log line if audit events have their own file."""
    audit, has_file = AUDIT, settings.desktop.logging.audit_file is not None

    def record(end: StatementEnd) -> None:
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,  # size of the stored rows
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if has_file:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)

    return record
