"""Request bodies and query parameters of the editor and session calls (Contract editor 4 to 12).

Create models only with `parse`. A value that clients may send in two ways (short form, full form) is read through the
properties of the model, never from its fields.
"""

import json
import re
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, WithJsonSchema, model_validator

from queryserver.api.schemas.fields import (
    INT64_MAX,
    ConnectorReference,
    Fields,
    Flag,
    Json,
    Nested,
    Number,
    OptionalText,
    PageSize,
    ShortArray,
    Text,
    Whole,
    any_of,
    filled,
    given,
    is_clean,
    must,
    parse,
)
from queryserver.api.schemas.requests.parameters import ParameterRowsField, ParametersField
from queryserver.errors.base import InvalidParameter, MissingParameter, conflicting_parameters
from queryserver.identity.model import BigNumbers
from queryserver.platform.text import is_array, is_object
from queryserver.sql.parameters import Parameters, read_parameter_rows, read_parameters

HISTORY_LIMIT_MAX = 100
MAX_BATCH_ROWS = 100_000
PAGE_MAX = 10**9
KEY_MAX = 255
_LONG_NUMBER = re.compile(r"[+-]?0*[1-9][0-9]{18,}")
KEY_RULE = f"be 1 to {KEY_MAX} printable ASCII characters."

Model = TypeVar("Model", bound=Fields)


_MAX_KEPT_VALUES = 10_000
_PASSWORDS = ("password", "passwd", "pwd")
_STEERING = frozenset({"statement_id", "statements_count", "has_more_statements", "previous_statement_hash"})


class PreviousHandle(Fields):
    """The handle of the previous statement, as the client received it (Contract editor 5.3)."""

    statement_id: Annotated[int, Whole(0)] = 0
    statements_count: Annotated[int, Whole(0)] = 0
    has_more_statements: Flag = False
    previous_statement_hash: Text = ""
    guid: OptionalText = None

    @property
    def steers(self) -> bool:
        """Whether any of the four members is present that select the next statement."""
        return not _STEERING.isdisjoint(self.model_fields_set)


class SnippetResult(Fields):
    """The part of a snippet that identifies an operation."""

    handle: Nested[PreviousHandle] | None = None


class SnippetConnector(Fields):
    """A connector, identified by its key or id."""

    type: ConnectorReference | None = None
    id: ConnectorReference | None = None


def _setting_value(value: Any) -> str:
    """Engines take settings as text; JSON scalars are written as JSON writes them."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str) or not is_clean(value):
        raise must("be text, a number or a boolean.")
    return value


class Setting(Fields):
    """One engine setting; the connector decides whether it is allowed."""

    key: Text
    value: Annotated[str, BeforeValidator(_setting_value), WithJsonSchema({"type": ["string", "number", "boolean"]})]


class SnippetProperties(Fields):
    """Properties of a snippet that are passed to the engine."""

    settings: ShortArray[tuple[Nested[Setting], ...]] = ()


class Snippet(Fields):
    """A statement in the full form."""

    type: Text | None = None
    connector: Nested[SnippetConnector] | None = None
    statement: OptionalText = None
    database: OptionalText = None
    properties: Nested[SnippetProperties] = SnippetProperties()
    result: Nested[SnippetResult] = SnippetResult()

    @property
    def dialect(self) -> str | None:
        """What identifies the connector: `connector` overrides `type` (Contract editor 1.7)."""
        chosen = self.connector and (self.connector.type or self.connector.id)
        return chosen or self.type or None

    @property
    def guid(self) -> str | None:
        """The token that identifies an operation in the full form."""
        return self.result.handle.guid if self.result.handle else None


class NotebookSession(Fields):
    """A session that the notebook has for one dialect."""

    type: Text | None = None
    id: Annotated[int, Whole()] | None = None


class NotebookFields(Fields):
    """The notebook around a snippet."""

    type: Text | None = None
    uuid: OptionalText = None
    is_saved: Flag = Field(default=False, alias="isSaved")
    skip_historify: Flag = Field(default=False, alias="skipHistorify")
    parent_saved_query_uuid: OptionalText = Field(default=None, alias="parentSavedQueryUuid")
    sessions: ShortArray[tuple[Nested[NotebookSession], ...]] = ()

    @property
    def hides_history(self) -> bool:
        """Whether its operations are left out of get_history (Contract editor 4.1)."""
        return self.skip_historify or self.type == "notebook"

    @property
    def saved_uuid(self) -> str | None:
        """The `history_parent_uuid` of its operations; None unless the notebook is saved."""
        return (self.parent_saved_query_uuid or self.uuid) if self.is_saved else None

    def session_of(self, names: Collection[str]) -> int | None:
        """The session for a connector known by one of `names`, compared case-insensitively."""
        wanted = {name.casefold() for name in names}
        return next(
            (one.id for one in self.sessions if one.id is not None and (one.type or "").casefold() in wanted), None
        )


def _clean_tree(properties: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The properties, if they can be stored as JSON. Not recursive, so deep nesting is harmless."""
    left: list[Any] = list(properties)
    seen = 0
    while left:
        seen += 1
        if seen > _MAX_KEPT_VALUES:
            raise must(f"hold at most {_MAX_KEPT_VALUES} values.")
        value = left.pop()
        if isinstance(value, str) and not is_clean(value):
            raise must("be free of U+0000 and of lone surrogates.")
        if isinstance(value, float) and not isfinite(value):
            raise must("hold finite numbers only.")
        if is_object(value):
            left += [*value.keys(), *value.values()]
        elif is_array(value):
            left += value
    return properties


def _is_password(one: Mapping[str, Any]) -> bool:
    """Whether a property is a password by its name or key, in any spelling."""
    names = [str(one.get(member, "")).casefold() for member in ("name", "key")]
    return any(word in name for name in names for word in _PASSWORDS)


class SessionSpec(Fields):
    """A session in the form of create_session and close_session."""

    type: OptionalText = None
    id: Annotated[int, Whole()] | None = None
    properties: Annotated[ShortArray[list[dict[str, Any]]], AfterValidator(_clean_tree)] = []  # noqa: RUF012

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password for the data source, if at least one of them is present."""
        user, password = self._credential("user"), self._credential("password")
        return None if user is None and password is None else (user or "", password or "")

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings, subject to the connector's allowed settings."""
        given: Any = self._value("key", "settings") or []
        return {setting.key: setting.value for setting in _SETTINGS.validate_python(given)}

    @property
    def shown_properties(self) -> list[dict[str, Any]]:
        return [{**one, "value": ""} if _is_password(one) else one for one in self.properties]

    def _credential(self, name: str) -> str | None:
        value = self._value("name", name)
        if value is not None and not isinstance(value, str):
            raise must("hold user and password as text.")
        return value

    def _value(self, member: str, name: str) -> Any:
        return next((one.get("value") for one in self.properties if one.get(member) == name), None)

    @model_validator(mode="after")
    def _values_have_their_types(self) -> Self:
        """Read the values here once, so that the properties above cannot raise later."""
        _ = self.credentials, self.settings
        return self


_SETTINGS = TypeAdapter(ShortArray[list[Nested[Setting]]])


def _idempotency_key(value: str) -> str:
    if not (1 <= len(value) <= KEY_MAX and value.isascii() and value.isprintable()):
        raise must(KEY_RULE)
    return value


BigNumbersField: TypeAlias = Annotated[
    BigNumbers | None,
    Field(
        description="`text`: cells of BIGINT_TYPE columns, and integers of 64 bits within arrays, maps and structs, are"
        " JSON strings, as decimals always are: JSON readers that make doubles of numbers lose digits beyond 2^53."
        " `meta` then has `as_text` for each column. `number`: they are JSON numbers. Without it the preference of the"
        " user is in force, which is `number` at first (iam/preferences)."
    ),
]
"""How numbers are written that may have more digits than a double keeps; None: as the user prefers."""


KEY_SCHEMA = Field(json_schema_extra={"pattern": f"^[ -~]{{1,{KEY_MAX}}}$"})


class IdempotencyHeader(Fields):
    """The header with the same effect as the field `client_request_id` of execute (Contract editor 4.4)."""

    key: Annotated[Text, AfterValidator(_idempotency_key)] | None = Field(default=None, alias="Idempotency-Key")


class ExecuteNotify(Fields):
    """Notifications at the end of a statement."""

    url: Text = Field(description="Address that gets a signed call: https, or http on loopback.")


class ExecuteRequest(Fields):
    """Fields of execute in its three forms (Contract editor 4.1)."""

    model_config = any_of(filled("statement"), filled("operationId"), filled("snippet", "statement"))

    statement: OptionalText = None
    database: OptionalText = None
    operation_id: OptionalText = Field(default=None, alias="operationId")
    session_id: Annotated[int, Whole()] | None = None
    wait: Annotated[float, Number(0, 60)] = 0
    timeout: Annotated[int, Whole(1, 86400)] | None = None
    limit: Annotated[int, PageSize()] | None = Field(
        default=None,
        description="Rows to keep; without it as many as `result_max_rows` and `result_max_bytes` of the server allow."
        " `query_status` says whether a result was cut. What the server cut, and not this limit, ends with"
        " `truncated` in fetch_result_data.",
    )
    rows: Annotated[int, PageSize(MAX_BATCH_ROWS, minimum=0)] = Field(
        default=0,
        description="So many first rows, at most 100,000, come in `result` of this answer, as fetch_result_data gives"
        " them, if the statement ends within `wait`. Later fetches go on after them.",
    )
    run_all: Flag = Field(
        default=False,
        description="All statements of the script run in order, in one session, as one operation; the first failure"
        " ends it. `query_status.statements` says how each one went. Without it one statement runs, and `warning` says"
        " so where there are more.",
    )
    escape: Flag | None = None
    big_numbers: BigNumbersField = None
    client_request_id: Annotated[Text, AfterValidator(_idempotency_key), KEY_SCHEMA] | None = None
    parameters: ParametersField = None
    parameter_rows: ParameterRowsField = None
    notify: Json[ExecuteNotify] | None = Field(
        default=None,
        description='`{"url": …}`: this address gets a signed call when the statement has ended. Needs the setting'
        " `desktop.task_server.webhook_secret`.",
    )
    notebook: Json[NotebookFields] = NotebookFields()
    snippet: Json[Snippet] = Snippet()

    @property
    def script(self) -> str | None:
        """The submitted script; None to continue the stored script of `operation_id`. Raises MissingParameter."""
        script = self.statement or self.snippet.statement
        if script is None and self.operation_id is None:
            raise MissingParameter("statement is required and must not be blank.")
        return script

    @property
    def values(self) -> Parameters | None:
        """The parameter values. Raises InvalidParameter, conflicting_parameters."""
        if self.parameter_rows is None:
            return None if self.parameters is None else read_parameters(self.parameters)
        # An empty value is passed on so that calls without parameter rows are refused.
        if self.parameters or self.operation_id is not None or self.run_all:
            raise conflicting_parameters("parameter_rows goes with none of parameters, operationId and run_all.")
        return read_parameter_rows(self.parameter_rows)

    @property
    def current_database(self) -> str | None:
        return self.database or self.snippet.database

    @property
    def previous(self) -> PreviousHandle | None:
        """The handle of the full form, if it selects the statement to run."""
        handle = self.snippet.result.handle
        return handle if handle and handle.steers else None

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings of the full form; of equal keys the last one counts."""
        return {setting.key: setting.value for setting in self.snippet.properties.settings}

    def idempotency_key(self, header: str | None) -> str | None:
        """The key from the header `Idempotency-Key` or the field.

        Raises InvalidParameter for an invalid header, conflicting_parameters if they differ.
        """
        if header is None:
            return self.client_request_id
        key = parse(IdempotencyHeader, {"Idempotency-Key": header}).key
        if self.client_request_id not in (None, key):
            raise conflicting_parameters("client_request_id and the header Idempotency-Key differ.")
        return key

    def session_for(self, names: Collection[str]) -> int | None:
        return self.notebook.session_of(names) if self.session_id is None else self.session_id


StatementIdField: TypeAlias = Annotated[
    Annotated[int, Whole(0, 2**31 - 1)] | None,
    Field(
        description="For an operation with `run_all`: 0-based position of the statement in the script. Without it the"
        " last statement that gave a result set."
    ),
]


class OperationRequest(Fields):
    """Fields of every call on an existing operation (Contract editor 2.4)."""

    model_config = any_of(filled("operationId"), filled("snippet", "result", "handle", "guid"))

    operation_id: OptionalText = Field(default=None, alias="operationId")
    snippet: Json[Snippet] = Snippet()
    notebook: Json[NotebookFields] = NotebookFields()

    @property
    def id_and_guid(self) -> tuple[str | None, str | None]:
        """The operation id if the call has one, otherwise the `guid` of a handle. Raises MissingParameter."""
        guid = None if self.operation_id else self.snippet.guid
        if not (self.operation_id or guid):
            raise MissingParameter("operationId is required.")
        return self.operation_id, guid


class EndRequest(OperationRequest):
    """Fields of cancel_statement and close_statement; `notebook.uuid` may identify the operation too."""

    model_config = any_of(
        filled("operationId"), filled("snippet", "result", "handle", "guid"), filled("notebook", "uuid")
    )

    @property
    def id_and_guid(self) -> tuple[str | None, str | None]:
        if self.notebook.uuid and not (self.operation_id or self.snippet.guid):
            return self.notebook.uuid, None
        return super().id_and_guid


class CheckStatusRequest(OperationRequest):
    """Fields of check_status (Contract editor 4.2). `wait` is in seconds."""

    wait: Annotated[float, Number(0, 60)] = 0


class ResultRequest(OperationRequest):
    """Fields of the calls on a result."""

    statement_id: StatementIdField = None


class FetchRequest(ResultRequest):
    """Fields of fetch_result_data (Contract editor 6.1). The default of `escape` is a setting."""

    rows: Annotated[int, PageSize(MAX_BATCH_ROWS)] = Field(
        default=100,
        description="Rows of this batch; a number above 100,000 means 100,000. `has_more` says whether there are more.",
    )
    start_over: Flag = Field(default=False, alias="startOver")
    start_row: Annotated[int, Whole(0)] | None = None
    escape: Flag | None = None
    big_numbers: BigNumbersField = None


class ResultMetadataRequest(ResultRequest):
    """Fields of fetch_result_metadata (Contract editor 6.2)."""

    big_numbers: BigNumbersField = None


class LogsRequest(OperationRequest):
    """Fields of get_logs (Contract editor 7.1). Without `from`: the whole log."""

    start: Annotated[int, Whole(0)] | None = Field(default=None, alias="from")
    size: Annotated[int, PageSize()] | None = None
    full_log: Text = Field(default="", description="Accepted, not used.")


class EventsParameters(Fields):
    log_from: Annotated[int, Whole(0)] = 0


class DownloadParameters(Fields):
    statement_id: StatementIdField = None
    format: Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"] = "csv"
    guard: Flag = False
    allow_truncated: Flag = Field(
        default=False,
        description="Download the rows that were kept also where the server cut the result; else that is 409"
        " `truncated`. A result that was cut by the `limit` of its call needs no permission.",
    )
    compression: Literal["none", "lz4"] = Field(
        default="none",
        description="For `arrow` alone: `lz4` sends the buffers of its batches packed, mostly as they are stored."
        " Then the size is known, and a part by `Range` costs no more than its own bytes.",
    )

    def packed(self) -> bool:
        """Whether the rows are sent compressed. Raises InvalidParameter for a format other than `arrow`."""
        if self.compression != "none" and self.format != "arrow":
            raise InvalidParameter("compression is for the format arrow alone.")
        return self.compression == "lz4"


def _as_int64(value: Any) -> Any:
    """Decimal text beyond int64 as the int64 bound: out of every range, but still a number."""
    if not isinstance(value, str) or not _LONG_NUMBER.fullmatch(value):
        return value
    return -INT64_MAX if value.startswith("-") else INT64_MAX


class HistoryParameters(Fields):
    """Query of get_history (Contract editor 11).

    `doc_type` None: all dialects; `is_active`: only waiting and running ones.
    """

    doc_type: OptionalText = None
    doc_text: OptionalText = None
    doc_connector: OptionalText = None
    # A page beyond the end is empty; the offset of this largest page number still fits PostgreSQL's bigint.
    page: Annotated[
        int,
        Whole(1),
        BeforeValidator(_as_int64),
        AfterValidator(lambda page: min(page, PAGE_MAX)),
        WithJsonSchema({"type": "integer", "minimum": 1}),
    ] = 1
    limit: Annotated[
        int,
        Whole(),
        BeforeValidator(_as_int64),
        AfterValidator(lambda limit: limit if 1 <= limit <= HISTORY_LIMIT_MAX else HISTORY_LIMIT_MAX),
        WithJsonSchema({"type": "integer"}),
    ] = 50
    is_active: Flag = Field(default=False, description="Only statements that wait or run.")
    is_notification_manager: Flag = False


class CreateNotebookRequest(Fields):
    """Fields of create_notebook (Contract editor 12)."""

    type: OptionalText = None
    directory_uuid: OptionalText = None


class SessionRequest(Fields):
    """Fields of create_session (Contract editor 9.1). `database`: the initial database of the session."""

    model_config = any_of(filled("session", "type"))

    session: Json[SessionSpec]
    database: OptionalText = None

    @model_validator(mode="after")
    def _has_a_type(self) -> Self:
        if self.session.type is None:
            raise MissingParameter("session.type is required.")
        return self


class CloseSessionRequest(Fields):
    """Fields of close_session (Contract editor 9.2). Without an id, `session.type` selects the sessions."""

    model_config = any_of(filled("session", "type"), given("session", type="object", **given("id", type="integer")))

    session: Json[SessionSpec]

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if self.session.type is None and self.session.id is None:
            raise MissingParameter("session.type is required.")
        return self


class ExplainRequest(Fields):
    """Fields of explain (Contract editor 8.3)."""

    model_config = any_of(filled("statement"), filled("snippet", "statement"))

    statement: OptionalText = None
    database: OptionalText = None
    session_id: Annotated[int, Whole()] | None = None
    parameters: ParametersField = None
    snippet: Json[Snippet] = Snippet()

    @property
    def script(self) -> str | None:
        return self.statement or self.snippet.statement

    @property
    def current_database(self) -> str | None:
        return self.database or self.snippet.database


class FormatRequest(Fields):
    """Fields of format (Contract editor 8.4)."""

    model_config = any_of(filled("statements"), filled("statement"))

    statements: OptionalText = None
    statement: OptionalText = None
    dialect: OptionalText = None

    @property
    def script(self) -> str | None:
        return self.statements or self.statement
