"""The OpenAPI document of the routes: the answers of an operation, then the whole. `export_openapi.py` writes it."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Any

import yaml
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from scripts.api_texts import TABLES, Row, Texts, error_codes, rows, texts, without_citations

from queryserver.api.application import create_application, routes_of
from queryserver.api.schemas import generated, requests
from queryserver.api.schemas.fields import EMPTY_ALLOWED, FORM_PATTERN, Flag
from queryserver.api.schemas.requests.storage import StorageFields

REF = "#/components/schemas/{model}"
FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"

_NULL = {"type": "null"}
_FLAG: Mapping[str, Any] = TypeAdapter(Flag).json_schema()
_WITHOUT_NULLS = frozenset({"RevokeTokenRequest"})
"""Bodies in which null is a value, and a wrong one."""
_JSON_TEXT = {"type": "string", "contentMediaType": JSON}


def definitions_of(models: list[type[BaseModel]]) -> dict[str, Any]:
    """The schemas of request models and of all that they hold, by name."""
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    return definitions.get("$defs", {})


def tidy(schema: Any) -> Any:
    """Without the titles that are made of the names, in place."""
    if isinstance(schema, list):
        for element in schema:
            tidy(element)
    elif isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if schema.get("type") == "array" and "minLength" in schema:
            schema["minItems"] = schema.pop("minLength")  # what is made of the least length of a tuple
        for key, value in schema.items():
            if key == "properties":
                for member in value.values():
                    tidy(member)
            elif key not in {"example", "examples", "default", "const", "enum"}:
                tidy(value)
    return schema


def with_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object of a JSON body: what may be absent may be null, which is the same (Contract editor 1.2)."""
    required = schema.get("required", ())
    properties = {
        name: field if name in required else _or_null(field) for name, field in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties} if properties else dict(schema)


def _or_null(field: Mapping[str, Any]) -> dict[str, Any]:
    outside = {key: field[key] for key in ("description", "default") if key in field}
    inside = {key: value for key, value in field.items() if key not in outside}
    if not inside or _NULL in inside.get("anyOf", ()) or "null" in inside.get("type", ()):
        return dict(field)
    return {"anyOf": [inside, _NULL], **outside}


def with_empty(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object in which each word or number that may be absent may be the empty text, which is the same."""
    required = schema.get("required", ())
    properties = {
        name: field if name in required else _or_empty(field) for name, field in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}


def _or_empty(field: Mapping[str, Any]) -> dict[str, Any]:
    if choices := field.get("anyOf"):
        return {**field, "anyOf": [_or_empty(choice) for choice in choices]}
    if "enum" in field:
        return {**field, "enum": [*field["enum"], ""]}
    if field.get("type") == "integer":
        return {**field, "type": ["integer", "string"], "maxLength": 0}
    return dict(field)


def without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    choices = [choice for choice in schema.get("anyOf", ()) if choice != _NULL]
    kept = {key: value for key, value in schema.items() if key != "anyOf"}
    if kept.get("default", ...) is None:
        del kept["default"]
    if len(choices) == 1:
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept


def as_form(schema: Mapping[str, Any], *, repeats: frozenset[str]) -> dict[str, Any]:
    """A JSON body as a form: objects and arrays are JSON text, but for the repeated fields `repeats`."""
    properties = {
        name: _form_field(field, repeats=name in repeats) for name, field in schema.get("properties", {}).items()
    }
    form = {**copy.deepcopy(dict(schema)), "properties": properties}
    if "then" in form:
        form["then"] = _form_choice(form["then"], properties)
    if choices := form.get("if", {}).get("not", {}).get("anyOf"):
        form["if"] = {"not": {"anyOf": [_form_choice(choice, properties) for choice in choices]}}
    return form


def _form_choice(choice: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Which member is required; of one that is JSON text there, no schema says what it must hold."""
    members = {
        name: {"type": "string"} if fields[name].get("contentMediaType") == JSON else member
        for name, member in choice["properties"].items()
    }
    return {**choice, "properties": members}


def _form_field(field: Mapping[str, Any], *, repeats: bool) -> dict[str, Any]:
    plain = without_null(copy.deepcopy(dict(field)))
    if plain.get("contentMediaType") == JSON and not isinstance(plain.get("default", ""), str):
        plain["default"] = json.dumps(plain["default"])
    if repeats or not _is_deep(plain):
        return plain
    description = plain.pop("description", None)
    pattern = plain.pop(FORM_PATTERN, None)
    plain.pop("default", None)
    kept = {"pattern": pattern, "description": description}
    return {**_JSON_TEXT, "contentSchema": plain, **{key: text for key, text in kept.items() if text}}


def query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of a GET call as OpenAPI parameters; none of them is ever null on the wire."""
    schema = model.model_json_schema()
    return [
        _query_parameter(name, field, schema, takes_empty=issubclass(model, requests.ImportFields))
        for name, field in schema["properties"].items()
    ]


def _query_parameter(
    name: str, field: Mapping[str, Any], model: Mapping[str, Any], *, takes_empty: bool
) -> dict[str, Any]:
    """`takes_empty`: whether the empty text counts as absent in every optional field of the call."""
    required = name in model.get("required", ())
    plain = _form_field(_inlined(field, model), repeats=field.get("type") == "array")
    takes_empty = (
        (takes_empty and not required) or _FLAG.items() <= plain.items() or EMPTY_ALLOWED.items() <= plain.items()
    )
    schema = tidy(_plain_flag({key: value for key, value in plain.items() if key not in EMPTY_ALLOWED}))
    allowed = EMPTY_ALLOWED if takes_empty and not _allows_empty(schema) else {}
    return {"name": name, "in": "query", "required": required, **allowed, "schema": schema}


def _allows_empty(schema: Mapping[str, Any]) -> bool:
    """Whether the empty text fits the schema of a parameter or of a form field."""
    return "string" in schema.get("type", ()) and not schema.keys() & {"enum", "pattern", "minLength", "format"}


def _plain_flag(field: dict[str, Any]) -> dict[str, Any]:
    """All is text in a query: a flag needs no words there but true and false."""
    if not _FLAG.items() <= field.items():
        return field
    return {"type": "boolean", **{key: value for key, value in field.items() if key not in _FLAG}}


def _inlined(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without a reference to a list of words, which the document does not hold."""
    if "$ref" not in field:
        return field
    kept = {key: value for key, value in field.items() if key != "$ref"}
    words = {key: schema["$defs"][field["$ref"].rpartition("/")[2]][key] for key in ("type", "enum")}
    return {**words, **kept}


def _is_deep(schema: Mapping[str, Any]) -> bool:
    if "$ref" in schema or schema.get("type") in ("array", "object"):
        return True
    return any(_is_deep(choice) for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())))


def repeated_fields(model: type[BaseModel]) -> frozenset[str]:
    """Fields of which every value counts; only storage calls have some (Contract storage 2.1)."""
    return model.REPEATABLE if issubclass(model, StorageFields) else frozenset()


def form_example(example: Mapping[str, Any], *, repeats: frozenset[str]) -> dict[str, Any]:
    return {
        name: json.dumps(value) if isinstance(value, dict | list) and name not in repeats else value
        for name, value in example.items()
    }


def describe_defaults(schema: Mapping[str, Any]) -> None:
    """Write the default of each field into its description and into `x-default`, in place.

    Generators of TypeScript take a field with `default` for one that is always there, also in a request.
    """
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if not isinstance(default, str | int | float) or default == "":
            continue
        field["x-default"] = default
        text = default if isinstance(default, str) else json.dumps(default)
        field["description"] = f"{field.get('description', '')} Default: `{text}`.".strip()


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name.rpartition("/")[2]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for element in schema:
            yield from references(element)


def choices_of(schema: Mapping[str, Any]) -> list[str]:
    """Names of the models of an answer: one, or several of which the outcome decides."""
    return [choice["$ref"].rpartition("/")[2] for choice in (schema, *schema.get("anyOf", ())) if "$ref" in choice]


# Of calls with several outcomes, the status by the model.
_OTHER_STATUS = {"RunningOperation": "202"}
_BYTES = "application/octet-stream"
_HEALTH = "/desktop/debug/"
_IMPORTER = "/api/v1/importer/"
_TOKEN = "/api/v1/token/"  # noqa: S105 a path
# Headers that the answers of a status have beside those of all.
_HEADERS = {
    "206": ("Content-Range",),
    "401": ("WWW-Authenticate",),
    "405": ("Allow",),
    "416": ("Content-Range",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
# Of the headers of an operation: a part is never compressed, and without a body only the version is named.
_LEFT_OUT_OF_PARTS = frozenset({"Content-Encoding"})
_KEPT_WITHOUT_BODY = frozenset({"ETag", "Last-Modified"})


class Answers:
    """Completes the answers of operations; `responses` are the failures that many share, by name."""

    def __init__(self, texts: Texts, schemas: Mapping[str, Any]) -> None:
        self._texts = texts
        self._schemas = schemas
        self.responses: dict[str, Any] = {}

    def complete(self, operation: dict[str, Any], row: Row) -> None:
        """Give `operation` every status that it can answer with, in order."""
        declared: dict[str, Any] = operation["responses"]
        successes = {} if row.fails else self._successes(declared, row)
        bulk = "BulkResponse" in {name for one in successes.values() for name in _models(one)}
        failing: dict[str, Any] = {}
        for status in sorted({*always(row), *map(str, row.failures)}):
            failing[status] = self._shared(status, _style(row.path, status, bulk=bulk))
        for status in map(str, row.failing):
            failing[status] = declared[status]
            self._dress(status, failing[status], ())
        operation["responses"] = dict(sorted({**successes, **failing}.items()))

    def _successes(self, declared: Mapping[str, Any], row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for status, answer in declared.items():
            if status >= "400":
                continue
            for split, one in _split(status, answer):
                content = one.get("content", {})
                if any(media.get("schema", {}).get("format") == "binary" for media in content.values()):
                    # Plain bytes before the real types: generators of clients take the first type they know.
                    one["content"] = {_BYTES: {"schema": {"type": "string", "format": "binary"}}, **content}
                self._dress(split, one, tuple(row.headers))
                found[split] = one
        return found

    def _dress(self, status: str, answer: dict[str, Any], headers: tuple[str, ...]) -> None:
        """Headers, a description, and an example of each model."""
        unread = ("X-Unknown-Fields",) if status.startswith("2") or status == "400" else ()
        if status == "206":
            headers = tuple(name for name in headers if name not in _LEFT_OUT_OF_PARTS)
        elif status == "304":
            headers = tuple(name for name in headers if name in _KEPT_WITHOUT_BODY)
        names = ("X-Request-Id", *unread, *_HEADERS.get(status, ()), *headers)
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
        models = _models(answer)
        if models and answer.get("description", "Successful Response") == "Successful Response":
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
            response = _answering(style, words["description"])
            self._dress(status, response, ())
            response["content"][JSON].pop("examples", None)
            response["content"][JSON]["example"] = _example(words, style)
            self.responses[name] = response
        return {"$ref": f"#/components/responses/{name}"}


def always(row: Row) -> Iterator[str]:
    """Statuses that every operation of that kind can answer with."""
    yield "405"
    if row.path.startswith(_HEALTH):
        return
    yield from ("400", "429", "500", "503") if not row.path.startswith(_IMPORTER) else ("400", "429", "500")
    if "{" in row.path:
        yield "404"
    if not row.is_public:
        yield "401"
    if row.needed_scope is not None:
        yield "403"
    if row.method == "POST" and not row.path.startswith(_IMPORTER):
        yield from ("413", "415")


def _split(status: str, answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    models = _models(answer)
    others = [name for name in models if name in _OTHER_STATUS and len(models) > 1 and _OTHER_STATUS[name] != status]
    usual = [name for name in models if name not in others]
    if not others:
        yield status, answer
        return
    yield status, _answering(usual, answer["description"])
    for name in others:
        yield _OTHER_STATUS[name], _answering([name], answer["description"])


def _answering(models: Sequence[str], description: str) -> dict[str, Any]:
    refs = [{"$ref": REF.format(model=name)} for name in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _models(answer: Mapping[str, Any]) -> list[str]:
    return choices_of(answer.get("content", {}).get(JSON, {}).get("schema", {}))


def _style(path: str, status: str, *, bulk: bool) -> tuple[str, ...]:
    """Models of a failure (Contract platform 1.4, 3.2; importer 2.2; storage 7.8).

    Of two, the one comes first that requires a key which the other lacks: clients take the first that fits.
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


def described_application() -> FastAPI:
    """The application, whose `openapi()` gives the whole document."""
    app = create_application()
    app.openapi = partial(whole_document, app)  # type: ignore[method-assign]
    return app


def whole_document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of every route, with examples of every status."""
    known = texts()
    order = {name: place for place, name in enumerate(rows())}
    routes = sorted(filter(_is_described, routes_of(app)), key=lambda route: order[route.name])
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
    _describe_fields(schemas)
    answers = Answers(known, schemas)
    for route in routes:
        row = _row(route)
        operation = document["paths"][route.path_format][row.method.lower()]
        _describe(operation, row, known)
        answers.complete(operation, row)
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
    document["components"]["schemas"]["Flag"] = {**_FLAG, "description": known.words["flag"]}
    _name_flags(document)
    _drop_citations(document)
    tidy([document["paths"], components])
    return document


def _is_described(route: APIRoute) -> bool:
    return not _row(route).hidden and route.path == _row(route).path


def _row(route: APIRoute) -> Row:
    return rows()[route.name]


def _described_route(route: APIRoute) -> APIRoute:
    """What FastAPI makes the description of a row from: a function with the path parameters and the handler's words."""

    async def described() -> None: ...

    row = _row(route)
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=str) for name in route.param_convertors]
    described.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    described.__doc__ = row.description or route.endpoint.__doc__
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


def _taken(row: Row) -> dict[str, Any] | None:
    if row.method in {"GET", "DELETE"}:
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
    if not content:
        return None
    # Of a required body of several types openapi-python-client makes code that does not compile; the fields say it.
    return {"requestBody": {"content": content, **({"required": True} if row.body else {})}}


def _of_files(row: Row, status: int) -> dict[str, Any]:
    if status == 304:
        return {"description": row.answers[status]}
    content = {kind: {"schema": _SCHEMAS.get(kind, _BINARY)} for kind in row.response}
    return {"content": content, "description": row.answers[status]}


def _describe(operation: dict[str, Any], row: Row, known: Texts) -> None:
    operation["operationId"] = row.id
    text = without_citations(str(operation.get("description", "")))
    admins = " For administrators." if row.rights == "admin" else ""
    scope = "" if row.needed_scope is None else f" API tokens need the scope `{row.scope}`."
    operation["description"] = f"{text}{admins}{scope}"
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


def _describe_fields(schemas: Mapping[str, Any]) -> None:
    """Descriptions of the fields of answers stand in resources.yaml alone: the models would take longer to import."""
    text = TABLES.joinpath("resources.yaml").read_bytes()
    for name, resource in yaml.load(text, Loader=yaml.CSafeLoader)["components"]["schemas"].items():
        fields = schemas.get(name, {}).get("properties", {})
        for key, described in resource.get("properties", {}).items():
            if key in fields and "description" in described:
                fields[key]["description"] = described["description"]


def _add_bodies(routes: Iterable[APIRoute], schemas: dict[str, Any]) -> None:
    operations = [_row(route) for route in routes]
    used = {row.request for row in operations if row.method == "POST" and isinstance(row.request, str)}
    models = {name: getattr(requests, name) for name in sorted(used)}
    for name, schema in definitions_of(list(models.values())).items():
        takes_empty = name in models and issubclass(models[name], requests.ImportFields)
        described = with_empty(schema) if takes_empty else schema
        schemas[name] = described if name in _WITHOUT_NULLS else with_null(described)
    for name, model in models.items():
        schemas[f"{name}Form"] = as_form(schemas[name], repeats=repeated_fields(model))
        schemas[f"{name}Parts"] = as_form(schemas[name], repeats=repeated_fields(model))
        for field in schemas[name].get("properties", {}).values():
            field.pop(FORM_PATTERN, None)


def _drop_unused(document: dict[str, Any]) -> None:
    """Schemas of validation errors that no call answers, and others that nothing refers to."""
    schemas = document["components"]["schemas"]
    others = {key: value for key, value in document["components"].items() if key != "schemas"}
    found = _reachable(set(references([document["paths"], others])), schemas)
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in found}


def _name_flags(part: Any) -> None:
    """Refer to one schema of flags, in place: the words are the same everywhere."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "Flag" or not isinstance(value, dict | list):
                continue
            if isinstance(value, dict) and _FLAG.items() <= value.items():
                kept = {name: one for name, one in value.items() if name not in _FLAG}
                part[key] = {"$ref": REF.format(model="Flag"), **kept}
            else:
                _name_flags(value)
    elif isinstance(part, list):
        for number, value in enumerate(part):
            if isinstance(value, dict) and _FLAG.items() <= value.items():
                part[number] = {"$ref": REF.format(model="Flag")}
            else:
                _name_flags(value)


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
