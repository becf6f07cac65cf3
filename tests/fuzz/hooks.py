"""Configures schemathesis for this service. Schemathesis loads this file, which the variable SCHEMATHESIS_HOOKS
names.
"""

import json
import os
import random
from collections import deque
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis import AuthContext, Case, CheckContext, HookContext, Response
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.fuzz.forms import is_allowed_as_sent

TOKEN = "QUERYSERVER_FUZZ_TOKEN"
"""Environment variable that contains the administrator's access token."""
KNOWN = "QUERYSERVER_FUZZ_KNOWN"
"""Environment variable that contains existing values as JSON. The keys are the names of the fields that accept them."""
ANSWERED = "QUERYSERVER_FUZZ_ANSWERED"
"""Environment variable that contains the path of a file. A line with operation and status is appended to it for each
response.
"""

_choices = random.Random(7)
# Cases into which this server's existing values were inserted. The document may require values of another type.
_known_were_put = deque[Case](maxlen=1000)
# The bearer token determines the required fields of this call, but this run sends no token with it.
_WITH_THE_BEARER = {"POST /api/v1/token/revoke"}
# A change of the run's own user could end the token.
_ON_A_USER = {"POST /api/v1/iam/users/update", "POST /api/v1/iam/users/revoke_tokens"}
_GONE = 410
_FINE = {"catalog_unavailable", "engine_unavailable", "key_server_unavailable"}


# The end of a session, and a revoke call without a body, would revoke the token with which they are sent, and the run
# would have no credentials. Therefore these calls have no token.
@schemathesis.auth().skip_for(path=["/api/v1/token/revoke", "/api/v1/token/session/end"])
class Bearer:
    """Adds the administrator's token to all calls except these."""

    def get(self, case: Case, context: AuthContext) -> str:
        del case, context
        return os.environ[TOKEN]

    def set(self, case: Case, data: str, context: AuthContext) -> None:
        del context
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """In valid calls, replace about half of all invented names with existing ones. Otherwise nearly all calls would
    return 404.
    """
    del context, kwargs
    is_change = case.operation.label in _ON_A_USER and isinstance(case.body, dict)
    if is_change and str(case.body.get("username")).strip().lower() == "admin":
        case.body["username"] = "ana"
    if case.meta is not None and case.meta.generation.mode.is_negative:
        return  # an existing value could make the call valid
    known = json.loads(os.environ[KNOWN])
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict):
            for name in place.keys() & known.keys():
                if _choices.random() < 0.5:
                    _known_were_put.append(case)
                    place[name] = _choices.choice(known[name])


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Record the operation and status of each response, so that a run in which all calls are refused is not considered
    successful.
    """
    del context
    with Path(os.environ[ANSWERED]).open("a") as answered:
        answered.write(f"{case.operation.label}\t{response.status_code}\n")


# Reasons for refusals that request schemas cannot express, so even a call that the schema allows may be refused. The
# operations' descriptions state the reasons.
_ABOUT_WHAT_EXISTS = {
    "ambiguous_name", "connector_not_found", "decompression_failed", "encoding_error", "file_empty", "file_not_found",
    "format_mismatch", "immutable_field", "no_table", "not_a_directory", "not_a_file", "not_in_trash", "not_text",
    "partial_failure", "range_not_satisfiable", "root_not_allowed", "same_path", "separator_required",
    "sheet_required", "storage_not_configured", "target_inside_source", "unknown_authority", "unknown_scheme",
    "unknown_setting", "unsupported_format", "validation_failed",
}  # fmt: skip
_ABOUT_TWO_FIELDS = {
    "conflicting_parameters",  # two forms of the same parameter in a call
    "idempotency_conflict",  # the key was already used for a different call
    "invalid_columns",  # depends on the types of the chosen dialect
    "invalid_name",  # limits count UTF-8 bytes and apply only to the last name of a path
    "invalid_path",  # limits count UTF-8 bytes; encodings may be nested
    "invalid_username",  # letters of all scripts are allowed
    "invalid_password",  # the settings define its length and strength
    "invalid_right",  # ids of connectors are unlimited
}
_BEYOND_SCHEMAS = (
    # A rule for all strings, which the guide states once. A pattern in each of 600 fields would add no information.
    "U+0000", "an unescaped control character", "is not valid UTF-8",
    # `contentMediaType` and `contentSchema` are annotations, which do not validate the JSON string in a form field.
    "is not valid: The JSON text does not parse", "must be a JSON",
    # OpenAPI cannot express that one query parameter requires another.
    "has_header is required", "sql_dialect is required", "compression is only supported for the format arrow",
    "begin must not be above end", "begin and end must enclose",
    # A schedule's kind, and whether it is new, determine which fields are required. Addresses and connectors must
    # exist.
    "schedule", "notify", "Unknown task", "connectors: unknown connector", "connectors: a token with the scope",
    "max_estimated_bytes: a token with the scope",
    "sources: unknown source", "offset must be below",
    # An export goes to a path, or to a table of a connector. The name of a file may give its format, which determines
    # the compressions. A grant ends in the future and names at least one user or group.
    "path is required, or connector and table", "format is required, because", "if_exists: a folder of part files",
    "compression: xlsx files", "can be compressed with zstd, but not with gzip", "until must be",
    "users or groups is required",
    # A script's operation has only the statements that were started.
    "statement_id: this operation has",
    # A service account has no password, other users need one. The two lists of rights must differ.
    "password is required", "password: a service account", "grant and revoke must not",
    # Schemas cannot express which characters an encoding can represent.
    "contents cannot be encoded as",
    # The statement determines which values are required. The connector determines which settings it accepts.
    "parameters: ", "parameter_rows: ", "settings: ", "statement: ", "scopes: ",
    "operationId is required", "statement is required", "session.type is required",
    # Schemas cannot express these grammars: date formats, escape sequences, printable text in all scripts, modes.
    "date_format must", "must have 1 to 8 characters", "must be one character", "must not contain lone surrogates",
    "must not contain U+0000 or line breaks", "must differ and must not contain each other", "printable characters",
    "field_facets must contain no blank names",
    "sources must contain no blank names", "columns", "null_words",
    # The level of the path determines which operations are available.
    "operation must be schema", "operation: ", "The path must end with the name of a function",
    # An upload's body is read as a stream, in which the other fields precede the only file.
    "An upload must be multipart/form-data", "A file is required",
)  # fmt: skip


@schemathesis.check
def invalid_is_refused(context: CheckContext, response: Response, case: Case) -> None:
    """Check that the server refuses calls that the document forbids."""
    if not (_is_special(case) or _is_allowed_as_sent(response, case)):
        negative_data_rejection(context, response, case)


@schemathesis.check
def valid_is_accepted(context: CheckContext, response: Response, case: Case) -> None:
    """Check that the server accepts calls that the document allows, unless it refuses them for a reason that schemas
    cannot express.
    """
    # The document does not mark a body with alternative types as required, because a client generator would produce
    # broken code for it.
    has_none = case.method == "POST" and not response.request.body
    if not (has_none or _is_special(case) or _is_beyond_schemas(response)):
        positive_data_acceptance(context, response, case)


def _is_special(case: Case) -> bool:
    return case.operation.label in _WITH_THE_BEARER or any(case is one for one in _known_were_put)


def _is_allowed_as_sent(response: Response, case: Case) -> bool:
    """Return whether a generated form is invalid only because of its types, and is sent as the bytes of an allowed
    form.
    """
    places = case.meta.components if case.meta is not None else {}
    body, media = response.request.body, case.media_type
    if (
        media is None
        or not isinstance(body, str | bytes)
        or {place.value for place in places if places[place].mode.is_negative} != {"body"}
    ):
        return False
    raw = case.operation.definition.raw["requestBody"]["content"][media]["schema"]
    content = body.encode() if isinstance(body, str) else body
    components = case.operation.schema.raw_schema["components"]
    return is_allowed_as_sent(content, str(response.request.headers["Content-Type"]), raw, components)


def _is_beyond_schemas(response: Response) -> bool:
    if response.status_code == _GONE or "json" not in response.headers.get("content-type", [""])[0]:
        return response.status_code == _GONE
    response_body = response.json()
    if not isinstance(response_body, dict):
        return False
    code, text = response_body.get("code"), str(response_body.get("message") or response_body.get("error") or "")
    return code in _ABOUT_WHAT_EXISTS | _ABOUT_TWO_FIELDS or any(words in text for words in _BEYOND_SCHEMAS)


@schemathesis.check
def no_fault(context: CheckContext, response: Response, case: Case) -> None:
    """Check that the response is not a 5xx. A documented 501 and a 503 that an external system causes are allowed."""
    del context
    status = response.status_code
    if status < 500:
        return
    declared = {str(one) for one in case.operation.definition.raw["responses"]}
    if status == 501 and "501" in declared:
        return
    if status == 503 and response.json().get("code") in _FINE:
        return
    raise AssertionError(f"{status}: {response.text[:500]}")
