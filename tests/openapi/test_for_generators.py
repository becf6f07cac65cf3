"""The OpenAPI document is suitable for client generators: unions are unambiguous, values are enumerated, and optional
fields have defaults.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from scripts.api_schemas import FORM, JSON, references
from scripts.api_texts import rows, texts
from tests.openapi.test_completeness import COMPONENTS, DOCUMENT, OPERATIONS

from queryserver.api.errors import BODY_STATUS
from queryserver.api.v1.editor.metadata import TABLE_TYPES
from queryserver.connectors.types import Category
from queryserver.engines.protocol import TableKind
from queryserver.files.model import EntryKind, LongOperationState, Scheme
from queryserver.formats.arrow import ResultType
from queryserver.formats.cell_types.analysis import WarningCode
from queryserver.formats.table_files import FileType
from queryserver.formats.unpacking import Codec
from queryserver.platform.settings.tree import Level
from queryserver.statements.states import LimitSource, StatementState, Truncation, TruncationReason

SCHEMAS: Mapping[str, Any] = COMPONENTS["schemas"]
SAMPLES = texts().samples
BYTES = "application/octet-stream"
PAPERS = re.compile(r"\bContract\b|\bSpec\b|§|\bADR\b|Hue form|x-source|x-extension|x-status|brief")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
CUT_BY = tuple({Truncation(reason, source).limit_name for reason in TruncationReason for source in LimitSource})
WORDS: Mapping[str, tuple[str, ...]] = {
    "QueryStatus.state": tuple(StatementState),
    "QueryStatus.status": tuple({state.wire_status for state in StatementState}),
    "AdminStatement.state": tuple(StatementState),
    "HistoryData.state": tuple(StatementState),
    "HistoryData.status": tuple({state.wire_status for state in StatementState}),
    "ResultPage.truncated_reason": tuple(TruncationReason),
    "QueryStatus.truncated_reason": tuple(TruncationReason),
    "ResultPage.truncated_by": CUT_BY,
    "QueryStatus.truncated_by": CUT_BY,
    "ColumnMeta.type": tuple(ResultType),
    "TableSummary.type": ("Table", *TABLE_TYPES.values()),
    "TableDetailProperties.table_type": tuple(TableKind),
    "Filesystem.file_system": tuple(Scheme),
    "FileEntry.type": tuple(EntryKind),
    "FlatFileEntry.type": tuple(EntryKind),
    "StatResponse.type": tuple(EntryKind),
    "FileView.type": tuple(EntryKind),
    "FileWindow.compression": tuple(Codec),
    "FileDisplay.compression": tuple(Codec),
    "OperationProgress.state": tuple(LongOperationState),
    "ConfigProblem.level": tuple(Level),
    "Preview.type": tuple(FileType),
    "PreviewWarning.code": tuple(WarningCode),
    "Connector.category": tuple(Category),
    "ConnectorType.category": tuple(Category),
    "ConnectorGroup.category": tuple(Category),
    "ConnectorCategoryEntry.type": tuple(Category),
}
"""The values of each enumeration in responses, as the program defines them."""


def parts(part: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and content of every object in the document, except for objects in examples."""
    if isinstance(part, dict):
        yield place, part
        for key, value in part.items():
            if key not in {"example", "examples", "default", "const", "enum"}:
                yield from parts(value, f"{place}/{key}")
    elif isinstance(part, list):
        for position, element in enumerate(part):
            yield from parts(element, f"{place}/{position}")


def fields() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the location, name and schema of every property in every schema.

    Properties in `if` and `then` are omitted, because they only state conditions.
    """
    for place, part in parts(DOCUMENT):
        if {"if", "then"} & set(place.split("/")):
            continue
        if isinstance(part.get("properties"), dict) and (part.get("type") == "object" or "required" in part):
            for name, field in part["properties"].items():
                yield place, name, field


def unions() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of every response whose body may be one of several models, with the names of these models."""
    shared = [(name, answer) for name, answer in COMPONENTS["responses"].items()]
    own = [(f"{one.key} {s}", a) for one in OPERATIONS for s, a in one.spec["responses"].items() if "$ref" not in a]
    for name, answer in [*shared, *own]:
        schema = answer.get("content", {}).get(JSON, {}).get("schema", {})
        if "anyOf" in schema:
            yield name, [choice["$ref"].rpartition("/")[2] for choice in schema["anyOf"]]


def parses_as(model: str, body: Any) -> bool:
    """Return whether a generated client would parse `body` as `model`. Generated clients check required keys, constants
    and enumerations.
    """
    schema = SCHEMAS[model]
    if not isinstance(body, dict):
        return schema["type"] != "object"
    if schema["type"] != "object" or not set(schema.get("required", ())) <= body.keys():
        return False
    known = schema.get("properties", {})
    return all(
        body[key] in field.get("enum", [field.get("const", body[key])]) for key, field in known.items() if key in body
    )


class TestUnions:
    def test_first_matching_model_is_the_right_one(self):
        wrong: list[str] = []
        found = list(unions())
        for name, models in found:
            for model in models:
                if (body := SAMPLES.get(model)) is None:
                    continue
                taken = next((one for one in models if parses_as(one, body)), "none")
                wrong += [f"{name}: {model} is taken for {taken}"] if taken != model else []
        assert wrong == []
        assert sum("200" in name for name, _ in found) >= 39
        assert {model for _, models in found for model in models} - SAMPLES.keys() <= {"SkippedFiles"}

    def test_only_success_has_status_zero(self):
        models = {
            name
            for one in OPERATIONS
            for status, answer in one.answers.items()
            if status < "300"
            for name in references(answer.get("content", {}).get(JSON, {}).get("schema", {}))
        }
        statuses = {name: SCHEMAS[name].get("properties", {}).get("status") for name in models}
        failures = {"StatementFailure", "WatchFailure", "ExplainFailure", "ErrorBody"}
        assert failures <= models
        for name, status in statuses.items():
            if name in failures:
                assert 0 not in status.get("enum", [status.get("const", 0)]), name
            elif name == "BulkResponse":
                assert status["enum"] == [0, -1]
            elif status is not None:
                assert status["const"] == 0, name

    def test_every_error_status_is_in_the_document(self):
        used = {-1, -3, *BODY_STATUS.values()}
        assert used == set(SCHEMAS["ErrorBody"]["properties"]["status"]["enum"])


class TestWords:
    def test_every_field_and_parameter_has_a_description(self):
        assert [f"{place} {name}" for place, name, field in fields() if not field.get("description")] == []
        parameters = [(one.key, parameter) for one in OPERATIONS for parameter in one.spec.get("parameters", ())]
        assert [f"{key} {one['name']}" for key, one in parameters if not one.get("description")] == []

    def test_descriptions_cite_no_internal_documents(self):
        text = json.dumps(DOCUMENT, ensure_ascii=False)
        assert [text[max(0, m.start() - 60) : m.end() + 20] for m in PAPERS.finditer(text)] == []

    @pytest.mark.parametrize("name", WORDS)
    def test_enumerations_match_the_domain(self, name: str):
        model, _, field = name.partition(".")
        schema = SCHEMAS[model]["properties"][field]
        plain = next((one for one in schema.get("anyOf", ()) if "enum" in one), schema)
        assert sorted(word for word in plain["enum"] if word is not None) == sorted(WORDS[name])

    def test_times_use_the_time_format(self):
        unformatted = [
            f"{place} {name}"
            for place, name, field in fields()
            if re.search(r"\bUTC\b", field["description"]) and "without zone" not in field["description"]
            if "date-time" not in {one.get("format") for one in (field, *field.get("anyOf", ()))}
        ]
        assert unformatted == []

    def test_sample_times_are_rfc_3339(self):
        times = {name for _, name, field in fields() if "date-time" in json.dumps(field)} - {"lastModified"}
        found = [
            (name, value)
            for _, body in parts(list(SAMPLES.values()))
            for name, value in body.items()
            if name in times and isinstance(value, str) and value
        ]
        assert len(found) > 10
        assert [one for one in found if not RFC3339.fullmatch(one[1])] == []


class TestRequests:
    def test_fields_with_defaults_are_optional(self):
        bodies = [media["schema"] for one in OPERATIONS for media in one.bodies.values()]
        wanted, found = set(references(bodies)), set[str]()
        while wanted:
            found |= wanted
            wanted = {name for one in wanted for name in references(SCHEMAS[one])} - found
        used = [*bodies, *(SCHEMAS[name] for name in found)]
        known = [field for _, part in parts(used) for field in part.get("properties", {}).values()]
        assert [field for field in known if "default" in field] == []
        described = [field for field in known if "x-default" in field]
        assert len(described) > 50
        assert [field for field in described if not field["description"].endswith("`.")] == []

    def test_bodies_have_names(self):
        unnamed = [
            one.key for one in OPERATIONS for kind in (FORM, JSON) if kind in one.bodies
            if "$ref" not in one.bodies[kind]["schema"]
        ]  # fmt: skip
        assert unnamed == []
        log_in = next(one for one in OPERATIONS if one.spec["operationId"] == "log_in")
        names = {kind: schema["schema"]["$ref"].rpartition("/")[2] for kind, schema in log_in.bodies.items()}
        assert sorted(names.values()) == ["LogInRequest", "LogInRequestForm", "LogInRequestParts"]


class TestAnswers:
    def test_bytes_precede_file_types(self):
        kinds = {
            one.spec["operationId"]: list(answer["content"])
            for one in OPERATIONS
            for status, answer in one.answers.items()
            if status < "300"
            if any(media["schema"].get("format") == "binary" for media in answer.get("content", {}).values())
        }
        assert kinds.keys() == {"download_result", "download_path", "download_file", "download_server_logs"}
        assert {name for name, found in kinds.items() if found[0] != BYTES} == set()

    def test_alternative_paths_are_deprecated_and_name_the_main_one(self):
        names = {one.spec["operationId"]: one for one in OPERATIONS}
        others = {row.id: row.same_as for row in rows().values() if row.same_as}
        deprecated = {one.spec["operationId"]: one for one in OPERATIONS if one.spec.get("deprecated")}
        assert deprecated.keys() == others.keys()
        aliases = {name for name in names if re.search(r"_by_alias$|_of_query$|^query_on$", name)}
        assert aliases <= {one.spec["operationId"] for one in deprecated.values()}
        for key, same in others.items():
            assert f"`{same}`" in deprecated[key].spec["description"]
            assert not names[same].spec.get("deprecated")
            answers = [one.spec["responses"] for one in (deprecated[key], names[same])]
            success = min(answers[0])
            assert answers[0][success]["content"] == answers[1][success]["content"]
