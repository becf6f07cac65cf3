"""Builds the JSON schemas of request bodies (in each encoding) and query parameters for the API description."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from queryserver.api.schemas.fields import EMPTY_ALLOWED, FORM_PATTERN, Flag
from queryserver.api.schemas.requests.importer import ImportFields
from queryserver.api.schemas.requests.storage import StorageFields

REF = "#/components/schemas/{model}"
FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"

_NULL = {"type": "null"}
FLAG: Mapping[str, Any] = TypeAdapter(Flag).json_schema()
_WITHOUT_NULLS = frozenset({"RevokeTokenRequest"})
"""Request bodies in which null is rejected instead of meaning absent."""
_JSON_TEXT = {"type": "string", "contentMediaType": JSON}


def definitions_of(models: Iterable[type[BaseModel]], mode: JsonSchemaMode = "validation") -> dict[str, Any]:
    """Return the schemas of models by name, including the models of their fields."""
    return models_json_schema([(model, mode) for model in models], ref_template=REF)[1]["$defs"]


def tidy(schema: Any) -> Any:
    """Remove the titles that pydantic derives from names, in place, and return the schema."""
    if isinstance(schema, list):
        for element in schema:
            tidy(element)
    elif isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if schema.get("type") == "array" and "minLength" in schema:
            schema["minItems"] = schema.pop("minLength")  # pydantic derives it from the minimum length of a tuple
        for key, value in schema.items():
            if key == "properties":
                for member in value.values():
                    tidy(member)
            elif key not in {"example", "examples", "default", "const", "enum"}:
                tidy(value)
    return schema


def with_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a JSON body object in which optional fields may also be null, which means absent."""
    return _with_optional(schema, _or_null)


def _with_optional(schema: Mapping[str, Any], changed: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object after applying `changed` to its optional fields."""
    fields, required = schema.get("properties", {}), schema.get("required", ())
    properties = {name: field if name in required else changed(field) for name, field in fields.items()}
    return {**schema, "properties": properties} if properties else dict(schema)


def _or_null(field: Mapping[str, Any]) -> dict[str, Any]:
    outside = {key: field[key] for key in ("description", "default") if key in field}
    inside = {key: value for key, value in field.items() if key not in outside}
    if not inside or _NULL in inside.get("anyOf", ()) or "null" in inside.get("type", ()):
        return dict(field)
    return {"anyOf": [inside, _NULL], **outside}


def with_empty(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object in which optional enumerations and integers may also be "", which means absent."""
    return _with_optional(schema, _or_empty)


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
    """Return the form schema of a JSON body: objects and arrays become JSON text, except for the fields in `repeats`.

    Those fields may occur several times in a form.
    """
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
    """Return the rule for required members; a member that is JSON text in a form is reduced to a string."""
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
    """Return the fields of a GET call as OpenAPI parameters. Parameters cannot be null."""
    schema = model.model_json_schema()
    return [
        _query_parameter(name, field, schema, takes_empty=issubclass(model, ImportFields))
        for name, field in schema["properties"].items()
    ]


def _query_parameter(
    name: str, field: Mapping[str, Any], model: Mapping[str, Any], *, takes_empty: bool
) -> dict[str, Any]:
    """Return a field as a parameter. `takes_empty` is set if "" means absent in all optional fields of the call."""
    required = name in model.get("required", ())
    plain = _form_field(_inlined(field, model), repeats=field.get("type") == "array")
    takes_empty = (
        (takes_empty and not required) or FLAG.items() <= plain.items() or EMPTY_ALLOWED.items() <= plain.items()
    )
    schema = tidy(_plain_flag({key: value for key, value in plain.items() if key not in EMPTY_ALLOWED}))
    allowed = EMPTY_ALLOWED if takes_empty and not _allows_empty(schema) else {}
    return {"name": name, "in": "query", "required": required, **allowed, "schema": schema}


def _allows_empty(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema of a parameter or form field allows an empty string."""
    return "string" in schema.get("type", ()) and not schema.keys() & {"enum", "pattern", "minLength", "format"}


def _plain_flag(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query flag as a plain boolean. Query values are text anyway, so no pattern is needed."""
    if not FLAG.items() <= field.items():
        return field
    return {"type": "boolean", **{key: value for key, value in field.items() if key not in FLAG}}


def _inlined(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a reference to an enumeration with its values, because the document has no schema for it."""
    if "$ref" not in field:
        return field
    kept = {key: value for key, value in field.items() if key != "$ref"}
    words = {key: schema["$defs"][field["$ref"].rpartition("/")[2]][key] for key in ("type", "enum")}
    return {**words, **kept}


def _is_deep(schema: Mapping[str, Any]) -> bool:
    if "$ref" in schema or schema.get("type") in ("array", "object"):
        return True
    return any(_is_deep(choice) for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())))


def repeated_fields(model: type[BaseModel] | None) -> frozenset[str]:
    """Return the fields that may be repeated; only storage calls have such fields (Contract storage 2.1)."""
    return model.REPEATABLE if model is not None and issubclass(model, StorageFields) else frozenset()


def form_example(example: Mapping[str, Any], *, repeats: frozenset[str]) -> dict[str, Any]:
    return {
        name: json.dumps(value) if isinstance(value, dict | list) and name not in repeats else value
        for name, value in example.items()
    }


def describe_defaults(schema: Mapping[str, Any]) -> None:
    """Move the default of each field into its description and into `x-default`, in place.

    TypeScript generators make a field with `default` mandatory, even in requests.
    """
    for field in schema.get("properties", {}).values():
        default = field.pop("default", None)
        if not isinstance(default, str | int | float) or default == "":
            continue
        field["x-default"] = default
        text = default if isinstance(default, str) else json.dumps(default)
        field["description"] = f"{field.get('description', '')} Default: `{text}`.".strip()


def objects_in(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a part of the document, outer objects first."""
    if isinstance(part, dict):
        yield part
    members = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for member in list(members):
        yield from objects_in(member)


def references(part: Any) -> Iterator[str]:
    """Yield the names of the schemas to which a part of the document refers."""
    return (one["$ref"].rpartition("/")[2] for one in objects_in(part) if isinstance(one.get("$ref"), str))


def add_bodies(schemas: dict[str, Any], models: Iterable[type[BaseModel]]) -> None:
    """Add the schemas of each request body for JSON, form (`…Form`) and multipart (`…Parts`)."""
    named = {model.__name__: model for model in models}
    models_of = dict(sorted(named.items()))
    for name, schema in definitions_of(models_of.values()).items():
        takes_empty = name in models_of and issubclass(models_of[name], ImportFields)
        described = with_empty(schema) if takes_empty else schema
        schemas[name] = described if name in _WITHOUT_NULLS else with_null(described)
    for name, model in models_of.items():
        schemas[f"{name}Form"] = as_form(schemas[name], repeats=repeated_fields(model))
        schemas[f"{name}Parts"] = as_form(schemas[name], repeats=repeated_fields(model))
        for field in schemas[name].get("properties", {}).values():
            field.pop(FORM_PATTERN, None)
