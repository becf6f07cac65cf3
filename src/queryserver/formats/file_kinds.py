"""What a file is, by its first bytes (Contract importer 9.1). The name of the file is not asked."""

import json
import re
from enum import Enum, auto
from typing import NoReturn

from queryserver.errors.files import UnsupportedFormat, file_empty, format_mismatch
from queryserver.formats.delimited.cutting import BLANKS
from queryserver.formats.delimited.encodings import decoded, detect_encoding
from queryserver.imports.model import FileType

_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_ASCII_BLANKS = BLANKS.encode()
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
_OTHERS = (
    b"\x1f\x8b",  # gzip
    b"\xfd7zXZ\x00",
    b"%PDF",
)
_RECORDS = {
    b"PAR1": FileType.PARQUET,
    b"Obj\x01": FileType.AVRO,
    b"ARROW1\0\0": FileType.ARROW,
}
# A stream of Arrow begins with this, and with the length of a message in four bytes.
_ARROW_STREAM, _LONGEST_SCHEMA = b"\xff\xff\xff\xff", 16 * 1024 * 1024
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MARKUP = ("<?xml", "<!doctype", "<html", "{\\rtf")
_JSON_BEGINNING = re.compile(rf'[{BLANKS}]*(?:\{{[{BLANKS}]*"|\[[{BLANKS}]*\{{)')


class FileKind(Enum):
    """What may be done with a file."""

    TEXT = auto()
    WORKBOOK_CANDIDATE = auto()
    """It begins as workbooks do; `formats.workbooks.kinds` tells whether it is one."""
    PARQUET = auto()
    NDJSON = auto()
    AVRO = auto()
    ARROW = auto()


def recognise(sample: bytes, *, is_whole: bool) -> FileKind:
    """The kind of a file by its first SAMPLE_BYTES; `is_whole`: there are no more.

    Raises file_empty, UnsupportedFormat.
    """
    records = _records(sample)
    if records is not None:
        return FileKind[records.name]
    text = _text_of(sample, is_whole, None)
    if text is None:
        return FileKind.WORKBOOK_CANDIDATE
    # JSON is UTF-8: a NUL among the bytes is one of UTF-16.
    if b"\0" not in sample and _is_json_lines(text, is_whole, of="{"):
        return FileKind.NDJSON
    if text[:16].lower().startswith(_MARKUP) or _JSON_BEGINNING.match(text) or _is_json_lines(text, is_whole, of="{["):
        raise UnsupportedFormat
    return FileKind.TEXT


def _records(sample: bytes) -> FileType | None:
    """The kind of a file of records that is no text."""
    known = next((kind for mark, kind in _RECORDS.items() if sample.startswith(mark)), None)
    if (
        known is None
        and sample.startswith(_ARROW_STREAM)
        and 0 < int.from_bytes(sample[4:8], "little") < _LONGEST_SCHEMA
    ):
        return FileType.ARROW
    return known


def recognise_told(sample: bytes, *, is_whole: bool, encoding: str | None = None) -> FileKind:
    """As `recognise`, for a file of which the caller says what it is: text is text, even if it looks like markup.

    `encoding`: the one that the caller says; None: it is told from the bytes. Raises format_mismatch for a file of
    records that is no text.
    """
    records = _records(sample)
    if records is not None:
        raise format_mismatch(f"The file is of the type {records}.")
    text = _text_of(sample, is_whole, encoding)
    return FileKind.WORKBOOK_CANDIDATE if text is None else FileKind.TEXT


def _text_of(sample: bytes, is_whole: bool, encoding: str | None) -> str | None:
    """The text, without blanks at both ends; None: a workbook, perhaps. Raises file_empty, UnsupportedFormat."""
    if not sample or sample in _MARKS or not sample.strip(_ASCII_BLANKS):
        _refuse_empty()
    if sample.startswith(_WORKBOOKS):
        return None
    if sample.startswith(_OTHERS) or _BZIP2.match(sample):
        raise UnsupportedFormat
    encoding = encoding or detect_encoding(sample, is_whole=is_whole)
    text = decoded(sample, encoding, is_whole=is_whole).strip(BLANKS)
    if not text:
        _refuse_empty()
    return text


def _refuse_empty() -> NoReturn:
    raise file_empty("File is empty, cannot detect file format.")


def _is_json_lines(text: str, is_whole: bool, *, of: str) -> bool:
    """Whether every line that is not blank is JSON that begins so; the last line of a partial sample is cut."""
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip(BLANKS)]
    if not is_whole and len(lines) > 1:
        lines.pop()
    return all(line.strip(BLANKS)[0] in of and _is_json(line) for line in lines)


def _is_json(line: str) -> bool:
    line = line.strip(BLANKS)
    if not (line.startswith("{") and line.endswith("}")) and not (line.startswith("[") and line.endswith("]")):
        return False
    try:
        # Numbers stay text: Python refuses to read integers of very many digits.
        json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True
