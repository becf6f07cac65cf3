"""The encoding of text that comes in, and decoding it in pieces (Contract importer 8.1, 9.2)."""

import codecs
import re
import threading

from queryserver.domain.errors.base import InvalidParameter
from queryserver.domain.errors.files import UnsupportedFormat, encoding_failed
from queryserver.formats.text_encodings import ENCODINGS

UTF_8_WITH_MARK = "utf-8-sig"
"""Detected of files with a byte order mark; it counts as a given encoding as well."""

_MARK = "\ufeff"
_MAX_UNDECODABLE = 0.1
_MAX_CONTROLS = 0.01
_CONTROL = re.compile("[\x00\x04-\x08\x0b\x0e-\x1b\x7f-\x9f]")
"""Control characters but TAB, LF, CR, FF, U+0001-0003 and U+001C-001F."""

_counted = threading.local()


def _replace_and_count(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _counted.undecodable += 1
    return "\ufffd", error.end


codecs.register_error("queryserver-count", _replace_and_count)


def encoding_of(name: str) -> str:
    """An encoding as clients name it, in any case. Raises InvalidParameter."""
    lowered, names = name.lower(), (UTF_8_WITH_MARK, *ENCODINGS)
    if lowered not in names:
        raise InvalidParameter(f"encoding must be one of {' '.join(names)}.")
    return lowered


def detect_encoding(sample: bytes, *, is_whole: bool) -> str:
    """The encoding of a text by its first bytes. Raises UnsupportedFormat: it is no text."""
    encoding = _guessed(sample, is_whole)
    text = decoded(sample, encoding, is_whole=is_whole)
    if len(_CONTROL.findall(text)) > _MAX_CONTROLS * len(text):
        raise UnsupportedFormat
    return encoding


def decoded(sample: bytes, encoding: str, *, is_whole: bool) -> str:
    """The text of a sample; a character that its end cuts is left out unless the sample is the whole file."""
    return Decoder(encoding).decode(sample, final=is_whole)


def _guessed(sample: bytes, is_whole: bool) -> str:
    if sample.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise UnsupportedFormat
    if sample.startswith(codecs.BOM_UTF8):
        return UTF_8_WITH_MARK
    if sample.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if sample.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    if b"\0" in sample:
        return _by_nul_bytes(sample)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        present = set(sample)
        has_signs = not present.isdisjoint(range(0x80, 0xA0))
        return "windows-1252" if has_signs and present.isdisjoint(b"\x81\x8d\x8f\x90\x9d") else "iso-8859-1"
    return "utf-8"


def _by_nul_bytes(sample: bytes) -> str:
    """UTF-16 without a mark has NUL in one half of the bytes of most texts. Raises UnsupportedFormat."""
    if len(sample) >= 8:
        even, odd = sample[::2], sample[1::2]
        even_share, odd_share = even.count(0) / len(even), odd.count(0) / len(odd)
        if odd_share >= 0.4 and even_share <= 0.05:
            return "utf-16-le"
        if even_share >= 0.4 and odd_share <= 0.05:
            return "utf-16-be"
    raise UnsupportedFormat


class _Utf16Decoder:
    """UTF-16 whose mark tells the order of bytes. Without one the low byte comes first, as most programs write it.

    Python's own refuses text without a mark.
    """

    def __init__(self, errors: str) -> None:
        self._errors = errors
        self._begin = b""
        self._decoder: codecs.IncrementalDecoder | None = None

    def decode(self, piece: bytes, final: bool) -> str:
        """The characters that are complete so far."""
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
    """Decodes one file in pieces; a byte order mark at its beginning is left out."""

    def __init__(self, encoding: str) -> None:
        codec = "utf-8" if encoding == UTF_8_WITH_MARK else encoding
        made = _Utf16Decoder if codec == "utf-16" else codecs.getincrementaldecoder(codec)
        self._decoder = made("queryserver-count")
        self._is_begun = False
        self.characters = 0
        self.undecodable = 0
        """Characters that stand for bytes that mean nothing in the encoding."""

    def decode(self, piece: bytes, *, final: bool = False) -> str:
        """The characters that are complete so far; with `final` also what is left of the last one."""
        _counted.undecodable = 0
        text = self._decoder.decode(piece, final)
        self.undecodable += _counted.undecodable
        if not self._is_begun and text:
            self._is_begun = True
            text = text.removeprefix(_MARK)
        self.characters += len(text)
        return text

    def check(self) -> None:
        """Raises encoding_failed if more than a tenth of what was decoded is undecodable."""
        if self.undecodable > _MAX_UNDECODABLE * self.characters:
            raise encoding_failed("The file is not in the given encoding.")
