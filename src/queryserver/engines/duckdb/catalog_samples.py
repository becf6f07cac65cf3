"""The queries of samples for DuckDB."""

from collections.abc import Sequence

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind, TableDescription
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.sql_types import SqlType, parse_type
from queryserver.engines.quoting import identifier, literal


def sample_statement(
    source: str, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
) -> str:
    """A query on the quoted table `source`. Raises NotSupported for a path that the column's type does not have."""
    if column is None:
        return f"SELECT * FROM {source} LIMIT {SAMPLE_ROWS}"
    name = identifier(column)
    if nested:
        source, name = _unfolded(source, table, column, nested), identifier(nested[-1])
    if kind in (SampleKind.MAX, SampleKind.MIN):
        direction = "DESC" if kind is SampleKind.MAX else "ASC"
        return f"SELECT {name} FROM {source} ORDER BY {name} {direction} NULLS LAST LIMIT 1"
    return f"SELECT DISTINCT {name} FROM {source} ORDER BY {name} NULLS LAST LIMIT {SAMPLE_ROWS}"


def _unfolded(source: str, table: TableDescription, column: str, nested: Sequence[str]) -> str:
    """A subquery whose one column, named by the last segment, has the values at the path."""
    declared = table.column(column)
    kind = parse_type(declared.type) if declared is not None else None
    query = f"SELECT {identifier(column)} AS v FROM {source}"
    for segment in nested:
        step = _step(kind, segment) if kind is not None else None
        if kind is None or step is None:
            raise NotSupported(f"{'.'.join([column, *nested])} is no part of the column that DuckDB can read.")
        query, kind = f"SELECT {step} AS v FROM ({query})", kind.part(segment)
    return f"(SELECT v AS {identifier(nested[-1])} FROM ({query}))"


def _step(kind: SqlType, segment: str) -> str | None:
    """The expression of one segment of a value `v`; None where the type has no such part."""
    part = kind.part(segment)
    if part is None:
        return None
    if kind.item is not None:
        return "unnest(v)"
    if kind.key is not None:
        return "unnest(map_keys(v))" if segment == "key" else "unnest(map_values(v))"
    (field,) = [field for field in kind.fields if field.type is part]
    return f"struct_extract(v, {literal(field.name)})"
