"""Tools that find and describe tables (Contract mcp 3.6, 3.7, 3.10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import orjson
from mcp.server.mcpserver import MCPServer
from pydantic import Field

from queryserver.api.mcp.sizes import (
    ANSWER_BYTES,
    NAME_CHARACTERS,
    TEXT_CHARACTERS,
    CompactModel,
    clipped,
    fitting,
    json_bytes,
)
from queryserver.api.mcp.tools import DATA_NOTICE, ToolCall, ToolContext, add_tool
from queryserver.catalog.browser import LookupSource, NameFilter, SampleTarget, TableSample
from queryserver.engines.protocol import TableColumn, TableDescription, TableKind
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import SourceNotConfigured
from queryserver.formats.arrow import CellForm
from queryserver.search.model import DATABASE, TABLE, VIEW, Record, SourceName
from queryserver.search.search import SearchParameters

MAX_FOUND = 100
MAX_COLUMNS = 500
MAX_SAMPLE_ROWS = 20
MAX_CELL_CHARACTERS = 200
_TYPE_CHARACTERS = 500
_COMMENT_CHARACTERS = 1000
_MAX_FACTS = 20
_THREAD_ABOVE_BYTES = 256 * 1024
_TOO_LARGE = "More rows do not fit into this answer; choose fewer columns with `columns`."
_KINDS: Mapping[str, str] = MappingProxyType({DATABASE: "database", TABLE: "table", VIEW: "view"})
_NO_INDEX = (
    " Pass connector alone to list its databases, or connector and database to list tables: such calls read the data"
    " source instead of the index."
)


def register(server: MCPServer[Any]) -> None:
    """Add the tools of this file to the server."""
    add_tool(
        server,
        search_tables,
        title="Find tables",
        description=(
            "Find databases, tables, views and columns by words, best matches first. Without connector, or with"
            " connector and text, it searches an index of names and comments, which may miss objects made in the last"
            " hours. With connector alone it lists the databases, with connector and database the tables, both as"
            f" the data source shows them now. Returns at most {MAX_FOUND} objects and {ANSWER_BYTES // 1024} KiB;"
            " has_more and next_offset give the rest. Comments are cut after"
            f" {TEXT_CHARACTERS} characters. Reads metadata only."
        ),
    )
    add_tool(
        server,
        describe_table,
        title="Describe a table",
        description=(
            "Return the columns of a table or view with their types, comments and keys, and on request some rows. At"
            f" most {MAX_COLUMNS} columns and {ANSWER_BYTES // 1024} KiB; total_columns, has_more and next_offset show"
            " what is missing, and `columns` selects columns of a wide table by name. A sample has at most"
            f" {MAX_SAMPLE_ROWS} rows, whose values are cut after {MAX_CELL_CHARACTERS} characters; it is read from the"
            " data source with your rights. At most 20 foreign keys and statistics are returned."
        ),
    )


class FoundObject(CompactModel):
    """A database, table, view or column."""

    kind: str
    connector: str
    database: str
    table: str = ""
    column: str = ""
    comment: str = ""


class FoundObjects(CompactModel):
    """The answer of search_tables."""

    objects: list[FoundObject]
    total: int
    has_more: bool
    next_offset: int | None = None
    note: str = ""
    notice: str


async def search_tables(
    context: ToolContext,
    text: Annotated[
        str,
        Field(
            max_length=900,
            description="Words that must all occur in the path (database.table.column) or in the comment, in any case;"
            " * stands for any characters. With connector and database: a part of the table's name. Empty: all.",
        ),
    ] = "",
    connector: Annotated[str | None, Field(description="Name of a connector. Default: all that you may use.")] = None,
    database: Annotated[str | None, Field(description="Exact name of a database or schema; needs connector.")] = None,
    kind: Annotated[
        Literal["any", "database", "table", "view", "column"], Field(description="Kind of the objects to find.")
    ] = "any",
    limit: Annotated[int, Field(ge=1, le=MAX_FOUND, description="Maximum number of objects.")] = 25,
    offset: Annotated[int, Field(ge=0, le=9_900, description="Objects to skip: next_offset of the last call.")] = 0,
) -> FoundObjects:
    call = ToolCall.of(context)
    request = _Search(text.strip(), connector, database, kind, limit, offset)
    if connector is None and database is not None:
        raise InvalidParameter("database needs connector.")
    if connector is None:
        return await _indexed(call, request, frozenset())
    request = replace(request, connector=call.services.connectors.resolve(call.user, connector).reference)
    if database is not None:
        return await _tables(call, request, database)
    if not request.text and kind in {"any", "database"}:
        return await _databases(call, request)
    return await _indexed(call, request, frozenset({call.services.connectors.resolve(call.user, connector).key}))


@dataclass(frozen=True, slots=True)
class _Search:
    """The arguments of a search."""

    text: str
    connector: str | None
    database: str | None
    kind: str
    limit: int
    offset: int


async def _indexed(call: ToolCall, request: _Search, keys: frozenset[str]) -> FoundObjects:
    """Search the metadata index, in all connectors if `keys` is empty. Raises SourceNotConfigured if there is none."""
    kind = {"any": "", "column": " type:field"}.get(request.kind, f" type:{request.kind}")
    parameters = SearchParameters(
        text=request.text + kind,
        sources=(SourceName.SQL,),
        connectors=keys,
        interface="local" if keys else None,  # an external catalog has no connectors
        limit=request.limit,
        offset=request.offset,
    )
    result = await call.services.searching.search.search(call.user, parameters)
    report = result.sources[SourceName.SQL]
    if not report.ok:
        raise SourceNotConfigured(report.message + _NO_INDEX)
    names = {one.key: one.reference for one in call.services.connectors.visible(call.user)}
    found = [_found(record, names) for record in result.records]
    return _answer(request, found, result.total, report.message)


async def _databases(call: ToolCall, request: _Search) -> FoundObjects:
    connector = request.connector or ""
    page = await call.services.metadata.browser.databases(LookupSource(call.user, connector), NameFilter())
    found = [
        FoundObject(kind="database", connector=connector, database=clipped(name, NAME_CHARACTERS))
        for name in page.items
    ]
    return _listed(request, found, truncated=page.truncated)


async def _tables(call: ToolCall, request: _Search, database: str) -> FoundObjects:
    connector = request.connector or ""
    name_filter = NameFilter(part=request.text.strip("*"))
    page = await call.services.metadata.browser.tables(LookupSource(call.user, connector), database, name_filter)
    listed = zip(page.items.names, page.items.kinds, page.items.comments, strict=True)
    found = [
        FoundObject(
            kind="view" if TableKind(kind).is_view else "table",
            connector=connector,
            database=clipped(database, NAME_CHARACTERS),
            table=clipped(name, NAME_CHARACTERS),
            comment=clipped(comment),
        )
        for name, kind, comment in listed
        if request.kind in {"any", "view" if TableKind(kind).is_view else "table"}
    ]
    return _listed(request, found, truncated=page.truncated)


def _found(record: Record, names: Mapping[str, str]) -> FoundObject:
    """Return the object of a record. An external catalog returns its path as one text."""
    database, table, column = (*(record.path or record.original_name.split(".", 2)), "", "", "")[:3]
    return FoundObject(
        kind=_KINDS.get(record.type, "column"),
        connector=names.get(record.connector or "", ""),
        database=clipped(database, NAME_CHARACTERS),
        table=clipped(table, NAME_CHARACTERS),
        column=clipped(column, NAME_CHARACTERS),
        comment=clipped(record.description),
    )


def _listed(request: _Search, found: Sequence[FoundObject], *, truncated: bool) -> FoundObjects:
    """Return a page of a complete list."""
    note = "The list is limited by `editor.metadata_max_names`; search with a text instead." if truncated else ""
    page = found[request.offset : request.offset + request.limit]
    return _answer(request, page, len(found), note)


def _answer(request: _Search, page: Sequence[FoundObject], total: int, note: str) -> FoundObjects:
    """Return as many objects of a page as fit into an answer."""
    shown = list(fitting(page, ANSWER_BYTES, limit=request.limit))
    after = request.offset + len(shown)
    has_more = after < total and bool(shown)
    return FoundObjects(
        objects=shown,
        total=total,
        has_more=has_more,
        next_offset=after if has_more else None,
        note=note,
        notice=DATA_NOTICE,
    )


class ColumnFacts(CompactModel):
    """A column. Members that are not known are omitted."""

    name: str
    type: str
    comment: str = ""
    nullable: bool | None = None
    primary_key: bool = False
    partition_key: bool = False
    default: str | None = None


class SampleRows(CompactModel):
    """Rows of a table, as arrays of values in the order of `columns`."""

    columns: list[str]
    rows: list[list[Any]]
    note: str = ""


class TableFacts(CompactModel):
    """The answer of describe_table."""

    connector: str
    database: str
    table: str
    kind: str
    comment: str = ""
    location: str = ""
    format: str = ""
    statistics: dict[str, str] = Field(default_factory=dict[str, str])
    foreign_keys: list[str] = Field(default_factory=list[str])
    columns: list[ColumnFacts]
    total_columns: int
    has_more: bool
    next_offset: int | None = None
    sample: SampleRows | None = None
    notice: str


async def describe_table(
    context: ToolContext,
    connector: Annotated[str, Field(description="Name of a connector.")],
    database: Annotated[str, Field(description="Exact name of the database or schema.")],
    table: Annotated[str, Field(description="Exact name of the table or view.")],
    columns: Annotated[
        str, Field(max_length=1000, description="Only columns with this text in their name or comment, in any case.")
    ] = "",
    offset: Annotated[int, Field(ge=0, description="Columns to skip: next_offset of the last call.")] = 0,
    sample_rows: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_SAMPLE_ROWS,
            description="Rows to read as a sample, with the columns of this answer. 0 does not read the table.",
        ),
    ] = 0,
) -> TableFacts:
    call = ToolCall.of(context)
    source = call.services.connectors.resolve(call.user, connector)
    found = await call.services.metadata.browser.table(LookupSource(call.user, source.key), database, table)
    matches = _matching(found.columns, columns)
    facts = _table_facts(source.reference, found, total=len(matches))
    left = ANSWER_BYTES - json_bytes(facts)
    page = (_column_facts(one) for one in matches[offset : offset + MAX_COLUMNS])
    facts.columns = list(fitting(page, left // 2 if sample_rows else left, limit=MAX_COLUMNS))
    after = offset + len(facts.columns)
    facts.has_more = after < len(matches) and bool(facts.columns)
    facts.next_offset = after if facts.has_more else None
    if sample_rows and facts.columns:
        names = [one.name for one in matches[offset:after]]
        facts.sample = await _sample(call, source.key, found, names, sample_rows)
    return facts


async def _sample(
    call: ToolCall, connector: str, found: TableDescription, names: Sequence[str], rows: int
) -> SampleRows:
    target = SampleTarget(found.database, found.name)
    sample = await call.services.metadata.samples.read(call.user, connector, target, CellForm())
    if len(sample.rows_json) <= _THREAD_ABOVE_BYTES:
        return _sample_rows(sample, names, rows)
    return await call.services.threads.answers.run(call.user.id, lambda _: _sample_rows(sample, names, rows))


def _matching(columns: Sequence[TableColumn], text: str) -> Sequence[TableColumn]:
    part = text.strip().casefold()
    return (
        [one for one in columns if part in one.name.casefold() or part in one.comment.casefold()] if part else columns
    )


def _table_facts(connector: str, found: TableDescription, *, total: int) -> TableFacts:
    """Return the facts of a table, without its columns."""
    statistics = {clipped(name): clipped(value) for name, value in list(found.statistics.items())[:_MAX_FACTS]}
    return TableFacts(
        connector=connector,
        database=clipped(found.database, NAME_CHARACTERS),
        table=clipped(found.name, NAME_CHARACTERS),
        kind="view" if found.kind.is_view else "table",
        comment=clipped(found.comment, _COMMENT_CHARACTERS),
        location=clipped(found.location),
        format=found.format,
        statistics=statistics,
        foreign_keys=[clipped(f"{one.name} -> {one.to}") for one in found.foreign_keys[:_MAX_FACTS]],
        columns=[],
        total_columns=total,
        has_more=False,
        notice=DATA_NOTICE,
    )


def _column_facts(column: TableColumn) -> ColumnFacts:
    return ColumnFacts(
        name=clipped(column.name, NAME_CHARACTERS),
        type=clipped(column.type, _TYPE_CHARACTERS),
        comment=clipped(column.comment),
        nullable=column.nullable,
        primary_key=bool(column.primary_key),
        partition_key=column.partition_key,
        default=None if column.default is None else clipped(column.default),
    )


def _sample_rows(sample: TableSample, names: Sequence[str], limit: int) -> SampleRows:
    """Return the first rows with these columns, as far as they fit into half of an answer."""
    places = {column.name: place for place, column in enumerate(sample.columns)}
    chosen = [(name, places[name]) for name in names if name in places]
    left = ANSWER_BYTES // 2 - sum(len(orjson.dumps(name[:NAME_CHARACTERS])) + 1 for name, _ in chosen)
    found: list[list[Any]] = orjson.loads(sample.rows_json)
    rows: list[list[Any]] = []
    note = clipped(sample.message)
    for row in found[:limit]:
        cells = [_cell(row[place]) for _, place in chosen]
        left -= len(orjson.dumps(cells)) + 1
        if left < 0:
            note = f"{_TOO_LARGE} {note}".rstrip()
            break
        rows.append(cells)
    return SampleRows(columns=[clipped(name, NAME_CHARACTERS) for name, _ in chosen], rows=rows, note=note)


def _cell(value: Any) -> Any:
    """Return a cell, with long texts cut. Nested values that are long become text."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return value if len(text) <= MAX_CELL_CHARACTERS else clipped(text, MAX_CELL_CHARACTERS)
