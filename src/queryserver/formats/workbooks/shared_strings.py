"""The texts that cells of a workbook name by number (ECMA-376 part 1, 18.4)."""

from array import array
from collections.abc import Collection, Iterator

from queryserver.domain.errors import FileCorrupt
from queryserver.domain.importing import TypedText
from queryserver.formats.workbooks.cells import EMPTY, text_cell
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.xml_parts import local_name, parse, xml_parser


class _Items:
    """Handlers that gather the text of items: of all, or of those that are wanted."""

    def __init__(self, wanted: Collection[int] | None) -> None:
        self._wanted = wanted
        self._index = -1
        self._takes_item = self._takes_text = False
        self._phonetic_depth = 0
        self._texts: list[str] = []
        self.ready: list[tuple[int, str]] = []
        """Items in the order of the part, with their numbers. Whoever reads them empties the list."""

    @property
    def seen(self) -> int:
        """How many items began."""
        return self._index + 1

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        match local_name(name):
            case "si":
                self._index += 1
                self._takes_item = self._wanted is None or self._index in self._wanted
                self._texts.clear()
            case "t":
                self._takes_text = self._takes_item and not self._phonetic_depth
            case "rPh":
                self._phonetic_depth += 1
            case _:
                pass

    def end(self, name: str) -> None:
        match local_name(name):
            case "t":
                self._takes_text = False
            case "rPh":
                self._phonetic_depth -= 1
            case "si" if self._takes_item:
                self.ready.append((self._index, "".join(self._texts)))
                self._takes_item = False
            case _:
                pass

    def text(self, text: str) -> None:
        if self._takes_text:
            self._texts.append(text)


def read_some_strings(package: Package, part: str | None, wanted: Collection[int]) -> dict[int, TypedText]:
    """Those of the given numbers, reading no further than the last of them. Raises FileCorrupt if one is missing."""
    found: dict[int, TypedText] = {}
    if not wanted:
        return found
    last = max(wanted)
    for index, text in _items(package, part, wanted):
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
        for _, text in _items(package, part, None) if part is not None else ():
            self._text += text.encode()
            self._ends.append(len(self._text))

    def __getitem__(self, index: int) -> TypedText:
        """Raises FileCorrupt."""
        if not 0 <= index < len(self._ends) - 1:
            raise FileCorrupt("The workbook lacks a text that a cell names.")
        begin, end = self._ends[index], self._ends[index + 1]
        return text_cell(self._text[begin:end].decode()) if end > begin else EMPTY


def _items(package: Package, part: str | None, wanted: Collection[int] | None) -> Iterator[tuple[int, str]]:
    if part is None:
        raise FileCorrupt("The workbook has no texts, but cells name some.")
    items = _Items(wanted)
    parser = xml_parser()
    parser.StartElementHandler = items.start
    parser.EndElementHandler = items.end
    parser.CharacterDataHandler = items.text
    for _ in parse(parser, package.pieces(part)):
        ready, items.ready = items.ready, []
        yield from ready
