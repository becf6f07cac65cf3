"""Lists, shows and cancels the statements of all users, for administrators."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from queryserver.errors.statements import OperationNotFound
from queryserver.platform.database import Database, Row
from queryserver.platform.logs import AUDIT
from queryserver.statements.model import StatementTimes
from queryserver.statements.repository import StatementRecords
from queryserver.statements.rows import times_from_row
from queryserver.statements.states import ACTIVE, StatementState

_POLL_EVERY_S = 0.25

# Columns with the same name and type as a field of `OverviewEntry`.
_FIELDS = (
    "id", "history_id", "connector", "dialect", "rows", "size_bytes", "progress", "session_id", "error_code",
    "canceled_by",
)  # fmt: skip
_DETAIL_FIELDS = ("statement", "text_is_cut", "database", "message", "row_limit", "timeout_s")
# The operation of a script has no owner itself. The owner of the script's latest statement is shown instead.
_OWNER_OF_PART = """(
        select part.owner from statements as part
        where part.operation_id = statements.id order by part.statement_index desc limit 1
    )"""
_ENTRY = f"""statements.{", ".join(_FIELDS)}, username, state, recorded_at, sent_at, ended_at, now() as read_at,
    coalesce({_OWNER_OF_PART}, owner) as owner,
    cancel_requested_at is not null as cancel_requested, import_plan is not null as is_import"""

_FROM = "from statements join users on users.id = user_id"

_USER = """user_id = (
    select id from users where username_key in ({name}, lower({name})) order by username_key = {name} desc limit 1
)"""

# Compares with `<=`, because the record itself may have been deleted since the previous page was read.
_OLDER = """(recorded_at, history_id) < (
    (select recorded_at from statements where history_id <= {name} order by history_id desc limit 1), {name}
)"""

# Jumps from one dialect to the next in the index. `distinct` would read every history entry of the user.
_DIALECTS = """
    with recursive found (dialect) as (
        (
            select dialect from statements where user_id = $1 and in_history order by dialect limit 1
        )
        union all
        select (
            select dialect from statements
            where user_id = $1 and in_history and dialect > found.dialect order by dialect limit 1
        )
        from found where found.dialect is not null
    )
    select dialect from found where dialect is not null
"""

CancelNotifier: TypeAlias = Callable[[UUID, str | None], Awaitable[None]]
"""Notifies the owner of a statement (the second argument) that a cancel request was recorded."""


@dataclass(frozen=True, slots=True)
class OverviewFilter:
    """Selects the statements to list. None matches all."""

    states: tuple[StatementState, ...] | None = None
    user: str | None = None
    connector: str | None = None
    older_than: timedelta | None = None
    """Only statements recorded at least this long ago."""
    after: int | None = None
    """Only statements recorded before the one with this `history_id`. Used to request the next page."""


@dataclass(frozen=True, slots=True)
class OverviewEntry:
    """One statement, without its text."""

    id: UUID
    history_id: int
    user: str
    connector: str
    dialect: str
    state: StatementState
    times: StatementTimes
    rows: int
    size_bytes: int
    progress: int
    server: str | None
    """The process that runs the statement or ran it last, or None if the statement has no owner."""
    session_id: int
    error_code: str | None
    cancel_requested: bool
    canceled_by: str | None
    is_import: bool


@dataclass(frozen=True, slots=True)
class OverviewDetails:
    """The complete record of one statement, except its result."""

    entry: OverviewEntry
    statement: str
    text_is_cut: bool
    database: str | None
    message: str
    row_limit: int
    timeout_s: int
    deadline: datetime


class StatementAdministration:
    """Lists and cancels statements of all users. The caller must check that the user is an administrator."""

    def __init__(self, database: Database, records: StatementRecords, notify_cancel: CancelNotifier) -> None:
        self._database = database
        self._records = records
        self._notify_cancel = notify_cancel

    async def page(self, filters: OverviewFilter, *, limit: int) -> tuple[Sequence[OverviewEntry], int | None]:
        """List statements, newest first. Also return `after` for the next page, or None on the last page."""
        # Active statements have a partial index. Other statements are found by recording time.
        conditions, arguments = _conditions(filters)
        rows = await self._database.fetch(
            f"""select {_ENTRY} {_FROM} where {conditions}
            order by recorded_at desc, history_id desc limit ${len(arguments) + 1}""",
            *arguments,
            limit + 1,
        )
        page = [_entry(row) for row in rows[:limit]]
        return page, page[-1].history_id if len(rows) > limit else None

    async def details(self, statement_id: UUID, *, by: str) -> OverviewDetails:
        """Return one statement with its text, and write an audit event. Raises OperationNotFound."""
        details = await self._read(statement_id)
        facts = {"operation_id": str(statement_id), "owner": details.entry.user}
        AUDIT.record(by, "statement.show", details.entry.connector, facts=facts)
        return details

    async def stop(self, statement_id: UUID, *, by: str, wait_s: float) -> OverviewEntry:
        """Cancel a statement, write an audit event, and wait at most `wait_s` for the end. Raises OperationNotFound."""
        entry = (await self._read(statement_id)).entry
        if entry.state.is_terminal:
            return entry
        facts = {"operation_id": str(statement_id), "owner": entry.user}
        AUDIT.record(by, "statement.cancel", entry.connector, facts=facts)
        status = await self._records.request_cancel(statement_id, by=by)
        if status is not None and not status.state.is_terminal:
            await self._notify_cancel(statement_id, status.owner)
        give_up = asyncio.get_running_loop().time() + wait_s
        while True:
            entry = (await self._read(statement_id)).entry
            if entry.state.is_terminal or asyncio.get_running_loop().time() >= give_up:
                return entry
            await asyncio.sleep(_POLL_EVERY_S)

    async def _read(self, statement_id: UUID) -> OverviewDetails:
        columns = f"{_ENTRY}, {', '.join(_DETAIL_FIELDS)}, deadline_at"
        row = await self._database.row(f"select {columns} {_FROM} where statements.id = $1", statement_id)
        if row is None:
            raise OperationNotFound(str(statement_id))
        details = {name: row[name] for name in _DETAIL_FIELDS}
        return OverviewDetails(**details, entry=_entry(row), deadline=row["deadline_at"])


def _conditions(filters: OverviewFilter) -> tuple[str, list[Any]]:
    """Return SQL with only the conditions in use. One query with optional conditions would not use the indexes."""
    conditions, arguments = ["operation_id is null"], list[Any]()

    def add(condition: str, argument: object) -> None:
        arguments.append(argument)
        conditions.append(condition.format(name=f"${len(arguments)}"))

    if filters.states is not None:
        if ACTIVE.issuperset(filters.states):
            conditions.append("state in ('waiting', 'running')")  # repeats the condition of the partial indexes
        add("state = any({name}::text[])", [state.value for state in filters.states])
    if filters.user is not None:
        add(_USER.replace("{name}", "{name}::text"), filters.user)
    if filters.connector is not None:
        add("connector = {name}", filters.connector)
    if filters.older_than is not None:
        add("recorded_at <= now() - {name}::interval", filters.older_than)
    if filters.after is not None:
        add(_OLDER.replace("{name}", "{name}::bigint"), filters.after)
    return " and ".join(conditions), arguments


def _entry(row: Row) -> OverviewEntry:
    return OverviewEntry(
        **{name: row[name] for name in _FIELDS},
        user=row["username"],
        state=StatementState(row["state"]),
        times=times_from_row(row),
        server=row["owner"],
        cancel_requested=row["cancel_requested"],
        is_import=row["is_import"],
    )


class HistoryReader:
    """Runs history queries whose cost does not depend on the length of the history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def dialects(self, user_id: int) -> Sequence[str]:
        """Return the dialects in a user's history, sorted. Raises DatabaseUnavailable."""
        return sorted(row["dialect"] for row in await self._database.fetch(_DIALECTS, user_id))
