"""Parses `multipart/form-data` within limits (Contract security T6): text fields, or one file as a stream."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from email.errors import MessageError
from email.header import decode_header, make_header
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from queryserver.errors.base import BodyTooSlow, InvalidParameter, MissingParameter, PayloadTooLarge
from queryserver.errors.files import InvalidName, too_many_parts, upload_aborted

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


_NO_LIMIT = 1 << 30
"""Disables the parser's limits per header line, because this module limits the total size of a part's headers."""
_MAX_HEADER_BYTES = 16 * 1024
_WINDOW_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024
_KIB = 1024

_FORM_DATA = re.compile(r"\s*form-data\s*", re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s"]*)\s*', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_ENCODED_WORDS = re.compile(r"=\?[^?\s]+\?[bq]\?[^?\s]*\?=(?:\s+=\?[^?\s]+\?[bq]\?[^?\s]*\?=)*", re.IGNORECASE)
_CHARSETS = frozenset({"utf-8", "iso-8859-1"})


class _PartCallbacks(ABC):
    """Parser callbacks that read the headers of a part. Raises PayloadTooLarge if the headers are too large."""

    def __init__(self, max_header_bytes: int) -> None:
        self.is_complete = False
        self._disposition = b""
        """The value of the `Content-Disposition` header; empty if the part has none."""
        self._max_header_bytes = max_header_bytes
        self._header_bytes = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._value = bytearray()

    def parser(self, content_type: str) -> MultipartParser:
        """Create a parser. Raises InvalidParameter if the boundary is missing, FormParserError if it is invalid."""
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_begin": self._begin_header,
            "on_header_field": self._read_name,
            "on_header_value": self._read_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._end_all,
        }
        boundary = parse_boundary(content_type)
        return MultipartParser(boundary, callbacks, max_header_count=_NO_LIMIT, max_header_size=_NO_LIMIT)

    def _begin(self) -> None:
        self._disposition, self._header_bytes = b"", 0
        self._value = bytearray()

    def _begin_header(self) -> None:
        self._header_name.clear()
        self._header_value.clear()
        self._count_header_bytes(len(": \r\n"))

    def _read_name(self, window: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._header_name += window[start:end]

    def _read_value(self, window: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._header_value += window[start:end]

    def _end_header(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)

    def _count_header_bytes(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._max_header_bytes:
            raise PayloadTooLarge(f"The headers of a multipart part are larger than {self._max_header_bytes} bytes.")

    @abstractmethod
    def _end_headers(self) -> None: ...

    def _data(self, window: bytes, start: int, end: int) -> None:
        self._value += window[start:end]

    @abstractmethod
    def _end(self) -> None: ...

    def _end_all(self) -> None:
        self.is_complete = True


def parse_text_parts(body: bytes, content_type: str, *, max_parts: int) -> list[tuple[bytes, bytes]]:
    """Return the names and values of all parts, in order. Raises InvalidParameter, PayloadTooLarge."""
    parts = _TextParts(max_parts)
    try:
        parser = parts.parser(content_type)
        for start in range(0, len(body), _WINDOW_BYTES):
            parser.write(body[start : start + _WINDOW_BYTES])
    except FormParserError:
        raise InvalidParameter("The multipart body is malformed.") from None
    if not parts.is_complete:
        raise InvalidParameter("The multipart body ends before its last boundary.")
    return parts.found


def parse_boundary(content_type: str) -> bytes:
    """Return the boundary that separates the parts. Raises InvalidParameter if the content type has none."""
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    except UnicodeEncodeError:
        boundary = b""
    if not boundary:
        raise InvalidParameter("The content type multipart/form-data requires a boundary.")
    return boundary


class _TextParts(_PartCallbacks):
    """Collects all parts, which must be text fields."""

    def __init__(self, max_parts: int) -> None:
        super().__init__(_MAX_HEADER_BYTES)
        self.found: list[tuple[bytes, bytes]] = []
        self._max_parts = max_parts
        self._name = b""

    def _begin(self) -> None:
        if len(self.found) == self._max_parts:
            raise InvalidParameter(f"A form can have at most {self._max_parts} fields.")
        super()._begin()

    def _end_headers(self) -> None:
        kind, options = parse_options_header(self._disposition.decode("latin-1"))
        if kind != b"form-data" or b"name" not in options:
            raise InvalidParameter("A part of the multipart body has no name.")
        if b"filename" in options:
            raise InvalidParameter("This request accepts only text fields, not files.")
        self._name = options[b"name"]

    def _end(self) -> None:
        self.found.append((self._name, bytes(self._value)))


@dataclass(frozen=True, slots=True)
class PartNames:
    """The names of a part. `file_name` is None if the part is a text field."""

    field: str
    file_name: str | None


def parse_part_names(disposition: bytes) -> PartNames:
    """Parse the names in a `Content-Disposition` header. Raises InvalidParameter, InvalidName."""
    try:
        parameters = _parameters(disposition.decode())
    except UnicodeDecodeError:
        raise InvalidParameter("The headers of a multipart part are not valid UTF-8.") from None
    if "name" not in parameters:
        raise InvalidParameter("A part of the multipart body has no name.")
    name = parameters.get("filename")
    if "filename*" in parameters:
        name = _decode_extended_value(parameters["filename*"])
    elif any(name.startswith("filename*") for name in parameters):
        raise InvalidName("File names that are split into several parameters are not supported.")
    elif name and _ENCODED_WORDS.fullmatch(name):
        try:
            name = str(make_header(decode_header(name)))
        except (MessageError, LookupError, ValueError):  # the client may name any codec
            raise InvalidName("The encoded file name is malformed.") from None
    return PartNames(parameters["name"], name)


def _parameters(disposition: str) -> Mapping[str, str]:
    kind = _FORM_DATA.match(disposition)
    position = kind.end() if kind else 0
    found: dict[str, str] = {}
    while position and position < len(disposition) and (match := _PARAMETER.match(disposition, position)):
        name, value = match[1].lower(), match[2]
        if name in found:
            raise InvalidParameter("A part of the multipart body has two names.")
        found[name] = _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value
        position = match.end()
    if position < len(disposition) or not found:
        raise InvalidParameter("The Content-Disposition header of a multipart part is malformed.")
    return found


def _decode_extended_value(value: str) -> str:
    """Decode an extended value (RFC 8187) such as `UTF-8'en'a%20b`. Raises InvalidName."""
    charset, first, rest = value.partition("'")
    _, second, encoded = rest.partition("'")
    if not first or not second or charset.lower() not in _CHARSETS:
        raise InvalidName("The extended file name is malformed.")
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except UnicodeDecodeError:
        raise InvalidName("The extended file name is malformed.") from None


@dataclass(frozen=True, slots=True)
class MultipartLimits:
    parts: int = 32
    header_bytes: int = 8 * _KIB
    """Maximum total size of the headers of a part."""
    value_bytes: int = 64 * _KIB
    """Maximum size of a text field."""
    frame_bytes: int = 512 * _KIB
    """Maximum size of the body, not counting the file and field values but including bytes after the last boundary."""
    slow_bytes: int = 60 * _KIB
    slow_s: float = 60.0
    """A body is too slow if fewer than `slow_bytes` arrive in `slow_s` seconds of waiting for the client."""


_LIMITS = MultipartLimits()


class MultipartStream:
    """Reads one body. Call `file_name` first, then read `content` to its end.

    `file_fields` contains the accepted field names for the file; if empty, any name is accepted. `leading_fields` must
    come before the file.
    """

    def __init__(
        self,
        body: AsyncIterator[bytes],
        content_type: str,
        *,
        file_fields: Collection[str] = (),
        leading_fields: Collection[str] = (),
        limits: MultipartLimits = _LIMITS,
    ) -> None:
        self._body = body
        self._limits = limits
        self._parts = _StreamedParts(limits, file_fields, leading_fields)
        self.fields = self._parts.fields
        """The text fields that have been received so far, in order."""
        self._waited_s = 0.0
        self._recent_bytes = 0
        self.bytes_read = 0
        try:
            self._parser = self._parts.parser(content_type)
        except FormParserError:
            raise InvalidParameter("The boundary of the multipart body is too long.") from None

    @property
    def file_field(self) -> str:
        """The field name of the file; empty until the part with the file begins."""
        return self._parts.file_field

    async def file_name(self) -> str:
        """Read the body up to the file and return the file name, unmodified.

        Raises InvalidParameter, InvalidName, MissingParameter (no file), too_many_parts, PayloadTooLarge, BodyTooSlow,
        upload_aborted (the body ends too early), and the errors of `body`.
        """
        while self._parts.file_name is None:
            if not await self._read():
                self._require_end()
                raise MissingParameter("A file is required.")
        return self._parts.file_name

    async def content(self) -> AsyncGenerator[bytes]:
        """Yield the content of the file in pieces of at most 1 MiB.

        Ends normally only if the whole body has been read and is valid. Raises the errors of `file_name`, and
        InvalidParameter if there is a second file or one of `leading_fields` follows the file.
        """
        while await self._read():
            while self._parts.waiting_bytes >= PIECE_BYTES:
                yield self._parts.take(PIECE_BYTES)
        self._require_end()
        while self._parts.waiting_bytes:
            yield self._parts.take(PIECE_BYTES)

    async def _read(self) -> bool:
        piece = await self._next()
        if piece is None:
            return False
        self.bytes_read += len(piece)
        try:
            self._parser.write(piece)
        except FormParserError:
            raise InvalidParameter("The multipart body is malformed.") from None
        if self.bytes_read - self._parts.content_bytes > self._limits.frame_bytes:
            raise PayloadTooLarge("The multipart body contains too many bytes outside its file and fields.")
        return True

    async def _next(self) -> bytes | None:
        """Receive the next piece. Only the time spent waiting for the client counts, not that of a slow store. Raises
        BodyTooSlow.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            async with asyncio.timeout(self._limits.slow_s - self._waited_s):
                piece = await anext(self._body, None)
        except TimeoutError:
            raise BodyTooSlow("The request body arrives too slowly.") from None
        self._waited_s += clock() - started
        self._recent_bytes += len(piece or b"")
        if self._recent_bytes >= self._limits.slow_bytes:
            self._waited_s, self._recent_bytes = 0.0, 0
        return piece

    def _require_end(self) -> None:
        if not self._parts.is_complete:
            raise upload_aborted("The multipart body ends before its last boundary.")


class _StreamedParts(_PartCallbacks):
    """Collects text fields. Buffers the content of the file until `take` removes it."""

    def __init__(self, limits: MultipartLimits, file_fields: Collection[str], leading_fields: Collection[str]) -> None:
        super().__init__(limits.header_bytes)
        self.fields: list[tuple[str, str]] = []
        self.file_name: str | None = None
        self.file_field = ""
        self.waiting_bytes = 0
        self.content_bytes = 0
        self._limits = limits
        self._file_fields = file_fields
        self._leading_fields = leading_fields
        self._waiting: list[bytes] = []
        self._part_count = 0
        self._names = PartNames("", None)

    def take(self, size: int) -> bytes:
        joined = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        piece, rest = joined[:size], joined[size:]
        self._waiting = [rest] if rest else []
        self.waiting_bytes = len(rest)
        return piece

    def _begin(self) -> None:
        self._part_count += 1
        if self._part_count > self._limits.parts:
            raise too_many_parts(f"A multipart body can have at most {self._limits.parts} parts.")
        super()._begin()

    def _end_headers(self) -> None:
        self._names = parse_part_names(self._disposition)
        if self._names.file_name is None:
            if self.file_name is not None and self._names.field in self._leading_fields:
                raise InvalidParameter(f"{self._names.field} must come before the file.")
            return
        if self.file_name is not None:
            raise InvalidParameter("The multipart body contains more than one file.")
        if self._file_fields and self._names.field not in self._file_fields:
            raise InvalidParameter(f"The form field of the file must be named {', '.join(self._file_fields)}.")
        self.file_name = self._names.file_name
        self.file_field = self._names.field

    def _data(self, window: bytes, start: int, end: int) -> None:
        size = end - start
        self.content_bytes += size
        if self._names.file_name is not None:
            self._waiting.append(window[start:end])
            self.waiting_bytes += size
            return
        super()._data(window, start, end)
        if len(self._value) > self._limits.value_bytes:
            raise PayloadTooLarge(f"A field of the multipart body is larger than {self._limits.value_bytes} bytes.")

    def _end(self) -> None:
        if self._names.file_name is None:
            try:
                self.fields.append((self._names.field, self._value.decode()))
            except UnicodeDecodeError:
                raise InvalidParameter("A field of the multipart body is not valid UTF-8.") from None
