"""Fields that a call was sent and does not read: listed in a header of its answer, and in the log by their names.

Unknown fields change nothing (Contract editor 1.2); a misspelt `limit` would otherwise stay unnoticed.
"""

import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final
from urllib.parse import quote

import structlog
from starlette.types import Scope

from queryserver.domain.errors.base import InvalidRequest
from queryserver.formats.bodies import form_fields
from queryserver.schemas.requests.given import wire_names
from queryserver.schemas.snippets import Fields

log = structlog.get_logger(__name__)

HEADER = "X-Unknown-Fields"
SEEN_FIELDS = "queryserver.seen_fields"
"""Key of a scope: the `SeenFields` of the call."""

SENT_BY_HUE: Final = frozenset(
    {
        "_",
        "cluster",
        "clusters",
        "csrfmiddlewaretoken",
        "editorMode",
        "executable",
        "fileFieldLabel",
        "format",
        "full_log",
        "jobs",
        "notebook",
        "operation",
        "operationId",
        "qqchunksize",
        "qqfilename",
        "qqpartbyteoffset",
        "qqpartindex",
        "qqtotalfilesize",
        "qqtotalparts",
        "qquuid",
        "session",
        "silenceErrors",
        "snippet",
        "sourceMethod",
    }
)
"""What Hue's own clients send to calls that do not need it; never reported."""

_MOST_SEEN = 2000
"""Names of one body. Forms have fewer; a JSON object may have a million, and sorting them takes seconds."""

_MOST_NAMES = 20
_MOST_CHARACTERS = 1024
_NAME_CHARACTERS = 64
_LOGINS = "/api/v1/token/"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,39}")
_PLAIN = "-._~[]$@:"
_LOG_AGAIN_S = 60.0
_MOST_LINES = 100


class SeenFields:
    """The names of the fields of one call: those that came, and those that its route reads."""

    def __init__(self) -> None:
        self._came: set[str] = set()
        self._unread: set[str] = set()
        self._known: set[str] | None = None

    def came(self, names: Iterable[str]) -> None:
        """Names of the fields or query parameters that the call takes; the first 2000 of them count."""
        self._came.update(islice(names, _MOST_SEEN))

    def came_unread(self, names: Iterable[str]) -> None:
        """Names in a place that this call does not read at all: the query string of a POST."""
        self._unread.update(names)

    def read(self, names: Iterable[str]) -> None:
        """Names that the route reads, whether they came or not."""
        self._known = (self._known or set()) | set(names)

    def unknown(self, status: int) -> tuple[str, ...]:
        """What came and is not read, in order; nothing for a call that was refused before its fields were read."""
        if not (self._came or self._unread) or (self._known is None and status >= 400):
            return ()
        return tuple(sorted(((self._came - (self._known or set())) | self._unread) - SENT_BY_HUE))


def came(scope: Scope, names: Iterable[str]) -> None:
    """Note that these fields came."""
    seen: SeenFields | None = scope.get(SEEN_FIELDS)
    if seen is not None:  # else outside of the frame
        seen.came(names)


def came_unread(scope: Scope, but: Collection[str] = ()) -> None:
    """Note that the query string of a POST is not read, `but` for these names."""
    seen: SeenFields | None = scope.get(SEEN_FIELDS)
    if seen is not None and scope["query_string"]:
        with suppress(InvalidRequest):  # what is not read need not be valid
            seen.came_unread(name for name, _ in form_fields(scope["query_string"]) if name not in but)


def reads(scope: Scope, *models: type[Fields], also: Iterable[str] = ()) -> None:
    """Note that the route of this call reads the fields of `models`."""
    seen: SeenFields | None = scope.get(SEEN_FIELDS)
    if seen is not None:
        seen.read(name for model in models for name in wire_names(model))
        seen.read(also)


def header_value(names: Iterable[str]) -> str:
    """The names with commas between them, percent-encoded; at most 20 of them, and 1 KiB."""
    shown: list[str] = []
    left = _MOST_CHARACTERS
    for name in names:
        written = quote(name[:_NAME_CHARACTERS], safe=_PLAIN, errors="replace")
        left -= len(written) + len(",")
        if left < 0 or len(shown) == _MOST_NAMES:
            break
        shown.append(written)
    return ",".join(shown)


def log_value(names: Iterable[str]) -> str:
    """The same for the log: a body that is no form reads as one long name, and may be a secret, so such names are `?`.

    Each name once, in their order.
    """
    return ",".join(dict.fromkeys(name if _NAME.fullmatch(name) else "?" for name in islice(names, _MOST_NAMES)))


class UnknownFieldsLog:
    """One line for a path and its unknown names a minute, and at most 100 lines a minute in all."""

    def __init__(self) -> None:
        self._lines: set[tuple[str, str]] = set()
        self._until = 0.0

    def note(self, path: str, names: Iterable[str]) -> None:
        """Write a line, unless the same one was written lately. Logins are left out: what they send is secret."""
        if path.startswith(_LOGINS):
            return
        shown = log_value(names)
        now = time.monotonic()
        if now >= self._until:
            self._lines.clear()
            self._until = now + _LOG_AGAIN_S
        if (path, shown) in self._lines or len(self._lines) >= _MOST_LINES:
            return
        self._lines.add((path, shown))
        log.info("unknown request fields", path=path, fields=shown)
