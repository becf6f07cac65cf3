"""The encoding of text that comes in, and decoding it in pieces (Contract importer 8.1, 9.2)."""

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
"""Names on the wire, in lower case; Python calls them the same."""

_ALIASES = {f"cp125{digit}": f"windows-125{digit}" for digit in range(9)}


def python_codec(name: str) -> str:
    """Python's name of an encoding, whatever the case. Raises InvalidParameter."""
    codec = name.strip().lower()
    codec = _ALIASES.get(codec, codec)
    if codec not in ENCODINGS:
        raise InvalidParameter(f"encoding must be one of {' '.join(ENCODINGS)}.")
    return codec


def encoded(text: str, encoding: str) -> bytes:
    """The text as bytes. Raises InvalidParameter: an unknown encoding, or text that it cannot write."""
    try:
        return text.encode(python_codec(encoding))
    except UnicodeEncodeError:
        raise InvalidParameter(f"contents cannot be written as {encoding}.") from None


UTF_8_WITH_MARK = "utf-8-sig"
"""Detected of files with a byte order mark; it counts as a given encoding as well."""

_MARK = "\ufeff"
_MAX_UNDECODABLE = 0.1

_SUPERSETS = {"shift_jis": "cp932", "euc-kr": "cp949", "gbk": "gb18030", "big5": "cp950"}
"""Files are read by these, as browsers do (WHATWG Encoding Standard): Windows writes them under the narrower name."""

_END_OF_FILE = "\x1a"
_MOST_ENDS = 128
"""DOS marks the end of a text by U+001A; CP/M fills a block of so many bytes with it."""

_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_UTF16 = frozenset({"utf-16-le", "utf-16-be"})
_LONG_CHARACTERS = _UTF16 | {
    "utf-8", "shift_jis", "cp932", "euc-jp", "euc-kr", "cp949", "gbk", "gb18030", "big5", "big5-hkscs",
}  # fmt: skip
_ALWAYS_WHOLE = 0x30
"""No byte below it is part of a longer character, in any of these encodings but UTF-16."""
_LONGEST_CHARACTER = 4

_counted = threading.local()


def _replace_and_count(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _counted.undecodable += 1
    return "\ufffd", error.end


codecs.register_error("queryserver-count", _replace_and_count)


def parse_encoding(name: str) -> str:
    """An encoding as clients name it, in any case. Raises InvalidParameter."""
    lowered, names = name.lower(), (UTF_8_WITH_MARK, *ENCODINGS)
    lowered = _ALIASES.get(lowered, lowered)
    if lowered not in names:
        raise InvalidParameter(f"encoding must be one of {' '.join(names)}.")
    return lowered


def decoded(sample: bytes, encoding: str, *, is_whole: bool) -> str:
    """The text of a sample; a character that its end cuts is left out unless the sample is the whole file."""
    return Decoder(encoding).decode(sample, final=is_whole)


class _Utf16Decoder:
    """UTF-16 whose mark decides the order of bytes. Without one the low byte comes first, as most programs write it.

    Python's own refuses text without a mark.
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
    """Decodes one file in pieces; a byte order mark at its beginning and U+001A at its end are left out."""

    def __init__(self, encoding: str) -> None:
        codec = "utf-8" if encoding == UTF_8_WITH_MARK else _SUPERSETS.get(encoding, encoding)
        made = _Utf16Decoder if codec == "utf-16" else codecs.getincrementaldecoder(codec)
        self._decoder = made("queryserver-count")
        self._is_begun = False
        self._ends = ""
        self.characters = 0
        self.undecodable = 0
        """U+FFFD characters that replace bytes without a meaning in the encoding."""

    def decode(self, piece: bytes, *, final: bool = False) -> str:
        """The characters that are complete so far; with `final` also what is left of the last one."""
        _counted.undecodable = 0
        text = self._decoder.decode(piece, final)
        self.undecodable += _counted.undecodable
        if not self._is_begun and text:
            self._is_begun = True
            text = text.removeprefix(_MARK)
        text = self._without_ends(text, final=final)
        self.characters += len(text)
        return text

    def _without_ends(self, text: str, *, final: bool) -> str:
        """The text but for U+001A at its end, which is kept for the case that more text follows."""
        if self._ends:
            text = self._ends + text
        if not text.endswith(_END_OF_FILE):
            self._ends = ""
            return text
        kept = max(len(text.rstrip(_END_OF_FILE)), len(text) - _MOST_ENDS)
        self._ends = "" if final else text[kept:]
        return text[:kept]

    def check(self) -> None:
        """Raises encoding_failed if more than a tenth of what was decoded is undecodable."""
        if self.undecodable > _MAX_UNDECODABLE * self.characters:
            raise encoding_failed("The file is not in the given encoding.")


@dataclass(frozen=True, slots=True)
class TextWindow:
    """The text of a part of a file. `end` is where the next part begins, an offset in the shown stream."""

    text: str
    end: int
    is_valid: bool
    """False: bytes that are no text of the encoding are shown as U+FFFD."""


def text_window(excerpt: ByteExcerpt, encoding: str) -> TextWindow:
    """The characters that begin in the requested bytes; `encoding` is one of ENCODINGS.

    A character that goes on behind the requested bytes is left to the next window, unless no other character is in this
    one: reading on at `end` comes to the end. A byte order mark at the beginning is left out. U+0000 is no text.
    """
    if not excerpt.length:
        return TextWindow("", excerpt.offset, is_valid=True)
    codec = _UTF16_MARKS.get(excerpt.start[:2], "utf-16-le") if encoding == "utf-16" else encoding
    skipped = 0
    if excerpt.offset == 0:
        # A byte order mark is left out.
        if encoding == "utf-8" and excerpt.content.startswith(codecs.BOM_UTF8):
            skipped = len(codecs.BOM_UTF8)
        elif encoding == "utf-16" and excerpt.content[:2] in _UTF16_MARKS:
            skipped = 2
    elif codec in _LONG_CHARACTERS:
        skipped = _cut_bytes(excerpt, codec)
    skipped = min(skipped, len(excerpt.content))
    try:
        text, used = _decoded(excerpt, codec, skipped, "strict")
    except UnicodeDecodeError:
        text, used = _decoded(excerpt, codec, skipped, "replace")
        return TextWindow(text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid=False)
    is_valid = "\0" not in text
    return TextWindow(text if is_valid else text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid)


def _decoded(excerpt: ByteExcerpt, codec: str, skipped: int, errors: str) -> tuple[str, int]:
    """The text, and how many bytes of the content it takes, the skipped ones included."""
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


def _cut_bytes(excerpt: ByteExcerpt, codec: str) -> int:
    """How many bytes belong to a character that begins before the window: it is decoded from a certain begin on.

    Without one, or where it is broken, only the second byte of a unit of UTF-16 is left out.
    """
    half = excerpt.offset & 1 if codec in _UTF16 else 0
    known = _whole_from(excerpt, codec)
    if known is None:
        return half
    decoder = codecs.getincrementaldecoder(codec)("strict")
    try:
        decoder.decode(excerpt.before[known:])
        for skipped in range(_LONGEST_CHARACTER):
            if not decoder.getstate()[0]:
                return skipped
            decoder.decode(excerpt.content[skipped : skipped + 1])
    except UnicodeDecodeError:
        pass
    return half


def _whole_from(excerpt: ByteExcerpt, codec: str) -> int | None:
    """The last place before the window where a character surely begins; None: there is none in reach."""
    before = excerpt.before
    if codec in _UTF16:
        return max(len(before) - 2 + (excerpt.offset & 1), 0)
    places = range(len(before) - 1, -1, -1)
    if codec == "utf-8":
        return next((place for place in places[:_LONGEST_CHARACTER] if before[place] & 0xC0 != 0x80), None)
    known = next((place + 1 for place in places if before[place] < _ALWAYS_WHOLE), None)
    return 0 if known is None and len(before) == excerpt.offset else known
