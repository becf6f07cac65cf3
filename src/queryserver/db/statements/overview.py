"""Statements of all users for administrators, and the dialects in the history of one."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from queryserver.db.database import Database
from queryserver.db.statements.rows import Row, times_of
from queryserver.domain.statement import ACTIVE, StatementState
from queryserver.domain.statement_overview import OverviewDetails, OverviewEntry, OverviewFilter

_ENTRY = """statements.id, history_id, username, connector, dialect, state, recorded_at, sent_at, ended_at,
    now() as read_at, rows, size_bytes, progress, owner, session_id, error_code,
    cancel_requested_at is not null as cancel_requested, canceled_by, import_plan is not null as is_import"""

_FROM = "from statements join users on users.id = user_id"

# The words of the partial indexes on active statements.
_ONLY_ACTIVE = "state in ('waiting', 'running')"

_USER = """user_id = (
    select id from users where username_key in ({name}, lower({name})) order by username_key = {name} desc limit 1
)"""


_NEWEST_FIRST = "order by recorded_at desc, history_id desc"

# The record with that number may have been deleted since the page before.
_OLDER = """(recorded_at, history_id) < (
    (select recorded_at from statements where history_id <= {name} order by history_id desc limit 1), {name}
)"""


class StatementOverview:
    """Reads records. Both raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, chosen: OverviewFilter, *, limit: int) -> Sequence[OverviewEntry]:
        """At most `limit` of the statements that fit, newest first.

        Active statements are found by a partial index, others by the time of their record.
        """
        conditions, arguments = _conditions(chosen)
        arguments.append(limit)
        sql = f"select {_ENTRY} {_FROM} where {conditions} {_NEWEST_FIRST} limit ${len(arguments)}"
        return [_entry(row) for row in await self._database.fetch(sql, *arguments)]

    async def details(self, statement_id: UUID) -> OverviewDetails | None:
        """One statement with its text."""
        row = await self._database.row(
            f"""select {_ENTRY}, statement, text_is_cut, database, message, row_limit, timeout_s, deadline_at
            {_FROM} where statements.id = $1""",
            statement_id,
        )
        if row is None:
            return None
        return OverviewDetails(
            entry=_entry(row),
            statement=row["statement"],
            text_is_cut=row["text_is_cut"],
            database=row["database"],
            message=row["message"],
            row_limit=row["row_limit"],
            timeout_s=row["timeout_s"],
            deadline=row["deadline_at"],
        )


def _conditions(chosen: OverviewFilter) -> tuple[str, list[Any]]:
    """Only those that were asked for: a plan made for all of them would use no index."""
    conditions, arguments = ["true"], list[Any]()

    def add(condition: str, argument: object) -> None:
        arguments.append(argument)
        conditions.append(condition.format(name=f"${len(arguments)}"))

    if chosen.states is not None:
        if ACTIVE.issuperset(chosen.states):
            conditions.append(_ONLY_ACTIVE)
        add("state = any({name}::text[])", [state.value for state in chosen.states])
    if chosen.user is not None:
        add(_USER.replace("{name}", "{name}::text"), chosen.user)
    if chosen.connector is not None:
        add("connector = {name}", chosen.connector)
    if chosen.older_than is not None:
        add("recorded_at <= now() - {name}::interval", chosen.older_than)
    if chosen.after is not None:
        add(_OLDER.replace("{name}", "{name}::bigint"), chosen.after)
    return " and ".join(conditions), arguments


def _entry(row: Row) -> OverviewEntry:
    return OverviewEntry(
        id=row["id"],
        history_id=row["history_id"],
        user=row["username"],
        connector=row["connector"],
        dialect=row["dialect"],
        state=StatementState(row["state"]),
        times=times_of(row),
        rows=row["rows"],
        size_bytes=row["size_bytes"],
        progress=row["progress"],
        server=row["owner"],
        session_id=row["session_id"],
        error_code=row["error_code"],
        cancel_requested=row["cancel_requested"],
        canceled_by=row["canceled_by"],
        is_import=row["is_import"],
    )


# From one dialect to the next by the index: PostgreSQL's own `distinct` would read every entry of the user.
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


class HistoryFacts:
    """Cheap whatever the length of the history. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def dialects(self, user_id: int) -> Sequence[str]:
        """The dialects in the history of a user, sorted."""
        return sorted(row["dialect"] for row in await self._database.fetch(_DIALECTS, user_id))
