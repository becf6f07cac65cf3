"""Metadata of a data source in one shape for every engine (Contract editor 10)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class TableKind(StrEnum):
    """`details.properties.table_type` of describe."""

    MANAGED = "MANAGED_TABLE"
    EXTERNAL = "EXTERNAL_TABLE"
    VIEW = "VIRTUAL_VIEW"
    MATERIALIZED_VIEW = "MATERIALIZED_VIEW"

    @property
    def is_view(self) -> bool:
        """Neither holds rows of its own that could be updated."""
        return self in {TableKind.VIEW, TableKind.MATERIALIZED_VIEW}


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database, or a schema where that is the unit (Contract editor 10: `<DB>`)."""

    name: str
    comment: str = ""
    location: str = ""
    """Address in a storage, such as `hdfs://nn/warehouse/shop.db`."""
    owner_name: str = ""
    owner_type: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A table in a list."""

    name: str
    kind: TableKind = TableKind.MANAGED
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table. `type` is the engine's own type text, as its DESCRIBE shows it."""

    name: str
    type: str
    comment: str = ""
    nullable: bool | None = None
    default: str | None = None
    autoincrement: bool | None = None
    primary_key: bool | None = None
    partition_key: bool = False


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """`to` is `database.table.column`."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class TableProperty:
    """One property as the engine tells it."""

    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table or view. Columns are in table order, partition columns included."""

    database: str
    name: str
    columns: tuple[TableColumn, ...]
    kind: TableKind = TableKind.MANAGED
    comment: str = ""
    support_updates: bool | None = None
    """Whether rows can be updated or deleted."""
    location: str = ""
    owner: str = ""
    create_time: str = ""
    """UTC, `2025-01-31T10:20:30Z`."""
    format: str = ""
    """`parquet`, `orc`, `text`, `kudu`, `iceberg`."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    properties: tuple[TableProperty, ...] = ()
    statistics: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only what the engine already has: `numRows`, `totalSize`, `numFiles`, `rawDataSize`."""

    def column(self, name: str) -> TableColumn | None:
        """The column of exactly that name, else the only one of that name without regard to case."""
        exact = [one for one in self.columns if one.name == name]
        folded = [one for one in self.columns if one.name.casefold() == name.casefold()]
        found = exact or folded
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column that the engine already has; `message` says why there are none."""

    min: str | None = None
    max: str | None = None
    num_nulls: int | None = None
    distinct_count: int | None = None
    avg_col_len: float | None = None
    max_col_len: int | None = None
    num_trues: int | None = None
    num_falses: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """A function. Overloads are joined in `signature` by line breaks."""

    name: str
    signature: str = ""
    return_type: str = ""
    is_builtin: str = ""
    """`BUILTIN` or the engine's own word."""
    is_persistent: str = ""
    """`true`, `false` or unknown."""
    description: str = ""


class SampleKind(StrEnum):
    """`operation` of a sample, without the connection test (Contract editor 10.3)."""

    DEFAULT = "default"
    DISTINCT = "distinct"
    MAX = "max"
    MIN = "min"


SAMPLE_ROWS = 100
"""At most so many rows make a sample."""
