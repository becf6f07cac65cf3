"""autocomplete, describe, sample and analyze: databases, tables, columns, functions and some of their values."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import orjson
from fastapi import Response

from queryserver.api.answers import answer, like
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.routing import names_of
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.editor import AutocompleteRequest, DescribeRequest, SampleRequest
from queryserver.api.v1.editor.results import cell_form, column_meta, shown_handle
from queryserver.catalog.browsing import NameFilter, Names, Source
from queryserver.catalog.questions import DescribedColumn, TableList, nested_type
from queryserver.catalog.samples import NOT_SAMPLED, Sampled, TableSample
from queryserver.engines import protocol
from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.formats.columns import CellForm
from queryserver.search.model import storage_path
from queryserver.sql.types import SqlType

router = PathGroup()

_THREAD_ABOVE_NAMES = 1000


@router.operation("autocomplete_databases_of_query", "autocomplete_databases")
async def databases(call: Call) -> Response:
    """Databases that the caller may see, or functions of the data source. Spec §4, Contract editor 10.1, 10.2."""
    asked = await call.read(AutocompleteRequest)
    if asked.operation == "functions":
        return await _functions(call, asked, None)
    if asked.operation == "function":
        raise MissingParameter("The path must end with the name of a function.")
    found = await call.services.metadata.browsing.databases(_source(call, asked), _excerpt(asked))
    return answer(wire.DatabaseList(status=0, databases=found.shown, truncated=found.truncated))


@router.operation("autocomplete_tables_of_query", "autocomplete_tables")
async def tables(call: Call, database: str) -> Response:
    """Tables and views; with `operation` functions, or the function of that name. Contract editor 10.1, 10.2."""
    asked = await call.read(AutocompleteRequest)
    if asked.operation == "functions":
        return await _functions(call, asked, database)
    if asked.operation == "function":
        found = await call.services.metadata.browsing.function(_source(call, asked), database)
        detail = wire.FunctionDetail() if found is None else like(wire.FunctionDetail, found)
        return answer(wire.FunctionResponse(status=0, function=detail))
    names = await call.services.metadata.browsing.tables(_source(call, asked), database, _excerpt(asked))
    if len(names.shown.names) <= _THREAD_ABOVE_NAMES:
        return Response(_tables_json(names), media_type="application/json")
    written = await call.services.threads.answers.run(call.user.id, lambda _: _tables_json(names))
    return Response(written, media_type="application/json")


@router.operation("autocomplete_columns_of_query", "autocomplete_columns")
async def table(call: Call, database: str, table: str) -> Response:
    """Columns and keys of a table or view. Spec §4, Contract editor 10.1."""
    asked = await _of_schema(call)
    found = await call.services.metadata.browsing.table(_source(call, asked), database, table)
    return answer(_table_metadata(found))


@router.operation(
    *("autocomplete_column_of_query", "autocomplete_column"), *("autocomplete_nested_of_query", "autocomplete_nested")
)
async def column(call: Call, database: str, table: str, column: str, nested: str | None = None) -> Response:
    """A column with the parts of its type. Spec §4, Contract editor 10.1."""
    path = names_of(nested) if nested else ()
    asked = await _of_schema(call)
    found = await call.services.metadata.browsing.column(_source(call, asked), database, table, column)
    return answer(_column_metadata(found, nested_type(found, path), path))


async def _functions(call: Call, asked: AutocompleteRequest, database: str | None) -> Response:
    found = await call.services.metadata.browsing.functions(_source(call, asked), database, _excerpt(asked))
    shown = [like(wire.FunctionSummary, one) for one in found.shown]
    return answer(wire.FunctionList(status=0, functions=shown, truncated=found.truncated))


async def _of_schema(call: Call) -> AutocompleteRequest:
    asked = await call.read(AutocompleteRequest)
    if asked.operation != "schema":
        raise InvalidParameter("operation must be schema for a table or a column.")
    return asked


def _source(call: Call, asked: AutocompleteRequest) -> Source:
    return Source(call.user, asked.snippet.dialect, asked.refresh)


def _excerpt(asked: AutocompleteRequest) -> NameFilter:
    return NameFilter(asked.prefix, asked.page, asked.limit)


def _tables_json(found: Names[TableList]) -> bytes:
    """DatabaseMetadata without its models: there may be 50,000 tables."""
    listed = zip(found.shown.names, found.shown.kinds, found.shown.comments, strict=True)
    tables = [
        {"name": name, "type": TABLE_TYPES.get(kind, "Table"), "comment": comment} for name, kind, comment in listed
    ]
    return orjson.dumps({"status": 0, "tables_meta": tables, "truncated": found.truncated})


@router.operation("describe_database")
async def describe_database(call: Call, database: str) -> Response:
    """Comment, location and owner of a database. Spec §4, Contract editor 10.4."""
    found = await call.services.metadata.browsing.database(await _described(call), database)
    return answer(_database_description(found))


@router.operation("describe_table_statistics", "describe_table")
async def describe_table(call: Call, database: str, table: str) -> Response:
    """Columns, keys, properties and statistics of a table. Spec §4, Contract editor 10.4."""
    found = await call.services.metadata.browsing.table(await _described(call), database, table)
    return answer(_table_description(found))


@router.operation("describe_column_statistics")
async def describe_column(call: Call, database: str, table: str, column: str) -> Response:
    """What the engine already knows of a column's values. Contract editor 10.4."""
    found = await call.services.metadata.browsing.statistics(await _described(call), database, table, column)
    return answer(_column_description(found))


async def _described(call: Call) -> Source:
    asked = await call.read(DescribeRequest)
    return Source(call.user, asked.chosen, asked.refresh)


@router.operation("sample_table", "sample_column", "sample_nested")
async def sample(
    call: Call, database: str, table: str, column: str | None = None, nested: str | None = None
) -> Response:
    """At most 100 rows, now or as an operation; or a connection test. Spec §4, Contract editor 10.3."""
    asked = await call.read(SampleRequest)
    samples, connector = call.services.metadata.samples, asked.snippet.dialect
    wanted = None
    if asked.operation != "hello":
        path = names_of(nested) if nested else ()
        wanted = Sampled(database, table, column, path, protocol.SampleKind(asked.operation))
    form = cell_form(call, asked.escape, asked.big_numbers)
    if asked.is_async:
        started = await samples.start(call.user, connector, wanted, timeout_s=asked.timeout)
        if started is None:
            return _rows(TableSample(message=NOT_SAMPLED), form)
        operation = str(started.record.status.id)
        result = wire.SampleStart(status=0, handle=shown_handle(started.record.handle, started.record.status))
        return answer(wire.SampleStartResponse(status=0, result=result, operationId=operation, history_uuid=operation))
    if wanted is None:
        return _rows(await samples.hello(call.user, connector, form), form)
    return _rows(await samples.read(call.user, connector, wanted, form), form)


def _rows(sample: TableSample, form: CellForm) -> Response:
    """The rows are JSON already."""
    body = wire.SampleResponse(
        status=0,
        headers=[one.name for one in sample.columns],
        full_headers=column_meta(sample.columns, big_numbers_as_text=form.big_numbers_as_text),
        rows=[],
        message=sample.message,
        isEscaped=form.is_escaped,
    )
    fields = body.model_dump()
    fields["rows"] = orjson.Fragment(sample.rows_json)
    return Response(orjson.dumps(fields), media_type="application/json")


TABLE_TYPES: Mapping[str, str] = MappingProxyType(
    {protocol.TableKind.VIEW.value: "View", protocol.TableKind.MATERIALIZED_VIEW.value: "Materialized_view"}
)
"""`tables_meta.type` of kinds of tables; all others are `Table`."""


def _table_metadata(found: protocol.TableDescription) -> wire.TableMetadata:
    return like(
        wire.TableMetadata,
        found,
        status=0,
        is_view=found.kind.is_view,
        hdfs_link=storage_path(found.location) or None,
        columns=[one.name for one in found.columns],
        extended_columns=[like(wire.ColumnSummary, one) for one in found.columns],
        **_keys(found),
    )


def _column_metadata(found: protocol.TableColumn, at: SqlType, path: Sequence[str]) -> wire.ColumnMetadata:
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


def _database_description(found: protocol.DatabaseDescription) -> wire.DatabaseDescription:
    link = storage_path(found.location)
    return like(wire.DatabaseDescription, found, status=0, message="", db_name=found.name, hdfs_link=link)


def _table_description(found: protocol.TableDescription) -> wire.TableDescription:
    return like(
        wire.TableDescription,
        found,
        status=0,
        message="",
        is_view=found.kind.is_view,
        path_location=found.location,
        hdfs_link=storage_path(found.location),
        cols=[like(wire.DescribedColumn, one) for one in found.columns],
        **_keys(found),
        properties=[
            wire.TableProperty(col_name=one.name, data_type=one.value, comment=one.comment) for one in found.properties
        ],
        stats=[
            wire.TableProperty(col_name="", data_type=name, comment=value) for name, value in found.statistics.items()
        ],
        details=wire.TableDetails(
            properties=wire.TableDetailProperties(
                owner=found.owner, create_time=found.create_time, table_type=found.kind.value, format=found.format
            ),
            stats=dict(found.statistics),
        ),
    )


def _column_description(found: DescribedColumn) -> wire.ColumnDescription:
    known, values = found.statistics, dict[str, Any](asdict(found.statistics))
    if replace(known, message="") == protocol.ColumnStatistics() and not known.message:
        values["message"] = "A view has no statistics." if found.of_view else "There are no statistics of this column."
    return wire.ColumnDescription(status=0, col_name=found.column.name, data_type=found.column.type, **values)


def _keys(found: protocol.TableDescription) -> dict[str, Any]:
    return {
        "partition_keys": [like(wire.PartitionKey, one) for one in found.columns if one.partition_key],
        "primary_keys": [like(wire.PrimaryKey, one) for one in found.columns if one.primary_key],
        "foreign_keys": [like(wire.ForeignKey, one) for one in found.foreign_keys],
    }


def _parts(of: SqlType) -> dict[str, Any]:
    """Arrays add `item`, maps `key` and `value`, structs `fields`; scalars add none."""
    parts: dict[str, Any] = {
        name: wire.NestedType(type=part.base, native_type=part.text, **_parts(part))
        for name, part in (("item", of.item), ("key", of.key), ("value", of.value))
        if part
    }
    if of.fields:
        parts["fields"] = [
            wire.NestedField(name=one.name, type=one.type.base, native_type=one.type.text, **_parts(one.type))
            for one in of.fields
        ]
    return parts


@router.operation("analyze_table", "analyze_column")
async def analyze(call: Call, dialect: str, database: str, table: str, column: str | None = None) -> Response:
    """Start the engine's statistics statement as an operation. Spec §4, Contract editor 10.5."""
    if not dialect.strip():
        raise call.services.connectors.unknown(call.user, dialect)
    started = await call.services.metadata.analyses.start(call.user, dialect, database, table, column)
    status = started.record.status
    return answer(
        wire.AnalyzeResponse(
            status=0,
            message="",
            redirect="",
            watch_url=f"/api/v1/editor/watch/{status.id}",
            operationId=str(status.id),
            history_uuid=str(status.id),
            history_id=status.history_id,
            handle=shown_handle(started.record.handle, started.record.status),
        )
    )
