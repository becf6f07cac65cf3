"""Reads result pages and complete results from statement records and the result store (Contract editor 6, 8.2).

Also moves cursors. Never calls an engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import pyarrow as pa

from queryserver.errors.base import InvalidParameter, MissingParameter, ServiceUnavailable
from queryserver.errors.files import PathNotFound, StorageError
from queryserver.errors.statements import OperationNotFound, PageRowTooLarge
from queryserver.formats.arrow import CellForm, Column, decode
from queryserver.formats.cells import RenderedRows, join_pages, render_page, rendering_memory
from queryserver.formats.download.encoder import PackedRows
from queryserver.identity.model import User
from queryserver.platform.database import COMMIT_EARLY, Database
from queryserver.platform.fair_queue import ByteBudget, Reservation
from queryserver.platform.threads import Tasks
from queryserver.results.segments import ResultStore, Segment, decode_schema
from queryserver.statements.model import StatementStatus, StoredResult
from queryserver.statements.repository import StatementRecords
from queryserver.statements.running_statements import StateSignals
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import StatementAccess, shown_to

_MAX_MOVES_PER_QUERY = 200
_CONCURRENT_QUERIES = 2

# A single move has its own query, because PostgreSQL replans a query with arrays of unknown length at each execution.
_MOVE = f"""
update statements set cursor_row = $3, last_used_at = now()
where id = $1 and ($2::bigint is null or cursor_row = $2) returning 1 as n, {COMMIT_EARLY}
"""

# Rows are locked in id order, so that two servers cannot deadlock. After waiting for a lock, PostgreSQL compares the
# row with the expected value again.
_MOVE_SEVERAL = f"""
with held as (
    select id, n, target
    from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as moves (key, expected, target, n)
    join statements on id = key and (expected is null or cursor_row = expected)
    order by id for update of statements
)
update statements set cursor_row = target, last_used_at = now()
from held where statements.id = held.id returning n, {COMMIT_EARLY}
"""


@dataclass(frozen=True, slots=True, eq=False)
class _CursorMove:
    statement_id: UUID
    expected: int | None
    to: int
    moved: "asyncio.Future[bool]"


class CursorMoves:
    """Moves cursors, in at most two concurrent queries. Moves that are requested while both run share the next query.

    A query contains at most one move per statement, so of two calls that expect the same position, one fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_CursorMove] = []
        self._writers = Tasks()
        self._writing = 0

    async def move(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        """Move the cursor to row `to` if it is at row `expected`. Return whether it was moved.

        If `expected` is None, it is moved from any position. Raises DatabaseUnavailable.
        """
        moved = asyncio.get_running_loop().create_future()
        self._waiting.append(_CursorMove(statement_id, expected, to, moved))
        if self._writing < _CONCURRENT_QUERIES:
            self._writing += 1
            # Runs in a fresh context. Otherwise, log lines about other calls' moves would carry the fields of this
            # call.
            Context().run(self._writers.start, self._write(), "cursor-moves")
        return await moved

    async def aclose(self) -> None:
        """Stop all moves, including waiting ones. Their callers are canceled."""
        await self._writers.aclose()
        for move in self._waiting:
            move.moved.cancel()
        self._waiting.clear()

    async def _write(self) -> None:
        try:
            while moves := self._take_moves():
                await self._move_all(moves)
        finally:
            self._writing -= 1

    def _take_moves(self) -> list[_CursorMove]:
        """Remove and return the first waiting move of each statement. Drops the moves of canceled callers."""
        moves: dict[UUID, _CursorMove] = {}
        remaining: list[_CursorMove] = []
        for move in self._waiting:
            if move.moved.done():
                continue
            if move.statement_id in moves or len(moves) == _MAX_MOVES_PER_QUERY:
                remaining.append(move)
            else:
                moves[move.statement_id] = move
        self._waiting = remaining
        return list(moves.values())

    async def _move_all(self, moves: list[_CursorMove]) -> None:
        try:
            if len(moves) == 1:
                [move] = moves
                rows = await self._database.fetch(_MOVE, move.statement_id, move.expected, move.to)
            else:
                rows = await self._database.fetch(
                    _MOVE_SEVERAL,
                    [move.statement_id for move in moves],
                    [move.expected for move in moves],
                    [move.to for move in moves],
                )
        except asyncio.CancelledError:
            for move in moves:
                move.moved.cancel()
            raise
        except Exception as error:  # noqa: BLE001 passed on to each caller; the writer continues
            for move in moves:
                if not move.moved.done():
                    move.moved.set_exception(error)
        else:
            done = {row["n"] for row in rows}
            for number, move in enumerate(moves, start=1):
                if not move.moved.done():
                    move.moved.set_result(number in done)


_FIRST_ROWS_WAIT_S = 1.0
_THREAD_ABOVE_CELLS = 4_000
_THREAD_ABOVE_BYTES = 256 * 1024
# Arrow takes about 6 µs to measure each column, and as long again for each further chunk of a column.
_MANY_COLUMNS = 200
# Memory reserved for a page before its first rows are read: a segment of usual size and its compressed bytes.
_SEGMENT_LOAD_BYTES = 12 * 1024 * 1024
# A segment usually has a size of about 4 MiB, or is a single row. A larger segment is copied when it is encoded, and
# stays in memory while a slow client reads it.
_LARGE_SEGMENT_BYTES = 12 * 1024 * 1024
_DOWNLOAD_FACTOR = 3
_LARGE_SEGMENTS_BUDGET_BYTES = 192 * 1024 * 1024
_LARGE_SEGMENT_WAIT_S = 300.0
_CONCURRENT_HEADS = 4
_NO_ROWS = RenderedRows((), 0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultPage:
    """A page of rows as JSON. Empty if `status.outcome` is set. The sender must release `reservation`."""

    status: StatementStatus
    columns: tuple[Column, ...]
    rendered: RenderedRows
    start_row: int
    max_bytes: int
    reservation: Reservation | None = None

    @property
    def rows(self) -> int:
        return self.rendered.rows

    @property
    def message(self) -> str:
        """Explains why the result is truncated or why the page ends early. Empty if neither is the case."""
        parts = [self.status.message] if self.status.truncated_reason else []
        if self.rendered.is_cut:
            end_row = self.start_row + self.rows
            parts.append(
                f"The batch ends before row {end_row}, because that row would make it exceed {self.max_bytes} bytes"
                " (`max_bytes`, or else `editor.batch_max_bytes`)."
            )
        return " ".join(parts)

    @property
    def has_more(self) -> bool:
        """Whether rows exist after this page, may still arrive, or were dropped because of a server limit.

        In the last case, a client that reads until this is False gets a page with `is_cut_off`, so it never mistakes a
        truncated result for a complete one.
        """
        if self.status.state in ACTIVE:
            return True
        if self.status.state is not StatementState.AVAILABLE:
            return False
        return self.status.is_truncated_by_server or self.start_row + self.rows < self.status.rows

    @property
    def is_cut_off(self) -> bool:
        """Whether the page starts after the last stored row of a result that a server limit truncated."""
        status = self.status
        return (
            status.state is StatementState.AVAILABLE and status.is_truncated_by_server and self.start_row >= status.rows
        )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested rows: from `start_row`, or else from the cursor, which `start_over` first resets to row 0."""

    rows: int
    start_row: int | None = None
    start_over: bool = False
    form: CellForm = field(default=CellForm())
    statement_id: int | None = None
    """Selects a statement of a script that runs as a whole.

    None selects the last statement with a result, once the script has ended.
    """
    max_bytes: int | None = None
    """Maximum size of the rendered rows, if it is below `ResultReader.batch_max_bytes`."""


@dataclass(slots=True, eq=False, kw_only=True)
class ResultReader:
    """Reads pages, metadata and complete results of the caller's own statements. Renders large pages in `threads`."""

    records: StatementRecords
    cursors: CursorMoves
    results: ResultStore
    access: StatementAccess
    signals: StateSignals
    threads: Executor
    batch_max_bytes: int
    budget: ByteBudget
    _large_segments: ByteBudget = field(
        default_factory=lambda: ByteBudget(_LARGE_SEGMENTS_BUDGET_BYTES, wait_s=_LARGE_SEGMENT_WAIT_S), init=False
    )

    async def page(self, user: User, operation_id: UUID, request: PageRequest) -> ResultPage:
        """Read a page of rows.

        Reading from `start_row` can be repeated. Reading from the cursor advances it past the delivered rows; only the
        owner may do so. While the statement runs and has no rows yet, waits up to 1 s for them. Raises
        OperationNotFound, PermissionDenied, MissingParameter, ServiceUnavailable, PageRowTooLarge, TooManyRequests.
        """
        first = 0 if request.start_over and request.start_row is None else request.start_row
        page = await self._page(user, operation_id, request, first)
        if page.rendered.rows or page.status.state not in ACTIVE:
            return page
        with self.signals.watch(operation_id) as watch:
            page = await self._page(user, operation_id, request, first)
            if not page.rendered.rows and page.status.state in ACTIVE:
                await watch.changed_within(_FIRST_ROWS_WAIT_S)
                page = await self._page(user, operation_id, request, first)
        return page

    async def overview(
        self, user: User, operation_id: UUID, statement_id: int | None = None
    ) -> tuple[StatementStatus, tuple[Column, ...], int]:
        """Return the status, the columns and the stored size in bytes.

        Raises OperationNotFound, PermissionDenied, InvalidParameter.
        """
        stored = await self._stored(operation_id, start_row=0, rows=0, user=user)
        part = await self.part_of(stored.status, statement_id)
        if part is not None and part != operation_id:
            stored = await self._stored(part, start_row=0, rows=0, user=user)
        return stored.status, stored.columns, stored.size_bytes

    async def part_of(self, status: StatementStatus, statement_id: int | None) -> UUID | None:
        """Return the id of the statement whose result is requested: `status` itself, or a statement of its script.

        Return None if the script has not reached the statement. If `statement_id` is None, also return None while the
        script is running or if the script has no result. Raises InvalidParameter.
        """
        if not status.is_script:
            if statement_id is not None:
                await self._require_statement(status.id, statement_id, only=True)
            return status.id
        if statement_id is None and (status.state in ACTIVE or status.outcome is not None):
            return None
        part = await self.records.result_part(status.id, statement_id)
        if part is None and statement_id is not None:
            await self._require_statement(status.id, statement_id, only=False)
        return part.status.id if part is not None else None

    async def _require_statement(self, operation_id: UUID, statement_id: int, *, only: bool) -> None:
        record = await self.records.read(operation_id)
        if record is None:
            return
        last = record.handle.statement_index
        first = last if only else min((part.statement_index for part in record.status.parts), default=0)
        if not first <= statement_id <= last:
            available = f"statement {first}" if first == last else f"statements {first} to {last}"
            raise InvalidParameter(f"statement_id: this operation has {available}.")

    async def tables(self, operation_id: UUID, rows: int, *, user_id: int) -> AsyncGenerator[pa.Table]:
        """Yield all stored rows in order, one segment at a time. The caller must have checked access rights.

        Before it yields a very large segment, waits until memory for it is available. The memory stays reserved until
        the next segment is requested. Raises TooManyRequests.
        """
        stored = await self._stored(operation_id, start_row=0, rows=rows, used_by=user_id)
        if stored.inline is not None:
            yield decode(stored.inline)
        for segment in stored.segments:
            table = await self._read_segment(operation_id, segment)
            if table.nbytes <= _LARGE_SEGMENT_BYTES:
                yield table
                continue
            size_bytes = _DOWNLOAD_FACTOR * table.nbytes
            del table
            reservation = await self._large_segments.reserve(user_id, size_bytes)
            try:
                yield await self._read_segment(operation_id, segment)
            finally:
                reservation.release()

    async def schemas(self, operation_id: UUID, rows: int) -> AsyncGenerator[pa.Schema]:
        """Yield each distinct Arrow schema of `tables` once, without reading the segments' rows."""
        stored = await self._stored(operation_id, start_row=0, rows=rows)
        if stored.inline is not None:
            yield decode(stored.inline).schema
        for head in dict.fromkeys(await self._heads(operation_id, stored.segments)):
            with _store_errors(StorageError):
                schema = decode_schema(head)
            yield schema

    async def packed(self, operation_id: UUID, rows: int, *, user_id: int) -> AsyncGenerator[PackedRows]:
        """Yield the segments of `tables` in their stored form. Yields nothing if the result is stored in its record."""
        stored = await self._stored(operation_id, start_row=0, rows=rows, used_by=user_id)
        for segment, head in zip(stored.segments, await self._heads(operation_id, stored.segments), strict=True):
            yield PackedRows(head, segment.size_bytes, partial(self._part, operation_id, segment))

    async def _part(self, operation_id: UUID, segment: Segment, start: int, stop: int) -> bytes:
        with _store_errors(StorageError, PathNotFound):
            return await self.results.part(operation_id, start, stop, fence=segment.fence, number=segment.number)

    async def _heads(self, operation_id: UUID, segments: Sequence[Segment]) -> list[bytes]:
        """Read the heads of the segments, several at a time. Equal heads share one object, which saves memory."""
        unique = dict[bytes, bytes]()
        heads = [b""] * len(segments)
        numbered = iter(enumerate(segments))

        async def read() -> None:
            for index, segment in numbered:
                with _store_errors(StorageError, PathNotFound):
                    head = await self.results.head(operation_id, fence=segment.fence, number=segment.number)
                heads[index] = unique.setdefault(head, head)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_CONCURRENT_HEADS, len(segments))):
                    group.create_task(read())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return heads

    async def _stored(
        self,
        operation_id: UUID,
        *,
        start_row: int | None,
        rows: int,
        user: User | None = None,
        used_by: int | None = None,
        taken_by: int | None = None,
    ) -> StoredResult:
        """Return where the rows are stored. If `user` is given, check that they may read the rows."""
        stored = await self.records.stored_result(
            operation_id, start_row=start_row, rows=rows, used_by=user.id if user else used_by, taken_by=taken_by
        )
        if stored is None:
            raise OperationNotFound(str(operation_id))
        return stored if user is None else await self._readable(user, stored)

    async def _readable(self, user: User, stored: StoredResult) -> StoredResult:
        """Return the result as the user may see it. Raises OperationNotFound, PermissionDenied."""
        await self.access.require_result_reader(user, stored.status)
        return stored if stored.status.user_id == user.id else replace(stored, status=shown_to(user, stored.status))

    async def _page(self, user: User, operation_id: UUID, request: PageRequest, first: int | None) -> ResultPage:
        taken_by = user.id if request.start_row is None and request.statement_id is None else None
        while True:
            stored = await self._stored(
                operation_id, start_row=first, rows=request.rows, used_by=user.id, taken_by=taken_by
            )
            async with self._cursor_back_on_failure(stored):
                stored = await self._readable(user, stored)
                if first is None and stored.status.user_id != user.id:
                    raise MissingParameter("start_row is required: only the owner of a result reads from its cursor.")
                if stored.status.is_script or request.statement_id is not None:
                    part = await self.part_of(stored.status, request.statement_id)
                    if part is None:
                        return ResultPage(stored.status, (), _NO_ROWS, first or 0, self.batch_max_bytes)
                    return await self._page(user, part, replace(request, statement_id=None), first)
                page = await self._read_page(user, stored, request, stored.cursor_row if first is None else first)
            end_row = page.start_row + page.rows
            if stored.is_taken:
                if end_row < stored.status.rows:  # the page is shorter than requested because of its size
                    await self.cursors.move(operation_id, expected=stored.status.rows, to=end_row)
                return page
            moves_cursor = request.start_row is None and stored.status.user_id == user.id
            if not moves_cursor or (page.rows == 0 and not request.start_over):
                return page
            expected = None if request.start_over else page.start_row
            if await self.cursors.move(operation_id, expected=expected, to=end_row):
                return page
            if page.reservation is not None:
                page.reservation.release()

    @asynccontextmanager
    async def _cursor_back_on_failure(self, stored: StoredResult) -> AsyncGenerator[None]:
        """Move the cursor back if the block fails, so that rows that were not delivered are not skipped."""
        try:
            yield
        except BaseException:  # includes cancellation
            if stored.is_taken:
                await self.cursors.move(stored.status.id, expected=stored.status.rows, to=stored.cursor_row)
            raise

    async def _read_page(self, user: User, stored: StoredResult, request: PageRequest, start_row: int) -> ResultPage:
        rendered, reservation = _NO_ROWS, None
        if stored.status.outcome is None and start_row < stored.status.rows:
            try:
                rendered, reservation = await self._render(user, stored, start_row, request)
            except PathNotFound as error:
                # The result was closed or expired after its record was read, or its rows are lost.
                stored = await self._stored(stored.status.id, start_row=start_row, rows=0, user=user)
                if stored.status.outcome is None:
                    raise ServiceUnavailable("The result store cannot be reached.") from error
        return ResultPage(stored.status, stored.columns, rendered, start_row, self._page_bytes(request), reservation)

    def _page_bytes(self, request: PageRequest) -> int:
        return min(self.batch_max_bytes, request.max_bytes or self.batch_max_bytes)

    async def _render(
        self, user: User, stored: StoredResult, start_row: int, request: PageRequest
    ) -> tuple[RenderedRows, Reservation | None]:
        """Render the rows, and reserve their memory until they are sent.

        Raises PathNotFound if the rows are missing.
        """
        if stored.inline is not None:
            return await self._rendered(stored, start_row, request, None), None
        size_bytes = _SEGMENT_LOAD_BYTES
        while True:
            reservation = await self.budget.reserve(user.id, size_bytes)
            try:
                rendered = await self._rendered(stored, start_row, request, reservation)
            except _MoreMemoryNeeded as needs:
                # Waiting for more memory while holding some could deadlock, so all of it is released first.
                reservation.release()
                size_bytes = needs.size_bytes
            except BaseException:  # including CancelledError: the bytes must not stay reserved
                reservation.release()
                raise
            else:
                reservation.shrink(rendered.size_bytes)
                return rendered, reservation

    async def _rendered(
        self, stored: StoredResult, start_row: int, request: PageRequest, reservation: Reservation | None
    ) -> RenderedRows:
        """Render one segment at a time, so that a page never holds much more than `batch_max_bytes`."""
        pages: list[RenderedRows] = []
        bytes_left = max_bytes = self._page_bytes(request)
        async with aclosing(self._slices(stored, start_row, request.rows)) as slices:
            async for table in slices:
                measure = partial(rendering_memory, table, bytes_left)
                memory = await self._in_thread(measure) if table.num_columns > _MANY_COLUMNS else measure()
                needed = max_bytes - bytes_left + memory
                if reservation is not None and not reservation.grow(needed):
                    if pages:
                        break
                    raise _MoreMemoryNeeded(needed)
                render = partial(
                    render_page,
                    [table],
                    columns=stored.columns,
                    escape=request.form.is_escaped,
                    max_bytes=bytes_left,
                    big_numbers_as_text=request.form.big_numbers_as_text,
                )
                cells = table.num_rows * max(len(stored.columns), 1)
                is_small = cells <= _THREAD_ABOVE_CELLS and table.nbytes <= _THREAD_ABOVE_BYTES
                page = render() if is_small else await self._in_thread(render)
                pages.append(page)
                bytes_left -= page.size_bytes - 1  # joining pages replaces two brackets with one comma
                if page.is_cut or bytes_left <= 0:
                    break
        if not pages:
            raise PathNotFound("The rows of this result no longer exist.")
        rendered = pages[0] if len(pages) == 1 else join_pages(pages)
        if rendered.is_cut and rendered.rows == 0:
            raise PageRowTooLarge(row=start_row, limit_bytes=max_bytes)
        return rendered

    async def _slices(self, stored: StoredResult, start_row: int, rows: int) -> AsyncGenerator[pa.Table]:
        if stored.inline is not None:
            yield decode(stored.inline).slice(start_row, rows)
        for segment in stored.segments:
            begin = max(start_row - segment.start_row, 0)
            end = min(start_row + rows - segment.start_row, segment.rows)
            with _store_errors(StorageError):
                table = await self.results.rows(
                    stored.status.id, fence=segment.fence, number=segment.number, start_row=begin, rows=end - begin
                )
            yield table

    async def _read_segment(self, operation_id: UUID, segment: Segment) -> pa.Table:
        with _store_errors(StorageError, PathNotFound):
            return await self.results.read(operation_id, fence=segment.fence, number=segment.number)

    def _in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self.threads, call)


class _MoreMemoryNeeded(Exception):
    """The rows need more memory than is reserved for their page."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


@contextmanager
def _store_errors(*errors: type[Exception]) -> Generator[None]:
    try:
        yield
    except errors as error:
        raise ServiceUnavailable("The result store cannot be reached.") from error
