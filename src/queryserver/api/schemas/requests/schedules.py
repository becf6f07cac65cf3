"""Fields of the calls for schedules and the mail test (Contract platform 10.7, 10.8)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo

from queryserver.api.schemas.fields import (
    MAX_ENTRIES,
    ConnectorReference,
    Fields,
    Flag,
    OptionalText,
    PageSize,
    ShortArray,
    Text,
    Whole,
    json_of,
    must,
    object_of,
)
from queryserver.tasks.schedule_model import Notify, Overlap, ScheduleKind

T = TypeVar("T")


def _object(value: Any, reading: ValidationInfo) -> Mapping[str, Any]:
    return object_of(json_of(value, reading))


JsonWithNulls: TypeAlias = Annotated[T, BeforeValidator(_object)]
"""An object as JSON text or native, in which null removes a member."""


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


Blankable: TypeAlias = Annotated[Text | None, BeforeValidator(_or_nothing)]


class NotifyFields(Fields):
    """Who is notified when a run ends."""

    on: ShortArray[tuple[Literal["finished", "failed"], ...]] = Field(
        default=("finished", "failed"), description="Which ends: `finished`, `failed`."
    )
    to: ShortArray[tuple[Text, ...]] = Field(default=(), description="Email addresses.")
    url: Blankable = Field(default=None, description="Address that gets a signed call: https, or http on loopback.")
    attach_csv: Flag = Field(default=False, description="Attach the result to mails as CSV, within the bounds.")

    @property
    def notify(self) -> Notify:
        return Notify(tuple(dict.fromkeys(self.on)), tuple(dict.fromkeys(self.to)), self.url, self.attach_csv)


class ScheduleFields(Fields):
    """A schedule as sent by an administrator. In an update, omitted members stay unchanged and null removes one."""

    id: Annotated[int, Whole(1)] | None = Field(default=None, description="Number of the schedule; not for new ones.")
    version: Annotated[int, Whole(0)] | None = Field(
        default=None, description="The version that is changed; another one than the stored is refused."
    )
    name: Text | None = Field(default=None, description="Name, at most 100 characters; unique without case.")
    enabled: Flag | None = Field(default=None, description="The schedule runs at its times; true by default.")
    owner: Text | None = Field(default=None, description="Name of the user as whom it runs; the caller by default.")
    kind: Literal["statement", "task"] | None = Field(default=None, description="`statement` or `task`.")
    connector: Annotated[ConnectorReference | None, BeforeValidator(_or_nothing)] = Field(
        default=None, description="Key or id of the connector that the statement runs on."
    )
    database: Blankable = Field(default=None, description="Current database of the statement.")
    statement: Blankable = Field(
        default=None, description="The statement that runs; of a script all of them, up to the first that fails."
    )
    task: Blankable = Field(default=None, description="Name of the task that runs.")
    params: JsonWithNulls[Mapping[str, Any]] | None = Field(default=None, description="Parameters of the task.")
    cron: Blankable = Field(default=None, description="Five fields; exactly one of `cron` and `interval_s` is given.")
    interval_s: Annotated[int, Whole()] | None = Field(
        default=None, description="Seconds between runs, 10 to 31536000."
    )
    timezone: Blankable = Field(default=None, description="IANA time zone of `cron`.")
    overlap: Literal["skip", "queue"] | None = Field(
        default=None, description="What a fire does while the last run goes on: `skip` by default, or `queue`."
    )
    expires_at: Annotated[datetime | None, BeforeValidator(_moment)] = Field(
        default=None, description="No fire comes after this time."
    )
    notify: JsonWithNulls[NotifyFields] | None = Field(default=None, description="Who is told about ends of runs.")

    @property
    def given(self) -> dict[str, Any]:
        """The members that were sent, including nulls, as values of a Plan."""
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
    """Fields of new and update."""

    schedule: JsonWithNulls[ScheduleFields] = Field(description="The schedule.")


class ScheduleIdFields(Fields):
    """A schedule of which only the id is used."""

    id: Annotated[int, Whole(1)] = Field(description="Number of the schedule.")


class ScheduleIdRequest(Fields):
    """Fields of delete and run."""

    schedule: JsonWithNulls[ScheduleIdFields] = Field(description="An object with the `id` of the schedule.")


class ScheduleListParameters(Fields):
    enabled: Annotated[Flag | None, Field(description="Only those that are switched on, or off.")] = None
    owner: Annotated[OptionalText, Field(description="Only those of the user of that name.")] = None
    page: Annotated[int, Whole(1), Field(description="Number of the page.")] = 1
    limit: Annotated[int, PageSize(MAX_ENTRIES), Field(description="Most schedules of one page.")] = 50


class EmailTestRequest(Fields):
    to: Annotated[OptionalText, Field(description="Address; that of the caller by default.")] = None
