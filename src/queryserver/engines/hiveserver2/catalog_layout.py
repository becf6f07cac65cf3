"""DESCRIBE FORMATTED as Hive lays it out, and Impala after it: rows of three cells in sections."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from queryserver.domain.catalog import ForeignKey, TableColumn
from queryserver.engines.catalog_queries import Row
from queryserver.engines.hiveserver2.catalog_text import cell
from queryserver.engines.hiveserver2.catalog_types import one_line

_PARTITIONS = "# partition information"
_PARAMETERS = "table parameters"
_STORAGE = "storage desc params"
_PRIMARY, _FOREIGN = "# primary key", "# foreign keys"
_NOT_NULL, _DEFAULTS = "# not null constraints", "# default constraints"
_COLUMN, _PARENT, _DEFAULT = "Column Name:", "Parent Column Name:", "Default Value:"


@dataclass(slots=True)
class Layout:
    """What a description holds. `details` are `Owner`, `Location`, … without the colon; `parameters` the table's."""

    columns: list[TableColumn] = field(default_factory=list[TableColumn])
    partitions: list[TableColumn] = field(default_factory=list[TableColumn])
    details: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    foreign_keys: list[ForeignKey] = field(default_factory=list[ForeignKey])
    primary: set[str] = field(default_factory=set[str])
    not_null: set[str] = field(default_factory=set[str])
    defaults: dict[str, str] = field(default_factory=dict[str, str])

    def all_columns(self, *, tells_constraints: bool) -> tuple[TableColumn, ...]:
        """Partition columns last. Without constraints nothing is known of keys and NULL."""
        columns = (*self.columns, *self.partitions)
        return tuple(self._constrained(column) for column in columns) if tells_constraints else columns

    def _constrained(self, column: TableColumn) -> TableColumn:
        return TableColumn(
            column.name,
            column.type,
            column.comment,
            nullable=column.name not in self.not_null | self.primary,
            default=self.defaults.get(column.name),
            primary_key=column.name in self.primary,
            partition_key=column.partition_key,
        )


def read_layout(rows: Iterable[Row], clean: Callable[[str], str] = str) -> Layout:
    """Take the rows apart. `clean` undoes the engine's escapes in texts that users wrote."""
    layout, section = Layout(), ""
    for row in rows:
        first, second, third = (cell(one) for one in row[:3])
        if first.startswith("#") and not second:
            section = first.lower()
        elif first == "# col_name" and second == "data_type":
            continue
        elif first.endswith(":") and not second:
            section = first.rstrip(":").lower()
        else:
            _put(layout, section, (first, second, third), clean)
    return layout


def _put(layout: Layout, section: str, row: tuple[str, str, str], clean: Callable[[str], str]) -> None:
    first, second, third = row
    if section in {"", _PARTITIONS}:
        if first:
            key = section == _PARTITIONS
            column = TableColumn(clean(first), one_line(clean(second)), clean(third), partition_key=key)
            (layout.partitions if key else layout.columns).append(column)
    elif section == _PARAMETERS and not first:
        if second:
            layout.parameters[clean(second)] = clean(third)
    elif section in _CONSTRAINTS:
        _CONSTRAINTS[section](layout, [clean(one) for one in row])
    elif first.endswith(":") and section != _STORAGE:
        layout.details.setdefault(first.rstrip(":"), clean(second))


def _put_primary(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN):
        layout.primary.add(row[1])


def _put_not_null(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN):
        layout.not_null.add(row[1])


def _put_default(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN) and row[1].startswith(_DEFAULT):
        layout.defaults[row[0].removeprefix(_COLUMN)] = row[1].removeprefix(_DEFAULT)


def _put_foreign(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_PARENT) and row[1].startswith(_COLUMN):
        layout.foreign_keys.append(ForeignKey(row[1].removeprefix(_COLUMN), row[0].removeprefix(_PARENT)))


_CONSTRAINTS: Mapping[str, Callable[[Layout, Sequence[str]], None]] = {
    _PRIMARY: _put_primary,
    _FOREIGN: _put_foreign,
    _NOT_NULL: _put_not_null,
    _DEFAULTS: _put_default,
}
