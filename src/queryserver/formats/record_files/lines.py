"""JSON Lines and Avro as batches of texts (Contract importer 8a).

A record is a JSON object. Nested values become JSON text. Everything here blocks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Self, cast

import pyarrow as pa

from queryserver.domain.errors.files import FileCorrupt, UnsupportedFormat, format_mismatch, record_too_long
from queryserver.domain.importing import MAX_RECORD_CHARACTERS, STRING, BaseType, CellKind, ColumnType, TypedText
from queryserver.formats.cell_types.classes import facts_of_text
from queryserver.formats.record_files.columnar import RecordBatch, RecordColumn
from queryserver.formats.unpacking.avro import AvroFile

_PORTION_ROWS, _PORTION_CHARACTERS = 4096, 1024 * 1024
_MARK = b"\xef\xbb\xbf"
_TIMES = frozenset({CellKind.DATE, CellKind.TIMESTAMP, CellKind.TIME})
_MAX_DIGITS = 38

Record = Mapping[str, Any]


class _Fraction(float):
    """A number with a fraction or an exponent, and its text, which may have more digits than a double keeps."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class LinesFile:
    """JSON Lines of known columns. Another name in a record makes its row strange."""

    def __init__(self, lines: Iterable[bytes], columns: Sequence[RecordColumn]) -> None:
        self.columns = columns
        self._lines = lines

    def batches(self) -> Iterator[RecordBatch]:
        """Batches of texts. Raises record_too_long."""
        names = [column.name for column in self.columns]
        known = frozenset(names)
        rows = list[Record]()
        strange = list[tuple[int, str]]()
        size = 0
        for line in self._lines:
            record = record_of(line)
            if record is None:
                strange.append((len(rows), "the line is no JSON object"))
            elif unknown := record.keys() - known:
                strange.append(
                    (
                        len(rows),
                        f"the record has a field {json.dumps(min(unknown))[:100]} that the first records have not",
                    )
                )
            rows.append(record if record is not None and record.keys() <= known else {})
            size += len(line)
            if len(rows) == _PORTION_ROWS or size >= _PORTION_CHARACTERS:
                yield _batch(rows, names, strange)
                rows, strange, size = [], [], 0
        if rows:
            yield _batch(rows, names, strange)


def _batch(rows: Sequence[Record], names: Sequence[str], strange: Sequence[tuple[int, str]]) -> RecordBatch:
    arrays = [pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(names))])
    return RecordBatch(batch, strange)


def record_of(line: bytes) -> Record | None:
    """The object of a line; None: it is none. Numbers keep all their digits."""
    try:
        found = json.loads(line.decode(), parse_float=_Fraction)
        if b"\\u" in line:
            # One half of a surrogate pair is no character, and no text that could be stored.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return cast("Record", found) if isinstance(found, dict) else None


def cell_of(value: Any) -> TypedText:
    """A value as a cell of its class. A text is a date or a time if it looks like one in the plain forms."""
    match value:
        case None:
            return TypedText("", CellKind.NULL)
        case bool():
            return TypedText(_text(value) or "", CellKind.BOOLEAN)
        case int():
            return TypedText(str(value), facts_of_text(str(value)).kind)
        case float():
            # Doubles have up to 17 digits in JSON; of delimited text more than 15 would be a decimal.
            text = _text(value) or ""
            is_finite = facts_of_text(text).kind is not CellKind.NON_FINITE
            return TypedText(text, CellKind.DOUBLE if is_finite else CellKind.NON_FINITE)
        case str():
            kind = facts_of_text(value).kind
            return TypedText(value, kind if kind in _TIMES else CellKind.TEXT)
        case _:
            return TypedText(_text(value) or "", CellKind.TEXT)


def _text(value: Any) -> str | None:
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case _Fraction():
            return value.text
        case int() | float():
            return repr(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines that are not blank. Raises record_too_long."""
    is_first = True
    while line := file.readline(MAX_RECORD_CHARACTERS + 1):
        if len(line) > MAX_RECORD_CHARACTERS:
            raise record_too_long("A line of the file is too long.")
        if is_first:
            line, is_first = line.removeprefix(_MARK), False
        if stripped := line.strip():
            yield stripped


def avro_file(file: BinaryIO) -> LinesFile:
    """Raises format_mismatch, DecompressionFailed, UnsupportedFormat (its records are no records)."""
    if file.read(4) != b"Obj\x01":
        raise format_mismatch("The file is no avro file.")
    file.seek(0)
    records = AvroFile(file)
    return LinesFile(map(_checked, records.lines()), _avro_columns(records.schema))


def _checked(line: bytes) -> bytes:
    if len(line) > MAX_RECORD_CHARACTERS:
        raise record_too_long("A record of the file is too long.")
    return line


_AVRO = {
    "boolean": BaseType.BOOLEAN,
    "int": BaseType.INT32,
    "long": BaseType.INT64,
    "float": BaseType.FLOAT32,
    "double": BaseType.FLOAT64,
    "bytes": BaseType.BINARY,
    "fixed": BaseType.BINARY,
}
_AVRO_LOGICAL = {
    ("int", "date"): BaseType.DATE,
    ("int", "time-millis"): BaseType.TIME,
    ("long", "time-micros"): BaseType.TIME,
    **{
        ("long", f"{local}timestamp-{unit}"): BaseType.DATETIME
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
"""The logical types that `unpacking.avro` writes as such; it ignores all others."""


def _avro_columns(declared: Any) -> Sequence[RecordColumn]:
    try:
        if declared["type"] != "record":
            raise UnsupportedFormat
        return [RecordColumn(str(one["name"]), _avro_type(one["type"])) for one in declared["fields"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileCorrupt("The avro schema is broken.") from None


def _avro_type(declared: Any) -> ColumnType:
    """Unions with null are of the other type; what the dialects have no type for is text."""
    if isinstance(declared, list):
        others = [one for one in cast("list[Any]", declared) if one != "null"]
        return _avro_type(others[0]) if len(others) == 1 else STRING
    if isinstance(declared, str):
        return ColumnType(_AVRO.get(declared, BaseType.STRING))
    details = cast("Mapping[str, Any]", declared)
    logical, kind = str(details.get("logicalType", "")), details["type"]
    if not isinstance(kind, str):
        return _avro_type(kind)
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = details.get("precision"), details.get("scale", 0)
        is_usual = type(precision) is int and type(scale) is int and 0 <= scale <= precision <= _MAX_DIGITS
        return ColumnType(BaseType.DECIMAL, precision, scale) if is_usual and precision else STRING
    if base := _AVRO_LOGICAL.get((kind, logical)):
        return ColumnType(base)
    return _avro_type(kind)
