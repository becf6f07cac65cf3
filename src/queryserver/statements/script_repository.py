"""Updates the rows of script operations, which are derived from the rows of their statements (ADR 70).

Every change to a script first locks the row of its operation, which serializes changes. All functions run in the
caller's transaction.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from queryserver import errors
from queryserver.platform.database import Connection, Row
from queryserver.statements import model
from queryserver.statements.insertion import insert
from queryserver.statements.rows import END_COLUMNS, PARTS, RECORD, part_from_row, record_from_row
from queryserver.statements.states import StatementState

_LOCK = """
select id, cancel_requested_at is not null as is_canceled, canceled_by, statements_count from statements
where id = $1 for no key update
"""

_BEGIN = """
update statements set state = 'running', sent_at = coalesce(sent_at, now())
where id = $1 and state in ('waiting', 'running') and cancel_requested_at is null
"""

# The operation takes over the outcome of the failed statement, or otherwise of the last statement with a result.
_END = f"""
with kept as (
    update statements set expires_at = coalesce(now() + $5::interval, expires_at)
    where operation_id = $1 and state = 'available'
), last as (
    select modified_row_count, error_line, error_column, error_sqlstate from statements
    where operation_id = $1 order by statement_index desc limit 1
), shown as (
    select rows, truncated_reason, limit_source, message from statements
    where operation_id = $1 and state = 'available' and $2::text = 'success' order by statement_index desc limit 1
), ended as (
    update statements as script set
        state = case when exists (select from shown) then 'available' else $2::text end,
        ended_at = now(), error_code = $3, message = coalesce((select message from shown), $4::text),
        error_line = case when $6 then (select error_line from last) end,
        error_column = case when $6 then (select error_column from last) end,
        error_sqlstate = case when $6 then (select error_sqlstate from last) end,
        modified_row_count = (select modified_row_count from last),
        has_result_set = exists (select from shown),
        rows = coalesce((select rows from shown), 0),
        truncated_reason = (select truncated_reason from shown),
        limit_source = coalesce((select limit_source from shown), limit_source),
        expires_at = case when exists (select from shown) then now() + $5::interval end,
        progress = case when $2::text = 'success' then 100 else progress end
    where script.id = $1 and script.state in ('waiting', 'running') returning {END_COLUMNS}
)
select * from ended
"""

_PROGRESS = """
update statements as script set progress = least(99, 100 * (
    select count(*) from statements where operation_id = $1 and state not in ('waiting', 'running')
) / statements_count) where id = $1
"""

_BROKEN_SCRIPTS = """
select id from statements as script
where state in ('waiting', 'running') and is_script and not exists (
    select from statements as part where part.operation_id = script.id and part.state in ('waiting', 'running')
)
for no key update skip locked
"""

# The last statement that had a result, even if the result has since expired or been closed.
_RESULT = f"""
select {RECORD} from statements
where operation_id = $1 and case when $2::integer is null then state in ('available', 'expired', 'closed')
    else statement_index = $2 end
order by statement_index desc limit 1
"""


async def lock_operation(connection: Connection, operation_id: UUID) -> Row | None:
    """Lock and return the row of an operation, so that other changes to the script wait."""
    return await connection.fetchrow(_LOCK, operation_id)


async def lock_script_of(connection: Connection, statement_id: UUID) -> Row | None:
    """Lock and return the operation row of the statement's script, or None if the statement is not part of a script."""
    operation_id = await connection.fetchval(
        "select coalesce(operation_id, id) from statements where id = $1 and (is_script or operation_id is not null)",
        statement_id,
    )
    return await lock_operation(connection, operation_id) if operation_id else None


async def parts(connection: Connection, operation_id: UUID) -> tuple[model.StatementPart, ...]:
    """Return the started statements of a `runs_all` operation, in order."""
    return tuple(map(part_from_row, await connection.fetch(PARTS, operation_id)))


async def result_part(
    connection: Connection, operation_id: UUID, statement_index: int | None
) -> model.StatementRecord | None:
    """Return a started statement of the script, by default the last one with a result."""
    row = await connection.fetchrow(_RESULT, operation_id, statement_index)
    return record_from_row(row) if row else None


async def begin(connection: Connection, operation_id: UUID) -> bool:
    """Record that a statement of the script is about to be sent. Return False if a cancel was requested."""
    return await connection.execute(_BEGIN, operation_id) == "UPDATE 1"


async def continue_or_end(
    connection: Connection,
    script: Row,
    outcome: model.Outcome,
    next_statement: model.NewStatement | None,
    retention: timedelta,
) -> tuple[model.StatementRecord | None, Row | None]:
    """After a statement has ended, record and return `next_statement`, or end the operation and return its row.

    `script` is the locked row of the operation.
    """
    if outcome.state not in {StatementState.AVAILABLE, StatementState.SUCCESS}:
        return None, await _end(connection, script, outcome, retention, is_of_statement=True)
    if next_statement is None:
        return None, await _end(connection, script, model.Outcome(StatementState.SUCCESS), retention)
    if script["is_canceled"]:
        return None, await _end(connection, script, canceled_by(script["canceled_by"]), retention)
    try:
        recorded = await insert(connection, next_statement)
    except errors.TooManyRequests as error:
        refused = model.Outcome(StatementState.FAILED, error_code="rejected", message=error.message)
        return None, await _end(connection, script, refused, retention)
    await connection.execute(_PROGRESS, script["id"])
    return recorded, None


def canceled_by(name: str | None) -> model.Outcome:
    return model.Outcome(StatementState.CANCELED, message=f"Canceled by {name}." if name else "Canceled.")


async def end_canceled(connection: Connection, script: Row, by: str) -> Row | None:
    """End a canceled operation that has no active statement, and return its row."""
    return await _end(connection, script, canceled_by(by), None)


async def end_broken(connection: Connection) -> Sequence[Row]:
    """End active operations that have no active statement, and return their rows.

    Changes are transactional, so this state arises only if a process of an older version has ended the statement.
    """
    outcome = model.Outcome(
        StatementState.FAILED,
        error_code="outcome_unknown",
        message="A server of another version ended a statement of this script. The remaining statements were not run.",
    )
    broken = await connection.fetch(_BROKEN_SCRIPTS)
    operations = [await _end(connection, script, outcome, None) for script in broken]
    return [row for row in operations if row is not None]


async def _end(
    connection: Connection,
    script: Row,
    outcome: model.Outcome,
    retention: timedelta | None,
    *,
    is_of_statement: bool = False,
) -> Row | None:
    """End the operation and return its row. Return None if the operation has already ended.

    If `retention` is None, the expiry times of the statements' results do not change.
    """
    return await connection.fetchrow(
        _END, script["id"], outcome.state.value, outcome.error_code, outcome.message, retention, is_of_statement
    )
