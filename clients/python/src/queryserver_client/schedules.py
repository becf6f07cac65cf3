"""Schedules, which run statements, saved queries and tasks at their times (Contract platform 10.7; administrators)."""

import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from queryserver_client.encoding import Parameters, encode_parameters
from queryserver_client.exports import destination
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queryserver_client.generated import (
        Schedule,
        ScheduleListResponse,
        ScheduleResponse,
        ScheduleRun,
        ScheduleRunResponse,
    )

_PAGE_ITEMS = 200


class Notification(TypedDict, total=False):
    """Who is notified of the end of a run. At least one of `to` and `url` is required."""

    on: Sequence[Literal["finished", "failed"]]
    """By default both."""
    to: Sequence[str]
    """Email addresses."""
    url: str | None
    """A webhook."""
    attach_csv: bool
    """Whether emails have the rows as an attachment."""


class ScheduleFields(TypedDict, total=False):
    """The fields of a schedule. In a change, None removes a field that is optional."""

    owner: str
    """Name of the user as whom it runs; by default you."""
    enabled: bool
    kind: Literal["statement", "task"]
    """`create` derives it from the other fields."""
    connector: str | None
    """Id, key or dialect. A saved query has its own, unless this is set."""
    database: str | None
    statement: str | None
    """A statement or script."""
    document: str | None
    """UUID of a saved query, in place of `statement`. Each run uses it as it is then."""
    parameters: Parameters | None
    """Values of `statement` or `document`."""
    into: str | Mapping[str, Any] | None
    """Where the rows go, as `into` of `Connection.query`. `{date}` and `{time}` in a path are those of the run."""
    task: str | None
    """Name of a maintenance task, in place of a statement."""
    params: Mapping[str, Any] | None
    """Parameters of the task."""
    cron: str | None
    """Cron expression with five fields. Either this or `interval_s` is required."""
    interval_s: int | None
    """Seconds between runs."""
    timezone: str | None
    """IANA name of the time zone of `cron`; by default that of the server's settings."""
    overlap: Literal["skip", "queue"]
    """What happens if the previous run is still in progress; by default `skip`."""
    expires_at: dt.datetime | None
    """When the schedule ends."""
    notify: Notification | None


class Schedules:
    """Implements `Connection.schedules`. A schedule is the dictionary that the server returns."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, owner: str | None = None, is_enabled: bool | None = None, limit: int | None = None
    ) -> "AsyncIterator[Schedule]":
        """Yield schedules sorted by name. All given filters must match."""
        given = {"owner": owner, "enabled": None if is_enabled is None else str(is_enabled).lower()}
        params = {name: value for name, value in given.items() if value}
        return self._pages("taskserver/schedules", params, "schedules", "id", limit)

    async def get(self, schedule_id: int) -> "Schedule":
        """Return a schedule with its next time and the outcome of its last run. Raises NotFound."""
        body: ScheduleResponse = await self._transport.call("GET", f"taskserver/schedules/{schedule_id:d}")
        return body["schedule"]

    async def create(self, name: str, **fields: "Unpack[ScheduleFields]") -> "Schedule":
        """Create a schedule for a `statement`, for a saved query (`document`) or for a maintenance `task`.

        Exactly one of these is required, and exactly one of `cron` and `interval_s`. Raises Conflict if the name is
        already used.
        """
        kind = "task" if fields.get("task") else "statement"
        return await self._sent("new", {"name": name, "kind": kind, **_encoded(fields)})

    async def update(
        self,
        schedule_id: int,
        *,
        version: int | None = None,
        name: str | None = None,
        **changes: "Unpack[ScheduleFields]",
    ) -> "Schedule":
        """Change the given fields of a schedule; the others stay as they are.

        `version` is the version that you have read; if another one is stored, Conflict is raised and nothing is
        changed.
        """
        given = {"id": schedule_id, "version": version, "name": name}
        return await self._sent(
            "update", {**{key: value for key, value in given.items() if value is not None}, **_encoded(changes)}
        )

    async def pause(self, schedule_id: int) -> "Schedule":
        """Stop the schedule from firing at its times, until `resume`. `run` still runs it."""
        return await self.update(schedule_id, enabled=False)

    async def resume(self, schedule_id: int) -> "Schedule":
        """Let the schedule fire at its times again. What it has missed is not made up for."""
        return await self.update(schedule_id, enabled=True)

    async def delete(self, schedule_id: int) -> None:
        """Delete a schedule. Runs that have already started continue."""
        await self._transport.call("POST", "taskserver/schedules/delete", {"schedule": {"id": schedule_id}})

    async def run(self, schedule_id: int) -> str:
        """Run a schedule now, also if it is paused, and return the id of the run. Does not wait for its end.

        Raises Conflict if its previous run is still in progress, unless `overlap` is `queue`.
        """
        body: ScheduleRunResponse = await self._transport.call(
            "POST", "taskserver/schedules/run", {"schedule": {"id": schedule_id}}
        )
        return body["fire_id"]

    def runs(self, schedule_id: int, *, limit: int | None = None) -> "AsyncIterator[ScheduleRun]":
        """Yield the runs of a schedule, newest first, as long as the server keeps their records.

        `history_uuid` of a run is the id of its statement, which `Connection.statement` accepts if you own the
        schedule.
        """
        return self._pages(f"taskserver/schedules/{schedule_id:d}/runs", {}, "runs", "fire_id", limit)

    async def beat_is_running(self) -> bool:
        """Return whether a scheduler (`queryserver beat`) is running. Without one, no schedule runs."""
        params = {"limit": 1}
        body: ScheduleListResponse = await self._transport.call("GET", "taskserver/schedules", params=params)
        return body["beat_running"]

    async def _pages(
        self, path: str, params: "Mapping[str, str]", items: str, key: str, limit: int | None
    ) -> "AsyncIterator[Any]":
        """Yield at most `limit` items from all pages. `key` is the member that identifies an item."""
        size = _PAGE_ITEMS if limit is None else min(limit, _PAGE_ITEMS)
        number, seen = 1, set[Any]()
        while limit is None or len(seen) < limit:
            page = {**params, "page": number, "limit": size}
            body = await self._transport.call("GET", path, params=page)
            for item in body[items]:
                if item[key] in seen:
                    continue  # already returned: a new item has shifted this one to the next page
                seen.add(item[key])
                yield item
                if len(seen) == limit:
                    return
            if len(body[items]) < size:
                return
            number += 1

    async def _sent(self, call: str, schedule: "Mapping[str, Any]") -> "Schedule":
        body: ScheduleResponse = await self._transport.call(
            "POST", f"taskserver/schedules/{call}", {"schedule": schedule}
        )
        return body["schedule"]


def _encoded(fields: ScheduleFields) -> dict[str, Any]:
    """Return the fields as JSON."""
    given: dict[str, Any] = dict(fields)
    if (parameters := fields.get("parameters")) is not None:
        given["parameters"] = encode_parameters(parameters)
    if (into := fields.get("into")) is not None:
        given["into"] = destination(into)
    if (ends := fields.get("expires_at")) is not None:
        given["expires_at"] = ends.astimezone(dt.timezone.utc).isoformat()
    return given
