"""Interfaces for downloads: the source of a result, the encoder of a file, and the options of the file.

Converts columns to raw text (Contract editor 6.3), and encodes CSV and JSON Lines.

Arrow's kernels create 1,000,000 x 10 strings in about 0.5 s, ten times faster than with Python objects. Therefore only
values without a suitable kernel are converted with `cell_values`.
"""

import io
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Protocol
from uuid import UUID

import orjson
import pyarrow as pa

from queryserver.formats.arrow import Column, ResultType, is_text, kernels
from queryserver.formats.cells import cell_values
from queryserver.formats.text_forms import text_form, without_zero_fraction

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The end-of-stream marker of an Arrow IPC stream."""

NUMERIC_TYPES = frozenset(
    ResultType(f"{name}_TYPE") for name in ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
)
NESTED_TYPES = frozenset({ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION})


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A stored segment: an Arrow IPC stream of `size_bytes` that begins with the schema message `head`.

    `read(start, stop)` returns the bytes [start, stop) of the stream.
    """

    head: bytes
    size_bytes: int
    read: Callable[[int, int], Awaitable[bytes]]

    @property
    def batches_bytes(self) -> int:
        """The size of the messages that contain rows."""
        return self.size_bytes - len(self.head) - len(END_OF_STREAM)


class ResultSource(Protocol):
    """A finished result, which can be read repeatedly."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of every table, in order. The field names of the tables may differ."""
        ...

    @property
    def rows(self) -> int: ...

    def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows, in order. The Arrow type of a column can differ between tables."""
        ...

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """Yield the distinct schemas of `tables` in any order, if possible without reading the rows."""
        ...

    def packed(self) -> AsyncGenerator[PackedRows]:
        """Yield the stored segments in order. Yield nothing if the rows are not stored in segments."""
        ...


class Encoder(ABC):
    """Encodes one file. All methods block; call them from one thread at a time."""

    def start(self) -> bytes:
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Encode rows without dictionary-encoded columns. May return no bytes while it collects rows."""

    def end(self) -> bytes:
        return b""

    def close(self) -> None:  # noqa: B027 most encoders have no resources
        """Release all resources, even if the file is incomplete. Idempotent."""


class WriteBuffer(io.RawIOBase):
    """A writable file object that buffers the written bytes until `take` is called."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Append a copy of the bytes, because the caller may reuse its buffer."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def unique_names(names: Sequence[str]) -> list[str]:
    """Make names unique by appending `_2`, `_3`, … to repeated names."""
    taken = set(names)
    seen: set[str] = set()
    unique: list[str] = []
    for name in names:
        chosen, number = name, 2
        if name in seen:
            while (chosen := f"{name}_{number}") in taken:
                number += 1
            taken.add(chosen)
        seen.add(name)
        unique.append(chosen)
    return unique


XLSX_MAX_ROWS = 1_048_575
"""Maximum number of data rows: a sheet has at most 1,048,576 rows, of which the first is the header."""
XLSX_MAX_COLUMNS = 16_384
XLSX_MAX_CHARACTERS = 32_767
"""Maximum length of a cell in UTF-16 code units, which is how Excel counts."""


class ContentCoding(StrEnum):
    """Values of `Content-Encoding` for a download."""

    IDENTITY = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


class DownloadFormat(StrEnum):
    """Values of `format` for a download, which are also the extensions of the file names."""

    CSV = "csv"
    TSV = "tsv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    ARROW = "arrow"
    FEATHER = "feather"
    NDJSON = "ndjson"

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self]

    @property
    def is_compressed(self) -> bool:
        """Whether the format already compresses its data, so that a content coding would not help."""
        return self in {DownloadFormat.XLSX, DownloadFormat.PARQUET}


_CONTENT_TYPES = {
    DownloadFormat.CSV: "text/csv; charset=utf-8; header=present",
    DownloadFormat.TSV: "text/tab-separated-values; charset=utf-8",
    DownloadFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    DownloadFormat.PARQUET: "application/vnd.apache.parquet",
    DownloadFormat.ARROW: "application/vnd.apache.arrow.stream",
    DownloadFormat.FEATHER: "application/vnd.apache.arrow.file",
    DownloadFormat.NDJSON: "application/x-ndjson",
}

_ENCODER_VERSIONS = (
    version("queryserver"),
    pa.__version__,
    orjson.__version__,
    zlib.ZLIB_RUNTIME_VERSION,
    *sys.version_info[:2],
)
_VERSION_TAG = sha256(repr(_ENCODER_VERSIONS).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class FileForm:
    """The options of a downloaded file. The same result with the same options always gives the same bytes."""

    format: DownloadFormat
    guard: bool = False
    """For csv and tsv: put `'` before strings that a spreadsheet could interpret as formulas."""
    coding: ContentCoding = ContentCoding.IDENTITY
    codec: str = ""
    """The compression within a file of the format parquet, arrow or feather; empty for the format's default."""
    has_header: bool = True
    """For csv and tsv: begin with the column names."""

    def entity_tag(self, operation_id: UUID) -> str:
        """Return a strong entity tag, in quotes. It includes a hash of library versions, which can change the bytes."""
        words = [str(operation_id), self.format.value, *(["guarded"] if self.guard else [])]
        words += [self.codec] if self.codec else []
        if self.coding is not ContentCoding.IDENTITY:
            words.append(self.coding.value)
        return f'"{"-".join(words)}-{_VERSION_TAG}"'


def any_true(mask: pa.Array) -> bool:
    """Return whether any value is true. NULL counts as false."""
    return bool(kernels.any(mask).as_py())


def all_true(mask: pa.Array) -> bool:
    """Return whether all non-NULL values are true."""
    return kernels.all(mask).as_py() is not False


def max_value(array: pa.Array) -> int:
    return kernels.max(array).as_py() or 0


def join_texts(*pieces: pa.Array | str, separator: str = "", null: str | None = None) -> pa.Array:
    """Join the pieces of each row into one string. NULL pieces are written as `null`; if that is None, the row is
    NULL.
    """
    handling = "emit_null" if null is None else "replace"
    return kernels.binary_join_element_wise(*pieces, separator, null_handling=handling, null_replacement=null or "")


def row_bytes(*pieces: pa.Array | str, separator: str = "", null: str = "") -> bytes:
    """Join the pieces of each row and concatenate all rows."""
    rows = join_texts(*pieces, separator=separator, null=null)
    _, offsets, characters = rows.buffers()
    if offsets is None or characters is None:
        return b""
    return characters.slice(0, memoryview(offsets).cast("i")[len(rows)]).to_pybytes()


def replace_where(
    texts: pa.Array, where: pa.Array, change: Callable[[Any], str], *, of: pa.Array | None = None
) -> pa.Array:
    """Where the mask is true, replace the text with `change(text)`. If `of` is given, pass its value instead of the
    text.

    `change` is called once for each distinct value.
    """
    if not any_true(where):
        return texts
    found = (texts if of is None else of).filter(where).dictionary_encode()
    spelled = pa.array([change(value) for value in found.dictionary.to_pylist()], pa.string())
    return kernels.replace_with_mask(texts, kernels.fill_null(where, False), spelled.take(found.indices))


def is_free_text(kind: pa.DataType) -> bool:
    """Return whether values of this type may contain arbitrary characters when written as text, unlike numbers, times
    and booleans.
    """
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return True
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def texts(array: pa.Array, column: Column) -> pa.Array:
    """Return each value as raw text; NULL stays NULL. Binary values become base64, and nested values become compact
    JSON.
    """
    made = text_form(array)
    if made is None and needs_values(array.type, column):
        return value_texts(cell_values(array, column))
    if made is None and pa.types.is_floating(array.type):
        return _float_texts(array)
    return array.cast(pa.string()) if made is None else made


def value_texts(values: Sequence[object]) -> pa.Array:
    return pa.array(
        [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values],
        pa.string(),
    )


def json_texts(array: pa.Array, column: Column) -> pa.Array:
    """Return the raw form of each value as JSON text. NULL stays NULL."""
    kind = array.type
    if is_text(kind) and column.type not in NESTED_TYPES:
        strings = texts(array, column)
        to_escape = kernels.match_substring_regex(strings, r'["\\\x00-\x1f]')
        quoted = join_texts('"', strings, '"')
        return replace_where(quoted, to_escape, lambda text: orjson.dumps(text).decode(), of=strings)
    if is_text(kind) or needs_values(kind, column):
        values = cell_values(array, column)
        return pa.array([None if value is None else orjson.dumps(value) for value in values], pa.string())
    plain = texts(array, column)
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and column.type is not ResultType.DECIMAL):
        return plain
    if pa.types.is_floating(kind):
        return kernels.if_else(kernels.is_finite(array), plain, join_texts('"', plain, '"'))
    return join_texts('"', plain, '"')


def needs_values(kind: pa.DataType, column: Column) -> bool:
    """Return whether values of the type, which is not text, must be converted with `cell_values`."""
    # SQLite stores booleans as integers.
    return is_free_text(kind) or (column.type is ResultType.BOOLEAN and pa.types.is_integer(kind))


def _float_texts(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    shortest = array.cast(pa.string())
    whole = kernels.invert(kernels.match_substring_regex(shortest, "[.en]"))
    if any_true(whole):
        shortest = kernels.if_else(whole, join_texts(shortest, ".0"), shortest)
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return replace_where(shortest, kernels.invert(kernels.is_finite(array)), names.__getitem__)


class JsonLinesEncoder(Encoder):
    """Writes JSON Lines with values in raw form (Contract editor 6.3). Repeated names get suffixes `_2`, `_3`, …"""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        names = unique_names([column.name for column in columns])
        self._keys = ["{,"[number > 0] + orjson.dumps(name).decode() + ":" for number, name in enumerate(names)]

    def rows(self, batch: pa.RecordBatch) -> bytes:
        pieces: list[pa.Array | str] = []
        for key, array, column in zip(self._keys, batch.columns, self._columns, strict=True):
            pieces += [key, json_texts(array, column)]
        return row_bytes(*pieces, "}\n", null="null")


_LINE_END = "\r\n"
_FORMULA_START = r"^[=+\-@\t\r]"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|Infinity|NaN)$"


class CsvEncoder(Encoder):
    """Writes CSV or TSV, quoting only where needed. NULL is an empty field; an empty string is `""`.

    In a file with one column, both are `""`, because pandas and pyarrow skip empty lines. If `guard` is set, `'` is put
    before strings that a spreadsheet would interpret as formulas (Contract security T5).
    """

    def __init__(self, columns: tuple[Column, ...], *, separator: str, guard: bool, has_header: bool = True) -> None:
        self._columns = columns
        self._separator = separator
        self._guard = guard
        self._has_header = has_header
        self._to_quote = f'["\r\n{separator}]'

    def start(self) -> bytes:
        if not self._has_header:
            return b""
        names = [pa.array([column.name], pa.string()) for column in self._columns]
        if self._guard:
            names = [_guarded(name, kernels.match_substring_regex(name, _FORMULA_START)) for name in names]
        return self._joined([self._quoted(name) for name in names])

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return self._joined(list(map(self._cells, batch.columns, self._columns)))

    def _cells(self, array: pa.Array, column: Column) -> pa.Array:
        cells = texts(array, column)
        if not is_free_text(array.type):
            return cells
        if self._guard:
            formulas = kernels.match_substring_regex(cells, _FORMULA_START)
            if not is_text(array.type) or column.type in NUMERIC_TYPES:
                # Decimals with any number of digits, and values of untyped columns, are numbers written as text.
                formulas = kernels.and_(formulas, kernels.invert(kernels.match_substring_regex(cells, _NUMBER)))
            cells = _guarded(cells, formulas)
        return self._quoted(cells)

    def _quoted(self, cells: pa.Array) -> pa.Array:
        to_quote = kernels.or_(
            kernels.match_substring_regex(cells, self._to_quote), kernels.equal(kernels.binary_length(cells), 0)
        )
        if not any_true(to_quote):
            return cells
        quoted = join_texts('"', kernels.replace_substring(cells, '"', '""'), '"')
        return kernels.if_else(to_quote, quoted, cells)

    def _joined(self, cells: list[pa.Array]) -> bytes:
        last = join_texts(cells[-1], _LINE_END, null="" if len(cells) > 1 else '""')
        return row_bytes(*cells[:-1], last, separator=self._separator)


def _guarded(cells: pa.Array, formulas: pa.Array) -> pa.Array:
    if not any_true(formulas):
        return cells
    return kernels.if_else(formulas, join_texts("'", cells), cells)


_HOUR_US = 3_600_000_000


def duration_text(durations: pa.Array) -> pa.StringArray:
    """Format durations in microseconds, for example `30:00:00` or `-00:00:00.500000`. Hours can exceed 24."""
    microseconds = durations.cast(pa.int64())
    size = kernels.abs(microseconds)
    hours = kernels.divide(size, _HOUR_US)
    rest = kernels.subtract(size, kernels.multiply(hours, _HOUR_US)).cast(pa.time64("us"))
    minutes = kernels.utf8_slice_codeunits(without_zero_fraction(rest.cast(pa.string())), 2)
    sign = kernels.if_else(kernels.less(microseconds, 0), "-", "")
    padded = kernels.utf8_lpad(hours.cast(pa.string()), 2, "0")
    return kernels.binary_join_element_wise(sign, padded, minutes, "")
