"""Request fields of the calls for administration, connectors, tokens, users, schedules and metadata search.

Contract platform.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from queryserver.api.schemas.fields import (
    EMPTY_ALLOWED,
    FORM_PATTERN,
    INT64_MAX,
    MAX_ENTRIES,
    ConnectorReference,
    Fields,
    Flag,
    Integer,
    Json,
    Nested,
    OptionalText,
    PageSize,
    ParametersField,
    ShortArray,
    Text,
    any_of,
    decode_json_string,
    listed,
    moment,
    must,
    one_of,
    parse_json_text,
    require_object,
    requires,
    word_list_pattern,
)
from queryserver.api.schemas.requests.destinations import DestinationFields
from queryserver.api.schemas.requests.editor import BigNumbersField
from queryserver.errors.base import too_many_ids
from queryserver.identity.model import Scope
from queryserver.platform.text import is_array
from queryserver.statements.states import MAX_AGE_S, StateFilter, StatementState
from queryserver.tasks.model import Notify, Overlap, ScheduleKind, TaskState

T = TypeVar("T")


class ServerLogsParameters(Fields):
    reverse: Flag = False


OTHER_EXAMPLES = ("hive", "impala", "hbase", "pig", "oozie", "notebook", "search", "spark", "jobsub")
"""Hue applications for which this service has no examples. The response is 501."""
CONNECTOR_EXAMPLES = "connectors"


class InstallExamplesRequest(Fields):
    """Fields of install_app_examples."""

    model_config = any_of(requires("app_name", type="string"))

    app_name: Annotated[OptionalText, one_of(CONNECTOR_EXAMPLES, *OTHER_EXAMPLES)] = None


class StatementListParameters(Fields):
    user: Annotated[OptionalText, Field(description="Only statements of the user with this name.")] = None
    connector: Annotated[OptionalText, Field(description="Only statements on the connector with this id.")] = None
    state: Annotated[
        StateFilter, Field(description="`active` for waiting and running statements, `all`, or a state.")
    ] = StateFilter.ACTIVE
    older_than_s: Annotated[
        Annotated[int, Integer(0, MAX_AGE_S)] | None,
        Field(description="Only statements that were submitted at least this many seconds ago."),
    ] = None
    limit: Annotated[int, PageSize(1000), Field(description="Maximum number of statements in the response.")] = 100
    after: Annotated[Annotated[int, Integer(1)] | None, Field(description="`next_after` of the previous page.")] = None

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The states to list, or None for all states."""
        return self.state.states

    @property
    def older_than(self) -> timedelta | None:
        return None if self.older_than_s is None else timedelta(seconds=self.older_than_s)


def _id(value: Any) -> str | None:
    """Return the id as a string, or None for a blank string or 0, which identify no connector."""
    if type(value) is int:
        return str(value) if value else None
    if not isinstance(value, str):
        raise must("be a string or an integer.")
    return None if value.strip() in {"", "0"} else value.strip()


class ConnectorSettingFields(Fields):
    """A setting. The connector type defines its valid values."""

    name: Text
    value: Any = None


class ConnectorFields(Fields):
    """A connector as sent by an administrator."""

    id: Annotated[str | None, BeforeValidator(_id), WithJsonSchema({"type": ["string", "integer", "null"]})] = None
    nice_name: Text | None = None
    dialect: Text | None = None
    interface: Text | None = None
    description: Text | None = Field(default=None, description="Description, at most 1000 characters.")
    settings: ShortArray[tuple[Nested[ConnectorSettingFields], ...]] | None = None
    groups: ShortArray[tuple[Text, ...]] | None = None
    version: Annotated[int, Integer(0)] | None = Field(
        default=None, description="Version to change. The call is rejected if the stored version differs."
    )

    @property
    def setting_values(self) -> dict[str, Any] | None:
        """The setting values by name, or None if `settings` is absent. The last value of a repeated name applies."""
        return None if self.settings is None else {one.name: one.value for one in self.settings}


class ConnectorIdFields(Fields):
    """A connector, of which only the id is used."""

    id: Annotated[str | None, BeforeValidator(_id), WithJsonSchema({"type": ["string", "integer", "null"]})] = None


class ConnectorIdRequest(Fields):
    """Fields of connector/instance/delete."""

    connector: Json[ConnectorIdFields]


class ConnectorRequest(Fields):
    """Fields of connector/instance/update and test."""

    connector: Json[ConnectorFields]


class NewConnectorRequest(Fields):
    """Fields of connector/instance/new."""

    connector: Json[ConnectorFields] = ConnectorFields()


# Token calls also accept numbers as strings, and 0 and 1 as booleans.
_Credential: TypeAlias = Annotated[Text, WithJsonSchema({"type": ["string", "number"], "minLength": 1})]
_EndsAll: TypeAlias = Annotated[Flag, WithJsonSchema({"type": ["boolean", "string", "integer", "null"]})]


class LogInRequest(Fields):
    """Fields of token/auth."""

    username: _Credential = Field(
        description="Name of the user, 1 to 150 characters. Surrounding white space is ignored."
    )
    password: _Credential = Field(description="Password, 1 to 1024 bytes.")


class VerifyTokenRequest(Fields):
    """Fields of token/verify."""

    token: _Credential = Field(description="An access token.")


class RefreshTokenRequest(Fields):
    """Fields of token/refresh."""

    refresh: _Credential = Field(description="A refresh token.")


class RevokeTokenRequest(Fields):
    """Fields of token/revoke. By default, the bearer token of the call is revoked."""

    token: _Credential | SkipJsonSchema[None] = Field(default=None, description="An access token or a refresh token.")
    refresh: _Credential | SkipJsonSchema[None] = Field(default=None, description="A refresh token.")
    all: _EndsAll = Field(default=False, description="End all logins of the user.")


class FinishIssuerLoginRequest(Fields):
    """Fields of token/oidc/finish: the parameters with which the issuer sent the browser back."""

    code: Annotated[Text, Field(description="Code of the issuer.")]
    state: Annotated[Text, Field(description="State of the login.")]
    iss: Annotated[Text | None, Field(description="The issuer, if it has added itself to the parameters.")] = None
    remember: Annotated[
        Flag, Field(description="Keep the refresh token in a cookie; by false, it is in the response.")
    ] = True


class DevicePollRequest(Fields):
    """Fields of token/device/poll."""

    device: Annotated[Text, Field(description="`device` of the response of token/device/begin.")]


_DOWNLOAD = r"^(?!.*[?&]ticket=)/api/v1/(editor/download/[0-9A-Za-z-]+|storage/download(=[!\"$-~]+)?)/?(\?[!\"$-~]*)?$"


def _download(url: str) -> str:
    if not re.fullmatch(_DOWNLOAD, url):
        raise must("be the path and query of editor/download or storage/download, percent-encoded, without a ticket.")
    return url


class DownloadTicketRequest(Fields):
    """Fields of token/download."""

    url: Annotated[Text, AfterValidator(_download)] = Field(
        max_length=16_384,
        description="The download: path and query as the browser will send them, without the server's URL prefix.",
        json_schema_extra={"pattern": _DOWNLOAD},
        examples=["/api/v1/editor/download/0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10?format=csv"],
    )


def _token_id(value: Any) -> Any:
    try:
        return UUID(value) if isinstance(value, str) else value
    except ValueError:
        raise must("be the id of an API token.") from None


def _scope(value: Any) -> Any:
    if value not in tuple(Scope):  # in a JSON body, the value may have any type
        raise must(f"be one of {', '.join(Scope)}.")
    return value


ScopeNames: TypeAlias = Annotated[
    ShortArray[tuple[Annotated[Scope, BeforeValidator(_scope), one_of(*Scope)], ...]],
    BeforeValidator(listed),
    Field(
        json_schema_extra={"minItems": 1, FORM_PATTERN: word_list_pattern(*Scope)},
        description="Scopes of the token as a JSON array; in a form also as a comma-separated list.",
    ),
]
ConnectorReferences: TypeAlias = Annotated[
    ShortArray[tuple[ConnectorReference, ...]] | None,
    BeforeValidator(listed),
    Field(
        description="Ids of the connectors that the token may use, as a JSON array; by default all the user may use."
    ),
]
_OTHER_USER = "Name of another user; for administrators."


class ApiTokenListParameters(Fields):
    username: Annotated[OptionalText, Field(description=_OTHER_USER)] = None
    all: Annotated[Flag, Field(description="List the tokens of all users; for administrators.")] = False
    page: Annotated[int, Integer(1)] = 1
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Maximum number of tokens on a page.")] = MAX_ENTRIES


class NewApiTokenRequest(Fields):
    """Fields of token/api_tokens/new."""

    name: Annotated[Text, Field(description="Name, 1 to 100 characters, unique among the user's tokens.")]
    scopes: ScopeNames
    connectors: ConnectorReferences = None
    max_estimated_bytes: Annotated[
        Annotated[int, Integer(1)] | None,
        Field(
            description="Statements with the token are not run if the data source expects that they read more bytes; by"
            " default, the token has no limit of its own. Not allowed with the scope `admin`."
        ),
    ] = None
    expires_in_days: Annotated[
        Annotated[int, Integer(1)] | None,
        Field(
            description="Days until the token expires. The settings `desktop.auth` define the default and the maximum."
        ),
    ] = None
    username: Annotated[OptionalText, Field(description=_OTHER_USER)] = None


class ApiTokenIdRequest(Fields):
    """Fields of token/api_tokens/revoke."""

    id: Annotated[
        UUID,
        BeforeValidator(_token_id),
        Field(description="Id of the token. Administrators may revoke tokens of any user."),
    ]


def _names(value: Any) -> Sequence[str] | None:
    """Return the names in all values, each of which is a comma-separated list, or None if there are none."""
    values: list[Any] = value if is_array(value) else [value]
    if not all(isinstance(one, str) for one in values):
        raise must("be a string.")
    return tuple(name for one in values for part in cast("str", one).split(",") if (name := part.strip())) or None


def _ids(value: Any, info: ValidationInfo) -> Sequence[int]:
    """Parse an array of integers, sent as a JSON array or as JSON text. Raises too_many_ids."""
    value = parse_json_text(value, info)
    if not isinstance(value, list | tuple):
        raise must("be a JSON array of integers.")
    entries = cast("Sequence[Any]", value)
    if len(entries) > MAX_ENTRIES:
        raise too_many_ids(f"userids must have at most {MAX_ENTRIES} entries.")
    if not all(type(entry) is int and abs(entry) <= INT64_MAX for entry in entries):
        raise must("be a JSON array of integers.")
    return entries


GroupNames: TypeAlias = Annotated[
    tuple[Text, ...] | None, BeforeValidator(_names), WithJsonSchema({"type": "array", "items": {"type": "string"}})
]
UserIds: TypeAlias = Annotated[
    tuple[int, ...],
    BeforeValidator(_ids),
    WithJsonSchema({"type": "string", "contentMediaType": "application/json", "default": "[]"}),
]


class UserListParameters(Fields):
    username: Text = ""
    filter: Annotated[
        OptionalText, Field(description="A part of the user name, of first and last name, or of the e-mail address.")
    ] = None
    groups: GroupNames = None
    is_active: Flag | None = None
    is_service_account: Flag | None = None
    page: Annotated[int, Integer(1)] | None = None
    limit: Annotated[int, PageSize(MAX_ENTRIES)] | None = None


class UsersParameters(Fields):
    userids: UserIds = ()


class UserAutocompleteParameters(Fields):
    filter: Text = ""
    count: Annotated[int, PageSize(MAX_ENTRIES)] = 100
    extend_user: Flag = False
    include_myself: Flag = False
    only_mygroups: Flag = False


class BudgetParameters(Fields):
    username: Annotated[OptionalText, Field(description=_OTHER_USER)] = None


class BudgetsParameters(Fields):
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Maximum number of users.")] = 20


class PreferencesRequest(Fields):
    """Preferences to change. Omitted preferences stay unchanged."""

    big_numbers: BigNumbersField = None

    @property
    def changes(self) -> Mapping[str, str]:
        return self.model_dump(exclude_none=True)


def _array(value: Any, info: ValidationInfo) -> Any:
    return [] if isinstance(value, str) and not value.strip() else parse_json_text(value, info)


def _no_blank(values: tuple[str, ...]) -> tuple[str, ...]:
    if any(not value.strip() for value in values):
        raise must("contain no blank names.")
    return values


def _state(value: Any) -> Any:
    """Return None for an empty string, and reject unknown states."""
    if value == "":
        return None
    if value not in tuple(TaskState):
        raise must(f"be one of {', '.join(TaskState)}.")
    return value


class TaskListParameters(Fields):
    state: Annotated[
        TaskState | None,
        BeforeValidator(_state),
        one_of(*TaskState),
        Field(description="Only tasks in this state.", json_schema_extra=EMPTY_ALLOWED),
    ] = None
    name: Annotated[OptionalText, Field(description="Only tasks with this name; `statement` for statement jobs.")] = (
        None
    )
    page: Annotated[int, Integer(1)] = 1
    limit: Annotated[int, PageSize(1000), Field(description="Maximum number of tasks on a page.")] = 50


class TaskRequest(Fields):
    """A task to run."""

    name: Annotated[Text, Field(description="Name of the task.")]
    params: Annotated[
        Json[dict[str, Any]], Field(description="Parameters of the task, as a JSON object.", default_factory=dict)
    ]


JsonText: TypeAlias = Annotated[Text, BeforeValidator(decode_json_string)]
JsonNames: TypeAlias = Annotated[ShortArray[tuple[Text, ...]], BeforeValidator(_array), AfterValidator(_no_blank)]


class SearchRequest(Fields):
    """Fields of entities_interactive."""

    query_s: JsonText = Field(default="", description="Search query, plain or as a JSON string.")
    sources: JsonNames = Field(
        default=(),
        description="Sources to search: `documents`, `sql`, `hdfs`, `s3` and dialects; by default the first four.",
    )
    field_facets: JsonNames = Field(default=(), description="Facets to count: `type`, `owner`, `tags`, `lastModified`.")
    interface: JsonText | None = Field(default=None, description="A catalog, plain or as a JSON string.")
    limit: Annotated[int, PageSize(1000)] = 25
    offset: Annotated[int, Integer(0)] = 0
    prefix: Text = Field(default="", description="Only facet values with this prefix, compared case-insensitively.")


def _object(value: Any, info: ValidationInfo) -> Mapping[str, Any]:
    return require_object(parse_json_text(value, info))


JsonWithNulls: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object, sent as a JSON object or as JSON text, in which null removes a member."""


def _or_nothing(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


BlankableText: TypeAlias = Annotated[Text | None, BeforeValidator(_or_nothing)]


class NotifyFields(Fields):
    """Notifications about ended runs."""

    on: ShortArray[tuple[Literal["finished", "failed"], ...]] = Field(
        default=("finished", "failed"), description="Outcomes that trigger a notification: `finished`, `failed`."
    )
    to: ShortArray[tuple[Text, ...]] = Field(default=(), description="Email addresses.")
    url: BlankableText = Field(
        default=None, description="URL that receives a signed request: https, or http on loopback."
    )
    attach_csv: Flag = Field(default=False, description="Attach the result to emails as CSV, within the size limits.")

    @property
    def notify(self) -> Notify:
        return Notify(tuple(dict.fromkeys(self.on)), tuple(dict.fromkeys(self.to)), self.url, self.attach_csv)


class ScheduleFields(Fields):
    """A schedule as sent by an administrator. In an update, omitted members are kept, and null removes a member."""

    id: Annotated[int, Integer(1)] | None = Field(
        default=None, description="Number of the schedule; omitted for new schedules."
    )
    version: Annotated[int, Integer(0)] | None = Field(
        default=None, description="Version to change. The call is rejected if the stored version differs."
    )
    name: Text | None = Field(default=None, description="Name, at most 100 characters, unique regardless of case.")
    enabled: Flag | None = Field(default=None, description="Whether the schedule fires at its times; true by default.")
    owner: Text | None = Field(
        default=None, description="Name of the user as whom the schedule runs; by default the caller."
    )
    kind: Literal["statement", "task"] | None = Field(default=None, description="`statement` or `task`.")
    connector: Annotated[ConnectorReference | None, BeforeValidator(_or_nothing)] = Field(
        default=None, description="Key or id of the connector on which the statement runs."
    )
    database: BlankableText = Field(default=None, description="Current database of the statement.")
    statement: BlankableText = Field(
        default=None, description="Statement to run, or a script, which runs up to the first failed statement."
    )
    document: BlankableText = Field(
        default=None, description="UUID of a saved query, which runs in place of `statement` as of the time of the run."
    )
    parameters: ParametersField = None
    into: JsonWithNulls[DestinationFields] | None = Field(
        default=None,
        description="Where the rows go, as `into` of execute. In `path`, `{date}` and `{time}` are the date and time"
        " for which the schedule fired, such as `2025-01-31` and `023000`.",
    )
    task: BlankableText = Field(default=None, description="Name of the task to run.")
    params: JsonWithNulls[Mapping[str, Any]] | None = Field(default=None, description="Parameters of the task.")
    cron: BlankableText = Field(
        default=None,
        description="Cron expression with five fields. Exactly one of `cron` and `interval_s` is required.",
    )
    interval_s: Annotated[int, Integer()] | None = Field(
        default=None, description="Seconds between runs, 10 to 31536000."
    )
    timezone: BlankableText = Field(default=None, description="IANA time zone of `cron`.")
    overlap: Literal["skip", "queue"] | None = Field(
        default=None, description="Action if a schedule fires during its previous run: `skip` (default) or `queue`."
    )
    expires_at: Annotated[datetime | None, BeforeValidator(moment)] = Field(
        default=None, description="Time after which the schedule does not fire."
    )
    notify: JsonWithNulls[NotifyFields] | None = Field(default=None, description="Notifications about ended runs.")

    @property
    def given(self) -> dict[str, Any]:
        """The members that were sent, including nulls, converted to domain types. Omits `id` and `version`."""
        members = {name: getattr(self, name) for name in self.model_fields_set - {"id", "version"}}
        if self.kind is not None:
            members["kind"] = ScheduleKind(self.kind)
        if self.overlap is not None:
            members["overlap"] = Overlap(self.overlap)
        if self.notify is not None:
            members["notify"] = self.notify.notify
        if self.params is not None:
            members["params"] = dict(self.params)
        if self.into is not None:
            sent = self.into.model_dump(mode="json", exclude_unset=True)
            members["into"] = {"given": sent, "destination": dict(self.into.requested().stored())}
        return members


class ScheduleRequest(Fields):
    """Fields of schedules/new and update."""

    schedule: JsonWithNulls[ScheduleFields] = Field(description="The schedule.")


class ScheduleIdFields(Fields):
    """A schedule, of which only the id is used."""

    id: Annotated[int, Integer(1)] = Field(description="Number of the schedule.")


class ScheduleIdRequest(Fields):
    """Fields of schedules/delete and run."""

    schedule: JsonWithNulls[ScheduleIdFields] = Field(description="An object with the `id` of the schedule.")


class ScheduleListParameters(Fields):
    enabled: Annotated[Flag | None, Field(description="Only enabled or disabled schedules.")] = None
    owner: Annotated[OptionalText, Field(description="Only schedules of the user with this name.")] = None
    page: Annotated[int, Integer(1), Field(description="Page number, from 1.")] = 1
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Maximum number of schedules on a page.")] = 50


class ScheduleRunListParameters(Fields):
    page: Annotated[int, Integer(1), Field(description="Page number, from 1.")] = 1
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Maximum number of runs on a page.")] = 50


class EmailTestRequest(Fields):
    to: Annotated[OptionalText, Field(description="Email address; by default the caller's.")] = None
