"""Request fields of the calls for schedules and the test email (Contract platform 10.7, 10.8)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo

from queryserver.api.schemas.fields import (
    MAX_ENTRIES,
    ConnectorReference,
    Fields,
    Flag,
    Integer,
    OptionalText,
    PageSize,
    ShortArray,
    Text,
    must,
    parse_json_text,
    require_object,
)
from queryserver.tasks.schedule_model import Notify, Overlap, ScheduleKind

T = TypeVar("T")


def _object(value: Any, info: ValidationInfo) -> Mapping[str, Any]:
    return require_object(parse_json_text(value, info))


JsonWithNulls: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object, sent as a JSON object or as JSON text, in which null removes a member."""


def _moment(value: Any) -> Any:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is not None:
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # out of range: outside the years 1 to 9999 in UTC
        pass
    raise must("be a time such as 2026-01-05T09:10:11Z.")


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
    expires_at: Annotated[datetime | None, BeforeValidator(_moment)] = Field(
        default=None, description="Time after which the schedule does not fire."
    )
    notify: JsonWithNulls[NotifyFields] | None = Field(default=None, description="Notifications about ended runs.")

    @property
    def given(self) -> dict[str, Any]:
        """The members that were sent, including nulls, converted to domain types; `id` and `version` are omitted."""
        members = {name: getattr(self, name) for name in self.model_fields_set - {"id", "version"}}
        if self.kind is not None:
            members["kind"] = ScheduleKind(self.kind)
        if self.overlap is not None:
            members["overlap"] = Overlap(self.overlap)
        if self.notify is not None:
            members["notify"] = self.notify.notify
        if self.params is not None:
            members["params"] = dict(self.params)
        return members


class ScheduleRequest(Fields):
    """Fields of schedules/new and update."""

    schedule: JsonWithNulls[ScheduleFields] = Field(description="The schedule.")


class ScheduleIdFields(Fields):
    """A schedule; only its id is used."""

    id: Annotated[int, Integer(1)] = Field(description="Number of the schedule.")


class ScheduleIdRequest(Fields):
    """Fields of schedules/delete and run."""

    schedule: JsonWithNulls[ScheduleIdFields] = Field(description="An object with the `id` of the schedule.")


class ScheduleListParameters(Fields):
    enabled: Annotated[Flag | None, Field(description="Only enabled or disabled schedules.")] = None
    owner: Annotated[OptionalText, Field(description="Only schedules of the user with this name.")] = None
    page: Annotated[int, Integer(1), Field(description="Page number, from 1.")] = 1
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Maximum number of schedules on a page.")] = 50


class EmailTestRequest(Fields):
    to: Annotated[OptionalText, Field(description="Email address; by default the caller's.")] = None
