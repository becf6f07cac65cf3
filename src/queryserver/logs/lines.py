"""Records as lines of text or of JSON, those of the standard library and of structlog alike."""

import json
import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from queryserver.logs.cleaning import Redactor, escaped

FIELDS = "event_fields"
"""Attribute of a record that holds the fields of a structlog event."""


class LineFormatter(logging.Formatter):
    """One record, one line; in text form the lines of a trace follow, each marked as such."""

    def __init__(self, form: Literal["text", "json"], redact: Redactor) -> None:
        super().__init__()
        self._write = _text if form == "text" else _json
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        # A context has no order of its own.
        ids = dict(sorted(structlog.contextvars.get_contextvars().items()))
        fields: Mapping[str, Any] = {**ids, **getattr(record, FIELDS, {})}
        return self._redact(self._write(record, fields, _trace(record)))


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
    # Only ASCII: whatever a caller sent, each byte of the log prints.
    return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: Any) -> str:
    text = str(value)
    return escaped(json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text else text)


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip()
