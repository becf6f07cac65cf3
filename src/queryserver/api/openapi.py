"""The OpenAPI document, as it is served and committed."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from queryserver.api.calls import OperationRoute
from queryserver.api.openapi_answers import (
    FORM,
    JSON,
    PARTS,
    REF,
    Answers,
    Texts,
    as_form,
    definitions_of,
    describe_defaults,
    error_codes,
    form_example,
    query_parameters,
    references,
    repeated_fields,
    texts,
    tidy,
    without_citations,
)
from queryserver.api.schemas import generated, requests
from queryserver.api.table import Operation

_BINARY = {"type": "string", "format": "binary"}
# No type for events: generators and checkers differ on whether it is that of the stream or of an event.
_EVENTS = {"description": "`status`, `progress`, `log`, `end` and `denied`, each with JSON."}
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "application/json": {"type": "object"},
    "application/yaml": {"type": "object"},
    "text/event-stream": _EVENTS,
    "text/html": {"type": "string"},
    "text/plain": {"type": "string"},
}
_FAILURES = generated.ErrorBody | generated.FieldErrors | generated.ImporterError | generated.Unauthorized


def whole_document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of every route, with examples of every status. Takes half a second, so it is for a thread."""
    known = texts()
    routes = [route for route in app.routes if isinstance(route, OperationRoute) and not route.operation.hidden]
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=known.guide,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that serves this document."}],
        tags=[{"name": name, "description": text} for name, text in known.words["tags"].items()],
        routes=[_described_route(route) for route in routes],
        openapi_version="3.1.0",
    )
    document["x-error-codes"] = error_codes(known.codes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _add_bodies(routes, schemas)
    answers = Answers(known, schemas)
    for route in routes:
        operation = document["paths"][route.path_format][route.operation.method.lower()]
        _describe(operation, route.operation, known)
        answers.complete(operation, route.operation)
    components |= {
        "responses": dict(sorted(answers.responses.items())),
        "headers": {
            name: {"description": one["description"], "schema": one["schema"]}
            for name, one in known.words["headers"].items()
        },
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                                       "description": known.words["bearer"]}},
    }  # fmt: skip
    _drop_unused(document)
    words, bodies = known.words["fields"], list(_bodies(document))
    for schema in bodies:
        for name, field in schema.get("properties", {}).items():
            if not field.get("description") and name in words:  # the model has none
                field["description"] = words[name]["description"]
    for schema in bodies:
        describe_defaults(schema)
    _drop_citations(document)
    tidy([document["paths"], components])
    return document


def _described_route(route: OperationRoute) -> APIRoute:
    """What FastAPI makes the description of a row from: a function with the path parameters and the handler's words."""

    async def described() -> None: ...

    row = route.operation
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=str) for name in route.param_convertors]
    described.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    described.__doc__ = row.description or route.handler.__doc__
    models = [] if row.answers else [getattr(generated, name) for name in row.response]
    responses: dict[int | str, dict[str, Any]] = {418: {"model": _FAILURES}}  # for their schemas; no call answers it
    responses |= {status: _of_files(row, status) for status in row.answers}
    responses |= {status: {"model": getattr(generated, name)} for status, name in row.failing.items()}
    return APIRoute(
        row.path,
        described,
        methods=[row.method],
        summary=row.summary,
        tags=[row.tag or row.group],
        status_code=None if row.fails else row.http,
        response_model=reduce(or_, models) if models else None,
        response_class=JSONResponse if models else Response,
        responses=responses,
        openapi_extra=_taken(row),
    )


def _taken(row: Operation) -> dict[str, Any] | None:
    if row.method == "GET":
        model = row.request_model
        parameters = [*(query_parameters(model) if model else ()), *map(dict, copy.deepcopy(row.query))]
        return {"parameters": parameters} if parameters else None
    content = {kind: {**media} for kind, media in (row.body or {}).items()}
    if not content and row.request_model is not None:
        for kind, suffix in ((FORM, "Form"), (PARTS, "Parts"), (JSON, "")):
            content[kind] = {"schema": {"$ref": REF.format(model=f"{row.request}{suffix}")}}
    repeats = repeated_fields(row.request_model) if row.request_model else frozenset[str]()
    for kind, media in content.items():
        if row.example is not None:
            media["example"] = dict(row.example) if kind == JSON else form_example(row.example, repeats=repeats)
    return {"requestBody": {"content": content}} if content else None


def _of_files(row: Operation, status: int) -> dict[str, Any]:
    if status == 304:
        return {"description": row.answers[status]}
    content = {kind: {"schema": _SCHEMAS.get(kind, _BINARY)} for kind in row.response}
    return {"content": content, "description": row.answers[status]}


def _describe(operation: dict[str, Any], row: Operation, known: Texts) -> None:
    operation["operationId"] = row.id
    text = without_citations(str(operation.get("description", "")))
    admins = " For administrators." if row.rights == "admin" else ""
    operation["description"] = f"{text}{admins}"
    if row.same_as:
        same = row.same_as
        operation["deprecated"] = True
        operation["description"] += f" Another path of `{same}`, kept for clients that use it; new ones call `{same}`."
    operation["security"] = [] if row.is_public else [{"bearer": []}]
    headers = known.words["request_headers"]
    parameters: list[dict[str, Any]] = [
        *operation.get("parameters", ()),
        *({"name": name, "in": "header", "required": False, **headers[name]} for name in row.takes),
    ]
    for parameter in parameters:
        words = known.words["fields"].get(parameter["name"], {})
        own = parameter["schema"].pop("description", None)
        parameter.setdefault("description", own or words.get("description", ""))
        if parameter["name"] in row.parameters or "example" in words:
            parameter["example"] = row.parameters.get(parameter["name"], words.get("example"))
    if parameters:
        operation["parameters"] = parameters


def _add_bodies(routes: Iterable[OperationRoute], schemas: dict[str, Any]) -> None:
    rows = [route.operation for route in routes]
    used = {row.request for row in rows if row.method == "POST" and isinstance(row.request, str)}
    models = {name: getattr(requests, name) for name in sorted(used)}
    schemas |= definitions_of(list(models.values()))
    for name, model in models.items():
        schemas[f"{name}Form"] = as_form(schemas[name], repeats=repeated_fields(model))
        schemas[f"{name}Parts"] = as_form(schemas[name], repeats=repeated_fields(model))


def _drop_unused(document: dict[str, Any]) -> None:
    """Schemas of validation errors that no call answers, and others that nothing refers to."""
    schemas = document["components"]["schemas"]
    others = {key: value for key, value in document["components"].items() if key != "schemas"}
    found = _reachable(set(references([document["paths"], others])), schemas)
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in found}


def _drop_citations(part: Any) -> None:
    if isinstance(part, dict):
        if isinstance(text := part.get("description"), str):
            part["description"] = without_citations(text)
        for value in part.values():
            _drop_citations(value)
    elif isinstance(part, list):
        for element in part:
            _drop_citations(element)


def _bodies(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    schemas = document["components"]["schemas"]
    wanted: set[str] = set()
    for operations in document["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                wanted |= set(references(media["schema"]))
                yield from (media["schema"], *media["schema"].get("allOf", ()))
    yield from (schemas[name] for name in sorted(_reachable(wanted, schemas)))


def _reachable(wanted: set[str], schemas: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    while wanted:
        found |= wanted
        wanted = {name for one in wanted for name in references(schemas.get(one, {}))} - found
    return found
