"""Follows Trino statements and reads their rows. A statement advances only when its next URI is requested.

`protocol.TrinoPage.progress` computes the progress of one page. The progress reported here never decreases.
"""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import orjson
import pyarrow as pa

from queryserver.engines.connections import cancel_tasks
from queryserver.engines.engine_messages import LogLines
from queryserver.engines.protocol import OperationState, OperationStatus
from queryserver.engines.record_batches import slice_batch
from queryserver.engines.trino import protocol
from queryserver.engines.trino.coordinator import Coordinator, TrinoAnswer, body_limit, retry_transient
from queryserver.engines.trino.values import TrinoType, TrinoValueError, declare, record_batch, result_columns
from queryserver.errors.statements import EngineError, OutcomeUnknown, RowTooLarge, StatementRejected
from queryserver.formats.arrow import Column, unpack_zstandard

_PIECE_BYTES = 1024 * 1024
_ROWS_AT_ONCE = 4_096
_ROW_BORDER = b"],["

Json = protocol.Json


async def segment_rows(coordinator: Coordinator, spooled: Json, skip: int) -> AsyncIterator[Sequence[Sequence[Any]]]:
    """Yield the rows of a spooled page in order, without the first `skip` rows. Raises OutcomeUnknown.

    A segment is acknowledged when the caller requests the rows after it. Until then, it can be read again.
    """
    loop = asyncio.get_running_loop()
    encoding = str(spooled.get("encoding"))
    for segment in spooled["segments"]:
        count = int(segment["metadata"]["rowsCount"])
        if skip >= count:
            skip -= count
        else:
            text = await _content(coordinator, encoding, segment)
            for piece in await loop.run_in_executor(coordinator.executor, partial(_split_rows, text)):
                rows = await loop.run_in_executor(coordinator.executor, orjson.loads, piece)
                if skip < len(rows):
                    yield rows[skip:]
                skip = max(skip - len(rows), 0)
        if segment.get("ackUri"):  # without it, the engine keeps the segment for a while
            with suppress(protocol.TransientFailure, EngineError, TimeoutError):
                async with asyncio.timeout(coordinator.address.timeouts.stop_s):
                    await _send(coordinator, segment, "ackUri")


async def _content(coordinator: Coordinator, encoding: str, segment: Json) -> bytes:
    """Fetch a segment and decode it to JSON text. Raises OutcomeUnknown."""

    async def attempt() -> bytes:
        answer = await _send(coordinator, segment, "uri")
        protocol.check_status(answer.status, answer.body)
        return answer.body

    if segment["type"] == "inline":
        raw = b64decode(segment["data"])
    else:
        try:
            raw = await retry_transient(attempt, for_s=coordinator.address.timeouts.retry_s)
        except protocol.TransientFailure as error:
            raise protocol.final_error(error, sent=True) from error
    if encoding == "json":
        return raw
    if encoding != "json+zstd":
        raise OutcomeUnknown(f"Trino's result has an unknown encoding: {encoding[:50]}.")
    unpack = partial(_decompress, raw, body_limit(coordinator.address.cell_max_bytes))
    return await asyncio.get_running_loop().run_in_executor(coordinator.executor, unpack)


async def _send(coordinator: Coordinator, segment: Json, member: str) -> TrinoAnswer:
    """Send a GET request to the URI in `member`, on any server, with the segment's headers but without the user's
    login.
    """
    try:
        url = httpx.URL(segment[member])
    except httpx.InvalidURL as error:
        raise OutcomeUnknown("Trino returned an invalid response.") from error
    entries = [(name, value) for name, values in (segment.get("headers") or {}).items() for value in values]
    return await coordinator.http.send("GET", url, httpx.Headers([("Accept-Encoding", "identity"), *entries]))


def _decompress(raw: bytes, max_bytes: int) -> bytes:
    try:
        text = bytes(unpack_zstandard(raw, max_bytes=max_bytes))
    except ValueError as error:
        raise OutcomeUnknown("A segment of Trino's result cannot be decompressed.") from error
    if len(text) > max_bytes:
        raise OutcomeUnknown("A segment of Trino's result is too large.")
    return text


def _split_rows(text: bytes) -> Sequence[bytes]:
    """Split a JSON array of arrays into smaller arrays, because parsing a large array blocks the interpreter.

    A row separator counts only if the text before it is valid JSON, because the same characters may occur in a string
    or a nested array.
    """
    slice_batch, start, end = list[bytes](), 0, text.find(_ROW_BORDER, _PIECE_BYTES)
    while end >= 0:
        piece = (b"[" if start else b"") + text[start : end + 1] + b"]"
        try:
            orjson.loads(piece)
        except ValueError:
            end = text.find(_ROW_BORDER, end + 1)
            continue
        slice_batch.append(piece)
        start = end + 2
        end = text.find(_ROW_BORDER, start + _PIECE_BYTES)
    slice_batch.append((b"[" if start else b"") + text[start:])
    return slice_batch


class TrinoOperation:
    """Runs one statement, starting with page `first`.

    `skip` is the number of rows that have already been read from the first page with rows. The coordinator keeps a page
    until the next URI is requested. That happens only once the caller has read all rows of the page and requests more,
    so another process can resume from `position`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        first: protocol.TrinoPage,
        *,
        skip: int = 0,
        characters_before: int = 0,
        in_literal: bool = False,
    ) -> None:
        """`characters_before` is the length of the text sent before the statement; `in_literal` is set if that text
        begins a string literal that contains the statement.
        """
        self.columns: tuple[Column, ...] = ()
        self._log_lines = LogLines()
        self._coordinator = coordinator
        self._error_of = partial(protocol.engine_error, before=characters_before, in_literal=in_literal)
        self._declared: tuple[TrinoType, ...] = ()
        self._raw_columns: Sequence[Json] = ()
        self._page = first
        self._rows_returned = skip
        self._is_waiting = False
        self._has_moved = False  # a page has arrived that `status` has not reported yet
        self._has_begun = False
        self._progress = 0  # 0 to 100, from `TrinoPage.progress`; never decreases
        self._scanned_bytes: int | None = None
        self._update_count: int | None = None
        self._changes_only = False
        self._error: EngineError | None = None
        self._cancel_requested = False
        self._canceled = False
        self._is_closed = False
        self._step: asyncio.Task[None] | None = None
        self._log_lines.add_line(f"Query {first.query_id}")
        self._apply_page(first)

    @property
    def is_running(self) -> bool:
        return not self._is_settled

    def position(self) -> Mapping[str, Any]:
        """Return where another process can resume: at the page with unread rows or, if there is none, at the next URI.

        The next URI may be requested again, but no earlier page.
        """
        query = self._page.query_id
        if self._has_rows_left and self._page.uri and self._rows_returned < self._page.row_count:
            return {"query": query, "uri": self._page.uri, "skip": self._rows_returned}
        if self._page.next_uri is not None:
            return {"query": query, "uri": self._page.next_uri, "skip": 0}
        columns = [] if self._changes_only else list(self._raw_columns)
        return {"query": query, "uri": None, "skip": 0, "columns": columns, "changed": self._update_count}

    async def status(self, wait_s: float) -> OperationStatus:
        """Return the current status, after waiting up to `wait_s` for a terminal status or the next page.

        Another process can resume only from the last page, so the caller must store this position before the next page
        is requested.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while not (self._is_settled or self._has_moved):
            step = self._next_step()
            left_s = until - loop.time()
            if left_s <= 0:
                break
            await asyncio.wait({step}, timeout=left_s)
        self._has_moved = False
        return replace(self._status(), scanned_bytes=self._scanned_bytes)

    def _status(self) -> OperationStatus:
        if self._canceled:
            return OperationStatus(OperationState.CANCELED)
        if self._error is not None:
            return OperationStatus(OperationState.FAILED, error=self._error)
        if not self._is_settled:
            state = OperationState.PENDING if self._is_waiting else OperationState.RUNNING
            return OperationStatus(state, progress=self._progress)
        return OperationStatus(
            OperationState.FINISHED,
            has_result_set=bool(self.columns) and not self._changes_only,
            progress=self._progress if self._page.next_uri else 100,
            modified_rows=self._update_count,
        )

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows page by page.

        A page without rows yields an empty batch, so that the caller sees every page.
        """
        while True:
            if self._has_rows_left:
                async for rows in self._rows_left():
                    async for batch in self._read(rows):
                        yield batch
                self._page, self._rows_returned = replace(self._page, rows=(), spooled=None), 0
            self._raise_failure()
            if self._page.next_uri is None:
                return
            await asyncio.wait({self._next_step()})
            self._raise_failure()
            if not self._has_rows_left:
                yield record_batch([column.name for column in self.columns], self._declared, ())

    async def logs(self, start: int) -> Sequence[str]:
        return self._log_lines[start:]

    async def cancel(self) -> None:
        """Cancel the statement. Return once Trino has accepted the request or is unavailable."""
        uri = self._page.next_uri
        if uri is None or self._error is not None or self._is_closed:
            return
        self._cancel_requested = True
        if await self._coordinator.stop(uri) and self._has_begun:
            self._canceled = True

    async def close(self, *, stop: bool = True) -> None:
        """Release the statement. If `stop` is set, also cancel it on Trino if it is still running."""
        self._is_closed = True
        await cancel_tasks(self._step)
        has_failed = self._error is not None and not isinstance(self._error, RowTooLarge)
        if stop and self._page.next_uri is not None and not has_failed and not self._canceled:
            await self._coordinator.stop(self._page.next_uri)
        self._page = protocol.TrinoPage(self._page.uri, self._page.query_id, None)

    @property
    def _has_rows_left(self) -> bool:
        return self._page.has_rows and not self._changes_only and not self._canceled

    @property
    def _is_settled(self) -> bool:
        """Whether the status will not change until rows are read."""
        ended = self._page.next_uri is None or self._error is not None
        return ended or self._canceled or self._has_begun or self._is_closed

    def _next_step(self) -> asyncio.Task[None]:
        """Return the request in progress for the next URI, or start a new one."""
        if self._step is None or self._step.done():
            self._step = asyncio.create_task(self._advance(), name="trino next uri")
        return self._step

    async def _advance(self) -> None:
        if self._is_closed or self._page.next_uri is None:
            return
        try:
            self._apply_page(await self._coordinator.page(self._page.next_uri))
            self._has_moved = True
        except EngineError as error:
            if self._cancel_requested and isinstance(error, OutcomeUnknown):
                self._canceled = True
            else:
                self._error = error

    def _apply_page(self, page: protocol.TrinoPage) -> None:
        self._page, self._is_waiting = page, page.is_waiting
        self._progress = max(self._progress, page.progress)
        self._scanned_bytes = page.scanned_bytes if page.scanned_bytes is not None else self._scanned_bytes
        self._update_count = page.update_count if page.update_count is not None else self._update_count
        if page.columns and not self.columns:
            try:
                self._declared = declare(page.columns)
                self.columns = result_columns(page.columns, self._declared)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise OutcomeUnknown("Trino returned an invalid response.") from error
            self._raw_columns = page.columns
        self._changes_only = self._changes_only or page.changes_only
        self._has_begun = self._has_begun or self._has_rows_left
        for warning in page.warnings[len(self._log_lines) - 1 :]:
            self._log_lines.add_line(str(warning.get("message", "")).replace("\n", " "))
        if page.error is not None:
            if page.error.get("errorName") == "USER_CANCELED":
                self._canceled = True
            else:
                self._error = self._error_of(page.error)

    async def _rows_left(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        if self._page.spooled is None:
            yield self._page.rows[self._rows_returned :]
            return
        try:
            async for rows in segment_rows(self._coordinator, self._page.spooled, self._rows_returned):
                yield rows
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise OutcomeUnknown("Trino returned an invalid response.") from error

    async def _read(self, rows: Sequence[Sequence[Any]]) -> AsyncIterator[pa.RecordBatch]:
        loop, names = asyncio.get_running_loop(), [column.name for column in self.columns]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = partial(record_batch, names, self._declared, rows[start : start + _ROWS_AT_ONCE])
            try:
                batch = await loop.run_in_executor(self._coordinator.executor, part)
            except TrinoValueError as error:
                raise OutcomeUnknown("Trino returned an invalid response.") from error
            for piece in slice_batch(batch):
                self._raise_failure()
                self._rows_returned += piece.num_rows
                yield piece

    def _raise_failure(self) -> None:
        if self._canceled:
            raise StatementRejected("Query was canceled")
        if self._error is not None:
            raise self._error
