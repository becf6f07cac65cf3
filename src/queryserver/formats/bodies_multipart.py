"""The text parts of `multipart/form-data`, within limits (Security T6)."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from queryserver.domain.errors.base import InvalidParameter
from queryserver.formats.multipart_headers import NO_LIMIT, PartHeaders

MAX_HEADER_BYTES = 16 * 1024
_WINDOW_BYTES = 64 * 1024


def text_parts(body: bytes, content_type: str, *, max_parts: int) -> list[tuple[bytes, bytes]]:
    """Name and value of each part, in order. Raises InvalidParameter, PayloadTooLarge."""
    parts = _Parts(max_parts)
    try:
        parser = MultipartParser(
            boundary_of(content_type),
            {
                "on_part_begin": parts.begin,
                **parts.headers.callbacks,
                "on_headers_finished": parts.end_headers,
                "on_part_data": parts.value,
                "on_part_end": parts.end,
                "on_end": parts.end_all,
            },
            max_header_count=NO_LIMIT,
            max_header_size=NO_LIMIT,
        )
        for start in range(0, len(body), _WINDOW_BYTES):
            parser.write(body[start : start + _WINDOW_BYTES])
    except FormParserError:
        raise InvalidParameter("The multipart body does not parse.") from None
    if not parts.ended:
        raise InvalidParameter("The multipart body ends before its last boundary.")
    return parts.found


def boundary_of(content_type: str) -> bytes:
    """What stands between the parts. Raises InvalidParameter when the content type does not say."""
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    except UnicodeEncodeError:
        boundary = b""
    if not boundary:
        raise InvalidParameter("The content type multipart/form-data needs a boundary.")
    return boundary


class _Parts:
    """Hears of the parser's finds, and keeps the parts."""

    def __init__(self, max_parts: int) -> None:
        self.found: list[tuple[bytes, bytes]] = []
        self.ended = False
        self._max_parts = max_parts
        self._name: bytes | None = None
        self.headers = PartHeaders(MAX_HEADER_BYTES)
        self._value = bytearray()

    def begin(self) -> None:
        if len(self.found) == self._max_parts:
            raise InvalidParameter(f"A form has at most {self._max_parts} fields.")
        self.headers.clear()
        self._value = bytearray()

    def end_headers(self) -> None:
        kind, options = parse_options_header(self.headers.disposition.decode("latin-1"))
        self._name = options.get(b"name")
        if kind != b"form-data" or self._name is None:
            raise InvalidParameter("A part of the multipart body has no name.")
        if b"filename" in options:
            raise InvalidParameter("Files cannot be sent with this call, only text fields.")

    def value(self, window: bytes, start: int, end: int) -> None:
        self._value += window[start:end]

    def end(self) -> None:
        self.found.append((self._name or b"", bytes(self._value)))

    def end_all(self) -> None:
        self.ended = True
