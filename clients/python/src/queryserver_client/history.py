"""The history of the user's statements (Contract editor 11)."""

import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queryserver_client.status import moment
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from queryserver_client import generated
    from queryserver_client.generated import HistoryResponse

_PAGE_ENTRIES = 100


@dataclass(frozen=True)
class HistoryEntry:
    """A statement in the history.

    `Connection.statement(entry.operation_id)` gives access to its result as long as the server keeps the result.
    """

    operation_id: str
    history_id: int
    dialect: str
    statement: str
    """Truncated to 1001 characters."""
    state: str
    message: str
    line: int | None
    column: int | None
    database: str
    rows: int
    recorded: dt.datetime
    started: dt.datetime | None
    ended: dt.datetime | None
    elapsed_ms: int
    queued_ms: int
    name: str = ""


class History:
    """Implements `Connection.history`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def search(
        self,
        text: str = "",
        *,
        connector: str | None = None,
        dialect: str | None = None,
        is_active: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[HistoryEntry]:
        """Yield the user's statements, newest first and each only once. `text` is a case-insensitive substring.

        If `is_active` is set, only waiting and running statements are returned.
        """
        query = _query(text, connector, dialect, is_active=is_active)
        number, left = 1, limit
        last: tuple[int, int] | None = None
        while left is None or left > 0:
            params = {**query, "page": number, "limit": _PAGE_ENTRIES}
            body: HistoryResponse = await self._transport.call("GET", "editor/get_history", params=params)
            items = body["history"]
            for item in items:
                place = (item["data"]["lastExecuted"], item["id"])
                if last is not None and place >= last:
                    continue  # already returned: newer statements have shifted this entry to the next page
                last = place
                yield _entry(item)
                if left is not None:
                    left -= 1
                    if not left:
                        return
            if len(items) < _PAGE_ENTRIES:
                return
            number += 1

    async def count(
        self, text: str = "", *, connector: str | None = None, dialect: str | None = None, is_active: bool = False
    ) -> int:
        """Return the number of statements that `search` would yield without a limit."""
        params = {**_query(text, connector, dialect, is_active=is_active), "limit": 1}
        body: HistoryResponse = await self._transport.call("GET", "editor/get_history", params=params)
        return body["count"]


def _query(text: str, connector: str | None, dialect: str | None, *, is_active: bool) -> dict[str, str]:
    given = {
        "doc_text": text,
        "doc_connector": connector,
        "doc_type": dialect,
        "is_active": "true" if is_active else None,
    }
    return {name: value for name, value in given.items() if value}


def _entry(item: "generated.HistoryEntry") -> HistoryEntry:
    data = item["data"]
    return HistoryEntry(
        operation_id=item["uuid"],
        history_id=item["id"],
        dialect=item["type"].removeprefix("query-"),
        statement=data["statement"],
        state=data["state"],
        message=data["message"],
        line=data["line"],
        column=data["column"],
        database=data["database"],
        rows=data["rows"],
        recorded=dt.datetime.fromtimestamp(data["lastExecuted"] / 1000, dt.timezone.utc),
        started=moment(data["started"]),
        ended=moment(data["ended"]),
        elapsed_ms=data["elapsed_ms"],
        queued_ms=data["queued_ms"],
        name=item["name"],
    )
