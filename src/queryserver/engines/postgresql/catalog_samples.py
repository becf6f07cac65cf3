"""The queries of samples for PostgreSQL."""

from collections.abc import Sequence

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind, TableDescription
from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.sql_types import parse_type
from queryserver.engines.catalog_queries import read_rows
from queryserver.engines.quoting import identifier, qualified
from queryserver.engines.sampling import nulls_last, sample_query
from queryserver.interfaces.engine import EngineSession

_ORDERED = frozenset({
    "smallint", "integer", "bigint", "numeric", "real", "double", "text", "varchar", "character", "name", "boolean",
    "date", "timestamp", "time", "interval", "uuid", "bytea", "jsonb", "inet", "cidr", "oid", "money", "bit", "char",
    "macaddr",
})  # fmt: skip
"""Types whose values are known to have an order; json, xml, point and others have none."""


class Sampler:
    """Makes the query of a sample; the server is asked whether the values of an uncommon type can be sorted."""

    def __init__(self, session: EngineSession, table: TableDescription) -> None:
        self._session = session
        self._table = table

    async def statement(self, column: str | None, nested: Sequence[str], kind: SampleKind) -> str:
        """Raises NotSupported for a path that is not the elements of an array."""
        source = qualified(self._table.database, self._table.name)
        if column is None:
            return sample_query(source, None, kind)
        name = identifier(column)
        if nested:
            self._check_elements(column, nested)
            name, source = identifier(nested[-1]), f"{source}, unnest({source}.{name}) AS {identifier(nested[-1])}"
        plain = sample_query(source, name, kind)
        if await self._can_sort(column, plain):
            return plain
        return _sorted_as_text(name, source, kind)

    def _check_elements(self, column: str, nested: Sequence[str]) -> None:
        declared = self._table.column(column)
        if declared is None or parse_type(declared.type).item is None or list(nested) != ["item"]:
            raise NotSupported("PostgreSQL reads the elements of arrays only.")

    async def _can_sort(self, column: str, statement: str) -> bool:
        declared = self._table.column(column)
        parsed = parse_type(declared.type if declared is not None else "")
        if (parsed.item or parsed).base in _ORDERED:
            return True
        try:
            await read_rows(self._session, f"EXPLAIN {statement}")
        except StatementRejected:
            return False
        return True


def _sorted_as_text(name: str, source: str, kind: SampleKind) -> str:
    key = f"{name}::text"
    if kind in (SampleKind.MAX, SampleKind.MIN):
        return sample_query(source, name, kind, order=lambda _, direction: nulls_last(key, direction))
    return f"SELECT DISTINCT ON ({key}) {name} FROM {source} ORDER BY {key} NULLS LAST LIMIT {SAMPLE_ROWS}"
