"""The document as it is served and committed."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from queryserver.api.document.answers import Answers, is_secured
from queryserver.api.document.codes import error_codes
from queryserver.api.document.schemas import (
    FORM,
    JSON,
    PARTS,
    REF,
    as_form,
    definitions_of,
    form_example,
    references,
    repeated_fields,
    tell_defaults,
    tidy,
)
from queryserver.api.document.texts import Texts, texts, without_citations
from queryserver.api.platform_calls import AdminRoute
from queryserver.schemas import requests

_WORD = re.compile(r"[^a-z0-9]+")


def whole_document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of every route: parameters, bodies in all their encodings, every status, an example of each.

    Takes about half a second, so it is for a thread.
    """
    known = texts()
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=known.guide,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that serves this document."}],
        tags=[{"name": name, "description": text} for name, text in known.words["tags"].items()],
        routes=app.routes,
        openapi_version="3.1.0",
    )
    document["x-error-codes"] = error_codes(known.codes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _add_bodies(document, schemas, known)
    answers = Answers(known, schemas)
    for key, route, operation in _operations(app, document):
        told = known.operations.get(key, {})
        _describe(operation, route, told, known, key)
        answers.complete(operation, route, told)
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
    _put_words(document, known)
    for schema in _bodies(document):
        tell_defaults(schema)
    _drop_citations(document)
    tidy([document["paths"], components])
    return document


def _operations(app: FastAPI, document: Mapping[str, Any]) -> Iterator[tuple[str, APIRoute, dict[str, Any]]]:
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = document["paths"][route.path_format].get(method.lower())
                if operation is not None:
                    yield f"{method} {route.path_format}", route, operation


def _describe(operation: dict[str, Any], route: APIRoute, told: Mapping[str, Any], known: Texts, key: str) -> None:
    """Its name, its words, who may call it, and its parameters."""
    operation["operationId"] = told.get("id") or _name_of(key)
    text = without_citations(str(operation.get("description", "")))
    admins = " For administrators." if isinstance(route, AdminRoute) else ""
    operation["description"] = f"{text}{admins}"
    if same := told.get("same_as"):
        operation["deprecated"] = True
        operation["description"] += f" Another path of `{same}`, kept for clients that use it; new ones call `{same}`."
    operation["security"] = [{"bearer": []}] if is_secured(route) else []
    examples = told.get("parameters", {})
    parameters = [*operation.get("parameters", ()), *_header_parameters(told, known)]
    for parameter in parameters:
        words = known.words["fields"].get(parameter["name"], {})
        own = parameter["schema"].pop("description", None)
        parameter.setdefault("description", own or words.get("description", ""))
        if parameter["name"] in examples or "example" in words:
            parameter["example"] = examples.get(parameter["name"], words.get("example"))
    if parameters:
        operation["parameters"] = parameters


def _header_parameters(told: Mapping[str, Any], known: Texts) -> Iterator[dict[str, Any]]:
    for name in told.get("takes", ()):
        yield {"name": name, "in": "header", "required": False, **known.words["request_headers"][name]}


def _name_of(key: str) -> str:
    """Of an operation without a name of its own: made of method and path."""
    return _WORD.sub("_", key.lower().replace("/api/v1/", "")).strip("_")


def _add_bodies(document: Mapping[str, Any], schemas: dict[str, Any], known: Texts) -> None:
    """The request models and their forms, and an example of each body."""
    used: set[str] = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if model := operation.pop("x-request-model", None):
                used.add(model)
            told = known.operations.get(f"{method.upper()} {path}", {})
            _complete_body(operation, model, told.get("request"))
    models = {name: getattr(requests, name) for name in sorted(used)}
    schemas |= definitions_of(list(models.values()))
    for name, model in models.items():
        schemas[f"{name}Form"] = as_form(schemas[name], repeats=repeated_fields(model))
        schemas[f"{name}Parts"] = as_form(schemas[name], repeats=repeated_fields(model))


def _complete_body(operation: Mapping[str, Any], model: str | None, example: Mapping[str, Any] | None) -> None:
    content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
    repeats = repeated_fields(getattr(requests, model)) if model else frozenset[str]()
    if model and JSON in content:
        for kind, suffix in ((FORM, "Form"), (PARTS, "Parts"), (JSON, "")):
            content[kind] = {"schema": {"$ref": REF.format(model=f"{model}{suffix}")}}
    for kind, media in content.items():
        if example is not None:
            media["example"] = dict(example) if kind == JSON else form_example(example, repeats=repeats)


def _drop_unused(document: dict[str, Any]) -> None:
    """Schemas of validation errors that no call answers, and others that nothing refers to."""
    schemas = document["components"]["schemas"]
    others = {key: value for key, value in document["components"].items() if key != "schemas"}
    wanted = set(references([document["paths"], others]))
    found: set[str] = set()
    while wanted:
        found |= wanted
        wanted = {name for one in wanted for name in references(schemas.get(one, {}))} - found
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in found}


def _put_words(document: Mapping[str, Any], known: Texts) -> None:
    """A description for each field of a body whose model has none."""
    words = known.words["fields"]
    for schema in _bodies(document):
        for name, field in schema.get("properties", {}).items():
            if not field.get("description") and name in words:
                field["description"] = words[name]["description"]


def _drop_citations(part: Any) -> None:
    """Clean every description in place."""
    if isinstance(part, dict):
        if isinstance(text := part.get("description"), str):
            part["description"] = without_citations(text)
        for value in part.values():
            _drop_citations(value)
    elif isinstance(part, list):
        for element in part:
            _drop_citations(element)


def _bodies(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of all request bodies."""
    schemas = document["components"]["schemas"]
    wanted: set[str] = set()
    for operations in document["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                wanted |= set(references(media["schema"]))
                yield from (media["schema"], *media["schema"].get("allOf", ()))
    found: set[str] = set()
    while wanted:
        found |= wanted
        wanted = {name for one in wanted for name in references(schemas[one])} - found
    yield from (schemas[name] for name in sorted(found))
