"""A statement at Trino. It moves only while its next URI is asked for."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown, RowTooLarge, StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.chunks import pieces
from queryserver.engines.log_lines import KeptLines
from queryserver.engines.trino.coordinator import Coordinator
from queryserver.engines.trino.errors import engine_error, is_cancel
from queryserver.engines.trino.pages import Json, Page
from queryserver.engines.trino.segments import segment_rows
from queryserver.engines.trino.types import DeclaredType, declare, result_columns
from queryserver.engines.trino.values import Misfit, record_batch
from queryserver.interfaces.engine import OperationState, OperationStatus

_ROWS_AT_ONCE = 4_096


class TrinoOperation:
    """Follows one statement from its first page; `skip` rows of the first page with rows were given out before.

    A page stays at the coordinator until the next URI is asked for, which happens only when everything of the page
    was given out and more is wanted: so another process can go on from `position`.
    """

    def __init__(self, coordinator: Coordinator, first: Page, *, skip: int = 0) -> None:
        self.columns: tuple[Column, ...] = ()
        self.log_lines = KeptLines()
        self._coordinator = coordinator
        self._declared: tuple[DeclaredType, ...] = ()
        self._raw_columns: Sequence[Json] = ()
        self._page = first
        self._given = skip
        self._is_waiting = False
        self._has_moved = False
        """Whether a page came that nobody was told of."""
        self._has_begun = False
        self._progress = 0
        self._update_count: int | None = None
        self._changes_only = False
        self._error: EngineError | None = None
        self._cancel_asked = False
        self._canceled = False
        self._is_closed = False
        self._step: asyncio.Task[None] | None = None
        self._log(f"Query {first.query_id}")
        self._absorb(first)

    @property
    def is_running(self) -> bool:
        """Trino is at work, and no row can be read yet."""
        return not self._is_settled

    def position(self) -> Mapping[str, Any]:
        """Where to go on from: the page that is not given out wholly, or the URI after it.

        That URI may be asked for twice, but the page before it never again once it was asked for.
        """
        query = self._page.query_id
        if self._has_rows_left and self._page.uri and self._given < self._page.row_count:
            return {"query": query, "uri": self._page.uri, "skip": self._given}
        if self._page.next_uri is not None:
            return {"query": query, "uri": self._page.next_uri, "skip": 0}
        columns = [] if self._changes_only else list(self._raw_columns)
        return {"query": query, "uri": None, "skip": 0, "columns": columns, "changed": self._update_count}

    async def status(self, wait_s: float) -> OperationStatus:
        """The present status; waits up to `wait_s` for the terminal one, or for the next page.

        Another process can go on only from the last page: whoever follows must be able to store where that is before
        the next one is asked for.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while not (self._is_settled or self._has_moved):
            step = self._moving()
            left_s = until - loop.time()
            if left_s <= 0:
                break
            await asyncio.wait({step}, timeout=left_s)
        self._has_moved = False
        return self._status()

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """The rows, from page to page; for a page without rows a batch without rows, as `status` tells of each page."""
        while True:
            if self._has_rows_left:
                async for rows in self._rows_left():
                    async for batch in self._read(rows):
                        yield batch
                self._page, self._given = replace(self._page, rows=(), spooled=None), 0
            self._raise_failure()
            if self._page.next_uri is None:
                return
            await asyncio.wait({self._moving()})
            self._raise_failure()
            if not self._has_rows_left:
                yield self._nothing()

    async def cancel(self) -> None:
        """Stop the statement at Trino; returns once Trino has taken the word, or cannot be reached."""
        uri = self._page.next_uri
        if uri is None or self._error is not None or self._is_closed:
            return
        self._cancel_asked = True
        if await self._coordinator.stop(uri) and self._has_begun:
            self._canceled = True

    async def close(self, *, stop: bool = True) -> None:
        """Stop what still runs, unless it is to be left to itself, and forget it."""
        self._is_closed = True
        if self._step is not None and not self._step.done():
            self._step.cancel()
            await asyncio.wait({self._step})
        has_failed = self._error is not None and not isinstance(self._error, RowTooLarge)
        if stop and self._page.next_uri is not None and not has_failed and not self._canceled:
            await self._coordinator.stop(self._page.next_uri)
        self._page = Page(self._page.uri, self._page.query_id, None)

    @property
    def _has_rows_left(self) -> bool:
        return self._page.has_rows and not self._changes_only and not self._canceled

    @property
    def _is_settled(self) -> bool:
        """No change will come without somebody reading rows."""
        ended = self._page.next_uri is None or self._error is not None
        return ended or self._canceled or self._has_begun or self._is_closed

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

    def _moving(self) -> asyncio.Task[None]:
        """The look at the next URI that is under way; a new one when there is none."""
        if self._step is None or self._step.done():
            self._step = asyncio.create_task(self._advance(), name="trino next uri")
        return self._step

    async def _advance(self) -> None:
        if self._is_closed or self._page.next_uri is None:
            return
        try:
            self._absorb(await self._coordinator.page(self._page.next_uri))
            self._has_moved = True
        except EngineError as error:
            if self._cancel_asked and isinstance(error, OutcomeUnknown):
                self._canceled = True
            else:
                self._error = error

    def _absorb(self, page: Page) -> None:
        self._page, self._is_waiting = page, page.is_waiting
        self._progress = max(self._progress, page.progress)
        self._update_count = page.update_count if page.update_count is not None else self._update_count
        if page.columns and not self.columns:
            self._describe(page)
        self._changes_only = self._changes_only or page.changes_only
        self._has_begun = self._has_begun or self._has_rows_left
        for warning in page.warnings[len(self.log_lines) - 1 :]:
            self._log(str(warning.get("message", "")).replace("\n", " "))
        if page.error is not None:
            if is_cancel(page.error):
                self._canceled = True
            else:
                self._error = engine_error(page.error)

    def _describe(self, page: Page) -> None:
        try:
            self._declared = declare(page.columns)
            self.columns = result_columns(page.columns, self._declared)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OutcomeUnknown("Trino's answer cannot be read.") from error
        self._raw_columns = page.columns

    async def _rows_left(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        if self._page.spooled is None:
            yield self._page.rows[self._given :]
            return
        try:
            async for rows in segment_rows(self._coordinator, self._page.spooled, self._given):
                yield rows
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise OutcomeUnknown("Trino's answer cannot be read.") from error

    async def _read(self, rows: Sequence[Sequence[Any]]) -> AsyncIterator[pa.RecordBatch]:
        loop, names = asyncio.get_running_loop(), [column.name for column in self.columns]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = partial(record_batch, names, self._declared, rows[start : start + _ROWS_AT_ONCE])
            try:
                batch = await loop.run_in_executor(self._coordinator.executor, part)
            except Misfit as error:
                raise OutcomeUnknown("Trino's answer cannot be read.") from error
            for piece in pieces(batch):
                self._raise_failure()
                self._given += piece.num_rows
                yield piece

    def _nothing(self) -> pa.RecordBatch:
        return record_batch([column.name for column in self.columns], self._declared, ())

    def _raise_failure(self) -> None:
        if self._canceled:
            raise StatementRejected("Query was canceled")
        if self._error is not None:
            raise self._error

    def _log(self, line: str) -> None:
        self.log_lines.keep(line)
