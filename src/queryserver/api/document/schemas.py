"""Schemas of the document: without the noise of their making, and what forms and multipart bodies make of them."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from queryserver.api.schemas.requests.storage import StorageFields

REF = "#/components/schemas/{model}"
FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"

_NULL = {"type": "null"}
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
        for key, value in schema.items():
            if key == "properties":
                for member in value.values():
                    tidy(member)
            elif key not in {"example", "examples", "default", "const", "enum"}:
                tidy(value)
    return schema


def without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a field where null cannot be said."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != _NULL]
    kept = {key: value for key, value in schema.items() if key != "anyOf"}
    if kept.get("default", ...) is None:
        del kept["default"]
    if len(choices) == 1:
        return {**choices[0], **kept}
    return {**kept, "anyOf": choices} if choices else kept


def as_form(schema: Mapping[str, Any], *, repeats: frozenset[str]) -> dict[str, Any]:
    """The fields of a JSON body as a form has them: what is an object or an array there is JSON text here.

    `repeats`: arrays that are repeated fields instead.
    """
    properties = {
        name: _form_field(field, repeats=name in repeats) for name, field in schema.get("properties", {}).items()
    }
    return {**copy.deepcopy(dict(schema)), "properties": properties}


def _form_field(field: Mapping[str, Any], *, repeats: bool) -> dict[str, Any]:
    plain = without_null(copy.deepcopy(dict(field)))
    if repeats or not _is_deep(plain):
        return plain
    description = plain.get("description")
    return {**_JSON_TEXT, **({"description": description} if description else {})}


def _is_deep(schema: Mapping[str, Any]) -> bool:
    if "$ref" in schema or schema.get("type") in {"array", "object"}:
        return True
    return any(_is_deep(choice) for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())))


def repeated_fields(model: type[BaseModel]) -> frozenset[str]:
    """Fields of which every value counts; only storage calls have some (Contract storage 2.1)."""
    return model.REPEATABLE if issubclass(model, StorageFields) else frozenset()


def form_example(example: Mapping[str, Any], *, repeats: frozenset[str]) -> dict[str, Any]:
    """The fields of a JSON body as a form has them."""
    return {
        name: json.dumps(value) if isinstance(value, dict | list) and name not in repeats else value
        for name, value in example.items()
    }


def tell_defaults(schema: Mapping[str, Any]) -> None:
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
    """Names of the schemas that are used, at any depth."""
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
