"""`multipart/form-data` with one file of any size, as it arrives (Contract storage 9.1; Security T6).

A few text fields, the file, a few text fields again. What is read and not yet taken is less than two pieces.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from queryserver.domain.errors.base import BodyTooSlow, InvalidParameter, MissingParameter, PayloadTooLarge
from queryserver.domain.errors.files import too_many_parts, upload_aborted
from queryserver.formats.bodies_multipart import boundary_of
from queryserver.formats.multipart_headers import NO_LIMIT, PartHeaders
from queryserver.formats.multipart_names import PartNames, names_of_part

PIECE_BYTES = 1024 * 1024
_KIB = 1024


@dataclass(frozen=True, slots=True)
class MultipartLimits:
    """What a body may ask of this process."""

    parts: int = 32
    header_bytes: int = 8 * _KIB
    """Of one part."""
    value_bytes: int = 64 * _KIB
    """Of one text field."""
    frame_bytes: int = 512 * _KIB
    """Of everything that is neither file nor value, what stands behind the last boundary too."""
    slow_bytes: int = 60 * _KIB
    slow_s: float = 60.0
    """A body of which fewer than `slow_bytes` come while `slow_s` are spent waiting for it is too slow."""


_LIMITS = MultipartLimits()


class MultipartStream:
    """Reads one body: `file_name`, then `content` to its end.

    `file_fields` are the names that the file may go by; empty: any. `leading_fields` must not come behind the file.
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
        self._parts = _Parts(limits, file_fields, leading_fields)
        self._waited_s = 0.0
        self._recent_bytes = 0
        self.bytes_read = 0
        try:
            self._parser = MultipartParser(
                boundary_of(content_type),
                {
                    "on_part_begin": self._parts.begin,
                    **self._parts.headers.callbacks,
                    "on_headers_finished": self._parts.end_headers,
                    "on_part_data": self._parts.content,
                    "on_part_end": self._parts.end,
                    "on_end": self._parts.end_all,
                },
                max_header_count=NO_LIMIT,
                max_header_size=NO_LIMIT,
            )
        except FormParserError:
            raise InvalidParameter("The boundary of the multipart body is too long.") from None

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The text fields so far, in their order."""
        return self._parts.fields

    @property
    def file_field(self) -> str:
        """The name of the part that holds the file; empty before the file comes."""
        return self._parts.file_field

    async def file_name(self) -> str:
        """Reads up to the file and tells its name, as the client wrote it.

        Raises InvalidParameter, InvalidName, MissingParameter (no file), too_many_parts, PayloadTooLarge, BodyTooSlow,
        upload_aborted (the body ends early), and what `body` raises.
        """
        while self._parts.file_name is None:
            if not await self._read():
                self._require_end()
                raise MissingParameter("A file is required.")
        return self._parts.file_name

    async def content(self) -> AsyncGenerator[bytes]:
        """The bytes of the file, in pieces of at most 1 MiB.

        Ends only when the whole body was read and nothing is wrong with it. Raises as `file_name`, also for a second
        file and for `leading_fields` behind the file.
        """
        while await self._read():
            while self._parts.waiting_bytes >= PIECE_BYTES:
                yield self._parts.take(PIECE_BYTES)
        self._require_end()
        while self._parts.waiting_bytes:
            yield self._parts.take(PIECE_BYTES)

    async def _read(self) -> bool:
        """Whether there was anything left to read."""
        piece = await self._next()
        if piece is None:
            return False
        self.bytes_read += len(piece)
        try:
            self._parser.write(piece)
        except FormParserError:
            raise InvalidParameter("The multipart body does not parse.") from None
        if self.bytes_read - self._parts.content_bytes > self._limits.frame_bytes:
            raise PayloadTooLarge("The multipart body holds too much beside its file and fields.")
        return True

    async def _next(self) -> bytes | None:
        """Time counts only while we wait for the client: a slow store is not the client's fault."""
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            async with asyncio.timeout(self._limits.slow_s - self._waited_s):
                piece = await anext(self._body, None)
        except TimeoutError:
            raise BodyTooSlow("The body arrives too slowly.") from None
        self._waited_s += clock() - started
        self._recent_bytes += len(piece or b"")
        if self._recent_bytes >= self._limits.slow_bytes:
            self._waited_s, self._recent_bytes = 0.0, 0
        return piece

    def _require_end(self) -> None:
        if not self._parts.ended:
            raise upload_aborted("The multipart body ends before its last boundary.")


class _Parts:
    """Hears of the parser's finds."""

    def __init__(self, limits: MultipartLimits, file_fields: Collection[str], leading_fields: Collection[str]) -> None:
        self.fields: list[tuple[str, str]] = []
        self.file_name: str | None = None
        self.file_field = ""
        self.ended = False
        self.waiting_bytes = 0
        self.content_bytes = 0
        self._limits = limits
        self._file_fields = file_fields
        self._leading_fields = leading_fields
        self._waiting: list[bytes] = []
        self._begun = 0
        self._names = PartNames("", None)
        self.headers = PartHeaders(limits.header_bytes)
        self._value = bytearray()

    def take(self, size: int) -> bytes:
        """The next bytes of the file."""
        joined = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        piece, rest = joined[:size], joined[size:]
        self._waiting = [rest] if rest else []
        self.waiting_bytes = len(rest)
        return piece

    def begin(self) -> None:
        self._begun += 1
        if self._begun > self._limits.parts:
            raise too_many_parts(f"A multipart body has at most {self._limits.parts} parts.")
        self.headers.clear()
        self._value = bytearray()

    def end_headers(self) -> None:
        self._names = names_of_part(self.headers.disposition)
        if self._names.file_name is None:
            if self.file_name is not None and self._names.field in self._leading_fields:
                raise InvalidParameter(f"{self._names.field} must come before the file.")
            return
        if self.file_name is not None:
            raise InvalidParameter("The multipart body holds more than one file.")
        if self._file_fields and self._names.field not in self._file_fields:
            raise InvalidParameter(f"The file must be called {', '.join(self._file_fields)}.")
        self.file_name = self._names.file_name
        self.file_field = self._names.field

    def content(self, window: bytes, start: int, end: int) -> None:
        size = end - start
        self.content_bytes += size
        if self._names.file_name is not None:
            self._waiting.append(window[start:end])
            self.waiting_bytes += size
            return
        self._value += window[start:end]
        if len(self._value) > self._limits.value_bytes:
            raise PayloadTooLarge(f"A field of the multipart body is above {self._limits.value_bytes} bytes.")

    def end(self) -> None:
        if self._names.file_name is None:
            self.fields.append((self._names.field, self._text()))

    def end_all(self) -> None:
        self.ended = True

    def _text(self) -> str:
        try:
            return self._value.decode()
        except UnicodeDecodeError:
            raise InvalidParameter("A field of the multipart body is not valid UTF-8.") from None
