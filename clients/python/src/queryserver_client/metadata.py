"""Metadata of a data source: databases, tables, columns, functions, samples (Contract editor 10), and plans (8.3)."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from queryserver_client.errors import statement_error
from queryserver_client.transport import Transport, segment
from queryserver_client.values import Column, Row, columns_of, decode_rows

if TYPE_CHECKING:
    from queryserver_client.generated import (
        DatabaseList,
        DatabaseMetadata,
        ExplainFailure,
        ExplainResponse,
        FunctionList,
        SampleResponse,
        TableMetadata,
        TableSummary,
    )
    from queryserver_client.transport import Answer

T = TypeVar("T")
_PAGE_NAMES = 10_000
_ANSWERED_WITHIN_S = 60.0


@dataclass(frozen=True)
class TableName:
    """A table or view in a list."""

    name: str
    type: str
    """`Table`, `View` or `Materialized_view`."""
    comment: str


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. Attributes that the engine does not report are None."""

    name: str
    type: str
    """The type as the engine spells it."""
    comment: str
    nullable: bool | None
    default: str | None
    primary_key: bool | None
    partition_key: bool


@dataclass(frozen=True)
class Table:
    """A table or view with its columns."""

    name: str
    comment: str
    is_view: bool
    columns: tuple[TableColumn, ...]
    primary_keys: tuple[str, ...]
    foreign_keys: tuple[tuple[str, str], ...]
    """Pairs of a column and the `database.table.column` that it references."""
    location: str | None
    """Path of the data in a store, if known."""


@dataclass(frozen=True)
class Plan:
    """How the data source would run a statement. Attributes that it does not estimate are None."""

    text: str
    """The plan as the engine writes it, with several lines."""
    statement: str
    """The statement that the plan belongs to: the first one of a script."""
    estimated_bytes: int | None
    """Number of bytes that the statement would read."""
    estimated_cost: float | None
    """Cost in units of the engine."""


@dataclass(frozen=True)
class Function:
    """A function. Attributes that the engine does not report are empty."""

    name: str
    signature: str
    return_type: str


@dataclass(frozen=True)
class Sample:
    """Some rows of a table, or some values of a column."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    message: str


class Metadata:
    """Implements `Connection.metadata`. `connector` has the same meaning as in `Connection.query`.

    Responses may be some minutes old unless `refresh` is set. All methods raise StatementError with the code
    `credentials_required` if the data source requires a login of the user.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def databases(self, connector: str, prefix: str = "", *, refresh: bool = False) -> AsyncIterator[str]:
        """Yield the names of databases, or of schemas if the engine has those instead. `prefix` is case-insensitive."""
        async for name in self._names(connector, (), _databases, prefix, refresh=refresh):
            yield name

    async def tables(
        self, connector: str, database: str, prefix: str = "", *, refresh: bool = False
    ) -> AsyncIterator[TableName]:
        """Yield the tables and views of a database. `prefix` is case-insensitive."""
        async for item in self._names(connector, (database,), _tables, prefix, refresh=refresh):
            yield TableName(item["name"], item["type"], item["comment"])

    async def table(self, connector: str, database: str, table: str, *, refresh: bool = False) -> Table:
        """Return a table with its columns. Raises NotFound."""
        body: TableMetadata = await self._autocomplete(connector, (database, table), {"refresh": refresh})
        return Table(
            name=body["name"],
            comment=body["comment"],
            is_view=body["is_view"],
            columns=tuple(
                TableColumn(
                    item["name"],
                    item["type"],
                    item["comment"],
                    item["nullable"],
                    item["default"],
                    item["primary_key"],
                    item["partition_key"],
                )
                for item in body["extended_columns"]
            ),
            primary_keys=tuple(item["name"] for item in body["primary_keys"]),
            foreign_keys=tuple((item["name"], item["to"]) for item in body["foreign_keys"]),
            location=body["hdfs_link"],
        )

    async def columns(
        self, connector: str, database: str, table: str, *, refresh: bool = False
    ) -> tuple[TableColumn, ...]:
        return (await self.table(connector, database, table, refresh=refresh)).columns

    async def functions(self, connector: str, database: str | None = None) -> list[Function]:
        """Return the functions of the engine, or only those that are defined in a database."""
        path = () if database is None else (database,)
        body: FunctionList = await self._autocomplete(connector, path, {"operation": "functions"})
        return [Function(item["name"], item["signature"], item["return_type"]) for item in body["functions"]]

    async def sample(self, connector: str, database: str, table: str, column: str | None = None) -> Sample:
        """Return up to 100 rows of a table, or of the distinct values of a column."""
        names = (database, table) if column is None else (database, table, column)
        fields = {"escape": False, "big_numbers": "number"}
        body: SampleResponse = await self._call("editor/sample", connector, names, fields)
        columns = columns_of(body["full_headers"])
        return Sample(columns, tuple(decode_rows(body["rows"], columns)), body["message"])

    async def explain(self, connector: str, sql: str, *, database: str | None = None) -> Plan:
        """Return the plan of the first statement of the text, without running it (Contract editor 8.3).

        Raises StatementError if the engine rejects the statement, and ApiError with the code `not_supported` if it has
        no plans.
        """
        fields = {"statement": sql} | ({} if database is None else {"database": database})
        body: ExplainResponse | ExplainFailure = await self._transport.call(
            "POST", f"editor/explain/{segment(connector)}", fields, is_repeatable=True, wait_s=_ANSWERED_WITHIN_S
        )
        if body["status"] == 1:
            raise statement_error(body)
        return Plan(body["explanation"], body["statement"], body.get("estimated_bytes"), body.get("estimated_cost"))

    async def _names(
        self,
        connector: str,
        names: tuple[str, ...],
        listed: Callable[[Any], Sequence[T]],
        prefix: str,
        *,
        refresh: bool,
    ) -> AsyncIterator[T]:
        page, has_more = 1, True
        while has_more:
            fields = {"prefix": prefix, "page": page, "limit": _PAGE_NAMES, "refresh": refresh and page == 1}
            body: DatabaseList | DatabaseMetadata = await self._autocomplete(connector, names, fields)
            items = listed(body)
            for item in items:
                yield item
            page, has_more = page + 1, body["truncated"] and bool(items)

    async def _autocomplete(self, connector: str, names: tuple[str, ...], fields: Mapping[str, Any]) -> "Answer":
        return await self._call("editor/autocomplete", connector, names, fields)

    async def _call(self, path: str, connector: str, names: tuple[str, ...], fields: Mapping[str, Any]) -> "Answer":
        path = "/".join([path, *map(segment, names)])
        body: Answer = await self._transport.call(
            "POST", path, {"snippet": {"type": connector}, **fields}, is_repeatable=True, wait_s=_ANSWERED_WITHIN_S
        )
        if body.get("status"):
            raise statement_error(body)
        return body


def _databases(body: "DatabaseList") -> list[str]:
    return body["databases"]


def _tables(body: "DatabaseMetadata") -> "list[TableSummary]":
    return body["tables_meta"]
