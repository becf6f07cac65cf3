"""Character encodings of text files: their names, decoding, and detection.

chardet scores encodings by how well the decoded text matches a language. This module passes only non-ASCII cells to
chardet, because English headers and numbers distort the scores, and merges encodings that give the same text. The
weights were measured on texts in 25 languages (ADR 73).
"""

import codecs
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Any

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import UnsupportedFormat, encoding_failed
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

CERTAIN_CONFIDENCE = 0.8
"""Below this confidence an encoding is uncertain, and previews and guess_metadata warn about it."""

_MAX_CONTROLS = 0.01
_CONTROL = re.compile("[\x00\x04-\x08\x0b\x0e-\x1b\x7f-\x9f]")
"""Control characters except TAB, LF, CR, FF, U+0001-0003 and U+001C-001F."""
_ASCII_CONTROLS = bytes(code for code in range(128) if _CONTROL.match(chr(code)))

_WESTERN = "cp1252"
_FAMILIES = {
    "cp932": ("shift_jis", "cp932"),
    "euc_jis_2004": ("euc-jp",),
    "gb18030": ("gbk", "gb18030"),
    "big5hkscs": ("big5", "big5-hkscs"),
    "cp949": ("euc-kr", "cp949"),
}
"""Multibyte encodings, by chardet's names. The first listed encoding that contains all characters is chosen."""

_NAMES = {
    **_FAMILIES,
    **{f"cp125{digit}": (f"windows-125{digit}",) for digit in range(9)},
    "koi8-r": ("koi8-r",),
    "koi8-u": ("koi8-u",),
    "cp874": ("cp874",),
    "cp866": ("cp866",),
    "iso8859-2": ("iso-8859-2",),
}
_SCORED_BYTES = 16 * 1024
_BETWEEN_CELLS = re.compile(rb"[\x00-\x1f\",;]+")
"""Separators of cells. None of these bytes is part of a multibyte character in any of the encodings."""
_WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_FOREIGN = re.compile("[^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]+")
_MIXED = re.compile("[a-z][^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]|[^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff][a-z]")
"""Non-Latin letters, and a non-Latin letter next to a lower-case ASCII letter, which is rare in all languages."""
_FEW_WORDS = 4
_FEW_CHARACTERS = 3
_PRIORS = {_WESTERN: (1.0, 2), "cp866": (-0.9, 4)}
"""How much the score of a frequent or rare encoding changes if there are no words, as a fraction, and the number of
words that halves this change.
"""
_ICELANDIC = re.compile("[\u00de\u00fe\u00d0\u00f0\u00dd\u00fd]")
"""Letters at code points that windows-1254 uses for Turkish letters. They are very rare in other Western languages."""
_ICELANDIC_WEIGHT = 0.6
_LONG_PAIR = re.compile(rb"[\xa1-\xfe]{2}")
_EUC_ROWS = (range(0xB0, 0xCA), range(0xCA, 0xD0), range(0xD0, 0xFF))
"""Ranges of rows in EUC tables. Korean: syllables, then rare Chinese characters in the last two ranges. Japanese:
frequent characters, rare ones from 0xD0 on. Chinese: frequent characters, ordered by pronunciation.
"""
_EUC_ROW_SHARES = {"cp949": (0.97, 0.015, 0.015), "euc_jis_2004": (0.78, 0.19, 0.03), "gb18030": (0.58, 0.14, 0.28)}
"""Fractions of a typical text's characters that are in each of these ranges."""
_MIN_WEIGHT = 0.15
_NO_EVIDENCE = 0.2
"""A score up to this value is no evidence: chardet returns 0.1 if it has none, and a weight can double it."""
_VALID_PER_BROKEN = 20
_NEARLY_UTF_8_CONFIDENCE = 0.9


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
    """Decodes UTF-16 in the byte order that its byte order mark declares. If there is none, little-endian is assumed.

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
        """Decode the complete characters received so far. If `final` is set, also decode an incomplete last
        character.
        """
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
        """Hold back U+001A at the end of the text until more text follows. If `final` is set, remove it instead."""
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
    """Decode the text. Return it with the number of bytes that it occupies, including the skipped bytes."""
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
    """Count the leading bytes that belong to a character before the window. To do so, decode from a position at which a
    character certainly begins.

    If there is no such position or the text is invalid, return 1 for the second byte of a UTF-16 code unit, otherwise
    0.
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
    """Return the last position before the window at which a character certainly begins, or None if there is none."""
    before = excerpt.before
    if codec in _UTF16:
        return max(len(before) - 2 + (excerpt.offset & 1), 0)
    places = range(len(before) - 1, -1, -1)
    if codec == "utf-8":
        return next((place for place in places[:_MAX_CHARACTER_BYTES] if before[place] & 0xC0 != 0x80), None)
    known = next((place + 1 for place in places if before[place] < _MIN_TRAIL_BYTE), None)
    return 0 if known is None and len(before) == excerpt.offset else known


@dataclass(frozen=True, slots=True)
class DetectedEncoding:
    name: str
    confidence: float
    """The estimated probability that the encoding is correct, from 0 to 1."""


def detect_encoding(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    """Detect the encoding of a text from its first bytes. Raises UnsupportedFormat if the sample is not text."""
    found = _detect(sample, is_whole=is_whole)
    text = decoded(sample, found.name, is_whole=is_whole)
    if _count_controls(text) > _MAX_CONTROLS * len(text):
        raise UnsupportedFormat
    return found


def _count_controls(text: str) -> int:
    if text.isascii():
        # `translate` takes a fifth of the time of the pattern.
        content = text.encode()
        return len(content) - len(content.translate(None, _ASCII_CONTROLS))
    return len(_CONTROL.findall(text))


def _detect(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    encoding = _detect_unicode(sample)
    if encoding is not None:
        return DetectedEncoding(encoding, 1.0)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        return _nearly_utf_8(sample) or _by_scores(sample, is_whole=is_whole)
    return DetectedEncoding("utf-8", 1.0)


def _detect_unicode(sample: bytes) -> str | None:
    """Detect UTF-8 and UTF-16 by a byte order mark or NUL bytes. Return None if there are none. Raises
    UnsupportedFormat.
    """
    if sample.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise UnsupportedFormat
    if sample.startswith(codecs.BOM_UTF8):
        return UTF_8_WITH_MARK
    if sample.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if sample.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    if b"\0" not in sample:
        return None
    # In UTF-16 without a byte order mark, most texts have NUL either in the odd or in the even bytes.
    even, odd = sample[::2], sample[1::2]
    if len(sample) >= 8:
        even_share, odd_share = even.count(0) / len(even), odd.count(0) / len(odd)
        if odd_share >= 0.4 and even_share <= 0.05:
            return "utf-16-le"
        if even_share >= 0.4 and odd_share <= 0.05:
            return "utf-16-be"
    raise UnsupportedFormat


def _nearly_utf_8(sample: bytes) -> DetectedEncoding | None:
    """Detect UTF-8 with a few invalid bytes. Text in another encoding would not have so many valid UTF-8 characters."""
    broken = valid = 0
    for character in sample.decode("utf-8", "replace"):
        if character == "\ufffd":
            broken += 1
        elif not character.isascii():
            valid += 1
    return DetectedEncoding("utf-8", _NEARLY_UTF_8_CONFIDENCE) if valid >= _VALID_PER_BROKEN * broken else None


@dataclass(slots=True)
class _Candidate:
    """A possible text of the cells, the encodings that give this text, and the best score among them."""

    text: str
    score: float
    codecs: list[str]

    @property
    def codec(self) -> str:
        return _WESTERN if _WESTERN in self.codecs else self.codecs[0]


def _by_scores(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    cells = b"".join(_distinct_cells(sample, is_whole=is_whole))
    words = len(set(_WORD.findall(cells)))
    doubt = _FEW_WORDS / (_FEW_WORDS + words)
    candidates = _candidates(cells, words)
    if not candidates or not candidates[0].score:
        return DetectedEncoding(_western_name(sample), 0.5)
    best, score = candidates[0], candidates[0].score
    share = score / (score + (candidates[1].score if len(candidates) > 1 else 0))
    if len(candidates) > 1 and {best.codec, candidates[1].codec} <= _FAMILIES.keys():
        doubt = 1.0  # more words do not help to distinguish two multibyte encodings
    if len(candidates) == 1 and score <= _NO_EVIDENCE:
        share = 0.5
    characters = sum(not character.isascii() for character in best.text)
    if characters < _FEW_CHARACTERS:
        share = min(share, 0.5)
    if characters == 1 and best.codec not in _FAMILIES:
        return DetectedEncoding(_western_name(sample), 0.5)
    return DetectedEncoding(_encoding_name(best.codec, sample), round(1 - (1 - share) * doubt, 2))


def _distinct_cells(sample: bytes, *, is_whole: bool) -> Iterator[bytes]:
    """Yield distinct non-ASCII cells, up to _SCORED_BYTES in total. Each complete cell is followed by a line feed.

    The last cell of a partial sample may be truncated, so it is used only if there is no other.
    """
    seen: set[bytes] = set()
    left = _SCORED_BYTES
    cells = _BETWEEN_CELLS.split(sample)
    last = b"" if is_whole else cells.pop()
    for cell in cells:
        if cell.isascii() or cell in seen:
            continue
        seen.add(cell)
        yield cell + b"\n" if len(cell) < left else cell[:left]
        left -= len(cell) + 1
        if left <= 0:
            return
    if not seen:
        yield last[:left]


def _candidates(cells: bytes, words: int) -> list[_Candidate]:
    """Return the possible texts of the cells, most probable first."""
    # chardet's models take 30 MB and 0.2 s, and are needed only for text that is not UTF-8.
    from chardet import detect_all  # noqa: PLC0415 as above

    found: dict[str, _Candidate] = {}
    scores: list[Any] = detect_all(cells, include_encodings=_NAMES, ignore_threshold=True, compat_names=False)
    for one in scores:
        codec = one["encoding"]
        text = None if codec not in _NAMES else _decode_strictly(cells, codec)
        if text is None or _CONTROL.search(text) or _is_mixed(text):
            continue
        score = one["confidence"] * _weight(codec, text, cells, words)
        candidate = found.setdefault(text, _Candidate(text, 0.0, []))
        candidate.score = max(candidate.score, score)
        candidate.codecs.append(codec)
    return sorted(found.values(), key=lambda candidate: -candidate.score)


def _weight(codec: str, text: str, cells: bytes, words: int) -> float:
    """Return a factor for the score of a candidate, based on facts that chardet does not consider."""
    if codec == _WESTERN and _ICELANDIC.search(text):
        return _ICELANDIC_WEIGHT
    if codec in _EUC_ROW_SHARES:
        return _euc_row_weight(codec, cells)
    favor, half = _PRIORS.get(codec, (0.0, 1))
    return 1 + favor * half / (half + words)


def _euc_row_weight(codec: str, cells: bytes) -> float:
    """Return how likely the characters' rows are in an EUC encoding, relative to the most likely encoding."""
    firsts = [first for first, _ in _LONG_PAIR.findall(cells)]
    counts = [sum(first in row for first in firsts) for row in _EUC_ROWS]
    chances = {
        name: sum(count * log(share) for count, share in zip(counts, shares, strict=True))
        for name, shares in _EUC_ROW_SHARES.items()
    }
    # The characters of a word are not independent, so the exponent is halved.
    return max(exp((chances[codec] - max(chances.values())) / 2), _MIN_WEIGHT)


def _is_mixed(text: str) -> bool:
    """Return whether at least half of the non-Latin words are directly next to Latin letters."""
    foreign = len(_FOREIGN.findall(text))
    return foreign > 0 and len(_MIXED.findall(text)) * 2 >= foreign


def _decode_strictly(content: bytes, codec: str) -> str | None:
    """Decode the content, ignoring a truncated last character. Return None if it is invalid in the encoding."""
    try:
        return codecs.getincrementaldecoder(codec)("strict").decode(content)
    except UnicodeDecodeError:
        return None


def _encoding_name(codec: str, sample: bytes) -> str:
    if codec == _WESTERN:
        return _western_name(sample)
    names = _NAMES[codec]
    # Big5 is decoded as cp950, the Windows variant.
    return next((name for name in names if _decode_strictly(sample, "cp950" if name == "big5" else name)), names[-1])


def _western_name(sample: bytes) -> str:
    present = set(sample)
    has_signs = not present.isdisjoint(range(0x80, 0xA0))
    return "windows-1252" if has_signs and present.isdisjoint(b"\x81\x8d\x8f\x90\x9d") else "iso-8859-1"
