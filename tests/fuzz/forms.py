"""Checks whether the OpenAPI document allows the fields of a form in the format in which they are sent.

A form contains only strings. Therefore a value to which the generator gives a wrong type may be sent as exactly the
bytes of a valid value. For example, a single field `path=a` is an array of one path. In JSON objects, too, the server
accepts a string as an array of one string. The document does not state this, because client generators would create a
class for each alternative of `anyOf`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any
from urllib.parse import parse_qsl

from jsonschema_rs import Draft202012Validator

from queryserver.platform.text import parse_boolean

_FORM, _PARTS, _JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"


def is_allowed_as_sent(body: bytes, content_type: str, schema: Mapping[str, Any], components: Any) -> bool:
    """Return whether the document allows the request body. `schema` is the schema of an object, and may refer to the
    document's `components`.

    Returns False for files, for text that is not valid UTF-8, and for bodies that are neither a form nor JSON.
    """
    properties = _target(schema, components).get("properties", {})
    try:
        if content_type.partition(";")[0].strip().lower() == _JSON:
            return _fits(schema, components, _with_arrays(json.loads(body), properties, components))
        sent = _sent(body, content_type)
    except ValueError:
        return False
    if sent is None:
        return False
    value = {name: _meant(texts, properties.get(name, {}), components) for name, texts in sent.items()}
    return _fits(schema, components, value)


def _with_arrays(value: Any, properties: Mapping[str, Any], components: Any) -> Any:
    """Wrap each string in an array if the schema of its field requires an array."""
    if not isinstance(value, dict):
        return value
    arrays = {name for name, one in properties.items() if _target(one, components).get("type") == "array"}
    return {name: [one] if name in arrays and isinstance(one, str) else one for name, one in value.items()}


def _sent(body: bytes, content_type: str) -> Mapping[str, list[str]] | None:
    """Return the values of each field, in order, as strings. Returns None if the body contains a file or is not a
    form.
    """
    texts: defaultdict[str, list[str]] = defaultdict(list)
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _FORM:
        for name, text in parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000):
            texts[name].append(text)
        return texts
    if kind != _PARTS:
        return None
    for part in (
        BytesParser(policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body).iter_parts()
    ):
        payload = part.get_payload(decode=True)
        if not isinstance(payload, bytes) or part.get_filename() is not None:
            return None
        texts[str(part.get_param("name", header="content-disposition"))].append(payload.decode())
    return texts


def _meant(texts: list[str], schema: Mapping[str, Any], components: Any) -> Any:
    """Return the value of a field. If the schema requires an array, this is a list of all strings; otherwise it is the
    last string, converted to a type that the schema allows.
    """
    if _target(schema, components).get("type") == "array":
        return texts
    return next((value for value in _readings(texts[-1]) if _fits(schema, components, value)), texts[-1])


def _readings(text: str) -> Iterator[Any]:
    yield text
    if (flag := parse_boolean(text)) is not None:
        yield flag
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        yield int(text)
    elif re.fullmatch(r"[+-]?[0-9]{1,30}\.[0-9]{1,30}", text):
        yield float(text)


def _target(schema: Mapping[str, Any], components: Any) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    _, _, group, name = schema["$ref"].split("/")
    return components[group][name]


def _fits(schema: Mapping[str, Any], components: Any, value: Any) -> bool:
    return Draft202012Validator({**schema, "components": components}).is_valid(value)
