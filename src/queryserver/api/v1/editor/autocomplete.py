"""autocomplete: databases, tables, columns and functions for editors."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.routing import names_of
from queryserver.api.v1.editor import metadata_shapes
from queryserver.domain.errors.base import InvalidParameter, MissingParameter
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import AutocompleteRequest
from queryserver.services.metadata import questions
from queryserver.services.metadata.browsing import Excerpt, Names, Source
from queryserver.services.metadata.questions import TableList

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])

_THREAD_ABOVE_NAMES = 1000
_DECLARED: dict[str, Any] = {
    "responses": failures(400, 403, 404, 413, 415, 501),
    "openapi_extra": accepts(AutocompleteRequest),
}


def _asked_by_both(path: str, *, answers: object, summary: str) -> Callable[[Handler], Handler]:
    """Declare a call below both roots: `query/` and `editor/` are the same (Contract editor 10.1)."""

    def declare(handler: Handler) -> Handler:
        for root in ("query", "editor"):
            router.post(f"/{root}/autocomplete{path}", response_model=answers, summary=summary, **_DECLARED)(handler)
        return handler

    return declare


@_asked_by_both(
    "",
    answers=wire.DatabaseList | wire.FunctionList | wire.ErrorBody,
    summary="Databases, or functions, of a data source",
)
async def databases(call: AuthenticatedCall) -> Response:
    """Databases that the caller may see, or functions of the data source. Spec §4, Contract editor 10.1, 10.2."""
    asked = await call.read(AutocompleteRequest)
    if asked.operation == "functions":
        return await _functions(call, asked, None)
    if asked.operation == "function":
        raise MissingParameter("The path must end with the name of a function.")
    found = await call.services.metadata.browsing.databases(_source(call, asked), _excerpt(asked))
    return answer(wire.DatabaseList(status=0, databases=found.shown, truncated=found.truncated))


@_asked_by_both(
    "/{database:segment}",
    answers=wire.DatabaseMetadata | wire.FunctionList | wire.FunctionResponse | wire.ErrorBody,
    summary="Tables, or functions, of a database; or one function",
)
async def tables(call: AuthenticatedCall, database: str) -> Response:
    """Tables and views; with `operation` functions, or the function of that name. Contract editor 10.1, 10.2."""
    asked = await call.read(AutocompleteRequest)
    if asked.operation == "functions":
        return await _functions(call, asked, database)
    if asked.operation == "function":
        found = await call.services.metadata.browsing.function(_source(call, asked), database)
        return answer(wire.FunctionResponse(status=0, function=metadata_shapes.function(found)))
    names = await call.services.metadata.browsing.tables(_source(call, asked), database, _excerpt(asked))
    if len(names.shown.names) <= _THREAD_ABOVE_NAMES:
        return Response(_tables_json(names), media_type="application/json")
    written = await call.services.threads.answers.run(call.user.id, lambda _: _tables_json(names))
    return Response(written, media_type="application/json")


@_asked_by_both(
    "/{database:segment}/{table:name}",
    answers=wire.TableMetadata | wire.ErrorBody,
    summary="Columns and keys of a table",
)
async def table(call: AuthenticatedCall, database: str, table: str) -> Response:
    """Columns and keys of a table or view. Spec §4, Contract editor 10.1."""
    asked = await _of_schema(call)
    found = await call.services.metadata.browsing.table(_source(call, asked), database, table)
    return answer(metadata_shapes.table(found))


@_asked_by_both(
    "/{database:segment}/{table:name}/{column:name}",
    answers=wire.ColumnMetadata | wire.ErrorBody,
    summary="Type of a column",
)
async def column(call: AuthenticatedCall, database: str, table: str, column: str) -> Response:
    """A column with the parts of its type. Spec §4, Contract editor 10.1."""
    return await _column(call, database, table, column, ())


@_asked_by_both(
    "/{database:segment}/{table:name}/{column:name}/{nested:rest}",
    answers=wire.ColumnMetadata | wire.ErrorBody,
    summary="Type of a part of a column",
)
async def nested(call: AuthenticatedCall, database: str, table: str, column: str, nested: str) -> Response:
    """What lies at `item`, `key`, `value` or names of fields below a column. Contract editor 10.1."""
    return await _column(call, database, table, column, names_of(nested))


async def _column(call: Call, database: str, table: str, column: str, path: tuple[str, ...]) -> Response:
    asked = await _of_schema(call)
    found = await call.services.metadata.browsing.column(_source(call, asked), database, table, column)
    return answer(metadata_shapes.column(found, questions.nested_type(found, path), path))


async def _functions(call: Call, asked: AutocompleteRequest, database: str | None) -> Response:
    found = await call.services.metadata.browsing.functions(_source(call, asked), database, _excerpt(asked))
    shown = [metadata_shapes.listed_function(one) for one in found.shown]
    return answer(wire.FunctionList(status=0, functions=shown, truncated=found.truncated))


async def _of_schema(call: Call) -> AutocompleteRequest:
    asked = await call.read(AutocompleteRequest)
    if asked.operation != "schema":
        raise InvalidParameter("operation must be schema for a table or a column.")
    return asked


def _source(call: Call, asked: AutocompleteRequest) -> Source:
    return Source(call.user, asked.snippet.dialect, asked.refresh)


def _excerpt(asked: AutocompleteRequest) -> Excerpt:
    return Excerpt(asked.prefix, asked.page, asked.limit)


def _tables_json(found: Names[TableList]) -> bytes:
    """DatabaseMetadata without its models: there may be 50,000 tables."""
    words = metadata_shapes.TABLE_TYPES
    listed = zip(found.shown.names, found.shown.kinds, found.shown.comments, strict=True)
    tables = [{"name": name, "type": words.get(kind, "Table"), "comment": comment} for name, kind, comment in listed]
    return orjson.dumps({"status": 0, "tables_meta": tables, "truncated": found.truncated})
