"""Builds the OpenAPI document: FastAPI's description of the routes, plus texts, examples and codes from `openapi/`.

`export_openapi.py` writes the document.
"""

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from scripts.api_schemas import (
    FLAG,
    FORM,
    JSON,
    PARTS,
    REF,
    add_bodies,
    definitions_of,
    describe_defaults,
    form_example,
    objects_in,
    query_parameters,
    references,
    repeated_fields,
    tidy,
)
from scripts.api_texts import TABLES, Row, Texts, error_codes, rows, texts, without_citations

from queryserver.api.application import create_application, routes_of
from queryserver.api.dependencies import FieldsReader, caller_of, solved_order
from queryserver.api.schemas import generated
from queryserver.api.schemas.fields import Fields

_DEFAULT_DESCRIPTIONS = {"Successful Response", "Accepted"}
"""Descriptions that FastAPI generates for responses without one."""
_BYTES = "application/octet-stream"
_HEALTH = "/desktop/debug/"
_IMPORTER = "/api/v1/importer/"
_TOKEN = "/api/v1/token/"  # noqa: S105 a path
_FAILURES = (generated.ErrorBody, generated.FieldErrors, generated.ImporterError, generated.Unauthorized)
# Additional response headers by status.
_HEADERS = {
    "206": ("Content-Range",),
    "401": ("WWW-Authenticate",),
    "405": ("Allow",),
    "416": ("Content-Range",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
# A partial response (206) is never compressed. A response without a body (304) has only the headers that identify the
# version.
_OMITTED_IN_PARTS = frozenset({"Content-Encoding"})
_HEADERS_WITHOUT_BODY = frozenset({"ETag", "Last-Modified"})


def request_model(route: APIRoute) -> type[Fields] | None:
    """Return the model of a route's fields; None if the route has no fields."""
    return next((one.model for one in solved_order(route.dependant) if isinstance(one, FieldsReader)), None)


def described_application() -> FastAPI:
    """Return the application, whose `openapi` method returns the complete document.

    Raises SystemExit if a route has no row in operations.yaml.
    """
    app, known = create_application(), texts()
    described = {route.name: route for route in routes_of(app) if route.include_in_schema}
    if missing := described.keys() - rows():
        sys.exit(f"No row in openapi/operations.yaml: {', '.join(sorted(missing))}.")
    routes = {row: described[name] for name, row in rows().items() if name in described}
    for row, route in routes.items():
        _describe(route, row, known)
    app.openapi = partial(_document, app, routes, known)  # type: ignore[method-assign]
    return app


def _describe(route: APIRoute, row: Row, known: Texts) -> None:
    """Set the summary, description, parameters and request body of a route from its row and its dependencies."""
    user = caller_of(route)
    words = [without_citations(row.description or route.description)]
    if user is not None and user.is_admin:
        words.append("For administrators.")
    if user is not None and user.scope is not None:
        words.append(f"API tokens need the scope `{user.scope}`.")
    if row.same_as:
        route.deprecated = True
        words.append(f"Alias of `{row.same_as}` for existing clients; new clients should call `{row.same_as}`.")
    route.summary, route.description = row.summary, " ".join(words)
    headers = known.words["request_headers"]
    parameters: list[dict[str, Any]] = [
        *map(dict, copy.deepcopy(row.query)),
        *({"name": name, "in": "header", "required": False, **headers[name]} for name in row.takes),
    ]
    model = request_model(route)
    body = dict(row.body or {})
    if model is not None and row.method != "POST":
        parameters = [*query_parameters(model), *parameters]
    elif model is not None and not body:
        forms = ((FORM, "Form"), (PARTS, "Parts"), (JSON, ""))
        body = {kind: {"schema": {"$ref": REF.format(model=f"{model.__name__}{form}")}} for kind, form in forms}
    if row.example is not None:
        form = form_example(row.example, repeats=repeated_fields(model))
        examples = {kind: dict(row.example) if kind == JSON else form for kind in body}
        body = {kind: {**media, "example": examples[kind]} for kind, media in body.items()}
    # `required` is set only for bodies with a file: openapi-python-client generates invalid code for a required body
    # with several media types. For such bodies, it suffices that their fields are required.
    required = {"required": True} if row.body else {}
    route.openapi_extra = {
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"content": body, **required}} if body else {}),
        "security": [{"bearer": []}] if user else [],
    }


def _document(app: FastAPI, routes: Mapping[Row, APIRoute], known: Texts) -> dict[str, Any]:
    """Return the complete OpenAPI 3.1 document of `routes`."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=known.guide,
        license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that serves this document."}],
        tags=[{"name": name, "description": text} for name, text in known.words["tags"].items()],
        routes=list(routes.values()),
    )
    document["x-error-codes"] = error_codes(known.codes)
    components = document["components"]
    schemas = components["schemas"]
    schemas |= definitions_of(_FAILURES, "serialization")
    taken = (request_model(route) for row, route in routes.items() if row.method == "POST")
    add_bodies(schemas, filter(None, taken))
    _describe_fields(schemas)
    answers = Answers(known, schemas)
    for row, route in routes.items():
        operation = document["paths"][route.path_format][row.method.lower()]
        _describe_parameters(operation, row, known)
        answers.complete(operation, route, row)
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
            if not field.get("description") and name in words:  # the model has no description of the field
                field["description"] = words[name]["description"]
    for schema in bodies:
        describe_defaults(schema)
    components["schemas"]["Flag"] = {**FLAG, "description": known.words["flag"]}
    _name_flags(document)
    for part in objects_in(document):
        if isinstance(text := part.get("description"), str):
            part["description"] = without_citations(text)
    tidy([document["paths"], components])
    return document


def _describe_parameters(operation: Mapping[str, Any], row: Row, known: Texts) -> None:
    for parameter in operation.get("parameters", ()):
        words = known.words["fields"].get(parameter["name"], {})
        own = parameter["schema"].pop("description", None)
        parameter.setdefault("description", own or words.get("description", ""))
        if parameter["name"] in row.parameters or "example" in words:
            parameter["example"] = row.parameters.get(parameter["name"], words.get("example"))


def _describe_fields(schemas: Mapping[str, Any]) -> None:
    """Add the descriptions of response fields from resources.yaml. The models omit them, which makes imports faster."""
    text = TABLES.joinpath("resources.yaml").read_bytes()
    for name, resource in yaml.load(text, Loader=yaml.CSafeLoader)["components"]["schemas"].items():
        fields = schemas.get(name, {}).get("properties", {})
        for key, described in resource.get("properties", {}).items():
            if key in fields and "description" in described:
                fields[key]["description"] = described["description"]


class Answers:
    """Completes the responses of operations. `responses` contains the shared error responses by name."""

    def __init__(self, texts: Texts, schemas: Mapping[str, Any]) -> None:
        self._texts = texts
        self._schemas = schemas
        self.responses: dict[str, Any] = {}

    def complete(self, operation: dict[str, Any], route: APIRoute, row: Row) -> None:
        """Add the responses for all statuses that `operation` can return, in ascending order."""
        declared: dict[str, Any] = operation["responses"]
        successes = self._successes(declared, row)
        bulk = "BulkResponse" in {name for one in successes.values() for name in _models(one)}
        failing = {str(status): one.get("model") for status, one in route.responses.items() if int(status) >= 400}
        failing = {**dict.fromkeys(always(route, row), generated.ErrorBody), **failing}
        answers: dict[str, Any] = {}
        for status, model in failing.items():
            if model is generated.ErrorBody:
                answers[status] = self._shared(status, _style(route.path, status, bulk=bulk))
            else:
                answers[status] = declared[status]
                self._add_details(status, declared[status], ())
        operation["responses"] = dict(sorted({**successes, **answers}.items()))

    def _successes(self, declared: Mapping[str, Any], row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for status, answer in declared.items():
            if status >= "400":
                continue
            content = answer.get("content", {})
            if any(media.get("schema", {}).get("format") == "binary" for media in content.values()):
                # Plain bytes come first, because client generators use the first media type that they know.
                answer["content"] = {_BYTES: {"schema": {"type": "string", "format": "binary"}}, **content}
            self._add_details(status, answer, tuple(row.headers))
            found[status] = answer
        return found

    def _add_details(self, status: str, answer: dict[str, Any], headers: tuple[str, ...]) -> None:
        """Add headers, a description if there is none, and an example for each model."""
        unread = ("X-Unknown-Fields",) if status.startswith("2") or status == "400" else ()
        if status == "206":
            headers = tuple(name for name in headers if name not in _OMITTED_IN_PARTS)
        elif status == "304":
            headers = tuple(name for name in headers if name in _HEADERS_WITHOUT_BODY)
        names = ("X-Request-Id", *unread, *_HEADERS.get(status, ()), *headers)
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
        models = _models(answer)
        if models and answer["description"] in _DEFAULT_DESCRIPTIONS:
            answer["description"] = str(self._schemas[models[0]].get("description", "")).partition("\n")[0]
        if models:
            answer["content"][JSON] |= self._examples(models)
        for kind, media in answer.get("content", {}).items():
            sample = self._texts.words["files"].get(kind.partition(";")[0])
            if sample is not None:
                media["example"] = sample

    def _examples(self, models: list[str]) -> dict[str, Any]:
        known = [name for name in models if name in self._texts.samples]
        if len(known) == 1:
            return {"example": self._texts.samples[known[0]]}
        return {"examples": {name: {"value": self._texts.samples[name]} for name in known}} if known else {}

    def _shared(self, status: str, style: tuple[str, ...]) -> dict[str, Any]:
        name = f"{''.join(style)}{status}"
        if name not in self.responses:
            words = self._texts.words["failures"][int(status)]
            response = _failure_response(style, words["description"])
            self._add_details(status, response, ())
            response["content"][JSON].pop("examples", None)
            response["content"][JSON]["example"] = _example(words, style)
            self.responses[name] = response
        return {"$ref": f"#/components/responses/{name}"}


def always(route: APIRoute, row: Row) -> Iterator[str]:
    """Yield the error statuses that a route can return because of its path, method and caller."""
    yield "405"
    if route.path.startswith(_HEALTH):
        return
    user, of_importer = caller_of(route), route.path.startswith(_IMPORTER)
    yield from ("400", "429", "500") if of_importer else ("400", "429", "500", "503")
    if "{" in route.path:
        yield "404"
    if user is not None:
        yield "401"
        if user.scope is not None:
            yield "403"
    if row.method == "POST" and not of_importer:
        yield from ("413", "415")


def _failure_response(models: Sequence[str], description: str) -> dict[str, Any]:
    refs = [{"$ref": REF.format(model=name)} for name in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _models(answer: Mapping[str, Any]) -> list[str]:
    """Return the names of the models of a response; several if the model depends on the outcome."""
    schema = answer.get("content", {}).get(JSON, {}).get("schema", {})
    return [choice["$ref"].rpartition("/")[2] for choice in (schema, *schema.get("anyOf", ())) if "$ref" in choice]


def _style(path: str, status: str, *, bulk: bool) -> tuple[str, ...]:
    """Return the models of an error response (Contract platform 1.4, 3.2; importer 2.2; storage 7.8).

    If there are two models, the first requires a key that the second does not have, because clients use the first model
    that matches.
    """
    if status == "401":
        return ("Unauthorized",)
    if path.startswith(_TOKEN) and status == "400":
        return ("ErrorBody", "FieldErrors")
    if path.startswith(_IMPORTER) and status != "404":
        return ("ImporterError",)
    return ("BulkResponse", "ErrorBody") if bulk and status not in {"405", "413", "415", "429"} else ("ErrorBody",)


def _example(words: Mapping[str, Any], style: tuple[str, ...]) -> dict[str, Any]:
    code, message = words["code"], words["message"]
    match style:
        case ("Unauthorized",):
            return {"detail": message}
        case ("ImporterError",):
            return {"error": message, "code": code}
        case (_, "FieldErrors"):
            return {"username": ["This field is required."]}
        case _:
            return {"status": -1, "code": code, "message": message, **words.get("beside", {})}


def _drop_unused(document: dict[str, Any]) -> None:
    """Remove unreferenced schemas, such as FastAPI's validation errors, which no call returns."""
    schemas = document["components"]["schemas"]
    others = {key: value for key, value in document["components"].items() if key != "schemas"}
    found = _reachable(set(references([document["paths"], others])), schemas)
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in found}


def _name_flags(document: Mapping[str, Any]) -> None:
    """Replace each inline schema of a flag with a reference to the schema `Flag`, in place."""
    for part in objects_in(document):
        for key, value in part.items():
            if key != "Flag":
                part[key] = [*map(_named_flag, value)] if isinstance(value, list) else _named_flag(value)


def _named_flag(value: Any) -> Any:
    if not isinstance(value, dict) or not FLAG.items() <= value.items():
        return value
    return {"$ref": REF.format(model="Flag")} | {key: one for key, one in value.items() if key not in FLAG}


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
