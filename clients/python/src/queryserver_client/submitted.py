"""Submitted statements: status, log, result pages, cancellation and closing."""

import datetime as dt
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import anyio

from queryserver_client.errors import QueryserverError, WaitTimeout, statement_error
from queryserver_client.events import follow, looked_up
from queryserver_client.shares import Shares, end_shares, share_result, shares_of
from queryserver_client.status import Event, Logs, Progress, Status, logs_of, status_of
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Self

    from queryserver_client.generated import Handle, ResultPage

WAIT_S = 30.0
"""Seconds for which the server holds a call that waits for the end of a statement."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
"""First and maximum pause between two calls if the server does not hold them."""
_CLOSE_WITHIN_S = 15.0

OnProgress = Callable[[Progress], None]
OnLog = Callable[[str], None]


class SubmittedStatement:
    """A statement on the server, identified by its operation id. The subclass `Statement` adds the result.

    The statement runs independently of this object. It is ended only by `cancel`, `close` or leaving `async with`.
    """

    def __init__(
        self,
        transport: Transport,
        operation_id: str,
        *,
        body: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        self.operation_id = operation_id
        self.handle: Handle | None = (body or {}).get("handle")
        """The handle: position in the script, text, session (Contract editor 2.1). None if only the id is known."""
        self._transport = transport
        has_status = body is not None and "query_status" in body
        self._known: Status | None = status_of(body, request_id=request_id) if body and has_status else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operation_id!r})"

    @property
    def has_more_statements(self) -> bool:
        """Whether the script has another statement, which `Connection.next` starts. Always False with `run_all`."""
        return self.handle is not None and self.handle["has_more_statements"]

    @property
    def has_ended(self) -> bool:
        """Whether the statement is known to have ended. Sends no request; use `status` to get the current state."""
        return self._known is not None and self._known.is_terminal

    async def status(self, *, wait_s: float = 0) -> Status:
        """Return the status once the statement has ended, or after `wait_s` seconds (0 to 60)."""
        if self._known is not None and self._known.is_terminal and self._known.state != "available":
            return self._known
        self._known = await looked_up(self._transport, self.operation_id, wait_s=wait_s)
        return self._known

    async def wait(self, timeout_s: float | None = None) -> Status:
        """Wait for the end and return the final status. An error of the statement is not raised.

        Raises WaitTimeout after `timeout_s`. Neither this nor cancellation of the waiting task stops the statement.
        """
        status, pause_s = self._known, _FIRST_PAUSE_S
        until = None if timeout_s is None else anyio.current_time() + timeout_s
        while status is None or not status.is_terminal:
            began = anyio.current_time()
            left = WAIT_S if until is None else until - began
            if left <= 0:
                raise WaitTimeout(f"the statement did not end within {timeout_s:g} s")
            status = await self.status(wait_s=min(left, WAIT_S))
            # The server does not hold the call if the user's waiting calls are at their limit.
            if not status.is_terminal and (unused_s := began + pause_s - anyio.current_time()) > 0:
                await anyio.sleep(unused_s if until is None else max(0.0, min(unused_s, until - anyio.current_time())))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return status

    def events(self, log_from: int = 0) -> AsyncGenerator[Event, None]:
        """Yield status changes, progress and log lines as they arrive, until the statement has ended.

        Log lines before `log_from` are omitted. Reconnects automatically, and polls if a proxy holds back events.
        """
        return follow(self._transport, self.operation_id, log_from)

    async def logs(self, since: int = 0) -> Logs:
        """Return the log from line `since` (0-based) onward."""
        fields = {"operationId": self.operation_id, "from": since}
        return logs_of(await self._transport.call("POST", "editor/get_logs", fields, is_repeatable=True))

    async def fetch(self, start_row: int, rows: int) -> "ResultPage":
        """Return a page of undecoded rows (Contract editor 6.1). Raises StatementError if there is no result."""
        fields = {
            "operationId": self.operation_id,
            "start_row": start_row,
            "rows": rows,
            "escape": False,
            "big_numbers": "number",
        }
        body, headers = await self._transport.answered("POST", "editor/fetch_result_data", fields, is_repeatable=True)
        if body.get("status"):
            raise statement_error(body, request_id=headers.get("X-Request-Id"))
        return cast("ResultPage", body["result"])

    async def share(
        self,
        *,
        users: Sequence[str] = (),
        groups: Sequence[str] = (),
        until: dt.datetime | None = None,
        title: str = "",
    ) -> Shares:
        """Let users and groups read the result until a time (by default, as the server's settings say).

        They see rows, columns and state, but neither the statement nor its log; `title` is what they see instead. The
        result is not kept longer than otherwise. Raises PermissionDenied if the connector does not permit it (Contract
        sharing 4).
        """
        return await share_result(
            self._transport, self.operation_id, users=users, groups=groups, until=until, title=title
        )

    async def unshare(self, *, users: Sequence[str] = (), groups: Sequence[str] = ()) -> Shares:
        """End the sharing of the result with these users and groups, by default with all."""
        return await end_shares(self._transport, self.operation_id, users, groups)

    async def shares(self) -> Shares:
        """Return with whom the result is shared, and its link."""
        return await shares_of(self._transport, self.operation_id)

    async def cancel(self) -> Status:
        """Cancel the statement on the engine. Return its status: canceled, or the final state reached before."""
        body, headers = await self._transport.answered(
            "POST", "editor/cancel_statement", {"operationId": self.operation_id}, is_repeatable=True, wait_s=WAIT_S
        )
        self._known = None  # this response lacks the error of the statement, which the next call of `status` returns
        return status_of(body, request_id=headers.get("X-Request-Id"))

    async def close(self) -> None:
        """Delete the result, or cancel the statement if it has not ended. Idempotent."""
        await self._transport.call(
            "POST", "editor/close_statement", {"operationId": self.operation_id}, is_repeatable=True, wait_s=WAIT_S
        )
        self._known = None

    async def close_quietly(self) -> None:
        """Delete the result like `close`, even if the task is canceled. Never raises.

        If the call fails, the server deletes the result when it expires.
        """
        with anyio.move_on_after(self._transport.cleanup_s(_CLOSE_WITHIN_S), shield=True):
            with suppress(QueryserverError):
                await self.close()

    async def abandon(self) -> None:
        """Cancel the statement or, if it has ended, delete its result, because its handle is lost. Never raises."""
        with anyio.move_on_after(self._transport.cleanup_s(_CLOSE_WITHIN_S), shield=True):
            with suppress(QueryserverError):
                status = self._known
                if status is None or not status.is_terminal:
                    status = await self.cancel()
                if status.state == "available":
                    await self.close()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_quietly()

    async def report(
        self, timeout_s: float | None = None, *, on_progress: OnProgress | None = None, on_log: OnLog | None = None
    ) -> None:
        """Call `on_progress` and `on_log` with progress and log lines until the statement has ended.

        Raises WaitTimeout after `timeout_s`.
        """
        with anyio.move_on_after(timeout_s) as scope:
            async with aclosing(self.events()) as events:
                async for event in events:
                    self._known = event.status or self._known
                    if event.progress is not None and on_progress is not None:
                        on_progress(event.progress)
                    if event.log is not None and on_log is not None:
                        for line in event.log.lines:
                            on_log(line)
        if scope.cancelled_caught:
            raise WaitTimeout(f"the statement did not end within {timeout_s} s")
