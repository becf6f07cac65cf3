"""The response models match the tables of the specification and the example bodies of the contract."""

import json
from typing import Any

import pytest
import yaml
from openapi_spec_validator import validate
from pydantic import BaseModel
from scripts.api_texts import TABLES
from tests.operations import read_operations

from queryserver.api.schemas import fields as snippets
from queryserver.api.schemas import generated, requests

DOCUMENT: dict[str, Any] = yaml.load(TABLES.joinpath("resources.yaml").read_bytes(), Loader=yaml.CSafeLoader)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
SAMPLES_FILE = TABLES / "texts" / "samples.yaml"
SAMPLES: dict[str, str] = yaml.load(SAMPLES_FILE.read_bytes(), Loader=yaml.CSafeLoader)

# The fields of each resource in Spec §2, in the specified order. The field `status` follows the specification's common
# rule.
SPECIFIED = {
    "TokenPair": "refresh access",
    "Notebook": "name uuid description type isSaved isManaged skipHistorify sessions snippets directoryUuid",
    "NotebookResponse": "status notebook",
    "ExecuteResponse": "status history_id history_uuid handle",
    "Handle": "statement_id session_type has_more_statements guid previous_statement_hash log_context statements_count"
    " start end session_id secret has_result_set session_guid statement operation_type modified_row_count",
    "Position": "row column",
    "StatusResponse": "status query_status",
    "QueryStatus": "status has_result_set",
    "ResultResponse": "status result",
    "ResultPage": "has_more type meta data isEscaped",
    "ColumnMeta": "name type comment",
    "LogsResponse": "status progress jobs logs isFullLogs",
    "HistoryResponse": "status count message history",
    "HistoryEntry": "name id uuid type data absoluteUrl",
    "HistoryData": "statement lastExecuted status parentSavedQueryUuid",
    "DatabaseList": "status databases",
    "ClientConfiguration": "app_config main_button_action button_actions default_sql_interpreter cluster_type"
    " has_computes svc_config clusters documents status",
    "AppConfig": "editor catalogs browser home",
    "EditorApp": "name displayName buttonName interpreters default_limit interpreter_names page"
    " default_sql_interpreter",
    "BrowserApp": "name displayName buttonName interpreters interpreter_names",
    "BrowserEntry": "type displayName buttonName tooltip page",
    "HomeApp": "name displayName buttonName interpreters page",
    "Interpreter": "name type id displayName buttonName tooltip optimizer page is_sql is_batchable dialect"
    " dialect_properties",
    "CatalogEntry": "name type id displayName buttonName tooltip page is_sql is_catalog",
    "ServiceFlags": "enable_sharing is_admin",
    "Cluster": "id name type credentials",
    "DocumentsConfig": "types",
    "Filesystem": "file_system user_home_directory",
    "FileEntry": "humansize url name mtime rwx path is_sentry_managed type mode stats",
    "FileStats": "size aclBit group user mtime path atime mode",
    "DirectoryView": "files",
    "FileView": "show_download_button is_embeddable editable mtime rwx path stats contents",
    "Connector": "id name nice_name dialect interface category description settings dialect_properties",
    "ConnectorType": "name nice_name dialect interface category description settings properties",
    "ConnectorSetting": "name value",
    "DialectProperties": "is_sql sql_identifier_quote sql_identifier_comment_single has_catalog has_database has_table"
    " has_live_queries has_optimizer_risks has_optimizer_values has_auto_limit has_reference_language"
    " has_reference_functions has_use_statement",
    "ConnectorGroup": "category category_name description values",
    "ConnectorList": "connectors status",
    "ConnectorTypeList": "connectors categories status",
    "ConnectorCategoryEntry": "name type description",
    "User": "id username first_name last_name email last_login editURL",
    "UsersResponse": "users status",
    "ImportedFile": "file_path",
    "DelimitedMetadata": "type field_separator quote_char record_separator",
    "ExcelMetadata": "type sheet_names",
    "HeaderGuess": "has_header",
    "Preview": "type columns preview_data",
    "PreviewColumn": "name type",
    "Unauthorized": "detail code messages",
    "TokenMessage": "token_class token_type message",
    "ImporterError": "error",
}


def model(name: str) -> type[BaseModel]:
    return getattr(generated, name)


def referenced(schema: Any) -> set[str]:
    """Return the names of all components to which a schema refers, at any depth of nesting."""
    if isinstance(schema, list):
        return {name for element in schema for name in referenced(element)}
    if not isinstance(schema, dict):
        return set()
    here = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
    return here | {name for value in schema.values() for name in referenced(value)}


def reachable(names: set[str]) -> set[str]:
    """Return `names` and the names of all components that they use, directly or indirectly."""
    found: set[str] = set()
    while names:
        found |= names
        names = {used for name in names for used in referenced(SCHEMAS[name])} - found
    return found


def test_tables_are_valid_openapi():
    validate(DOCUMENT)


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_specified_field_exists(name: str):
    assert set(SPECIFIED[name].split()) <= set(SCHEMAS[name]["properties"])


@pytest.mark.parametrize("name", SPECIFIED)
def test_unspecified_fields_are_marked_as_extensions(name: str):
    extensions = {key for key, value in SCHEMAS[name]["properties"].items() if value.get("x-extension")}
    assert extensions == set(SCHEMAS[name]["properties"]) - set(SPECIFIED[name].split())


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_has_a_description_and_source(name: str):
    assert SCHEMAS[name]["description"]
    assert SCHEMAS[name]["x-source"].startswith(("Spec ", "Contract ", "ADR "))


@pytest.mark.parametrize("name", SCHEMAS)
def test_models_have_table_keys_in_wire_order(name: str):
    described = model(name).model_json_schema(mode="serialization")
    described = {**described, **described.get("$defs", {}).get(name, {})}
    assert list(described.get("properties", {})) == list(SCHEMAS[name].get("properties", {}))
    assert described.get("required", []) == SCHEMAS[name].get("required", [])


@pytest.mark.platform(16)
@pytest.mark.parametrize("name", SAMPLES)
def test_contract_body_round_trips_byte_for_byte(name: str):
    compact = json.dumps(json.loads(SAMPLES[name]), ensure_ascii=False, separators=(",", ":"))
    assert model(name).model_validate_json(SAMPLES[name]).model_dump_json() == compact


@pytest.mark.platform(21)
def test_optional_key_is_omitted_and_never_null():
    assert generated.Unauthorized(detail="Authentication credentials were not provided.").model_dump() == {
        "detail": "Authentication credentials were not provided."
    }
    assert generated.ErrorBody(status=-1, code="not_found", message="").model_dump_json() == (
        '{"status":-1,"code":"not_found","message":""}'
    )


def test_exactly_the_unused_schemas_are_marked_planned():
    served = {name for row in read_operations() for name in row.response}
    failures = {"ErrorBody", "Unauthorized", "FieldErrors", "NotReadyResponse", "ImporterError"}
    in_use = reachable(served | failures | {"ProgressEvent", "LogEvent"})
    assert {name for name, schema in SCHEMAS.items() if schema.get("x-status") != "planned"} == in_use


def test_request_models_reuse_no_resource_name():
    request_models = {name for module in (requests, snippets) for name in vars(module) if name[0].isupper()}
    assert request_models & SCHEMAS.keys() == set()
