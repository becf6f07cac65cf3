"""Encodings of text files: names, incremental decoding, and text excerpts (Contract importer 8.1, 9.2)."""

import codecs
import threading
from dataclasses import dataclass

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import encoding_failed
from queryserver.formats.unpacking import ByteExcerpt

ENCODINGS = (
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "ascii",
    "iso-8859-1",
    "iso-8859-2",
    "iso-8859-15",
    *(f"windows-125{digit}" for digit in range(9)),
    "cp874",
    "cp866",
    "mac-roman",
    "shift_jis",
    "cp932",
    "euc-jp",
    "euc-kr",
    "cp949",
    "gbk",
    "gb18030",
    "big5",
    "big5-hkscs",
    "koi8-r",
    "koi8-u",
)
"""The names of the encodings in the API, in lower case. They are also valid Python codec names."""

_ALIASES = {f"cp125{digit}": f"windows-125{digit}" for digit in range(9)}


def python_codec(name: str) -> str:
    """Return Python's name for an encoding, ignoring case. Raises InvalidParameter."""
    codec = name.strip().lower()
    codec = _ALIASES.get(codec, codec)
    if codec not in ENCODINGS:
        raise InvalidParameter(f"encoding must be one of {' '.join(ENCODINGS)}.")
    return codec


def encoded(text: str, encoding: str) -> bytes:
    """Encode text. Raises InvalidParameter if the encoding is unknown or cannot represent a character."""
    try:
        return text.encode(python_codec(encoding))
    except UnicodeEncodeError:
        raise InvalidParameter(f"contents cannot be encoded as {encoding}.") from None


UTF_8_WITH_MARK = "utf-8-sig"
"""The encoding that is detected for UTF-8 files with a byte order mark. Clients may also declare it."""

_BYTE_ORDER_MARK = "\ufeff"
_MAX_UNDECODABLE = 0.1

_SUPERSETS = {"shift_jis": "cp932", "euc-kr": "cp949", "gbk": "gb18030", "big5": "cp950"}
"""Supersets used for decoding, as in browsers (WHATWG Encoding Standard): Windows uses the narrower names for them."""

_END_OF_FILE = "\x1a"
_MAX_END_MARKS = 128
"""DOS ends a text with U+001A; CP/M pads the last block of 128 bytes with it."""

_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_UTF16 = frozenset({"utf-16-le", "utf-16-be"})
_MULTIBYTE_ENCODINGS = _UTF16 | {
    "utf-8", "shift_jis", "cp932", "euc-jp", "euc-kr", "cp949", "gbk", "gb18030", "big5", "big5-hkscs",
}  # fmt: skip
_MIN_TRAIL_BYTE = 0x30
"""In these encodings, except UTF-16, no byte below this value is part of a multibyte character."""
_MAX_CHARACTER_BYTES = 4

_counted = threading.local()


def _replace_and_count(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _counted.undecodable += 1
    return "\ufffd", error.end


codecs.register_error("queryserver-count", _replace_and_count)


def parse_encoding(name: str) -> str:
    """Parse the name of an encoding, ignoring case. Raises InvalidParameter."""
    lowered, names = name.lower(), (UTF_8_WITH_MARK, *ENCODINGS)
    lowered = _ALIASES.get(lowered, lowered)
    if lowered not in names:
        raise InvalidParameter(f"encoding must be one of {' '.join(names)}.")
    return lowered


def decoded(sample: bytes, encoding: str, *, is_whole: bool) -> str:
    """Decode a sample. Unless it is the whole file, a truncated last character is ignored."""
    return Decoder(encoding).decode(sample, final=is_whole)


class _Utf16Decoder:
    """Decodes UTF-16 in the byte order given by its byte order mark; without one, as little-endian, the usual order.

    Python's decoder rejects text without a byte order mark.
    """

    def __init__(self, errors: str) -> None:
        self._errors = errors
        self._begin = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def decode(self, piece: bytes, final: bool) -> str:
        piece = self._begin + piece
        if self._decoder is None:
            if len(piece) < len(codecs.BOM_UTF16) and not final:
                self._begin = piece
                return ""
            order = "be" if piece.startswith(codecs.BOM_UTF16_BE) else "le"
            self._decoder = codecs.getincrementaldecoder(f"utf-16-{order}")(self._errors)
            self._begin = b""
        return self._decoder.decode(piece, final)


class Decoder:
    """Decodes one file incrementally. Omits a byte order mark at its beginning and U+001A at its end."""

    def __init__(self, encoding: str) -> None:
        codec = "utf-8" if encoding == UTF_8_WITH_MARK else _SUPERSETS.get(encoding, encoding)
        made = _Utf16Decoder if codec == "utf-16" else codecs.getincrementaldecoder(codec)
        self._decoder = made("queryserver-count")
        self._is_begun = False
        self._end_marks = ""
        self.characters = 0
        self.undecodable = 0
        """Number of U+FFFD characters that replace invalid bytes."""

    def decode(self, piece: bytes, *, final: bool = False) -> str:
        """Decode the complete characters received so far; with `final`, also an incomplete last character."""
        _counted.undecodable = 0
        text = self._decoder.decode(piece, final)
        self.undecodable += _counted.undecodable
        if not self._is_begun and text:
            self._is_begun = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        text = self._without_end_marks(text, final=final)
        self.characters += len(text)
        return text

    def _without_end_marks(self, text: str, *, final: bool) -> str:
        """Hold back U+001A at the end of the text until more text follows; with `final`, remove it."""
        if self._end_marks:
            text = self._end_marks + text
        if not text.endswith(_END_OF_FILE):
            self._end_marks = ""
            return text
        kept = max(len(text.rstrip(_END_OF_FILE)), len(text) - _MAX_END_MARKS)
        self._end_marks = "" if final else text[kept:]
        return text[:kept]

    def check(self) -> None:
        """Raise encoding_failed if more than a tenth of the decoded characters replace invalid bytes."""
        if self.undecodable > _MAX_UNDECODABLE * self.characters:
            raise encoding_failed("The file is not valid in the specified encoding.")


@dataclass(frozen=True, slots=True)
class TextWindow:
    """The text of part of a file. `end` is the offset of the next part in the decompressed stream."""

    text: str
    end: int
    is_valid: bool
    """False if invalid bytes were replaced with U+FFFD."""


def text_window(excerpt: ByteExcerpt, encoding: str) -> TextWindow:
    """Decode the characters that begin in the requested bytes. `encoding` is one of ENCODINGS.

    A character that continues after the requested bytes is left to the next window unless it is the only one, so that
    repeated reads at `end` always reach the end. A byte order mark at the beginning is omitted. U+0000 counts as
    invalid.
    """
    if not excerpt.length:
        return TextWindow("", excerpt.offset, is_valid=True)
    codec = _UTF16_MARKS.get(excerpt.start[:2], "utf-16-le") if encoding == "utf-16" else encoding
    skipped = 0
    if excerpt.offset == 0:
        # Skip a byte order mark.
        if encoding == "utf-8" and excerpt.content.startswith(codecs.BOM_UTF8):
            skipped = len(codecs.BOM_UTF8)
        elif encoding == "utf-16" and excerpt.content[:2] in _UTF16_MARKS:
            skipped = 2
    elif codec in _MULTIBYTE_ENCODINGS:
        skipped = _count_cut_bytes(excerpt, codec)
    skipped = min(skipped, len(excerpt.content))
    try:
        text, used = _decoded(excerpt, codec, skipped, "strict")
    except UnicodeDecodeError:
        text, used = _decoded(excerpt, codec, skipped, "replace")
        return TextWindow(text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid=False)
    is_valid = "\0" not in text
    return TextWindow(text if is_valid else text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid)


def _decoded(excerpt: ByteExcerpt, codec: str, skipped: int, errors: str) -> tuple[str, int]:
    """Decode the text. Returns it with the number of bytes that it occupies, including the skipped ones."""
    content = excerpt.content[min(skipped, excerpt.length) : excerpt.length]
    decoder = codecs.getincrementaldecoder(codec)(errors)
    text = decoder.decode(content, final=excerpt.is_last)
    used = max(skipped, len(excerpt.requested))
    pending = len(decoder.getstate()[0])
    if text or not pending:
        return text, used - pending
    for place in range(excerpt.length, len(excerpt.content)):
        if text := decoder.decode(excerpt.content[place : place + 1]):
            return text, place + 1
    text = decoder.decode(b"", final=True)
    return text, len(excerpt.content)


def _count_cut_bytes(excerpt: ByteExcerpt, codec: str) -> int:
    """Count leading bytes that belong to a character before the window, decoding from a known start of a character.

    If there is no such start or the text is invalid, returns 1 for the second byte of a UTF-16 code unit, otherwise 0.
    """
    half = excerpt.offset & 1 if codec in _UTF16 else 0
    known = _character_start(excerpt, codec)
    if known is None:
        return half
    decoder = codecs.getincrementaldecoder(codec)("strict")
    try:
        decoder.decode(excerpt.before[known:])
        for skipped in range(_MAX_CHARACTER_BYTES):
            if not decoder.getstate()[0]:
                return skipped
            decoder.decode(excerpt.content[skipped : skipped + 1])
    except UnicodeDecodeError:
        pass
    return half


def _character_start(excerpt: ByteExcerpt, codec: str) -> int | None:
    """Return the last position before the window at which a character certainly begins; None if there is none."""
    before = excerpt.before
    if codec in _UTF16:
        return max(len(before) - 2 + (excerpt.offset & 1), 0)
    places = range(len(before) - 1, -1, -1)
    if codec == "utf-8":
        return next((place for place in places[:_MAX_CHARACTER_BYTES] if before[place] & 0xC0 != 0x80), None)
    known = next((place + 1 for place in places if before[place] < _MIN_TRAIL_BYTE), None)
    return 0 if known is None and len(before) == excerpt.offset else known
