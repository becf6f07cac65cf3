"""Request bodies and query parameters of editor and session calls (Contract editor 4 to 12).

Create models only with `parse`. Clients may send some values in either of two fields (the short and the full form).
Properties return such values from the field that was sent, so use them instead of the fields.
"""

import json
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, WithJsonSchema, model_validator

from queryserver.api.schemas.fields import (
    ConnectorReference,
    EntriesPerPage,
    Fields,
    Flag,
    Integer,
    Json,
    Nested,
    Number,
    OptionalText,
    PageNumber,
    PageSize,
    ParameterRowsField,
    ParametersField,
    ShortArray,
    Text,
    TicketField,
    any_of,
    is_storable_text,
    must,
    parse,
    requires,
    requires_text,
)
from queryserver.api.schemas.requests.destinations import DestinationFields, RequestedDestination
from queryserver.errors.base import InvalidParameter, MissingParameter, conflicting_parameters
from queryserver.identity.model import BigNumbers
from queryserver.platform.settings.editor import MAX_REUSE_AGE_S
from queryserver.platform.text import is_array, is_object
from queryserver.sql.parameters import Parameters, read_parameter_rows, read_parameters

MAX_BATCH_ROWS = 100_000
MAX_KEY_LENGTH = 255
KEY_RULE = f"be 1 to {MAX_KEY_LENGTH} printable ASCII characters."

Model = TypeVar("Model", bound=Fields)


_MAX_PROPERTY_VALUES = 10_000
_PASSWORDS = ("password", "passwd", "pwd")
_SELECTING_MEMBERS = frozenset({"statement_id", "statements_count", "has_more_statements", "previous_statement_hash"})


class PreviousHandle(Fields):
    """The handle of the previous statement, as the client received it (Contract editor 5.3)."""

    statement_id: Annotated[int, Integer(0)] = 0
    statements_count: Annotated[int, Integer(0)] = 0
    has_more_statements: Flag = False
    previous_statement_hash: Text = ""
    guid: OptionalText = None

    @property
    def selects_statement(self) -> bool:
        """Whether at least one of the four members that select the next statement is present."""
        return not _SELECTING_MEMBERS.isdisjoint(self.model_fields_set)


class SnippetResult(Fields):
    """The part of a snippet that identifies an operation."""

    handle: Nested[PreviousHandle] | None = None


class SnippetConnector(Fields):
    """A connector, identified by its key or id."""

    type: ConnectorReference | None = None
    id: ConnectorReference | None = None


def _setting_value(value: Any) -> str:
    """Convert the value to a string, because engines take settings as strings. Numbers and booleans become JSON."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str) or not is_storable_text(value):
        raise must("be a string, a number or a boolean.")
    return value


class Setting(Fields):
    """One engine setting. The connector decides whether it is allowed."""

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
        """The connector reference: `connector` takes precedence over `type` (Contract editor 1.7)."""
        chosen = self.connector and (self.connector.type or self.connector.id)
        return chosen or self.type or None

    @property
    def guid(self) -> str | None:
        """The token that identifies an operation in the full form, or None if it is absent."""
        return self.result.handle.guid if self.result.handle else None


class NotebookSession(Fields):
    """A notebook session for one dialect."""

    type: Text | None = None
    id: Annotated[int, Integer()] | None = None


class NotebookFields(Fields):
    """The notebook that contains a snippet."""

    type: Text | None = None
    uuid: OptionalText = None
    is_saved: Flag = Field(default=False, alias="isSaved")
    skip_historify: Flag = Field(default=False, alias="skipHistorify")
    parent_saved_query_uuid: OptionalText = Field(default=None, alias="parentSavedQueryUuid")
    sessions: ShortArray[tuple[Nested[NotebookSession], ...]] = ()

    @property
    def hides_history(self) -> bool:
        """Whether get_history omits the operations of this notebook (Contract editor 4.1)."""
        return self.skip_historify or self.type == "notebook"

    @property
    def saved_uuid(self) -> str | None:
        """The `history_parent_uuid` of the notebook's operations, or None if the notebook is not saved."""
        return (self.parent_saved_query_uuid or self.uuid) if self.is_saved else None

    def session_of(self, names: Collection[str]) -> int | None:
        """Return the id of the first session whose type is one of `names`, ignoring case, or None if there is none."""
        wanted = {name.casefold() for name in names}
        return next(
            (one.id for one in self.sessions if one.id is not None and (one.type or "").casefold() in wanted), None
        )


def _clean_tree(properties: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the properties unchanged after checking that they can be stored as JSON.

    The check is iterative, so deep nesting cannot exhaust the stack.
    """
    left: list[Any] = list(properties)
    seen = 0
    while left:
        seen += 1
        if seen > _MAX_PROPERTY_VALUES:
            raise must(f"contain at most {_MAX_PROPERTY_VALUES} values.")
        value = left.pop()
        if isinstance(value, str) and not is_storable_text(value):
            raise must("not contain U+0000 or lone surrogates.")
        if isinstance(value, float) and not isfinite(value):
            raise must("contain only finite numbers.")
        if is_object(value):
            left += [*value.keys(), *value.values()]
        elif is_array(value):
            left += value
    return properties


def _is_password(one: Mapping[str, Any]) -> bool:
    """Return whether the name or key of a property suggests a password."""
    names = [str(one.get(member, "")).casefold() for member in ("name", "key")]
    return any(word in name for name in names for word in _PASSWORDS)


class SessionSpec(Fields):
    """A session in create_session and close_session."""

    type: OptionalText = None
    id: Annotated[int, Integer()] | None = None
    properties: Annotated[ShortArray[list[dict[str, Any]]], AfterValidator(_clean_tree)] = []  # noqa: RUF012

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password for the data source, or None if both are absent."""
        user, password = self._credential("user"), self._credential("password")
        return None if user is None and password is None else (user or "", password or "")

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings as sent. The connector decides which of them are allowed."""
        given: Any = self._value("key", "settings") or []
        return {setting.key: setting.value for setting in _SETTINGS.validate_python(given)}

    @property
    def shown_properties(self) -> list[dict[str, Any]]:
        return [{**one, "value": ""} if _is_password(one) else one for one in self.properties]

    def _credential(self, name: str) -> str | None:
        value = self._value("name", name)
        if value is not None and not isinstance(value, str):
            raise must("contain user and password as strings.")
        return value

    def _value(self, member: str, name: str) -> Any:
        return next((one.get("value") for one in self.properties if one.get(member) == name), None)

    @model_validator(mode="after")
    def _values_have_their_types(self) -> Self:
        """Read both properties once, so that invalid values are rejected during validation instead of later."""
        _ = self.credentials, self.settings
        return self


_SETTINGS = TypeAdapter(ShortArray[list[Nested[Setting]]])


def valid_key(value: str) -> str:
    """Check an idempotency key."""
    if not (1 <= len(value) <= MAX_KEY_LENGTH and value.isascii() and value.isprintable()):
        raise must(KEY_RULE)
    return value


BigNumbersField: TypeAlias = Annotated[
    BigNumbers | None,
    Field(
        description="`text`: cells of BIGINT_TYPE columns, and 64-bit integers within arrays, maps and structs, are"
        " JSON strings, as decimals always are, because clients that read numbers as 64-bit floating point lose digits"
        " beyond 2^53. `meta` then has `as_text` for each column. `number`: they are JSON numbers. The default is the"
        " user's preference (iam/preferences), which is initially `number`."
    ),
]
"""JSON format of numbers that may lose digits in 64-bit floating point. None means the user's preference."""


KEY_SCHEMA = Field(json_schema_extra={"pattern": f"^[ -~]{{1,{MAX_KEY_LENGTH}}}$"})


class IdempotencyHeader(Fields):
    """The header `Idempotency-Key`, which has the same effect as the field `client_request_id` of execute.

    Contract editor 4.4.
    """

    key: Annotated[Text, AfterValidator(valid_key)] | None = Field(default=None, alias="Idempotency-Key")


def idempotency_key(header: str | None, field: str | None) -> str | None:
    """Return the key from the header `Idempotency-Key` or the field `client_request_id`, or None if both are absent.

    Raises InvalidParameter if the header is invalid, and conflicting_parameters if header and field differ.
    """
    if header is None:
        return field
    key = parse(IdempotencyHeader, {"Idempotency-Key": header}).key
    if field not in (None, key):
        raise conflicting_parameters("client_request_id and the header Idempotency-Key differ.")
    return key


class ExecuteNotify(Fields):
    """The notification about the end of a statement."""

    url: Text = Field(description="URL that receives a signed request: https, or http on loopback.")


class ExecuteRequest(Fields):
    """Fields of execute in its three forms (Contract editor 4.1)."""

    model_config = any_of(
        *map(requires_text, ("statement", "operationId", "document")), requires_text("snippet", "statement")
    )

    statement: OptionalText = None
    document: OptionalText = None
    database: OptionalText = None
    operation_id: OptionalText = Field(default=None, alias="operationId")
    session_id: Annotated[int, Integer()] | None = None
    wait: Annotated[float, Number(0, 60)] = 0
    timeout: Annotated[int, Integer(1, 86400)] | None = None
    limit: Annotated[int, PageSize()] | None = Field(
        default=None,
        description="Maximum number of rows to store; by default the server's limits `result_max_rows` and"
        " `result_max_bytes` apply. `query_status` reports whether the result was truncated. If the server's limits"
        " truncated it, rather than this limit, fetch_result_data reports `truncated` after the last row.",
    )
    rows: Annotated[int, PageSize(MAX_BATCH_ROWS, minimum=0)] = Field(
        default=0,
        description="Number of first rows, at most 100,000, to include as `result` in the response, in the form of"
        " fetch_result_data, if the statement ends within `wait`. Later fetches continue after these rows.",
    )
    run_all: Flag = Field(
        default=False,
        description="Run all statements of the script in order, in one session, as one operation that ends with the"
        " first failure. `query_status.statements` reports the state of each statement. By default, only one statement"
        " runs, and `warning` reports further statements.",
    )
    max_age_s: Annotated[int, Integer(0, MAX_REUSE_AGE_S)] | None = Field(
        default=None,
        description="Answer with the stored result of the same query of the same user, without asking the data source,"
        " if it was sent to the data source at most so many seconds ago; `query_status.reused_from` is then its"
        " operation. 0: always ask the data source. By default, the connector's option `reuse_max_age_s` (0) applies.",
    )
    read_only: Flag | None = Field(
        default=None,
        description="Refuse to change anything: only queries run, and the data source refuses changes by functions if"
        " it can. Always the case for API tokens with the scope `query:read` alone.",
    )
    max_estimated_bytes: Annotated[int, Integer(1, 2**63 - 1)] | None = Field(
        default=None,
        description="Do not run the statement if the data source expects to read more bytes. Requires a data source"
        " that estimates them.",
    )
    escape: Flag | None = None
    big_numbers: BigNumbersField = None
    client_request_id: Annotated[Text, AfterValidator(valid_key), KEY_SCHEMA] | None = None
    parameters: ParametersField = None
    parameter_rows: ParameterRowsField = None
    notify: Json[ExecuteNotify] | None = Field(
        default=None,
        description='`{"url": …}`: the URL receives a signed request when the statement has ended. Requires the setting'
        " `desktop.task_server.webhook_secret`.",
    )
    into: Json[DestinationFields] | None = Field(
        default=None,
        description="Write the rows to this destination instead of storing them as the result, without the limits of"
        " stored results. The result is one row that describes what was written.",
    )
    notebook: Json[NotebookFields] = NotebookFields()
    snippet: Json[Snippet] = Snippet()

    @property
    def script(self) -> str | None:
        """The submitted script, or None to run `document`, or to continue the stored script of `operation_id`.

        Raises MissingParameter, conflicting_parameters.
        """
        script = self.statement or self.snippet.statement
        if self.document is not None and (script or self.operation_id or self.parameter_rows is not None):
            raise conflicting_parameters("document cannot be combined with statement, operationId or parameter_rows.")
        if script is None and self.operation_id is None and self.document is None:
            raise MissingParameter("statement is required and must not be blank.")
        return script

    @property
    def values(self) -> Parameters | None:
        """The parameter values. Raises InvalidParameter, conflicting_parameters."""
        if self.parameter_rows is None:
            return None if self.parameters is None else read_parameters(self.parameters)
        # An empty value is passed on, so that `read_parameter_rows` rejects it.
        if self.parameters or self.operation_id is not None or self.run_all:
            raise conflicting_parameters("parameter_rows cannot be combined with parameters, operationId or run_all.")
        return read_parameter_rows(self.parameter_rows)

    def destination(self) -> RequestedDestination | None:
        """Return the destination of the rows. Raises MissingParameter, InvalidParameter, conflicting_parameters."""
        if self.into is not None and (self.run_all or self.rows or self.parameter_rows is not None):
            raise conflicting_parameters("into cannot be combined with run_all, rows or parameter_rows.")
        return None if self.into is None else self.into.requested()

    @property
    def current_database(self) -> str | None:
        return self.database or self.snippet.database

    @property
    def previous(self) -> PreviousHandle | None:
        """The handle in the full form, or None if it does not select the statement to run."""
        handle = self.snippet.result.handle
        return handle if handle and handle.selects_statement else None

    @property
    def settings(self) -> dict[str, str]:
        """Engine settings in the full form. If a key is repeated, the last value applies."""
        return {setting.key: setting.value for setting in self.snippet.properties.settings}

    def idempotency_key(self, header: str | None) -> str | None:
        return idempotency_key(header, self.client_request_id)

    def session_for(self, names: Collection[str]) -> int | None:
        return self.notebook.session_of(names) if self.session_id is None else self.session_id


StatementIdField: TypeAlias = Annotated[
    Annotated[int, Integer(0, 2**31 - 1)] | None,
    Field(
        description="For operations with `run_all`: 0-based position of the statement in the script. By default, the"
        " last statement with a result set."
    ),
]


class OperationRequest(Fields):
    """Fields of all calls for an existing operation (Contract editor 2.4)."""

    model_config = any_of(requires_text("operationId"), requires_text("snippet", "result", "handle", "guid"))

    operation_id: OptionalText = Field(default=None, alias="operationId")
    snippet: Json[Snippet] = Snippet()
    notebook: Json[NotebookFields] = NotebookFields()

    @property
    def id_and_guid(self) -> tuple[str | None, str | None]:
        """The operation id and None. If there is no id, None and the `guid` of a handle. Raises MissingParameter."""
        guid = None if self.operation_id else self.snippet.guid
        if not (self.operation_id or guid):
            raise MissingParameter("operationId is required.")
        return self.operation_id, guid


class EndRequest(OperationRequest):
    """Fields of cancel_statement and close_statement. `notebook.uuid` may also identify the operation."""

    model_config = any_of(
        requires_text("operationId"),
        requires_text("snippet", "result", "handle", "guid"),
        requires_text("notebook", "uuid"),
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
    """Fields of all calls that read a result."""

    statement_id: StatementIdField = None


class FetchRequest(ResultRequest):
    """Fields of fetch_result_data (Contract editor 6.1). The default of `escape` is a setting."""

    rows: Annotated[int, PageSize(MAX_BATCH_ROWS)] = Field(
        default=100,
        description="Maximum number of rows in this batch; values above 100,000 are reduced to it. `has_more` reports"
        " whether there are more rows.",
    )
    start_over: Flag = Field(default=False, alias="startOver")
    start_row: Annotated[int, Integer(0)] | None = None
    max_bytes: Annotated[int, Integer(1)] | None = Field(
        default=None,
        description="Return fewer rows if their JSON would be larger than this number of bytes, but at least one row.",
    )
    escape: Flag | None = None
    big_numbers: BigNumbersField = None


class ResultMetadataRequest(ResultRequest):
    """Fields of fetch_result_metadata (Contract editor 6.2)."""

    big_numbers: BigNumbersField = None


class LogsRequest(OperationRequest):
    """Fields of get_logs (Contract editor 7.1). By default, all log lines are returned."""

    start: Annotated[int, Integer(0)] | None = Field(default=None, alias="from")
    size: Annotated[int, PageSize()] | None = None
    full_log: Text = Field(default="", description="Ignored.")


class EventsParameters(Fields):
    log_from: Annotated[int, Integer(0)] = 0


class DownloadParameters(Fields):
    statement_id: StatementIdField = None
    format: Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"] = "csv"
    guard: Flag = False
    allow_truncated: Flag = Field(
        default=False,
        description="Download the stored rows even if the server truncated the result. By default, the response is 409"
        " `truncated`. Results that were truncated by the `limit` of their call can always be downloaded.",
    )
    compression: Literal["none", "lz4"] = Field(
        default="none",
        description="Only for `arrow`: `lz4` compresses the buffers of the batches, mostly as they are stored. Then the"
        " size of the file is known, and `Range` reads only the requested bytes.",
    )
    ticket: TicketField = None

    def packed(self) -> bool:
        """Return whether to compress the rows. Raises InvalidParameter if the format does not support compression."""
        if self.compression != "none" and self.format != "arrow":
            raise InvalidParameter("compression is only supported for the format arrow.")
        return self.compression == "lz4"


class HistoryParameters(Fields):
    """Query parameters of get_history (Contract editor 11). If `doc_type` is absent, all dialects are listed."""

    doc_type: OptionalText = None
    doc_text: OptionalText = None
    doc_connector: OptionalText = None
    page: PageNumber = 1
    limit: EntriesPerPage = 50
    is_active: Flag = Field(default=False, description="Return only waiting and running statements.")
    is_notification_manager: Flag = False


class CreateNotebookRequest(Fields):
    """Fields of create_notebook (Contract editor 12)."""

    type: OptionalText = None
    directory_uuid: OptionalText = None


class SessionRequest(Fields):
    """Fields of create_session (Contract editor 9.1). `database` is the initial database of the session."""

    model_config = any_of(requires_text("session", "type"))

    session: Json[SessionSpec]
    database: OptionalText = None

    @model_validator(mode="after")
    def _has_a_type(self) -> Self:
        if self.session.type is None:
            raise MissingParameter("session.type is required.")
        return self


class CloseSessionRequest(Fields):
    """Fields of close_session (Contract editor 9.2). If there is no id, all sessions of `session.type` are closed."""

    model_config = any_of(
        requires_text("session", "type"), requires("session", type="object", **requires("id", type="integer"))
    )

    session: Json[SessionSpec]

    @model_validator(mode="after")
    def _requires_type_or_id(self) -> Self:
        if self.session.type is None and self.session.id is None:
            raise MissingParameter("session.type is required.")
        return self


class ExplainRequest(Fields):
    """Fields of explain (Contract editor 8.3)."""

    model_config = any_of(requires_text("statement"), requires_text("snippet", "statement"))

    statement: OptionalText = None
    database: OptionalText = None
    session_id: Annotated[int, Integer()] | None = None
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

    model_config = any_of(requires_text("statements"), requires_text("statement"))

    statements: OptionalText = None
    statement: OptionalText = None
    dialect: OptionalText = None

    @property
    def script(self) -> str | None:
        return self.statements or self.statement
