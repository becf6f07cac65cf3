"""The OpenAPI document and the request parsers accept the same strings for each field of forms and queries."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, ValidationError
from scripts.api_schemas import FORM
from tests.openapi.test_completeness import COMPONENTS, OPERATIONS, ROWS, Described, resolved
from tests.operations import shape

from queryserver.api.schemas.fields import JSON_DEPTH
from queryserver.api.schemas.requests.importer import ImportFields
from queryserver.platform.text import MAX_DEPTH, parse_boolean

BIG = 2**63 - 1
TEXTS = (
    *("", " ", "x", "X", "ä", ".", "a,b", "1,2", "null", "[]", "{}", '"x"', "true", "TRUE", "nay", "query"),
    *("0", "1", "-1", "+1", "1.5", "1e3", "1.25e-45", "1e999", " 1", "1 "),
    *map(str, (BIG, BIG + 1, -BIG, -BIG - 1, 10**30, -(10**30))),
)
"""Strings that are tested for every field. Each field is also tested with its enumerated values and with the numbers
around its limits.
"""
BLANK = {"", " "}
LEFT_TO_THE_CALL: Mapping[str, set[str] | None] = {
    # The call rejects blank values after it has parsed its other fields.
    **dict.fromkeys(("path", "src_path", "dest_path", "name", "file_path", "table"), BLANK),
    # The call compares these values case-insensitively with lists of encodings, users or applications.
    **dict.fromkeys(("encoding", "doas", "app_name")),
    # No schema can express this grammar.
    "date_format": None,
    # Token calls parse their fields themselves, because their errors have a different format.
    **dict.fromkeys(("username", "password", "token", "refresh", "all")),
}
"""For each field, the strings about which schema and parser may disagree. None stands for all strings."""


@cache
def validator(schema: str) -> Draft202012Validator:
    whole = {**json.loads(schema), "components": COMPONENTS} if "$ref" in schema else json.loads(schema)
    return Draft202012Validator(whole, validate_formats=True)


def readings(text: str) -> Iterator[Any]:
    """Yield the values that a string in a form may represent: the string itself, a list of it, a flag, or a number."""
    yield text
    yield [text]
    flag = parse_boolean(text)
    if flag is not None:
        yield flag
    if re.fullmatch(r"[+-]?[0-9]+", text):
        yield int(text)
    elif re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text) and not float(text).is_integer():
        yield float(text)  # a whole number such as 1e3 would match the type integer, of which strings have only digits


def is_described(schema: Mapping[str, Any], text: str, *, takes_empty: bool) -> bool:
    fits = validator(json.dumps(schema)).is_valid
    return (takes_empty and text == "") or any(fits(reading) for reading in readings(text))


def is_read(model: type[BaseModel], name: str, text: str) -> bool:
    """Return whether the request parser accepts this string for the field."""
    if text == "" and issubclass(model, ImportFields):
        return not model.model_fields[name].is_required()
    value = [text] if name in getattr(model, "REPEATABLE", ()) else text
    try:
        model.model_validate({name: value}, context={JSON_DEPTH: MAX_DEPTH})
    except ValidationError as error:
        return all(problem["loc"][:1] != (name,) for problem in error.errors())
    return True


def fields(one: Described) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield the name and schema of each form or query field, and whether the document also allows the empty string."""
    if one.method == "POST":
        body = resolved(one.bodies[FORM]["schema"]) if FORM in one.bodies else {}
        yield from ((name, field, False) for name, field in body.get("properties", {}).items())
    else:
        for parameter in one.spec.get("parameters", ()):
            if parameter["in"] == "query":
                yield parameter["name"], parameter["schema"], parameter.get("allowEmptyValue", False)


def chosen_texts(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for part in schema:
            yield from chosen_texts(part)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "enum":
                yield from map(str, value)
            elif key in {"minimum", "maximum"}:
                yield from (str(int(value) + step) for step in (-1, 0, 1))
            else:
                yield from chosen_texts(value)


def test_parsers_accept_exactly_the_texts_the_document_allows():
    seen: set[tuple[str, str]] = set()
    wrong: list[str] = []
    for one in OPERATIONS:
        if (model := ROWS[one.method, shape(one.path)].request) is None:
            continue
        for name, schema, takes_empty in fields(one):
            # `contentMediaType` is an annotation, so schemas do not validate JSON strings. Row headers have no model.
            if "contentMediaType" in schema or name not in model.model_fields or (model.__name__, name) in seen:
                continue
            seen.add((model.__name__, name))
            for text in dict.fromkeys((*TEXTS, *chosen_texts(schema))):
                left = LEFT_TO_THE_CALL.get(name, set[str]())
                if left is None or text in left:
                    continue
                described = is_described(schema, text, takes_empty=takes_empty)
                if described != is_read(model, name, text):
                    wrong.append(f"{one.key} {name}={text!r}: {'refused' if described else 'accepted'} against it")
    assert wrong == []
    assert len(seen) > 150
