"""The texts that cells of a workbook name by number (ECMA-376 part 1, 18.4).

As with rows, items that are written in the usual way are read by a pattern, the others are parsed.
"""

import re
from array import array
from collections.abc import Collection, Iterator
from itertools import chain

from queryserver.domain.errors import FileCorrupt
from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.byte_source import ByteSource
from queryserver.formats.workbooks.cells import EMPTY, text_cell
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.plain_text import PLAIN_TEXT, plain_text
from queryserver.formats.workbooks.xml_parts import local_name, parse, xml_parser

_PLAIN = rf'<si>(?:<t(?: xml:space="preserve")?>(?:{PLAIN_TEXT})</t>|<t/>)</si>|<si/>'
_PLAIN_ITEMS = re.compile(f"(?:{_PLAIN})*+")
_PLAIN_ITEM = re.compile(_PLAIN.replace(f"(?:{PLAIN_TEXT})", f"({PLAIN_TEXT})"))
_ITEM, _ITEM_END = b"<si>", b"</si>"
_RESUMED, _RESUMED_END = b"<sst>", b"</sst>"


class _Items:
    """Handlers that gather the texts of items."""

    def __init__(self) -> None:
        self.parser = xml_parser()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.XmlDeclHandler = self._declaration
        self._texts: list[str] = []
        self._ready: list[str] = []
        self._takes_text = False
        self._phonetic_depth = 0
        self._is_utf8 = True
        self._has_begun = False

    @property
    def may_be_plain(self) -> bool:
        """An item has begun, and the encoding does not keep it from being plain."""
        return self._has_begun and self._is_utf8

    def taken(self) -> list[str]:
        """The texts that were gathered since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def _declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self._is_utf8 = encoding is None or encoding.lower() == "utf-8"

    def _start(self, name: str, _attributes: dict[str, str]) -> None:
        match local_name(name):
            case "si":
                self._has_begun = True
                self._texts.clear()
            case "t":
                self._takes_text = not self._phonetic_depth
            case "rPh":
                self._phonetic_depth += 1
            case _:
                pass

    def _end(self, name: str) -> None:
        match local_name(name):
            case "t":
                self._takes_text = False
            case "rPh":
                self._phonetic_depth -= 1
            case "si":
                self._ready.append("".join(self._texts))
            case _:
                pass

    def _text(self, text: str) -> None:
        if self._takes_text:
            self._texts.append(text)


def read_some_strings(package: Package, part: str | None, wanted: Collection[int]) -> dict[int, TypedText]:
    """Those of the given numbers, reading no further than the last of them. Raises FileCorrupt if one is missing."""
    found: dict[int, TypedText] = {}
    if not wanted:
        return found
    if part is None:
        raise FileCorrupt("The workbook has no texts, but cells name some.")
    last = max(wanted)
    for index, text in enumerate(_texts(package, part)):
        if index in wanted:
            found[index] = text_cell(text)
        if index == last:
            break
    if len(found) < len(wanted):
        raise FileCorrupt("The workbook lacks a text that a cell names.")
    return found


class AllStrings:
    """All texts as bytes in one piece: a hundred bytes less for each than as objects."""

    def __init__(self, package: Package, part: str | None) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        for text in _texts(package, part) if part is not None else ():
            self._text += text.encode()
            self._ends.append(len(self._text))

    def __getitem__(self, index: int) -> TypedText:
        """Raises FileCorrupt."""
        if not 0 <= index < len(self._ends) - 1:
            raise FileCorrupt("The workbook lacks a text that a cell names.")
        begin, end = self._ends[index], self._ends[index + 1]
        return text_cell(self._text[begin:end].decode()) if end > begin else EMPTY


def _texts(package: Package, part: str) -> Iterator[str]:
    """The texts in their order. Raises FileCorrupt, file_too_complex."""
    source = ByteSource(package.pieces(part))
    items = _Items()
    before = source.through_first(_ITEM)
    parsing = parse(items.parser, chain([before], source.rest()))
    next(parsing)
    if items.may_be_plain and before.endswith(_ITEM):
        source.put_back(_ITEM)
        return _mostly_plain(source)
    return _parsed(items, parsing)


def _mostly_plain(source: ByteSource) -> Iterator[str]:
    """Texts from the beginning of an item on."""
    while segment := source.through_last(_ITEM_END):
        found = _plain_texts(segment)
        if found is None:
            found = _fragment_texts(segment)
        if found is None:
            yield from _resumed(chain([segment], source.rest()))
            return
        yield from found
    yield from _resumed(source.rest())


def _plain_texts(segment: bytes) -> list[str] | None:
    try:
        text = segment.decode()
    except UnicodeDecodeError:
        return None
    if _PLAIN_ITEMS.fullmatch(text) is None:
        return None
    texts = _PLAIN_ITEM.findall(text)
    return [plain_text(item) for item in texts] if "&" in text else texts


def _fragment_texts(segment: bytes) -> list[str] | None:
    """The texts of items that stand there as a whole, whatever is in them; None if they do not."""
    items = _Items()
    try:
        for _ in parse(items.parser, [_RESUMED, segment, _RESUMED_END]):
            pass
    except FileCorrupt:
        return None
    return items.taken()


def _resumed(pieces: Iterator[bytes]) -> Iterator[str]:
    items = _Items()
    return _parsed(items, parse(items.parser, chain([_RESUMED], pieces)))


def _parsed(items: _Items, parsing: Iterator[None]) -> Iterator[str]:
    yield from items.taken()
    for _ in parsing:
        yield from items.taken()
