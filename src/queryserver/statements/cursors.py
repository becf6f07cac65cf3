"""The cursors of results: the row at which the next page starts (Contract editor 6.1)."""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from uuid import UUID

from queryserver.platform.database import Database
from queryserver.platform.threads import Tasks

_MOST_MOVES = 200
_CONCURRENT_QUERIES = 2

# PostgreSQL replans a query with an array of unknown length each time, so a single move has its own query.
_MOVE = """
update statements set cursor_row = $3, last_used_at = now()
where id = $1 and ($2::bigint is null or cursor_row = $2) returning 1 as n
"""

# Rows are locked in the order of their ids, so that two servers cannot deadlock. After a wait for a lock, the row is
# compared with the expected value again.
_MOVE_MANY = """
with held as (
    select id, n, target
    from unnest($1::uuid[], $2::bigint[], $3::bigint[]) with ordinality as moves (key, expected, target, n)
    join statements on id = key and (expected is null or cursor_row = expected)
    order by id for update of statements
)
update statements set cursor_row = target, last_used_at = now()
from held where statements.id = held.id returning n
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    statement_id: UUID
    expected: int | None
    to: int
    moved: "asyncio.Future[bool]"


class CursorMoves:
    """Moves cursors; moves requested during a query are combined into the next one.

    Two calls that expect the same row are never combined into one query, so one of them fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Move] = []
        self._writers = Tasks()
        self._writing = 0

    async def move(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        """Whether the cursor was at `expected`, or anywhere for None, and was moved. Raises DatabaseUnavailable."""
        moved = asyncio.get_running_loop().create_future()
        self._waiting.append(_Move(statement_id, expected, to, moved))
        if self._writing < _CONCURRENT_QUERIES:
            self._writing += 1
            # In a separate context, so that log lines about moves of other calls do not carry the fields of this call.
            Context().run(self._writers.start, self._write(), "cursor-moves")
        return await moved

    async def aclose(self) -> None:
        """Stop the moves in progress; their callers are canceled."""
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

    def _take_moves(self) -> list[_Move]:
        """The first move of each statement; moves of callers that left are dropped."""
        moves: dict[UUID, _Move] = {}
        remaining: list[_Move] = []
        for move in self._waiting:
            if move.moved.done():
                continue
            if move.statement_id in moves or len(moves) == _MOST_MOVES:
                remaining.append(move)
            else:
                moves[move.statement_id] = move
        self._waiting = remaining
        return list(moves.values())

    async def _move_all(self, moves: list[_Move]) -> None:
        try:
            if len(moves) == 1:
                [move] = moves
                rows = await self._database.fetch(_MOVE, move.statement_id, move.expected, move.to)
            else:
                rows = await self._database.fetch(
                    _MOVE_MANY,
                    [move.statement_id for move in moves],
                    [move.expected for move in moves],
                    [move.to for move in moves],
                )
        except asyncio.CancelledError:
            for move in moves:
                move.moved.cancel()
            raise
        except Exception as error:  # noqa: BLE001 passed on to each caller; the writer lives on
            for move in moves:
                if not move.moved.done():
                    move.moved.set_exception(error)
        else:
            done = {row["n"] for row in rows}
            for number, move in enumerate(moves, start=1):
                if not move.moved.done():
                    move.moved.set_result(number in done)
