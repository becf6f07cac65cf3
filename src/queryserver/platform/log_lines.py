"""Log records as lines of text or JSON, without secrets and control characters (Rule T29)."""

import json
import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

MASK = "********"

# Longer texts are cut: a log is no place for them, and patterns take their time.
MOST_CHARACTERS = 32 * 1024

_NAMES = (
    r"password|passwd|passphrase|pwd|secret|token|credentials?|signature|\bsig"
    r"|(?:api|access|account|secret|private)[_-]?key(?:[_-]?id)?"
)
# Quoted in JSON text within JSON text, quoted (also as bytes of Python, as drivers log headers), or bare.
_VALUE = r"""\\"(?:[^"\\]|\\[^"])*\\"|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*'|[^\s,;&"'}\])]+"""

# Every pattern begins with fixed text and repeats only what the next part cannot match: time is linear in the line.
_NAMED = re.compile(rf"({_NAMES})(\\?[\"']?\s{{0,4}}[:=]\s{{0,4}})({_VALUE})", re.IGNORECASE)
_OTHERS = (
    # An Authorization header, wherever it is quoted.
    (re.compile(r"\b(bearer|basic)\s{1,4}[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)*"), MASK),
    # What opens an uploaded file (Contract importer 14.2).
    (re.compile(r"(?<=upload)(/|%2[Ff])([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{39}(?![A-Za-z0-9_-])"), rf"\1\2{MASK}"),
    # The login of an address: scheme://user:password@host.
    (re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+@"), rf"\1:{MASK}@"),
    # Parts of signed links that the names above leave out.
    (
        re.compile(r"([?&](?:x-amz-|x-goog-)?(?:credential|awsaccesskeyid|se|skoid)=)[^&\s\"']+", re.IGNORECASE),
        rf"\1{MASK}",
    ),
)


class Redactor:
    """Masks secrets in a line, by the built-in patterns and those of `desktop.logging.redact`."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._extra = [re.compile(pattern) for pattern in extra]

    def __call__(self, line: str) -> str:
        """The line without secrets."""
        if len(line) > MOST_CHARACTERS:
            line = f"{line[:MOST_CHARACTERS]}… ({len(line)} characters)"
        for pattern, masked in _OTHERS:
            line = pattern.sub(masked, line)
        # Last, for `token: Bearer x` would lose its first word to it and show the second.
        line = _NAMED.sub(_masked_value, line)
        for pattern in self._extra:
            line = pattern.sub(MASK, line)
        return line


def _masked_value(found: re.Match[str]) -> str:
    """The name as it stands; a quoted value keeps its quotes, so that JSON stays JSON."""
    name, between, value = found.groups()
    quote = value[: value.startswith("\\") + 1] if value.startswith(('"', "'", '\\"')) else ""
    return f"{name}{between}{quote}{MASK}{quote}"


def escaped(text: str) -> str:
    """The text with everything that does not print as an escape; a line stays a line."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


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
