"""Forms are validated by their bytes: a single field counts as an array of one value, and all other deviations are
forbidden.
"""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from scripts.export_openapi import TARGET
from tests.fuzz.forms import is_allowed_as_sent

COMPONENTS: Any = json.loads(TARGET.read_text(encoding="utf-8"))["components"]
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data"
BOUNDARY = "b0undary"
FILE = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="path"; filename="a"\r\n\r\na\r\n--{BOUNDARY}--'


def is_allowed(model: str, fields: list[tuple[str, str]], kind: str = FORM) -> bool:
    schema = {"$ref": f"#/components/schemas/{model}"}
    if kind == FORM:
        return is_allowed_as_sent(urlencode(fields).encode(), kind, schema, COMPONENTS)
    head = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    parts = "".join(f"--{BOUNDARY}\r\n{head.format(name, text)}" for name, text in fields) + f"--{BOUNDARY}--\r\n"
    return is_allowed_as_sent(parts.encode(), f"{kind}; boundary={BOUNDARY}", schema, COMPONENTS)


@pytest.mark.parametrize("kind", [FORM, PARTS])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("path", "AAA"), ("skip_trash", "TRUE"), ("wait", "0")], True),
        ([("path", "{}")], True),
        ([("path", "a"), ("path", "b"), ("wait", "600")], True),
        ([("path", " ")], False),
        ([("path", "a"), ("path", "")], False),
        ([("path", "a"), ("wait", "601")], False),
        ([("path", "a"), ("wait", "x")], False),
        ([("path", "a"), ("wait", "1.0")], True),
        ([("path", "a"), ("wait", "0.5")], False),
        ([("path", "a"), ("skip_trash", "perhaps")], False),
        ([("wait", "0")], False),
        ([], False),
    ],
)
def test_sent_bytes_decide_whether_form_is_allowed(kind: str, fields: list[tuple[str, str]], expected: bool):
    assert is_allowed("DeleteRequestForm", fields, kind) == expected


@pytest.mark.parametrize("kind", [FORM, PARTS])
def test_last_text_of_a_non_array_field_counts(kind: str):
    assert is_allowed("RenameRequestForm", [("src_path", ""), ("src_path", "a"), ("dest_path", "b")], kind)
    assert not is_allowed("RenameRequestForm", [("src_path", "a"), ("dest_path", "b"), ("dest_path", "")], kind)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"path": ["a"]}', "text/plain"),
        (b"path=%FF", FORM),
        (b"path=\xff", FORM),
        (FILE.encode(), f"{PARTS}; boundary={BOUNDARY}"),
    ],
)
def test_non_text_forms_are_not_allowed(body: bytes, content_type: str):
    schema = {"$ref": "#/components/schemas/DeleteRequestForm"}
    assert not is_allowed_as_sent(body, content_type, schema, COMPONENTS)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"path": "AAA"}, True),
        ({"path": ["AAA"], "wait": None}, True),
        ({"path": " "}, False),
        ({"path": 1}, False),
        ({"path": "AAA", "wait": "x"}, False),
        ("AAA", False),
    ],
)
def test_json_text_counts_as_array_of_one(sent: object, expected: bool):
    schema = {"$ref": "#/components/schemas/DeleteRequest"}
    assert is_allowed_as_sent(json.dumps(sent).encode(), "application/json", schema, COMPONENTS) == expected
