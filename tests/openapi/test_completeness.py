"""The OpenAPI document is complete: every operation has descriptions and statuses, and all examples match their
schemas.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator
from scripts.api_schemas import FORM, JSON, PARTS
from scripts.api_texts import texts
from scripts.export_openapi import TARGET
from tests.operations import read_operations, shape

from queryserver.api.schemas.fields import parse
from queryserver.api.schemas.requests.importer import parse_import
from queryserver.api.schemas.requests.storage import RequestFields, StorageFields, parse_request
from queryserver.errors.base import QueryServerError

# The committed document. test_document.py compares it with a newly generated document, which takes seconds.
DOCUMENT: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))
COMPONENTS = DOCUMENT["components"]
ROWS = {row.key: row for row in read_operations()}


@dataclass(frozen=True, slots=True)
class Described:
    method: str
    path: str
    spec: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def answers(self) -> Mapping[str, Mapping[str, Any]]:
        return {status: resolved(answer) for status, answer in self.spec["responses"].items()}

    @property
    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        return self.spec.get("requestBody", {}).get("content", {})


def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    _, _, group, name = part["$ref"].split("/")
    return COMPONENTS[group][name]


OPERATIONS = [
    Described(method.upper(), path, spec) for path, calls in DOCUMENT["paths"].items() for method, spec in calls.items()
]


def each(test: Callable[[Any, Described], None]) -> Callable[[Any], None]:
    """Turn a test of one operation into a test that checks all operations and reports all failures together.

    Separate tests would take ten times as long.
    """

    def of_all(self: Any) -> None:
        failed: dict[str, str] = {}
        for one in OPERATIONS:
            try:
                test(self, one)
            except (AssertionError, KeyError, QueryServerError) as problem:
                failed[one.key] = f"{type(problem).__name__}: {problem}"
        assert failed == {}

    of_all.__name__ = test.__name__
    return of_all


def problems(schema: Mapping[str, Any], example: Any) -> list[str]:
    """Return the validation errors of an example. Its schema may refer to the document's components."""
    validator = _validator(json.dumps(schema))
    return [f"{list(error.instance_path)}: {error.message}" for error in validator.iter_errors(example)]


@cache
def _validator(schema: str) -> Draft202012Validator:
    """Return the validator of a schema, which is given as JSON. It is cached, because building one takes 20 ms and most
    schemas have many examples.
    """
    return Draft202012Validator({**json.loads(schema), "components": COMPONENTS})


def examples_of(media: Mapping[str, Any]) -> Iterator[Any]:
    if "example" in media:
        yield media["example"]
    for one in media.get("examples", {}).values():
        yield one["value"]


class TestWords:
    def test_names_are_unique_and_suitable_for_clients(self):
        names = [one.spec["operationId"] for one in OPERATIONS]
        assert [name for name, count in Counter(names).items() if count > 1] == []
        assert [name for name in names if not re.fullmatch(r"[a-z]+(?:_[a-z]+)*", name)] == []

    @each
    def test_operations_are_described(self, one: Described):
        assert one.spec["summary"]
        assert one.spec["description"].endswith(".")
        assert not re.search(r"Contract [a-z]+ \d|Spec §", one.spec["description"])
        assert set(one.spec["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}

    @each
    def test_parameters_have_types_descriptions_and_examples(self, one: Described):
        for parameter in one.spec.get("parameters", ()):
            assert parameter["description"], parameter["name"]
            assert parameter["schema"].keys() & {"type", "anyOf", "enum", "$ref"}, parameter["name"]
            if "example" in parameter:
                assert problems(parameter["schema"], parameter["example"]) == [], parameter["name"]
        wanted = set(re.findall(r"\{(\w+)\}", one.path))
        given = {p["name"]: p for p in one.spec.get("parameters", ()) if p["in"] == "path"}
        assert given.keys() == wanted
        assert all("example" in parameter for parameter in given.values())

    @each
    def test_body_fields_are_described(self, one: Described):
        for media in one.bodies.values():
            schema = resolved(media["schema"])
            parts = [schema, *(resolved(part) for part in schema.get("allOf", ()))]
            fields = {name: field for part in parts for name, field in part.get("properties", {}).items()}
            assert [name for name, field in fields.items() if not field.get("description")] == []

    def test_service_is_described(self):
        info = DOCUMENT["info"]
        assert info["license"]["identifier"] == "Apache-2.0"
        assert "contact" not in info
        assert "trailing slash is optional" in info["description"]
        assert [server["url"] for server in DOCUMENT["servers"]] == ["/"]


class TestAnswers:
    @each
    def test_statuses_typical_of_the_kind_are_listed(self, one: Described):
        wanted = {"405"}
        row = ROWS[one.method, shape(one.path)]
        if row.rights in {"user", "admin"}:
            wanted |= {"401", "429", "500"}
        if row.rights == "admin":
            wanted |= {"403"}
        if row.rights == "network":
            wanted |= {"403", "404"}
        if one.method == "POST" and row.group != "importer":
            wanted |= {"400", "413", "415", "503"}
        if "{" in one.path:
            wanted |= {"404"}
        assert wanted <= one.answers.keys()
        assert one.answers.keys() <= {str(status) for status in texts().words["failures"]} | {
            "200", "201", "202", "206", "304"
        }  # fmt: skip

    @each
    def test_success_status_matches_the_table(self, one: Described):
        row = ROWS[one.method, shape(one.path)]
        assert str(row.http) in one.answers
        assert any(status < "400" for status in one.answers) == (row.http < 400)

    @each
    def test_responses_have_descriptions_headers_and_typed_bodies(self, one: Described):
        for status, answer in one.answers.items():
            assert answer["description"], status
            assert "X-Request-Id" in answer["headers"], status
            if status in {"429", "503"}:
                assert "Retry-After" in answer["headers"]
            if status == "401":
                assert "WWW-Authenticate" in answer["headers"]
            if status == "405":
                assert "Allow" in answer["headers"]
            if status != "304":
                assert answer["content"], status
                assert all(media["schema"] for media in answer["content"].values()), status

    @pytest.mark.platform(101)
    @each
    def test_every_response_has_an_example_matching_its_schema(self, one: Described):
        for status, answer in one.answers.items():
            for kind, media in answer.get("content", {}).items():
                examples = list(examples_of(media))
                assert examples or media["schema"] == {"type": "object"}, f"{status} {kind}"
                for example in examples:
                    assert problems(media["schema"], example) == [], f"{status} {kind}"

    @each
    def test_each_response_model_has_an_example(self, one: Described):
        for status, answer in one.answers.items():
            models = answer.get("content", {}).get(JSON, {}).get("schema", {}).get("anyOf", ())
            if status < "300":
                named = answer.get("content", {}).get(JSON, {}).get("examples", {})
                assert {model["$ref"].rpartition("/")[2] for model in models} == named.keys()


class TestRequests:
    @each
    def test_bodies_are_accepted_in_every_encoding(self, one: Described):
        if not one.bodies:
            return
        if set(one.bodies) != {PARTS}:
            assert set(one.bodies) == {FORM, PARTS, JSON}
            return
        schema = resolved(one.bodies[PARTS]["schema"])
        parts = [schema, *(resolved(part) for part in schema.get("allOf", ()))]
        files = [f for part in parts for f in part.get("properties", {}).values() if f.get("format") == "binary"]
        assert files

    @pytest.mark.platform(101)
    @each
    def test_every_body_has_an_example_matching_its_schema(self, one: Described):
        for kind, media in one.bodies.items():
            examples = list(examples_of(media))
            assert examples, kind
            for example in examples:
                assert problems(media["schema"], example) == [], kind

    @pytest.mark.platform(2)
    @each
    def test_server_accepts_the_example(self, one: Described):
        model = ROWS[one.method, shape(one.path)].request
        if model is None or one.method == "GET":
            return
        read = [read_as(model, one, one.bodies[kind]["example"]) for kind in (JSON, FORM) if kind in one.bodies]
        assert all(fields == read[0] for fields in read), "the encodings differ"

    @each
    def test_calls_with_a_field_model_show_a_body(self, one: Described):
        row = ROWS[one.method, shape(one.path)]
        if row.method == "POST" and row.request:
            assert one.bodies


def read_as(model: Any, one: Described, example: Mapping[str, Any]) -> Any:
    """Parse an example's fields as the operation's handler does."""
    if issubclass(model, StorageFields):
        body = {name: value if isinstance(value, list) else [value] for name, value in example.items()}
        return parse_request(model, RequestFields({}, body), max_json_depth=64)
    if one.path.startswith("/api/v1/importer/"):
        return parse_import(model, example)
    return parse(model, example)


def test_each_scheme_matches_the_table():
    for one in OPERATIONS:
        needs_user = ROWS[one.method, shape(one.path)].rights in {"user", "admin"}
        assert one.spec["security"] == ([{"bearer": []}] if needs_user else []), one.key
