"""Rows of a file as batches of a table to be; bad rows are left out and explained (Contract importer 13.2)."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.formats.cell_types.classes import BLANKS
from queryserver.formats.cell_types.written_forms import rewritten
from queryserver.formats.column_conversion import (
    Converted,
    Misfit,
    convert,
    convert_cells,
    converter,
    is_null,
    not_in_format,
    plain_texts,
    within_length,
)
from queryserver.formats.columns import kernels
from queryserver.formats.delimited.records import Block
from queryserver.imports.model import ColumnType, TypedText, arrow_type

_LONG = "the row has more fields than the file has columns"
_NULL = "the value is missing, and the column takes no NULL"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the table to be. `source` is the place of its cells in a row, from 0."""

    source: int
    name: str
    type: ColumnType
    nullable: bool = True
    format: str | None = None
    """The format of dates or numbers that its cells are in; None: the plain forms. Columns of text have none."""

    @property
    def takes_all(self) -> bool:
        """Whether no cell makes a row bad."""
        return self.nullable and _is_text(self.type) and self.type.length is None


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row is left out: the first reason in the order of the columns. `record` counts from 1, a header too."""

    record: int
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        where = f'record {self.record}, column "{self.column}"' if self.column is not None else f"record {self.record}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows: how many, the good ones as a batch, how many were bad, and why the first of these are."""

    rows: int
    batch: pa.RecordBatch
    bad: int
    explained: Sequence[BadRow]


class RowConverter:
    """Makes portions. `explain` bad rows at most are explained, in all."""

    def __init__(self, columns: Sequence[TargetColumn], *, explain: int) -> None:
        self._columns = columns
        self._schema = pa.schema([(one.name, arrow_type(one.type)) for one in columns])
        self._explain = explain

    def block(self, block: Block, *, has_header: bool) -> Portion:
        """Rows of delimited text. `has_header`: the first record of the file is none."""
        skip = 1 if has_header and block.first_record == 1 else 0
        texts = block.columns.slice(skip)
        bad = {row - skip: _Bad(None, _LONG) for row in block.long_rows if row >= skip}
        cells = [texts.column(one.source) for one in self._columns]
        converted = [convert(own, one.type, one.format) for own, one in zip(cells, self._columns, strict=True)]
        return self._portion(converted, cells, bad, texts.num_rows, block.first_record + skip)

    def cells(self, rows: Sequence[Sequence[TypedText]], first_record: int) -> Portion:
        """Rows of a workbook, all of one width."""
        columns = [_own_cells(rows, one) for one in self._columns]
        converted = [_of_cells(own, one) for own, one in zip(columns, self._columns, strict=True)]
        return self._portion(converted, columns, {}, len(rows), first_record)

    def records(self, rows: pa.RecordBatch, strange: Sequence[tuple[int, str]], first_record: int) -> Portion:
        """Rows of a file of records: values of the types of its columns, or texts of such values."""
        cells = [rows.column(one.source) for one in self._columns]
        converted = [_of_values(own, one) for own, one in zip(cells, self._columns, strict=True)]
        bad = {row: _Bad(None, reason) for row, reason in strange}
        return self._portion(converted, cells, bad, rows.num_rows, first_record)

    def _portion(
        self,
        converted: Sequence[Converted],
        cells: "Sequence[Sequence[str | None] | pa.StringArray]",
        bad: "dict[int, _Bad]",
        rows: int,
        first_record: int,
    ) -> Portion:
        for at, (one, column) in enumerate(zip(converted, self._columns, strict=True)):
            for row in one.misfits:
                bad.setdefault(row, _Bad(at))
            if not column.nullable and one.values.null_count:
                for row in kernels.indices_nonzero(kernels.is_null(one.values)).to_pylist():
                    bad.setdefault(row, _Bad(at, _NULL))
        batch = pa.RecordBatch.from_arrays([one.values for one in converted], schema=self._schema)
        if bad and converted:
            batch = batch.filter(_without(bad, rows))
        return Portion(rows, batch, len(bad), list(self._explained(bad, cells, first_record)))

    def _explained(
        self, bad: "dict[int, _Bad]", cells: "Sequence[Sequence[str | None] | pa.StringArray]", first_record: int
    ) -> Iterator[BadRow]:
        for row in sorted(bad)[: self._explain]:
            self._explain -= 1
            at, reason = bad[row].column, bad[row].reason
            if at is None:
                yield BadRow(first_record + row, reason)
                continue
            column = self._columns[at]
            yield BadRow(first_record + row, reason or _reason(column, _text(cells[at], row)), column.name)


@dataclass(frozen=True, slots=True)
class _Bad:
    """Which column makes a row bad, None: the row itself. Without a reason the cell says it."""

    column: int | None
    reason: str = ""


def _own_cells(rows: Sequence[Sequence[TypedText]], column: TargetColumn) -> list[str | None]:
    is_text = _is_text(column.type)
    own = (row[column.source] for row in rows)
    return [None if is_null(cell, is_text=is_text) else str(cell) for cell in own]


def _of_values(values: pa.Array, column: TargetColumn) -> Converted:
    """Texts stay what they are, also blank ones; values of another type than the column's go by way of their text."""
    wanted = arrow_type(column.type)
    if pa.types.is_string(wanted):
        return within_length(values if values.type == wanted else plain_texts(values), column.type)
    if values.type == wanted:
        return Converted(values)
    if pa.types.is_binary(wanted):
        # Texts of bytes are base64.
        return Converted(pa.array([None if text is None else b64decode(text) for text in values.to_pylist()], wanted))
    return convert(plain_texts(values), column.type, column.format)


def _of_cells(cells: Sequence[str | None], column: TargetColumn) -> Converted:
    if column.format is None:
        return convert_cells(cells, column.type)
    return convert(pa.array(cells, pa.string()), column.type, column.format)


def _is_text(column: ColumnType) -> bool:
    return bool(pa.types.is_string(arrow_type(column)))


def _without(bad: "dict[int, _Bad]", rows: int) -> pa.BooleanArray:
    kept = [True] * rows
    for row in bad:
        kept[row] = False
    return pa.array(kept, pa.bool_())


def _text(cells: "Sequence[str | None] | pa.Array", row: int) -> str:
    """A cell as it was converted."""
    if not isinstance(cells, pa.Array):
        return str(cells[row])
    values: pa.Array = cells
    return str(plain_texts(values.slice(row, 1))[0])


def _reason(column: TargetColumn, cell: str) -> str:
    try:
        if column.format is not None:
            cell = _plain(cell, column.format)
        converter(column.type)(cell)
    except Misfit as misfit:
        return str(misfit)
    raise AssertionError(cell)


def _plain(cell: str, form: str) -> str:
    """Raises Misfit."""
    plain: str | None = rewritten(pa.array([cell.strip(BLANKS)], pa.string()), form)[0].as_py()
    if plain is None:
        raise not_in_format(cell, form)
    return plain
