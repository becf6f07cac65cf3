"""CSV and TSV by RFC 4180 (Contract editor 8.2)."""

import orjson
import pyarrow as pa

from queryserver.formats.columns import Column, is_text, kernels
from queryserver.formats.download.encoder import unique_names
from queryserver.formats.download.texts import NUMERIC_TYPES, is_free_text, joined, json_texts, row_bytes, some, texts

_LINE_END = "\r\n"
_FORMULA_START = r"^[=+\-@\t\r]"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|Infinity|NaN)$"


class DelimitedEncoder:
    """Quotes only what needs it. NULL is nothing, an empty text is `""`.

    `guard` puts `'` before texts that a spreadsheet would take for a formula (Contract security T5).
    """

    def __init__(self, columns: tuple[Column, ...], *, separator: str, guard: bool) -> None:
        self._columns = columns
        self._separator = separator
        self._guard = guard
        self._to_quote = f'["\r\n{separator}]'

    def start(self) -> bytes:
        names = [pa.array([column.name], pa.string()) for column in self._columns]
        if self._guard:
            names = [_guarded(name, kernels.match_substring_regex(name, _FORMULA_START)) for name in names]
        return self._joined([self._quoted(name) for name in names])

    def rows(self, batch: pa.RecordBatch) -> bytes:
        cells = map(self._cells, batch.columns, self._columns)
        return self._joined(list(cells))

    def end(self) -> bytes:
        """Nothing: the last line has its end."""
        return b""

    def close(self) -> None:
        """Nothing is held."""

    def _cells(self, array: pa.Array, column: Column) -> pa.Array:
        cells = texts(array, column)
        if not is_free_text(array.type):
            return cells
        if self._guard:
            cells = _guarded(cells, _formulas(cells, array.type, column))
        return self._quoted(cells)

    def _quoted(self, cells: pa.Array) -> pa.Array:
        to_quote = kernels.or_(
            kernels.match_substring_regex(cells, self._to_quote), kernels.equal(kernels.binary_length(cells), 0)
        )
        if not some(to_quote):
            return cells
        quoted = joined('"', kernels.replace_substring(cells, '"', '""'), '"')
        return kernels.if_else(to_quote, quoted, cells)

    def _joined(self, cells: list[pa.Array]) -> bytes:
        last = joined(cells[-1], _LINE_END, null="")
        return row_bytes(*cells[:-1], last, separator=self._separator)


def _formulas(cells: pa.Array, kind: pa.DataType, column: Column) -> pa.Array:
    formulas = kernels.match_substring_regex(cells, _FORMULA_START)
    if is_text(kind) and column.type not in NUMERIC_TYPES:
        return formulas
    # Numbers may stand here as text: decimals of any length, values of a column without one type.
    return kernels.and_(formulas, kernels.invert(kernels.match_substring_regex(cells, _NUMBER)))


def _guarded(cells: pa.Array, formulas: pa.Array) -> pa.Array:
    if not some(formulas):
        return cells
    return kernels.if_else(formulas, joined("'", cells), cells)


class JsonLinesEncoder:
    """Values in the raw form of Contract editor 6.3; repeated names get `_2`, `_3`, …"""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        names = unique_names([column.name for column in columns])
        self._keys = ["{,"[number > 0] + orjson.dumps(name).decode() + ":" for number, name in enumerate(names)]

    def start(self) -> bytes:
        """Nothing: there is no header."""
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        pieces: list[pa.Array | str] = []
        for key, array, column in zip(self._keys, batch.columns, self._columns, strict=True):
            pieces += [key, json_texts(array, column)]
        return row_bytes(*pieces, "}\n", null="null")

    def end(self) -> bytes:
        """Nothing: the last line has its end."""
        return b""

    def close(self) -> None:
        """Nothing is held."""
