"""Metadata of data sources as wire models."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from queryserver.domain.catalog import (
    DatabaseDescription,
    FunctionDescription,
    TableColumn,
    TableDescription,
    TableKind,
)
from queryserver.domain.locations import storage_path
from queryserver.domain.sql_types import SqlType
from queryserver.schemas import generated as wire
from queryserver.schemas.wire import WireModel
from queryserver.services.metadata.questions import DescribedColumn

Model = TypeVar("Model", bound=WireModel)

TABLE_TYPES: Mapping[str, str] = MappingProxyType(
    {TableKind.VIEW.value: "View", TableKind.MATERIALIZED_VIEW.value: "Materialized_view"}
)
"""`tables_meta.type` of kinds of tables; all others are `Table`."""


def table(found: TableDescription) -> wire.TableMetadata:
    """The table form of autocomplete (Contract editor 10.1)."""
    return wire.TableMetadata(
        status=0,
        name=found.name,
        comment=found.comment,
        is_view=found.kind.is_view,
        support_updates=found.support_updates,
        hdfs_link=storage_path(found.location) or None,
        columns=[one.name for one in found.columns],
        extended_columns=[_like(wire.ColumnSummary, one) for one in found.columns],
        partition_keys=_partition_keys(found),
        primary_keys=_primary_keys(found),
        foreign_keys=_foreign_keys(found),
    )


def column(found: TableColumn, at: SqlType, path: Sequence[str]) -> wire.ColumnMetadata:
    """A column, or the part of it at `path`, whose type is `at` (Contract editor 10.1)."""
    return wire.ColumnMetadata(
        status=0,
        name=path[-1] if path else found.name,
        type=at.base,
        native_type=at.text,
        comment="" if path else found.comment,
        nullable=None if path else found.nullable,
        default=None if path else found.default,
        primary_key=None if path else found.primary_key,
        partition_key=not path and found.partition_key,
        sample=[],
        **_parts(at),
    )


def function(found: FunctionDescription | None) -> wire.FunctionDetail:
    """One function; no keys for None (Contract editor 10.2)."""
    return wire.FunctionDetail() if found is None else _like(wire.FunctionDetail, found)


def listed_function(found: FunctionDescription) -> wire.FunctionSummary:
    """A function in a list."""
    return _like(wire.FunctionSummary, found)


def database_description(found: DatabaseDescription) -> wire.DatabaseDescription:
    """describe of a database (Contract editor 10.4)."""
    return wire.DatabaseDescription(
        status=0,
        message="",
        db_name=found.name,
        name=found.name,
        comment=found.comment,
        location=found.location,
        hdfs_link=storage_path(found.location),
        owner_name=found.owner_name,
        owner_type=found.owner_type,
        parameters=found.parameters,
    )


def table_description(found: TableDescription) -> wire.TableDescription:
    """describe of a table (Contract editor 10.4)."""
    return wire.TableDescription(
        status=0,
        message="",
        name=found.name,
        comment=found.comment,
        is_view=found.kind.is_view,
        path_location=found.location,
        hdfs_link=storage_path(found.location),
        cols=[_like(wire.DescribedColumn, one) for one in found.columns],
        partition_keys=_partition_keys(found),
        primary_keys=_primary_keys(found),
        foreign_keys=_foreign_keys(found),
        properties=[
            wire.TableProperty(col_name=one.name, data_type=one.value, comment=one.comment) for one in found.properties
        ],
        stats=[
            wire.TableProperty(col_name="", data_type=name, comment=value) for name, value in found.statistics.items()
        ],
        details=wire.TableDetails(
            properties=wire.TableDetailProperties(
                owner=found.owner,
                create_time=found.create_time,
                table_type=found.kind.value,
                format=found.format,
            ),
            stats=dict(found.statistics),
        ),
    )


def column_description(found: DescribedColumn) -> wire.ColumnDescription:
    """describe of a column (Contract editor 10.4)."""
    known = found.statistics
    numbers = (known.num_nulls, known.distinct_count, known.avg_col_len, known.max_col_len, known.num_trues)
    is_empty = all(one is None for one in (known.min, known.max, *numbers, known.num_falses))
    reason = "A view has no statistics." if found.of_view else "There are no statistics of this column."
    return wire.ColumnDescription(
        status=0,
        message=(known.message or reason) if is_empty else known.message,
        col_name=found.column.name,
        data_type=found.column.type,
        min=known.min,
        max=known.max,
        num_nulls=known.num_nulls,
        distinct_count=known.distinct_count,
        avg_col_len=known.avg_col_len,
        max_col_len=known.max_col_len,
        num_trues=known.num_trues,
        num_falses=known.num_falses,
    )


def _partition_keys(found: TableDescription) -> list[wire.PartitionKey]:
    return [_like(wire.PartitionKey, one) for one in found.columns if one.partition_key]


def _primary_keys(found: TableDescription) -> list[wire.PrimaryKey]:
    return [_like(wire.PrimaryKey, one) for one in found.columns if one.primary_key]


def _foreign_keys(found: TableDescription) -> list[wire.ForeignKey]:
    return [_like(wire.ForeignKey, one) for one in found.foreign_keys]


def _like(model: type[Model], found: object) -> Model:
    """A wire model whose keys all have the names of the value's own fields."""
    return model.model_validate(found, from_attributes=True)


def _parts(of: SqlType) -> dict[str, Any]:
    """Arrays add `item`, maps `key` and `value`, structs `fields`; scalars add none."""
    parts: dict[str, Any] = {
        name: _nested(part) for name, part in (("item", of.item), ("key", of.key), ("value", of.value)) if part
    }
    if of.fields:
        parts["fields"] = [
            wire.NestedField(name=one.name, type=one.type.base, native_type=one.type.text, **_parts(one.type))
            for one in of.fields
        ]
    return parts


def _nested(of: SqlType) -> wire.NestedType:
    return wire.NestedType(type=of.base, native_type=of.text, **_parts(of))
