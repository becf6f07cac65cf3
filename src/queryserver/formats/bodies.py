"""Request bodies as fields (Contract editor 1.2, platform 1.2).

Bodies have up to 16 MiB and come from anybody. Nothing here keeps the interpreter lock for long, whatever the bytes
are: large bodies are read in small steps, so that the event loop runs on while a thread reads one.
"""

from typing import Any
from urllib.parse import unquote_to_bytes

from queryserver.errors.base import InvalidParameter, UnreadableParameter, invalid_body
from queryserver.formats.multipart import text_parts
from queryserver.platform.text import MAX_DEPTH, parse_json

MAX_FIELDS = 1000
_WINDOW_BYTES = 64 * 1024


def parse_json_object(body: bytes, *, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The members of a JSON object; none for an empty body. The object itself is the first level of `max_depth`.

    Raises InvalidJson (also for duplicate keys, NaN, U+0000 and half a surrogate pair), and invalid_body for a value
    that is no object.
    """
    if not body:
        return {}
    value = parse_json(body, max_depth=max_depth)
    if not isinstance(value, dict):
        raise invalid_body("The request body must be a JSON object.")
    return value


def parse_form(body: bytes) -> dict[str, str]:
    """The fields of `application/x-www-form-urlencoded`; of a repeated one the last counts.

    Raises InvalidParameter for text that is no UTF-8 or holds U+0000, and above 1000 fields.
    """
    return dict(form_fields(body))


def form_fields(body: bytes, *, max_fields: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """Every field of `application/x-www-form-urlencoded` in its order, repeated ones too. Raises as `parse_form`."""
    if body.count(b"&") >= max_fields:
        raise InvalidParameter(f"A form has at most {max_fields} fields.")
    fields: list[tuple[str, str]] = []
    for field in body.split(b"&"):
        if field:
            name, _, value = field.partition(b"=")
            key = _name(_decoded(name))
            fields.append((key, _value(key, _decoded(value))))
    return fields


def parse_multipart(body: bytes, content_type: str) -> dict[str, str]:
    """The text parts of `multipart/form-data`; of a repeated one the last counts. None for an empty body.

    Raises InvalidParameter (a file, a body that ends early, no boundary, above 1000 parts, text as in `parse_form`)
    and PayloadTooLarge (headers of one part above 16 KiB).
    """
    return dict(multipart_fields(body, content_type))


def multipart_fields(body: bytes, content_type: str, *, max_fields: int = MAX_FIELDS) -> list[tuple[str, str]]:
    """Every text part of `multipart/form-data` in its order, repeated ones too. Raises as `parse_multipart`."""
    if not body:
        return []
    fields: list[tuple[str, str]] = []
    for name, value in text_parts(body, content_type, max_parts=max_fields):
        key = _name(name)
        fields.append((key, _value(key, value)))
    return fields


def _name(raw: bytes) -> str:
    try:
        return _text(raw)
    except ValueError as problem:
        raise InvalidParameter(f"The name of a parameter {problem}") from None


def _value(name: str, raw: bytes) -> str:
    try:
        return _text(raw)
    except ValueError as problem:
        raise UnreadableParameter(name, str(problem)) from None


def _text(raw: bytes) -> str:
    """Raises ValueError with what is wrong."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError("is not valid UTF-8.") from None
    if "\0" in text:
        raise ValueError("holds the character U+0000.")
    return text


def _decoded(raw: bytes) -> bytes:
    if len(raw) <= _WINDOW_BYTES:
        return _unquoted(raw)
    windows: list[bytes] = []
    start = 0
    while start < len(raw):
        end = start + _WINDOW_BYTES
        escape = raw.rfind(b"%", end - 2, end)  # no window ends inside of %41
        end = end if escape < 0 else escape
        windows.append(_unquoted(raw[start:end]))
        start = end
    return b"".join(windows)


def _unquoted(raw: bytes) -> bytes:
    raw = raw.replace(b"+", b" ")
    return unquote_to_bytes(raw) if b"%" in raw else raw
