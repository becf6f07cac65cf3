"""A part of a file as text: characters that are cut at its borders belong to one window only (Contract storage 5.3)."""

import codecs
from dataclasses import dataclass

from queryserver.formats.unpacking.window import Excerpt

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_UTF16 = frozenset({"utf-16-le", "utf-16-be"})
_PAIRED = frozenset({"shift_jis", "euc-jp", "euc-kr", "gbk", "gb18030", "big5"})
# Below it no byte is part of a longer character, in none of the encodings above.
_ALWAYS_WHOLE = 0x30
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class TextWindow:
    """The text of a part of a file. `end` is where the next part begins, an offset in the shown stream."""

    text: str
    end: int
    is_valid: bool
    """False: bytes that are no text of the encoding are shown as U+FFFD."""


def text_window(excerpt: Excerpt, encoding: str) -> TextWindow:
    """The characters that begin in the asked bytes; `encoding` is one of ENCODINGS.

    A character that goes on behind the asked bytes is left to the next window, unless no other character is in this
    one: reading on at `end` comes to the end. A byte order mark at the beginning is left out. U+0000 is no text.
    """
    if not excerpt.length:
        return TextWindow("", excerpt.offset, is_valid=True)
    codec = _UTF16_MARKS.get(excerpt.start[:2], "utf-16-le") if encoding == "utf-16" else encoding
    skipped = (
        _mark(excerpt, encoding) if excerpt.offset == 0 else min(_cut_at_start(excerpt, codec), len(excerpt.content))
    )
    try:
        text, used = _decoded(excerpt, codec, skipped, "strict")
    except UnicodeDecodeError:
        text, used = _decoded(excerpt, codec, skipped, "replace")
        return TextWindow(text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid=False)
    is_valid = "\0" not in text
    return TextWindow(text if is_valid else text.replace("\0", "\ufffd"), excerpt.offset + used, is_valid)


def _mark(excerpt: Excerpt, encoding: str) -> int:
    """Length of the byte order mark."""
    if encoding == "utf-8" and excerpt.content.startswith(_UTF8_MARK):
        return len(_UTF8_MARK)
    return 2 if encoding == "utf-16" and excerpt.content[:2] in _UTF16_MARKS else 0


def _decoded(excerpt: Excerpt, codec: str, skipped: int, errors: str) -> tuple[str, int]:
    """The text, and how many bytes of the content it takes, the skipped ones included."""
    asked = excerpt.content[min(skipped, excerpt.length) : excerpt.length]
    decoder = codecs.getincrementaldecoder(codec)(errors)
    text = decoder.decode(asked, final=excerpt.is_last)
    used = max(skipped, len(excerpt.asked))
    pending = len(decoder.getstate()[0])
    if text or not pending:
        return text, used - pending
    for place in range(excerpt.length, len(excerpt.content)):
        if text := decoder.decode(excerpt.content[place : place + 1]):
            return text, place + 1
    text = decoder.decode(b"", final=True)
    return text, len(excerpt.content)


def _cut_at_start(excerpt: Excerpt, codec: str) -> int:
    """How many bytes belong to a character that begins before the window."""
    if codec == "utf-8":
        return _cut_utf8(excerpt)
    if codec in _UTF16:
        return _cut_utf16(excerpt, codec)
    return _cut_pair(excerpt, codec) if codec in _PAIRED else 0


def _cut_utf8(excerpt: Excerpt) -> int:
    for back in range(1, min(_LONGEST_CHARACTER, len(excerpt.before) + 1)):
        lead = excerpt.before[-back]
        if lead & 0xC0 == 0x80:
            continue
        size = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        rest = excerpt.content[: max(size - back, 0)]
        return len(rest) if all(byte & 0xC0 == 0x80 for byte in rest) else 0
    return 0


def _cut_utf16(excerpt: Excerpt, codec: str) -> int:
    """The second byte of a unit, and the second unit of a pair."""
    half = excerpt.offset & 1
    around = excerpt.before[-3:] + excerpt.content[: half + 2]
    first = min(len(excerpt.before), 3) + half
    high = 1 if codec == "utf-16-le" else 0
    if first < 2 or len(around) < first + 2:
        return half
    before, after = around[first - 2 + high], around[first + high]
    return half + 2 if before & 0xFC == 0xD8 and after & 0xFC == 0xDC else half


def _cut_pair(excerpt: Excerpt, codec: str) -> int:
    """Reads on from the last byte that is surely a whole character; without one the offset is trusted."""
    before = excerpt.before
    known = next((place + 1 for place in range(len(before) - 1, -1, -1) if before[place] < _ALWAYS_WHOLE), None)
    if known is None:
        if len(before) < excerpt.offset:
            return 0
        known = 0
    decoder = codecs.getincrementaldecoder(codec)("strict")
    try:
        decoder.decode(before[known:])
        for skipped in range(_LONGEST_CHARACTER):
            if not decoder.getstate()[0]:
                return skipped
            decoder.decode(excerpt.content[skipped : skipped + 1])
    except UnicodeDecodeError:
        return 0
    return 0
