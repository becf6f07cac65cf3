"""CSV and TSV downloads by RFC 4180 (Contract editor 8.2): quoting, and the guard against formulas."""

import pyarrow as pa

from queryserver.formats.columns import Column, is_text, kernels
from queryserver.formats.download.encoder import Encoder
from queryserver.formats.download.texts import NUMERIC_TYPES, is_free_text, joined, row_bytes, some, texts

_LINE_END = "\r\n"
_FORMULA_START = r"^[=+\-@\t\r]"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|Infinity|NaN)$"


class CsvEncoder(Encoder):
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
        return self._joined(list(map(self._cells, batch.columns, self._columns)))

    def _cells(self, array: pa.Array, column: Column) -> pa.Array:
        cells = texts(array, column)
        if not is_free_text(array.type):
            return cells
        if self._guard:
            formulas = kernels.match_substring_regex(cells, _FORMULA_START)
            if not is_text(array.type) or column.type in NUMERIC_TYPES:
                # Numbers may stand here as text: decimals of any length, values of a column without one type.
                formulas = kernels.and_(formulas, kernels.invert(kernels.match_substring_regex(cells, _NUMBER)))
            cells = _guarded(cells, formulas)
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


def _guarded(cells: pa.Array, formulas: pa.Array) -> pa.Array:
    if not some(formulas):
        return cells
    return kernels.if_else(formulas, joined("'", cells), cells)
