"""Calls for the metadata of a data source (autocomplete, describe), sample values and statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any

import orjson
from fastapi import Response

from queryserver.api.dependencies import (
    AnalysesDep,
    CatalogBrowserDep,
    ConnectorsDep,
    NoEditorFields,
    QueryUser,
    ReadUser,
    SamplesDep,
    SettingsDep,
    ThreadsDep,
    dependency,
    editor_fields,
)
from queryserver.api.responses import json_response, model_from
from queryserver.api.routes import editor_group, failures, names_of
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.metadata import AutocompleteRequest, DescribeRequest, SampleRequest
from queryserver.api.v1.editor.status import cell_form, column_meta, handle_body
from queryserver.catalog.browser import (
    NOT_SAMPLED,
    CatalogBrowser,
    LookupSource,
    NameFilter,
    NamePage,
    Samples,
    SampleTarget,
    TableSample,
)
from queryserver.catalog.queries import DescribedColumn, TableList, nested_type
from queryserver.connectors.registry import Connectors
from queryserver.engines import protocol
from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.formats.arrow import CellForm
from queryserver.identity.model import User
from queryserver.platform.settings.tree import Settings
from queryserver.search.model import storage_path
from queryserver.sql.types import SqlType
from queryserver.statements.model import RecordedStatement

router = editor_group()
# Separate, because the paths of these calls start with the name of a connector.
analyze_router = editor_group("dialect")

_AutocompleteRequest = Annotated[AutocompleteRequest, editor_fields(AutocompleteRequest)]
_DescribeRequest = Annotated[DescribeRequest, editor_fields(DescribeRequest)]
_SampleRequest = Annotated[SampleRequest, editor_fields(SampleRequest)]
_Databases = wire.DatabaseList | wire.FunctionList | wire.ErrorBody
_Tables = wire.DatabaseMetadata | wire.FunctionList | wire.FunctionResponse | wire.ErrorBody
_Table = wire.TableMetadata | wire.ErrorBody
_Column = wire.ColumnMetadata | wire.ErrorBody
_Sample = wire.SampleResponse | wire.SampleStartResponse | wire.ErrorBody
_NOT_ALLOWED = failures(403, 501)
_NO_CONNECTOR = failures(403, 404, 501)

_THREAD_ABOVE_NAMES = 1000


@dataclass(frozen=True, slots=True)
class _ColumnPath:
    """The path of a table, a column or a nested field. `column` is empty for a table, `nested` for a column."""

    database: str
    table: str
    column: str = ""
    nested: Sequence[str] = ()


async def _column_path(database: str, table: str, column: str, nested: str) -> _ColumnPath:
    return _ColumnPath(database, table, column, names_of(nested))


async def _column_path_without_nesting(database: str, table: str, column: str) -> _ColumnPath:
    return _ColumnPath(database, table, column)


@dataclass(frozen=True, slots=True)
class _Sampling:
    samples: Samples
    settings: Settings

    async def sample(self, user: User, request: SampleRequest, of: _ColumnPath) -> Response:
        samples, connector, wanted = self.samples, request.snippet.dialect, None
        if request.operation != "hello":
            kind = protocol.SampleKind(request.operation)
            wanted = SampleTarget(of.database, of.table, of.column or None, tuple(of.nested), kind)
        form = cell_form(user, self.settings, request.escape, request.big_numbers)
        if request.is_async:
            started = await samples.start(user, connector, wanted, timeout_s=request.timeout)
            if started is None:
                return _sample_response(TableSample(message=NOT_SAMPLED), form)
            operation = str(started.record.status.id)
            result = wire.SampleStart(status=0, handle=handle_body(started.record.handle, started.record.status))
            return json_response(
                wire.SampleStartResponse(status=0, result=result, operationId=operation, history_uuid=operation)
            )
        if wanted is None:
            return _sample_response(await samples.hello(user, connector, form), form)
        return _sample_response(await samples.read(user, connector, wanted, form), form)


async def _sampling(samples: SamplesDep, settings: SettingsDep) -> _Sampling:
    return _Sampling(samples, settings)


SamplingDep = Annotated[_Sampling, dependency(_sampling)]


@router.post("/notebook/api/autocomplete", include_in_schema=False)
@router.post("/api/v1/editor/autocomplete", response_model=_Databases, responses=_NO_CONNECTOR)
@router.post(
    "/api/v1/query/autocomplete",
    name="autocomplete_databases_of_query",
    response_model=_Databases,
    responses=_NO_CONNECTOR,
)
async def autocomplete_databases(user: ReadUser, request: _AutocompleteRequest, browser: CatalogBrowserDep) -> Response:
    """List the databases that the caller may see. If `operation` is `functions`, list the connector's functions.

    Spec §4, Contract editor 10.1, 10.2.
    """
    if request.operation == "functions":
        return await _functions(browser, user, request, None)
    if request.operation == "function":
        raise MissingParameter("The path must end with the name of a function.")
    found = await browser.databases(_source(user, request), _name_filter(request))
    return json_response(wire.DatabaseList(status=0, databases=found.items, truncated=found.truncated))


@router.post("/notebook/api/autocomplete/{database:segment}", include_in_schema=False)
@router.post("/api/v1/editor/autocomplete/{database:segment}", response_model=_Tables, responses=_NOT_ALLOWED)
@router.post(
    "/api/v1/query/autocomplete/{database:segment}",
    name="autocomplete_tables_of_query",
    response_model=_Tables,
    responses=_NOT_ALLOWED,
)
async def autocomplete_tables(
    database: str, user: ReadUser, request: _AutocompleteRequest, browser: CatalogBrowserDep, threads: ThreadsDep
) -> Response:
    """List the tables and views of a database. If `operation` is set, list functions or describe a function.

    Contract editor 10.1, 10.2.
    """
    if request.operation == "functions":
        return await _functions(browser, user, request, database)
    if request.operation == "function":
        found = await browser.function(_source(user, request), database)
        detail = wire.FunctionDetail() if found is None else model_from(wire.FunctionDetail, found)
        return json_response(wire.FunctionResponse(status=0, function=detail))
    names = await browser.tables(_source(user, request), database, _name_filter(request))
    if len(names.items.names) <= _THREAD_ABOVE_NAMES:
        return Response(_tables_json(names), media_type="application/json")
    written = await threads.answers.run(user.id, lambda _: _tables_json(names))
    return Response(written, media_type="application/json")


@router.post("/notebook/api/autocomplete/{database:segment}/{table:name}", include_in_schema=False)
@router.post(
    "/api/v1/editor/autocomplete/{database:segment}/{table:name}", response_model=_Table, responses=_NOT_ALLOWED
)
@router.post(
    "/api/v1/query/autocomplete/{database:segment}/{table:name}",
    name="autocomplete_columns_of_query",
    response_model=_Table,
    responses=_NOT_ALLOWED,
)
async def autocomplete_columns(
    database: str, table: str, user: ReadUser, request: _AutocompleteRequest, browser: CatalogBrowserDep
) -> Response:
    """List the columns and keys of a table or view. Spec §4, Contract editor 10.1."""
    found = await browser.table(_source_of_schema(user, request), database, table)
    return json_response(_table_metadata(found))


@router.post("/notebook/api/autocomplete/{database:segment}/{table:name}/{column:name}", include_in_schema=False)
@router.post(
    "/api/v1/editor/autocomplete/{database:segment}/{table:name}/{column:name}",
    response_model=_Column,
    responses=_NOT_ALLOWED,
)
@router.post(
    "/api/v1/query/autocomplete/{database:segment}/{table:name}/{column:name}",
    name="autocomplete_column_of_query",
    response_model=_Column,
    responses=_NOT_ALLOWED,
)
async def autocomplete_column(
    database: str, table: str, column: str, user: ReadUser, request: _AutocompleteRequest, browser: CatalogBrowserDep
) -> Response:
    """Return a column and its nested types. Spec §4, Contract editor 10.1."""
    found = await browser.column(_source_of_schema(user, request), database, table, column)
    return json_response(_column_metadata(found, nested_type(found, ()), ()))


@router.post(
    "/notebook/api/autocomplete/{database:segment}/{table:name}/{column:name}/{nested:rest}", include_in_schema=False
)
@router.post(
    "/api/v1/editor/autocomplete/{database:segment}/{table:name}/{column:name}/{nested:rest}",
    response_model=_Column,
    responses=_NOT_ALLOWED,
)
@router.post(
    "/api/v1/query/autocomplete/{database:segment}/{table:name}/{column:name}/{nested:rest}",
    name="autocomplete_nested_of_query",
    response_model=_Column,
    responses=_NOT_ALLOWED,
)
async def autocomplete_nested(
    column: Annotated[_ColumnPath, dependency(_column_path)],
    user: ReadUser,
    request: _AutocompleteRequest,
    browser: CatalogBrowserDep,
) -> Response:
    """Return a nested field of a column, with its nested types. Spec §4, Contract editor 10.1."""
    source = _source_of_schema(user, request)
    found = await browser.column(source, column.database, column.table, column.column)
    return json_response(_column_metadata(found, nested_type(found, column.nested), column.nested))


async def _functions(
    browser: CatalogBrowser, user: User, request: AutocompleteRequest, database: str | None
) -> Response:
    found = await browser.functions(_source(user, request), database, _name_filter(request))
    shown = [model_from(wire.FunctionSummary, one) for one in found.items]
    return json_response(wire.FunctionList(status=0, functions=shown, truncated=found.truncated))


def _source_of_schema(user: User, request: AutocompleteRequest) -> LookupSource:
    if request.operation != "schema":
        raise InvalidParameter("operation must be schema if the path names a table or a column.")
    return _source(user, request)


def _source(user: User, request: AutocompleteRequest) -> LookupSource:
    return LookupSource(user, request.snippet.dialect, request.refresh)


def _name_filter(request: AutocompleteRequest) -> NameFilter:
    return NameFilter(request.prefix, request.page, request.limit)


def _tables_json(found: NamePage[TableList]) -> bytes:
    """Encode DatabaseMetadata as JSON. Bypasses the models, which would be slow for 50,000 tables."""
    listed = zip(found.items.names, found.items.kinds, found.items.comments, strict=True)
    tables = [
        {"name": name, "type": TABLE_TYPES.get(kind, "Table"), "comment": comment} for name, kind, comment in listed
    ]
    return orjson.dumps({"status": 0, "tables_meta": tables, "truncated": found.truncated})


@router.post(
    "/api/v1/editor/describe/{database:segment}",
    response_model=wire.DatabaseDescription | wire.ErrorBody,
    responses=_NOT_ALLOWED,
)
async def describe_database(
    database: str, user: ReadUser, request: _DescribeRequest, browser: CatalogBrowserDep
) -> Response:
    """Return the comment, location and owner of a database. Spec §4, Contract editor 10.4."""
    found = await browser.database(_description_source(user, request), database)
    return json_response(_database_description(found))


@router.post(
    "/api/v1/editor/describe/{database:segment}/{table:name}",
    response_model=wire.TableDescription | wire.ErrorBody,
    responses=_NOT_ALLOWED,
)
@router.post(
    "/api/v1/editor/describe/{database:segment}/{table:name}/stats",
    name="describe_table_statistics",
    response_model=wire.TableDescription | wire.ErrorBody,
    responses=_NOT_ALLOWED,
)
async def describe_table(
    database: str, table: str, user: ReadUser, request: _DescribeRequest, browser: CatalogBrowserDep
) -> Response:
    """Return the columns, keys, properties and statistics of a table. Spec §4, Contract editor 10.4."""
    found = await browser.table(_description_source(user, request), database, table)
    return json_response(_table_description(found))


@router.post(
    "/api/v1/editor/describe/{database:segment}/{table:name}/stats/{column:name}",
    response_model=wire.ColumnDescription | wire.ErrorBody,
    responses=_NOT_ALLOWED,
)
async def describe_column_statistics(
    database: str, table: str, column: str, user: ReadUser, request: _DescribeRequest, browser: CatalogBrowserDep
) -> Response:
    """Return the statistics that the engine has already computed for a column. Contract editor 10.4."""
    found = await browser.statistics(_description_source(user, request), database, table, column)
    return json_response(_column_description(found))


def _description_source(user: User, request: DescribeRequest) -> LookupSource:
    return LookupSource(user, request.connector_reference, request.refresh)


@router.post("/api/v1/editor/sample/{database:segment}/{table:name}", response_model=_Sample, responses=_NOT_ALLOWED)
async def sample_table(
    database: str, table: str, user: ReadUser, request: _SampleRequest, sampling: SamplingDep
) -> Response:
    """Return at most 100 rows. If `operation` is `hello`, test the connection instead.

    If `async` is set, start an operation and return its handle. Spec §4, Contract editor 10.3.
    """
    return await sampling.sample(user, request, _ColumnPath(database, table))


@router.post(
    "/api/v1/editor/sample/{database:segment}/{table:name}/{column:name}",
    response_model=_Sample,
    responses=_NOT_ALLOWED,
)
async def sample_column(
    database: str, table: str, column: str, user: ReadUser, request: _SampleRequest, sampling: SamplingDep
) -> Response:
    """Return at most 100 rows. If `operation` is `hello`, test the connection instead.

    If `async` is set, start an operation and return its handle. Spec §4, Contract editor 10.3.
    """
    return await sampling.sample(user, request, _ColumnPath(database, table, column))


@router.post(
    "/api/v1/editor/sample/{database:segment}/{table:name}/{column:name}/{nested:rest}",
    response_model=_Sample,
    responses=_NOT_ALLOWED,
)
async def sample_nested(
    column: Annotated[_ColumnPath, dependency(_column_path)],
    user: ReadUser,
    request: _SampleRequest,
    sampling: SamplingDep,
) -> Response:
    """Return at most 100 rows. If `operation` is `hello`, test the connection instead.

    If `async` is set, start an operation and return its handle. Spec §4, Contract editor 10.3.
    """
    return await sampling.sample(user, request, column)


def _sample_response(sample: TableSample, form: CellForm) -> Response:
    """Return the response with the sample, whose rows are already encoded as JSON."""
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
"""`tables_meta.type` by table kind. All other kinds are `Table`."""


def _table_metadata(found: protocol.TableDescription) -> wire.TableMetadata:
    return model_from(
        wire.TableMetadata,
        found,
        status=0,
        is_view=found.kind.is_view,
        hdfs_link=storage_path(found.location) or None,
        columns=[one.name for one in found.columns],
        extended_columns=[model_from(wire.ColumnSummary, one) for one in found.columns],
        **_keys(found),
    )


def _column_metadata(found: protocol.TableColumn, at: SqlType, path: Sequence[str]) -> wire.ColumnMetadata:
    """Return a column, or the nested field at `path`. `at` is the type of the result (Contract editor 10.1)."""
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
        **_nested_types(at),
    )


def _database_description(found: protocol.DatabaseDescription) -> wire.DatabaseDescription:
    link = storage_path(found.location)
    return model_from(wire.DatabaseDescription, found, status=0, message="", db_name=found.name, hdfs_link=link)


def _table_description(found: protocol.TableDescription) -> wire.TableDescription:
    return model_from(
        wire.TableDescription,
        found,
        status=0,
        message="",
        is_view=found.kind.is_view,
        path_location=found.location,
        hdfs_link=storage_path(found.location),
        cols=[model_from(wire.DescribedColumn, one) for one in found.columns],
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
        "partition_keys": [model_from(wire.PartitionKey, one) for one in found.columns if one.partition_key],
        "primary_keys": [model_from(wire.PrimaryKey, one) for one in found.columns if one.primary_key],
        "foreign_keys": [model_from(wire.ForeignKey, one) for one in found.foreign_keys],
    }


def _nested_types(of: SqlType) -> dict[str, Any]:
    """Return the nested types: `item` of an array, `key` and `value` of a map, `fields` of a struct."""
    parts: dict[str, Any] = {
        name: wire.NestedType(type=part.base, native_type=part.text, **_nested_types(part))
        for name, part in (("item", of.item), ("key", of.key), ("value", of.value))
        if part
    }
    if of.fields:
        parts["fields"] = [
            wire.NestedField(name=one.name, type=one.type.base, native_type=one.type.text, **_nested_types(one.type))
            for one in of.fields
        ]
    return parts


_Analyzed = wire.AnalyzeResponse | wire.ErrorBody


@analyze_router.post(
    "/api/v1/{dialect:name}/analyze/{database:segment}/{table:name}", response_model=_Analyzed, responses=_NOT_ALLOWED
)
async def analyze_table(
    dialect: str,
    database: str,
    table: str,
    user: QueryUser,
    _: NoEditorFields,
    connectors: ConnectorsDep,
    analyses: AnalysesDep,
) -> Response:
    """Start an operation that computes the statistics of a table on the engine. Spec §4, Contract editor 10.5."""
    _require_connector_name(dialect, user, connectors)
    return _analyze_response(await analyses.start(user, dialect, database, table, None))


@analyze_router.post(
    "/api/v1/{dialect:name}/analyze/{database:segment}/{table:name}/{column:name}",
    response_model=_Analyzed,
    responses=_NOT_ALLOWED,
)
async def analyze_column(
    dialect: str,
    column: Annotated[_ColumnPath, dependency(_column_path_without_nesting)],
    user: QueryUser,
    _: NoEditorFields,
    connectors: ConnectorsDep,
    analyses: AnalysesDep,
) -> Response:
    """Start an operation that computes the statistics of a column on the engine. Spec §4, Contract editor 10.5."""
    _require_connector_name(dialect, user, connectors)
    return _analyze_response(await analyses.start(user, dialect, column.database, column.table, column.column))


def _require_connector_name(dialect: str, user: User, connectors: Connectors) -> None:
    """Raise UnknownDialect if the path segment is empty."""
    if not dialect.strip():
        raise connectors.unknown(user, dialect)


def _analyze_response(started: RecordedStatement) -> Response:
    status = started.record.status
    return json_response(
        wire.AnalyzeResponse(
            status=0,
            message="",
            redirect="",
            watch_url=f"/api/v1/editor/watch/{status.id}",
            operationId=str(status.id),
            history_uuid=str(status.id),
            history_id=status.history_id,
            handle=handle_body(started.record.handle, status),
        )
    )
