"""Operations of the scripted server: their state, the rows to fetch, and their completion."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
from tests.engines.scripted_hs2.statements import Plan
from tests.engines.scripted_hs2.warehouse import StatementRefusal

RUNNING, FINISHED, ERROR = 1, 2, 5
FETCH_WAIT_S = 10.0
"""How long a fetch waits for rows before it returns none, in seconds (FETCH_ROWS_TIMEOUT_MS)."""


@dataclass(eq=False)
class Operation:
    """An accepted statement. Like Impala, it reports a canceled statement as failed, with the word `Cancelled`."""

    plan: Plan
    session: bytes
    statement: str
    options: Mapping[str, str]
    guid: bytes = field(default_factory=lambda: os.urandom(16))
    state: int = RUNNING
    error: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    work: "asyncio.Task[None] | None" = None
    kept_rows: int = 0
    """Number of rows stored for clients that fetch again from the first row (impala.resultset.cache.size)."""
    _given: int = 0
    _kept: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    @property
    def is_in_flight(self) -> bool:
        return self.state == RUNNING or (self.state == FINISHED and self.plan.cursor is not None)

    def start(self) -> None:
        if self.plan.sleep_s:
            self.work = asyncio.create_task(self._sleep())
        else:
            self._finish()

    async def rows(self, max_rows: int, *, first: bool = False) -> tuple[Sequence[tuple[object, ...]], bool]:
        """Return the next rows, or the rows from the beginning if `first` is set, and whether there may be more rows.
        Raises StatementRefusal.
        """
        if not self.ready.is_set():
            try:
                async with asyncio.timeout(FETCH_WAIT_S):
                    await self.ready.wait()
            except TimeoutError:
                return [], True
        if self.state == ERROR:
            raise StatementRefusal(self.error)
        if first and self._given:
            self._rewind()
        kept = self._kept[self._given : self._given + max_rows]
        rows = [*kept, *await self._next(max_rows - len(kept))] if len(kept) < max_rows else kept
        self._given += len(rows)
        return rows, len(rows) == max_rows

    async def _next(self, max_rows: int) -> Sequence[tuple[object, ...]]:
        """Return rows that have not been returned before."""
        if self.plan.cursor is None:
            begin = len(self._kept)
            rows = self.plan.rows[begin : begin + max_rows]
        else:
            rows = await asyncio.to_thread(self._fetch, max_rows)
        if len(self._kept) < self.kept_rows or self.plan.cursor is None:
            self._kept += rows
        return rows

    def _rewind(self) -> None:
        if self._given > self.kept_rows:
            raise StatementRefusal(
                f"The query result cache exceeded its limit of {self.kept_rows} rows. Restarting the fetch is not"
                " possible."
            )
        self._given = 0

    def cancel(self) -> None:
        if self.is_in_flight:
            self._fail("Cancelled")

    async def end(self) -> None:
        """Cancel the statement and free all its resources."""
        self.cancel()
        if self.plan.cursor is not None:
            self.plan.cursor.interrupt()
            self.plan.cursor.close()
            self.plan.cursor = None
        if self.work is not None:
            await asyncio.wait({self.work})

    def _fetch(self, max_rows: int) -> Sequence[tuple[object, ...]]:
        cursor = self.plan.cursor
        if cursor is None:
            raise StatementRefusal("Cancelled")
        try:
            rows = cursor.fetchmany(max_rows)
        except duckdb.Error as error:
            words = "Cancelled" if self.state == ERROR else f"UDF ERROR: {str(error).splitlines()[0]}"
            raise StatementRefusal(words) from error
        if len(rows) < max_rows:
            cursor.close()
            self.plan.cursor = None
        return rows

    async def _sleep(self) -> None:
        await asyncio.sleep(self.plan.sleep_s)
        self._finish()

    def _finish(self) -> None:
        self.state = FINISHED
        self.ready.set()

    def _fail(self, words: str) -> None:
        self.state, self.error = ERROR, words
        if self.work is not None:
            self.work.cancel()
        if self.plan.cursor is not None:
            self.plan.cursor.interrupt()
        self.ready.set()

    def progress(self) -> Mapping[str, int]:
        """Return scan range counts. Half of the ranges are completed while the statement runs, and all of them
        afterward.
        """
        return {"total_scan_ranges": 2, "num_completed_scan_ranges": 1 if self.state == RUNNING else 2}
