"""The encoding that a text is most probably in (Contract importer 9.2).

chardet scores the encodings by the language that each would make of the text. Two things are added to it: only cells
that are not ASCII are shown to it, because English headers and numbers hide the few that matter; and encodings that
make the same text are one answer. The weights were measured on texts of 25 languages (ADR 73).
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from typing import Any

from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.delimited.encodings import UTF_8_WITH_MARK, decoded

SURE = 0.8
"""Below this confidence an encoding is uncertain: previews and guess_metadata warn of it."""

_MAX_CONTROLS = 0.01
_CONTROL = re.compile("[\x00\x04-\x08\x0b\x0e-\x1b\x7f-\x9f]")
"""Control characters but TAB, LF, CR, FF, U+0001-0003 and U+001C-001F."""

_WESTERN = "cp1252"
_FAMILIES = {
    "cp932": ("shift_jis", "cp932"),
    "euc_jis_2004": ("euc-jp",),
    "gb18030": ("gbk", "gb18030"),
    "big5hkscs": ("big5", "big5-hkscs"),
    "cp949": ("euc-kr", "cp949"),
}
"""Encodings of long characters as chardet names them; in each the narrowest that has all characters is the answer."""

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
"""No byte of these is part of a longer character in any of the encodings."""
_WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_FOREIGN = re.compile("[^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]+")
_MIXED = re.compile("[a-z][^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff]|[^\\W\\d_A-Za-z\u00aa-\u024f\u1e00-\u1eff][a-z]")
"""Letters of another script than Latin, and such a letter beside a small one of ASCII: few words of any language."""
_FEW_WORDS = 4
_FEW_CHARACTERS = 3
_FAVOURED = {_WESTERN: (1.0, 2), "cp866": (-0.9, 4)}
"""The share by which the score of a frequent and of a rare encoding changes if there is no word to judge by, and the
number of words that halves it.
"""
_ICELANDIC = re.compile("[\u00de\u00fe\u00d0\u00f0\u00dd\u00fd]")
"""In the places of the Turkish letters of windows-1254, and in next to no other Western language."""
_ICELANDIC_WEIGHT = 0.6
_LONG_PAIR = re.compile(rb"[\xa1-\xfe]{2}")
_ROWS = (range(0xB0, 0xCA), range(0xCA, 0xD0), range(0xD0, 0xFF))
"""Of the tables of EUC: in Korean the syllables and two parts of the rare Chinese characters; in Japanese the frequent
characters and, from 0xD0 on, the rare ones; in Chinese the frequent ones in the order of their sounds.
"""
_SHARES = {"cp949": (0.97, 0.015, 0.015), "euc_jis_2004": (0.78, 0.19, 0.03), "gb18030": (0.58, 0.14, 0.28)}
"""How much of a text in the language is in these rows."""
_LEAST_WEIGHT = 0.15
_NO_EVIDENCE = 0.2
"""chardet gives 0.1 where it knows nothing."""
_VALID_PER_BROKEN = 20
_NEARLY = 0.9


@dataclass(frozen=True, slots=True)
class DetectedEncoding:
    name: str
    confidence: float
    """How often such an answer is right, 0 to 1."""


def detect_encoding(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    """The encoding of a text by its first bytes. Raises UnsupportedFormat: it is no text."""
    found = _detected(sample, is_whole=is_whole)
    text = decoded(sample, found.name, is_whole=is_whole)
    if len(_CONTROL.findall(text)) > _MAX_CONTROLS * len(text):
        raise UnsupportedFormat
    return found


def _detected(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    marked = _marked(sample)
    if marked is not None:
        return DetectedEncoding(marked, 1.0)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        return _nearly_utf_8(sample) or _scored(sample, is_whole=is_whole)
    return DetectedEncoding("utf-8", 1.0)


def _marked(sample: bytes) -> str | None:
    """By a byte order mark or by NUL. Raises UnsupportedFormat."""
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
    # UTF-16 without a mark has NUL in one half of the bytes of most texts.
    even, odd = sample[::2], sample[1::2]
    if len(sample) >= 8:
        even_share, odd_share = even.count(0) / len(even), odd.count(0) / len(odd)
        if odd_share >= 0.4 and even_share <= 0.05:
            return "utf-16-le"
        if even_share >= 0.4 and odd_share <= 0.05:
            return "utf-16-be"
    raise UnsupportedFormat


def _nearly_utf_8(sample: bytes) -> DetectedEncoding | None:
    """UTF-8 with few broken characters: no text in another encoding has so many that are whole."""
    broken = valid = 0
    for character in sample.decode("utf-8", "replace"):
        if character == "\ufffd":
            broken += 1
        elif not character.isascii():
            valid += 1
    return DetectedEncoding("utf-8", _NEARLY) if valid >= _VALID_PER_BROKEN * broken else None


@dataclass(slots=True)
class _Reading:
    """One text that the cells may be, the score of the best encoding that makes it, and these encodings."""

    text: str
    score: float
    codecs: list[str]

    @property
    def codec(self) -> str:
        return _WESTERN if _WESTERN in self.codecs else self.codecs[0]


def _scored(sample: bytes, *, is_whole: bool) -> DetectedEncoding:
    cells = b"".join(_distinct_cells(sample, is_whole=is_whole))
    words = len(set(_WORD.findall(cells)))
    doubt = _FEW_WORDS / (_FEW_WORDS + words)
    readings = _readings(cells, words)
    if not readings or not readings[0].score:
        return DetectedEncoding(_western(sample), 0.5)
    best, score = readings[0], readings[0].score
    share = score / (score + (readings[1].score if len(readings) > 1 else 0))
    if len(readings) > 1 and {best.codec, readings[1].codec} <= _FAMILIES.keys():
        doubt = 1.0  # words of two of these are as long and as frequent in each other
    if len(readings) == 1 and score <= _NO_EVIDENCE:
        share = 0.5
    characters = sum(not character.isascii() for character in best.text)
    if characters < _FEW_CHARACTERS:
        share = min(share, 0.5)
    if characters == 1 and best.codec not in _FAMILIES:
        return DetectedEncoding(_western(sample), 0.5)
    return DetectedEncoding(_name_of(best.codec, sample), round(1 - (1 - share) * doubt, 2))


def _distinct_cells(sample: bytes, *, is_whole: bool) -> Iterator[bytes]:
    """Cells with a byte that is not ASCII, each once, as many as are scored. A line feed ends each that is whole.

    The last cell of a sample that is not the whole file counts only if there is no other.
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


def _readings(cells: bytes, words: int) -> list[_Reading]:
    """The texts that the cells may be, the most probable first."""
    # Its models take 30 MB and 0.2 s, which only texts need that are not UTF-8.
    from chardet import detect_all  # noqa: PLC0415 as above

    found: dict[str, _Reading] = {}
    scores: list[Any] = detect_all(cells, include_encodings=_NAMES, ignore_threshold=True, compat_names=False)
    for one in scores:
        codec = one["encoding"]
        text = None if codec not in _NAMES else _strictly(cells, codec)
        if text is None or _CONTROL.search(text) or _is_mixed(text):
            continue
        score = one["confidence"] * _weight(codec, text, cells, words)
        reading = found.setdefault(text, _Reading(text, 0.0, []))
        reading.score = max(reading.score, score)
        reading.codecs.append(codec)
    return sorted(found.values(), key=lambda reading: -reading.score)


def _weight(codec: str, text: str, cells: bytes, words: int) -> float:
    """What the score of a reading is multiplied with, by facts that chardet does not see."""
    if codec == _WESTERN and _ICELANDIC.search(text):
        return _ICELANDIC_WEIGHT
    if codec in _SHARES:
        return _weight_of_rows(codec, cells)
    favour, half = _FAVOURED.get(codec, (0.0, 1))
    return 1 + favour * half / (half + words)


def _weight_of_rows(codec: str, cells: bytes) -> float:
    """How probable the rows of the characters are in one of the encodings of the form EUC, beside the best of them."""
    firsts = [first for first, _ in _LONG_PAIR.findall(cells)]
    counts = [sum(first in row for first in firsts) for row in _ROWS]
    chances = {
        name: sum(count * log(share) for count, share in zip(counts, shares, strict=True))
        for name, shares in _SHARES.items()
    }
    # Characters of a word are not independent: each counts as half.
    return max(exp((chances[codec] - max(chances.values())) / 2), _LEAST_WEIGHT)


def _is_mixed(text: str) -> bool:
    """Whether half of what is in another script than Latin stands within words of Latin letters."""
    foreign = len(_FOREIGN.findall(text))
    return foreign > 0 and len(_MIXED.findall(text)) * 2 >= foreign


def _strictly(content: bytes, codec: str) -> str | None:
    """The text; None if it is not in the encoding. A character that the end cuts is left out."""
    try:
        return codecs.getincrementaldecoder(codec)("strict").decode(content)
    except UnicodeDecodeError:
        return None


def _name_of(codec: str, sample: bytes) -> str:
    if codec == _WESTERN:
        return _western(sample)
    names = _NAMES[codec]
    # Files in Big5 are read as cp950, which Windows writes.
    return next((name for name in names if _strictly(sample, "cp950" if name == "big5" else name)), names[-1])


def _western(sample: bytes) -> str:
    present = set(sample)
    has_signs = not present.isdisjoint(range(0x80, 0xA0))
    return "windows-1252" if has_signs and present.isdisjoint(b"\x81\x8d\x8f\x90\x9d") else "iso-8859-1"
