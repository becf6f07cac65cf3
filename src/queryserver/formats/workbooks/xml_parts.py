"""XML parts of workbooks as a stream of events. Nothing in them is defined, fetched or expanded (Contract 14.4)."""

from collections.abc import Iterable, Iterator
from typing import Never
from xml.parsers import expat

from queryserver.domain.errors import FileCorrupt, file_encrypted, file_too_complex
from queryserver.formats.workbooks.packages import Package

MAX_MARKUP_BYTES = 4 * 1024 * 1024
"""The longest piece of markup. expat begins anew with an unfinished one at each piece, so long ones cost squares."""


def xml_parser() -> expat.XMLParserType:
    """A parser that gives text in large pieces and refuses document types, and with them all entities."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    return parser


def parse(parser: expat.XMLParserType, pieces: Iterable[bytes]) -> Iterator[None]:
    """Feed the part; stops after each piece, so that what handlers have gathered can be passed on.

    Raises FileCorrupt for what is no XML, file_too_complex.
    """
    fed = 0
    try:
        for piece in pieces:
            parser.Parse(piece)
            fed += len(piece)
            if fed - parser.CurrentByteIndex > MAX_MARKUP_BYTES:
                raise file_too_complex("A part of the workbook has markup of more than 4 MiB.")
            yield
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        # LookupError and ValueError: the part says an encoding that nobody knows, or not for a stream.
        raise FileCorrupt("A part of the workbook is not well-formed.") from error
    yield


def parse_whole(parser: expat.XMLParserType, pieces: Iterable[bytes]) -> None:
    """Feed the part to its end. Raises as `parse`."""
    for _ in parse(parser, pieces):
        pass


def local_name(name: str) -> str:
    """The name without its prefix: some programs write `x:sheet` for `sheet`."""
    return name.rpartition(":")[2]


def _refuse(*_declaration: object) -> Never:
    raise file_too_complex("The workbook declares a document type or entities.")


def check_parts(package: Package) -> None:
    """Look at the beginning of every XML part, for readers that are not ours. Raises file_too_complex, file_encrypted.

    A document type stands before the first element or nowhere. OpenDocument says in its manifest what is encrypted.
    """
    for name in package.names():
        if name.lower().endswith((".xml", ".rels")):
            started: list[str] = []
            parser = xml_parser()
            parser.StartElementHandler = lambda element, _, found=started: found.append(local_name(element))
            is_manifest = name == "META-INF/manifest.xml"
            for _ in parse(parser, package.pieces(name)):
                if is_manifest and "encryption-data" in started:
                    raise file_encrypted("The workbook has a password.")
                if started and not is_manifest:
                    break
                started.clear()
