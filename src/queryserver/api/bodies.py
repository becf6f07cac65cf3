"""Reads request fields (form, JSON, multipart or query), limits the memory for bodies, and reports unknown fields."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote_to_bytes

import structlog
from fastapi import Request
from starlette.types import Scope

from queryserver import errors
from queryserver.api.addresses import client_address
from queryserver.api.schemas.fields import Fields
from queryserver.api.schemas.requests.storage import wire_names
from queryserver.formats.multipart import parse_text_parts
from queryserver.platform.networks import network_of
from queryserver.platform.text import MAX_DEPTH, is_object, parse_json
from queryserver.platform.threads import Threads
from queryserver.services import Services

MAX_FIELDS = 1000
_WINDOW_BYTES = 64 * 1024


def parse_json_object(body: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a JSON object. An empty body gives an empty object. The object itself is level 1 of `max_depth`.

    Raises InvalidJson (also for duplicate keys, NaN, U+0000 and lone surrogates), or invalid_body if the value is not
    an object.
    """
    if not body:
        return {}
    value = parse_json(body, max_depth=max_depth)
    if not is_object(value):
        raise errors.invalid_body("The request body must be a JSON object.")
    return value


def parse_form(body: bytes) -> dict[str, str]:
    """Parse an `application/x-www-form-urlencoded` body. If a field is repeated, the last value wins.

    Raises InvalidParameter for invalid UTF-8, for U+0000, and for more than 1000 fields.
    """
    return dict(form_fields(body))


def form_fields(body: bytes, *, max_fields: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """Return all fields of an `application/x-www-form-urlencoded` body in order, including repeated fields.

    Raises the errors of `parse_form`.
    """
    if body.count(b"&") >= max_fields:
        raise errors.InvalidParameter(f"A form may have at most {max_fields} fields.")
    fields: list[tuple[str, str]] = []
    for field in body.split(b"&"):
        if field:
            name, _, value = field.partition(b"=")
            key = _name(_decoded(name))
            fields.append((key, _value(key, _decoded(value))))
    return fields


def parse_multipart(body: bytes, content_type: str) -> dict[str, str]:
    """Parse the text parts of a `multipart/form-data` body. If a part is repeated, the last value wins.

    An empty body has no parts. Raises InvalidParameter (file part, truncated body, missing boundary, more than 1000
    parts, text as in `parse_form`) or PayloadTooLarge (the headers of one part exceed 16 KiB).
    """
    return dict(multipart_fields(body, content_type))


def multipart_fields(body: bytes, content_type: str, *, max_fields: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """Return all text parts of a `multipart/form-data` body in order, including repeated parts.

    Raises the errors of `parse_multipart`.
    """
    if not body:
        return []
    fields: list[tuple[str, str]] = []
    for name, value in parse_text_parts(body, content_type, max_parts=max_fields):
        key = _name(name)
        fields.append((key, _value(key, value)))
    return fields


def _name(raw: bytes) -> str:
    try:
        return _text(raw)
    except ValueError as problem:
        raise errors.InvalidParameter(f"A parameter name {problem}") from None


def _value(name: str, raw: bytes) -> str:
    try:
        return _text(raw)
    except ValueError as problem:
        raise errors.UnreadableParameter(name, str(problem)) from None


def _text(raw: bytes) -> str:
    """Decode UTF-8. Raises ValueError with a message that completes a sentence, such as "is not valid UTF-8."."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8.") from None
    if "\0" in text:
        raise ValueError("contains the character U+0000.")
    return text


def _decoded(raw: bytes) -> bytes:
    if len(raw) <= _WINDOW_BYTES:
        return _unquoted(raw)
    windows: list[bytes] = []
    start = 0
    while start < len(raw):
        end = start + _WINDOW_BYTES
        escape = raw.rfind(b"%", end - 2, end)  # a window must not end inside an escape such as %41
        end = end if escape < 0 else escape
        windows.append(_unquoted(raw[start:end]))
        start = end
    return b"".join(windows)


def _unquoted(raw: bytes) -> bytes:
    raw = raw.replace(b"+", b" ")
    return unquote_to_bytes(raw) if b"%" in raw else raw


_MIB = 1024 * 1024
_OF_USERS_BYTES = 192 * _MIB
_OF_STRANGERS_BYTES = 64 * _MIB

CountBytes = Callable[[int], None]
"""Adds a number of bytes to the count. Raises TooManyRequests or ServiceUnavailable above a limit."""


class BodyShares:
    """Limits the memory for request bodies, separately for users and for clients without credentials.

    Anyone can send login requests from many addresses. The bodies of these requests must not use up the memory for
    users' bodies.
    """

    def __init__(self, of_users: int = _OF_USERS_BYTES, of_strangers: int = _OF_STRANGERS_BYTES) -> None:
        self._of_users = of_users
        self._of_strangers = of_strangers
        self._held: Counter[str] = Counter()
        self._sums: Counter[bool] = Counter()

    @contextmanager
    def holding(self, sender: str, most: int, *, is_user: bool) -> Generator[CountBytes]:
        """Count the bytes of one body until the block ends. `most` limits the total of the sender's current bodies."""
        held = 0
        in_all = self._of_users if is_user else self._of_strangers

        def hold(size: int) -> None:
            nonlocal held
            if self._held[sender] + size > most:
                raise errors.TooManyRequests("Your request bodies in progress are too large in total.")
            if self._sums[is_user] + size > in_all:
                raise errors.ServiceUnavailable("The request bodies in progress are too large in total.")
            held += size
            self._sums[is_user] += size
            self._held[sender] += size

        try:
            yield hold
        finally:
            self._sums[is_user] -= held
            self._held[sender] -= held
            if not self._held[sender]:
                del self._held[sender]


log = structlog.get_logger(__name__)

HEADER = "X-Unknown-Fields"
SEEN_FIELDS = "queryserver.seen_fields"
"""Scope key of the call's `SeenFields`."""

SENT_BY_HUE: Final = frozenset({
    "_", "cluster", "clusters", "csrfmiddlewaretoken", "editorMode", "executable", "fileFieldLabel", "format",
    "full_log", "jobs", "notebook", "operation", "operationId", "qqchunksize", "qqfilename", "qqpartbyteoffset",
    "qqpartindex", "qqtotalfilesize", "qqtotalparts", "qquuid", "session", "silenceErrors", "snippet", "sourceMethod",
})  # fmt: skip
"""Fields that Hue clients send even to calls that ignore them. They are never reported as unknown."""

_MAX_UNREAD_NAMES = 2000
"""Maximum number of names per body.

Forms have at most 1000 fields, but a JSON object may have a million, which would take seconds to sort.
"""

_MAX_SHOWN_NAMES = 20
_MAX_SHOWN_CHARACTERS = 1024
_NAME_CHARACTERS = 64
_LOGINS = "/api/v1/token/"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,39}")
_PLAIN = "-._~[]$@:"
_LOG_AGAIN_S = 60.0
_MAX_LOG_LINES = 100


class SeenFields:
    """Tracks which field names a call received and which of them its route reads."""

    def __init__(self) -> None:
        self._read: set[str] | None = None
        self.unread: set[str] = set()
        """Received names that have not been read yet."""
        self.misplaced: set[str] = set()
        """Names in the query string of a POST, which the route does not read."""

    def note_received(self, names: Iterable[str]) -> None:
        """Record the names of received fields or query parameters. Names after the first 2000 are ignored."""
        self.unread.update(islice(names, _MAX_UNREAD_NAMES))
        self.unread -= SENT_BY_HUE
        if self._read:
            self.unread -= self._read

    def read(self, names: Iterable[str]) -> None:
        """Record names that the route reads, whether they were received or not."""
        self._read = {*(self._read or ()), *names}
        self.unread -= self._read

    def unknown(self, status: int) -> tuple[str, ...]:
        """Return the sorted unread names, or none if the call was rejected before its route read any fields."""
        if self._read is None and status >= 400:
            return ()
        return tuple(sorted(self.unread | self.misplaced))


def note_received(scope: Scope, names: Iterable[str]) -> None:
    if names:
        scope.setdefault(SEEN_FIELDS, SeenFields()).note_received(names)


def note_unread_query(scope: Scope, but: Collection[str] = ()) -> None:
    """Record the query parameters of a POST as misplaced, except for the names in `but`, which the route reads."""
    if scope.get("query_string"):
        seen: SeenFields = scope.setdefault(SEEN_FIELDS, SeenFields())
        with suppress(errors.InvalidRequest):  # an unread query string may be invalid
            names = {name for name, _ in form_fields(scope["query_string"])}
            seen.misplaced |= names.difference(but, SENT_BY_HUE)


def note_read(scope: Scope, *models: type[Fields], also: Iterable[str] = ()) -> None:
    """Record that the route of this call reads the fields of `models` and the names in `also`."""
    seen: SeenFields | None = scope.get(SEEN_FIELDS)
    if seen is not None:  # None if no fields were received
        seen.read({*also}.union(*map(wire_names, models)))


def header_value(names: Iterable[str]) -> str:
    """Return the percent-encoded names, separated by commas: at most 20 names and 1 KiB."""
    shown: list[str] = []
    left = _MAX_SHOWN_CHARACTERS
    for name in names:
        written = quote(name[:_NAME_CHARACTERS], safe=_PLAIN, errors="replace")
        left -= len(written) + len(",")
        if left < 0 or len(shown) == _MAX_SHOWN_NAMES:
            break
        shown.append(written)
    return ",".join(shown)


def log_value(names: Iterable[str]) -> str:
    """Return the distinct names for the log, in order. A name that does not look like a field name becomes `?`.

    A body in another format parses as a form with one long name, which may contain a secret.
    """
    return ",".join(dict.fromkeys(name if _NAME.fullmatch(name) else "?" for name in islice(names, _MAX_SHOWN_NAMES)))


class UnknownFieldsLog:
    """Logs each combination of path and unknown names once per minute, and at most 100 lines per minute in total."""

    def __init__(self) -> None:
        self._lines: set[tuple[str, str]] = set()
        self._until = 0.0

    def note(self, path: str, names: Iterable[str]) -> None:
        """Log the names unless they were logged recently. Login calls are skipped because their content is secret."""
        if path.startswith(_LOGINS):
            return
        shown = log_value(names)
        now = time.monotonic()
        if now >= self._until:
            self._lines.clear()
            self._until = now + _LOG_AGAIN_S
        if (path, shown) in self._lines or len(self._lines) >= _MAX_LOG_LINES:
            return
        self._lines.add((path, shown))
        log.info("unknown request fields", path=path, fields=shown)


MULTIPART = "multipart/form-data"

_MAX_LENGTH_DIGITS = 18


def multipart_type(request: Request) -> str | None:
    """Return the Content-Type header, or None if the body is not multipart."""
    content_type = request.headers.get("content-type", "")
    return content_type if content_type.partition(";")[0].strip().lower() == MULTIPART else None


def announced_bytes(request: Request) -> int | None:
    """Return the value of the Content-Length header, or None if it is absent or not a number."""
    length = request.headers.get("content-length", "")
    # The first 18 digits of a longer number already exceed every limit.
    return int(length[:_MAX_LENGTH_DIGITS]) if length.isascii() and length.isdecimal() else None


async def pieces(request: Request) -> AsyncGenerator[bytes]:
    """Yield the body in chunks as they arrive. Raises upload_aborted if the client disconnects first."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise errors.upload_aborted("The client disconnected before the body was complete.")
        if body := message.get("body"):
            yield body
        if not message.get("more_body"):
            return


ANONYMOUS = 0
"""User id of clients without credentials. Thread pools schedule the work of all these clients as that of one user."""
_FORM = "application/x-www-form-urlencoded"
_THREAD_ABOVE_BYTES = 64 * 1024
# A body of 16 MiB needs 280 kB/s to arrive in time. The limit stops clients that send a few bytes at a time from
# holding a connection forever.
_BODY_WITHIN_S = 60.0

T = TypeVar("T")
Model = TypeVar("Model", bound=Fields)


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a body. `is_large` is set if the body is too large to process on the event loop."""

    fields: Mapping[str, Any]
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class RawBody:
    """A body as received. `kind` is the media type in lower case, without parameters."""

    kind: str
    content_type: str
    content: bytes


def _unbounded(size: int) -> None:
    del size


def holding(request: Request, user_id: int, max_bytes: int) -> AbstractContextManager[CountBytes]:
    """Count the bytes of a body of at most `max_bytes` against the sender's share until the block ends.

    A share is four times `max_bytes` for a user, and twice `max_bytes` for the network of a client without credentials.
    Shares for different values of `max_bytes` are separate.
    """
    shares = cast("BodyShares", request.app.state.body_shares)
    if user_id != ANONYMOUS:
        return shares.holding(f"user {user_id} {max_bytes}", 4 * max_bytes, is_user=True)
    address = client_address(request, cast("Services", request.app.state.services).settings.desktop.trusted_proxies)
    return shares.holding(f"{network_of(address)} {max_bytes}", 2 * max_bytes, is_user=False)


async def raw_body(
    request: Request,
    *,
    max_bytes: int,
    setting: str = "",
    within_s: float = _BODY_WITHIN_S,
    hold: CountBytes = _unbounded,
) -> RawBody | None:
    """Read a POST body of a supported type, or None if it is empty (Contract platform 1.2).

    `setting` is the name of the setting that determines `max_bytes`, if any. `hold` counts the bytes read. Raises
    UnsupportedMediaType, PayloadTooLarge (before the whole body is read), LateBody after `within_s`, and the errors of
    `hold`.
    """
    content_type = request.headers.get("content-type", _FORM)
    kind = content_type.partition(";")[0].strip().lower() or _FORM
    length = request.headers.get("content-length", "")
    if length == "0" or (not length and "transfer-encoding" not in request.headers):
        return None
    if kind not in {_FORM, "multipart/form-data", "application/json"}:
        if await _in_time(_is_empty(request), within_s):
            return None
        raise errors.UnsupportedMediaType(f"Content type {kind[:100]} is not supported.")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes, setting)
    content = await _in_time(_read(request, max_bytes, setting, hold), within_s)
    return RawBody(kind, content_type, content) if content else None


def _too_large(max_bytes: int, setting: str) -> errors.PayloadTooLarge:
    source = f" (`{setting}`)" if setting else ""
    return errors.PayloadTooLarge(f"The body exceeds the limit of {max_bytes} bytes{source}.")


async def read_body(
    request: Request, *, max_bytes: int, setting: str = "", user_id: int = ANONYMOUS, within_s: float = _BODY_WITHIN_S
) -> Body:
    """Read the fields of a POST body (Contract platform 1.2). Raises InvalidRequest and the errors of `raw_body`."""
    note_unread_query(request.scope)
    with holding(request, user_id, max_bytes) as hold:
        body = await raw_body(request, max_bytes=max_bytes, setting=setting, within_s=within_s, hold=hold)
        if body is None:
            return Body({})
        services = cast("Services", request.app.state.services)
        parsed = partial(_parse, body, services.settings.limits.max_json_depth)
        fields, is_large = await parse_in_thread_if_large(services.threads, user_id, parsed, len(body.content))
        note_received(request.scope, fields)
        return Body(fields, is_large)


def query_fields(request: Request, repeated: Collection[str] = ()) -> Body:
    """Read the query parameters of a GET call.

    Parameters in `repeated` keep all their values. All other parameters keep only the last value. Raises
    InvalidParameter.
    """
    pairs = form_fields(request.scope["query_string"])
    fields: dict[str, Any] = dict(pairs)
    note_received(request.scope, fields)
    for name in fields.keys() & repeated:
        fields[name] = [value for one, value in pairs if one == name]
    return Body(fields)


async def parse_in_thread_if_large(
    threads: Threads, user_id: int, parsed: Callable[[], T], size_bytes: int
) -> tuple[T, bool]:
    """Return the result of `parsed`, and whether it ran in a thread because the body exceeds 64 KiB.

    Raises TooManyRequests.
    """
    if size_bytes <= _THREAD_ABOVE_BYTES:
        return parsed(), False
    return await threads.bodies.run(user_id, lambda _: parsed()), True


async def _in_time(reading: Coroutine[Any, Any, T], within_s: float) -> T:
    try:
        async with asyncio.timeout(within_s):
            return await reading
    except TimeoutError:
        raise errors.LateBody from None


async def _is_empty(request: Request) -> bool:
    """Return whether a body of unknown length is empty. Reads no further than the first non-empty chunk."""
    async for piece in request.stream():
        if piece:
            return False
    return True


async def _read(request: Request, max_bytes: int, setting: str, hold: CountBytes) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes, setting)
        hold(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _parse(body: RawBody, max_json_depth: int) -> dict[str, Any]:
    if body.kind == "application/json":
        return parse_json_object(body.content, max_depth=max_json_depth)
    if body.kind == _FORM:
        return parse_form(body.content)
    return parse_multipart(body.content, body.content_type)
