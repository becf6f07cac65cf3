"""Results shared with other users and groups (Contract sharing)."""

import datetime as dt
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from queryserver_client.status import moment
from queryserver_client.transport import Transport, segment

if TYPE_CHECKING:
    from queryserver_client import generated

_PAGE_RESULTS = 100


@dataclass(frozen=True)
class Share:
    """A user or a group that may read a result."""

    user: str | None
    group: str | None
    title: str
    shared_at: dt.datetime | None
    until: dt.datetime | None


@dataclass(frozen=True)
class Shares:
    """All users and groups that may read a result."""

    operation_id: str
    link: str
    """URL of the result, for users who may read it: `Connection.open_shared` accepts it."""
    share_results: str
    """With whom results of this connector can be shared: never, users_of_connector or anyone."""
    expires_at: dt.datetime | None
    """When the server deletes the result; None unless it is available."""
    changed: int
    """How many shares the call has added, changed or ended."""
    entries: tuple[Share, ...]


@dataclass(frozen=True)
class SharedResult:
    """A result that another user shares with this user. `Connection.statement(shared.operation_id)` reads it."""

    operation_id: str
    title: str
    shared_by: str
    shared_at: dt.datetime | None
    until: dt.datetime | None
    dialect: str
    state: str
    rows: int
    submitted: dt.datetime | None
    expires_at: dt.datetime | None


async def share_result(
    transport: Transport,
    operation_id: str,
    *,
    users: Sequence[str],
    groups: Sequence[str],
    until: dt.datetime | None,
    title: str,
) -> Shares:
    fields: dict[str, Any] = {"operationId": operation_id, "users": list(users), "groups": list(groups), "title": title}
    if until is not None:
        fields["until"] = until.astimezone(dt.timezone.utc).isoformat()
    return _shares(transport, await transport.call("POST", "editor/share_result", fields, is_repeatable=True))


async def end_shares(transport: Transport, operation_id: str, users: Sequence[str], groups: Sequence[str]) -> Shares:
    fields = {"operationId": operation_id, "users": list(users), "groups": list(groups)}
    return _shares(transport, await transport.call("POST", "editor/revoke_share", fields, is_repeatable=True))


async def shares_of(transport: Transport, operation_id: str) -> Shares:
    return _shares(transport, await transport.call("GET", f"editor/shares/{segment(operation_id)}"))


async def received_results(transport: Transport, limit: int | None) -> AsyncIterator[SharedResult]:
    number, left, seen = 1, limit, set[str]()
    while left is None or left > 0:
        params = {"page": number, "limit": _PAGE_RESULTS}
        body: generated.SharedWithMeResponse = await transport.call("GET", "editor/shared_with_me", params=params)
        for item in body["results"]:
            if item["operationId"] in seen:
                continue  # already returned: newer results have shifted this one to the next page
            seen.add(item["operationId"])
            yield _result(item)
            if left is not None:
                left -= 1
                if not left:
                    return
        if len(body["results"]) < _PAGE_RESULTS:
            return
        number += 1


def id_in(link: str) -> str:
    """Return the operation id in the link of a result; an id is returned unchanged."""
    return urlsplit(link).path.rstrip("/").rpartition("/")[2]


def _shares(transport: Transport, body: "generated.SharesResponse") -> Shares:
    entries = tuple(
        Share(one["user"], one["group"], one["title"], moment(one["shared_at"]), moment(one["until"]))
        for one in body["shares"]
    )
    # The path in the response lacks the prefix of a proxy, which the URL of the connection has.
    link = f"{transport.url}/api/v1/editor/results/{body['operationId']}"
    return Shares(
        body["operationId"], link, body["share_results"], moment(body["expires_at"]), body["changed"], entries
    )


def _result(item: "generated.SharedResultEntry") -> SharedResult:
    return SharedResult(
        item["operationId"],
        item["title"],
        item["shared_by"],
        moment(item["shared_at"]),
        moment(item["until"]),
        item["type"],
        item["state"],
        item["rows"],
        moment(item["submitted"]),
        moment(item["expires_at"]),
    )
